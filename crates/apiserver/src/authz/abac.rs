//! Attribute-based access control: a file with one policy per line.
//! A row of the modes in `authz`.
//! A file with an error is refused whole, and the error names the line.

use std::path::Path;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{Attributes, Authorizer, Decision, Rules};
use crate::authn::User;

pub struct Abac(Vec<Policy>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(alias = "nonResourcePath")]
    non_resource_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Versioned {
    api_version: String,
    kind: String,
    #[serde(default)]
    spec: Policy,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
}

impl Abac {
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("failed to read authorization policy file {}: {e}", path.display()))?;
        Self::parse(&text)
            .map_err(|(line, why)| format!("error reading policy file {}, line {line}: {why}", path.display()))
    }

    /// From the text of a file, or the line that is wrong and why.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let lines = text.lines().zip(1..).map(|(line, number)| (line.trim(), number));
        let policies = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        policies.map(|(line, number)| policy(line).map_err(|why| (number, why))).collect::<Result<_, _>>().map(Self)
    }
}

fn policy(line: &str) -> Result<Policy, String> {
    let value: serde_json::Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
    if value.get("kind").is_none() && value.get("apiVersion").is_none() {
        return unversioned(value);
    }
    let versioned: Versioned = serde_json::from_value(value).map_err(|e| e.to_string())?;
    if versioned.kind != "Policy" || !versioned.api_version.starts_with("abac.authorization.kubernetes.io/") {
        return Err(format!("unrecognized object: {} {}", versioned.api_version, versioned.kind));
    }
    Ok(versioned.spec)
}

/// Lines of the time before versions: no kind, the attributes at the top, and gaps that mean everything.
fn unversioned(value: serde_json::Value) -> Result<Policy, String> {
    let mut policy: Policy = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let star = |text: &mut String| {
        if text.is_empty() {
            *text = "*".into();
        }
    };
    if policy.user.is_empty() && policy.group.is_empty() {
        policy.group = "system:authenticated".into();
    }
    policy.api_group = "*".into();
    if policy.namespace.is_empty() && policy.resource.is_empty() {
        policy.non_resource_path = "*".into();
    }
    star(&mut policy.namespace);
    star(&mut policy.resource);
    Ok(policy)
}

impl Policy {
    fn is_about(&self, user: &User) -> bool {
        if self.user.is_empty() && self.group.is_empty() {
            return false;
        }
        let named = matches!(self.user.as_str(), "" | "*") || self.user == user.name;
        named && (matches!(self.group.as_str(), "" | "*") || user.in_group(&self.group))
    }

    fn allows(&self, a: &Attributes) -> bool {
        let reads = a.verb.is_read();
        if !self.is_about(&a.user) || (self.readonly && !reads) {
            return false;
        }
        let any = |own: &str, asked: &str| own == "*" || own == asked;
        match a.is_resource {
            true => {
                any(&self.namespace, &a.namespace) && any(&self.resource, &a.resource) && any(&self.api_group, &a.group)
            }
            false => {
                let own = self.non_resource_path.as_str();
                any(own, &a.path) || (own.ends_with('*') && a.path.starts_with(own.trim_end_matches('*')))
            }
        }
    }
}

#[async_trait]
impl Authorizer for Abac {
    async fn authorize(&self, attributes: &Attributes) -> Decision {
        match self.0.iter().any(|p| p.allows(attributes)) {
            true => Decision::Allow(String::new()),
            false => Decision::NoOpinion("No policy matched.".into()),
        }
    }

    async fn rules(&self, user: &User, namespace: &str) -> Rules {
        let mut found = Rules::default();
        let here = |p: &&Policy| p.is_about(user) && (p.namespace == "*" || p.namespace == namespace);
        for policy in self.0.iter().filter(here) {
            let verbs = if policy.readonly { vec!["get", "list", "watch"] } else { vec!["*"] };
            if !policy.resource.is_empty() {
                found
                    .resources
                    .push(json!({ "verbs": verbs, "apiGroups": [policy.api_group], "resources": [policy.resource] }));
            }
            if !policy.non_resource_path.is_empty() {
                found.paths.push(json!({ "verbs": verbs, "nonResourceURLs": [policy.non_resource_path] }));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_allow_and_errors_name_the_line() {
        let line = |spec: &str| {
            format!(r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{spec}}}"#)
        };
        let file = [
            "# who".to_string(),
            line(r#"{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}"#),
            line(r#"{"group":"readers","namespace":"a","resource":"pods","readonly":true}"#),
            line(r#"{"user":"*","nonResourcePath":"/version*","readonly":true}"#),
            r#"{"user":"old","resource":"pods","readonly":true}"#.to_string(),
        ];
        let abac = Abac::parse(&file.join("\n")).unwrap();
        let check = |user: &str, group: &str, verb: &str, target: &str, expected: bool| {
            let (namespace, resource) = target.split_once('/').unwrap_or_default();
            let path = target.starts_with('/');
            let attributes = Attributes {
                user: User::new(user, &[group]),
                verb: verb.into(),
                is_resource: !path,
                namespace: namespace.into(),
                resource: if path { String::new() } else { resource.into() },
                path: target.into(),
                ..Attributes::default()
            };
            let found = abac.0.iter().any(|p| p.allows(&attributes));
            assert_eq!(found, expected, "{user} {verb} {target}");
        };
        check("alice", "x", "delete", "b/secrets", true);
        check("bob", "readers", "list", "a/pods", true);
        check("bob", "readers", "list", "b/pods", false);
        check("bob", "readers", "create", "a/pods", false);
        check("bob", "x", "get", "/version/x", true);
        check("bob", "x", "get", "/metrics", false);
        check("old", "x", "list", "z/pods", true);
        let broken = [file[1].clone(), "{".to_string()].join("\n");
        assert_eq!(Abac::parse(&broken).err().map(|e| e.0), Some(2));
        let unknown = line(r#"{"usr":"x"}"#);
        assert_eq!(Abac::parse(&unknown).err().map(|e| e.0), Some(1));
    }
}
