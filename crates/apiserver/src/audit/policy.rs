//! What is recorded of which request: the rules of `--audit-policy-file` (audit.k8s.io/v1 Policy).
//! Read once by `audit`, asked with every request; the first rule that matches decides.
//! Invariant: pure (tidy: `pure_files`).

use serde::Deserialize;
use serde_json::Value;

use api::field::{ErrorList, Path};

use crate::{authn::User, request::request_info::RequestInfo, server::config_document};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    pub fn as_str(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    pub fn as_str(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages(u8);

impl Stages {
    fn of(names: &[String]) -> Self {
        let named = Stage::ALL.iter().filter(|stage| names.iter().any(|name| name == stage.as_str()));
        Self(named.fold(0, |set, stage| set | 1 << *stage as u8))
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn has(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
}

/// What is to be recorded of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    pub omit_stages: Stages,
    pub omit_managed_fields: bool,
}

#[derive(Debug)]
pub struct Policy {
    rules: Vec<(Rule, Decision)>,
    otherwise: Decision,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<String>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

const FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
const RULE_FIELDS: &[&str] = &[
    "level",
    "users",
    "userGroups",
    "verbs",
    "resources",
    "namespaces",
    "nonResourceURLs",
    "omitStages",
    "omitManagedFields",
];
const RESOURCE_FIELDS: &[&str] = &["group", "resources", "resourceNames"];

impl Policy {
    /// Also tells the fields that nobody knows, which upstream only warns of.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let file: File = config_document::read(text).map_err(|e| format!("failed decoding: {e}"))?;
        let value: Value = config_document::read(text).map_err(|e| format!("failed decoding: {e}"))?;
        if (file.api_version.as_str(), file.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version));
        }
        let mut errors = ErrorList::new();
        check_stages(&file.omit_stages, &Path::new("omitStages"), &mut errors);
        for (index, rule) in file.rules.iter().enumerate() {
            rule.check(&Path::new("rules").index(index), &mut errors);
        }
        if !errors.is_empty() {
            return Err(config_document::mistakes(text, &errors));
        }
        if file.rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".into());
        }
        let omitted = Stages::of(&file.omit_stages);
        let otherwise =
            Decision { level: Level::None, omit_stages: omitted, omit_managed_fields: file.omit_managed_fields };
        let rules = file.rules.into_iter().map(|rule| {
            let decision = Decision {
                level: level(&rule.level).unwrap_or(Level::None),
                omit_stages: omitted.and(Stages::of(&rule.omit_stages)),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(file.omit_managed_fields),
            };
            (rule, decision)
        });
        Ok((Self { rules: rules.collect(), otherwise }, unknown_fields(&value)))
    }

    /// `user`: as authenticated, before it acts as somebody else; nobody if that failed.
    pub fn decide(&self, user: Option<&User>, info: &RequestInfo) -> Decision {
        let found = self.rules.iter().find(|(rule, _)| rule.matches(user, info));
        found.map_or(self.otherwise, |(_, decision)| *decision)
    }
}

fn level(name: &str) -> Option<Level> {
    Level::ALL.into_iter().find(|level| level.as_str() == name)
}

fn unknown_fields(policy: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut look = |value: &Value, at: &str, known: &[&str]| {
        let names = value.as_object().into_iter().flatten().map(|(name, _)| name);
        unknown.extend(names.filter(|n| !known.contains(&n.as_str())).map(|n| format!("unknown field \"{at}{n}\"")));
    };
    look(policy, "", FIELDS);
    for (index, rule) in policy["rules"].as_array().into_iter().flatten().enumerate() {
        look(rule, &format!("rules[{index}]."), RULE_FIELDS);
        for (number, resource) in rule["resources"].as_array().into_iter().flatten().enumerate() {
            look(resource, &format!("rules[{index}].resources[{number}]."), RESOURCE_FIELDS);
        }
    }
    unknown
}

fn check_stages(stages: &[String], path: &Path, errors: &mut ErrorList) {
    for (index, stage) in stages.iter().enumerate() {
        if !Stage::ALL.iter().any(|s| s.as_str() == stage) {
            let allowed = Stage::ALL.map(Stage::as_str).join(",");
            errors.invalid(&path.index(index), stage.as_str(), format!("allowed stages are {allowed}"));
        }
    }
}

impl Rule {
    fn check(&self, path: &Path, errors: &mut ErrorList) {
        match self.level.as_str() {
            "" => errors.required(&path.child("level"), ""),
            name if level(name).is_none() => {
                errors.not_supported(&path.child("level"), name, &Level::ALL.map(Level::as_str));
            }
            _ => {}
        }
        let urls = path.child("nonResourceURLs");
        for (index, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            if !url.starts_with('/') {
                let detail = "non-resource URL rules must begin with a '/' character";
                errors.invalid(&urls.index(index), url.as_str(), detail);
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                let detail = "non-resource URL wildcards '*' must be the final character of the rule";
                errors.invalid(&urls.index(index), url.as_str(), detail);
            }
        }
        let resources = path.child("resources");
        for found in &self.resources {
            if !found.group.is_empty() {
                let problems = api::names::dns_subdomain(&found.group, false);
                if !problems.is_empty() {
                    errors.invalid(&resources.child("group"), found.group.as_str(), problems.join(","));
                }
            }
            if !found.resource_names.is_empty() && found.resources.is_empty() {
                let detail = "using resourceNames requires at least one resource";
                errors.invalid(&resources.child("resourceNames"), found.resource_names.clone(), detail);
            }
        }
        check_stages(&self.omit_stages, &path.child("omitStages"), errors);
        let about_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if !self.non_resource_urls.is_empty() && about_resources {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&urls, self.non_resource_urls.clone(), detail);
        }
    }

    fn matches(&self, user: Option<&User>, info: &RequestInfo) -> bool {
        let has = |list: &[String], item: &str| list.iter().any(|i| i == item);
        if !self.users.is_empty() && !user.is_some_and(|user| has(&self.users, &user.name)) {
            return false;
        }
        let groups = user.map(|user| user.groups.as_slice()).unwrap_or_default();
        if !self.user_groups.is_empty() && !groups.iter().any(|group| has(&self.user_groups, group)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, info.verb.as_str()) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            let here = self.namespaces.is_empty() || has(&self.namespaces, &info.namespace);
            let of_this = self.resources.is_empty() || self.resources.iter().any(|found| found.matches(info));
            return info.is_resource && here && of_this;
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource && self.non_resource_urls.iter().any(|url| url_matches(url, &info.path));
        }
        true
    }
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

impl GroupResources {
    fn matches(&self, info: &RequestInfo) -> bool {
        if self.group != info.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !self.resource_names.contains(&info.name) {
            return false;
        }
        let (resource, subresource) = (info.resource.as_str(), info.subresource.as_str());
        self.resources.iter().any(|pattern| match pattern.split_once('/') {
            None => pattern == "*" || (pattern == resource && subresource.is_empty()),
            Some(("*", wanted)) => !subresource.is_empty() && wanted == subresource,
            Some((wanted, "*")) => wanted == resource,
            Some((of, wanted)) => of == resource && wanted == subresource,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::query::Query;

    fn policy(rules: &str) -> Result<(Policy, Vec<String>), String> {
        Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}"))
    }

    fn info(method: &str, uri: &str) -> RequestInfo {
        let uri: http::Uri = uri.parse().unwrap();
        RequestInfo::parse(&method.parse().unwrap(), uri.path(), &Query::parse(uri.query().unwrap_or_default()))
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let (policy, unknown) = policy(
            "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n\
             - {level: None, users: [robot], verbs: [watch]}\n\
             - {level: RequestResponse, userGroups: [ops], resources: [{group: apps}], omitStages: [Panic]}\n\
             - {level: Request, resources: [{group: '', resources: [pods, 'services/*', '*/scale'], resourceNames: []}]}\n\
             - {level: Metadata, namespaces: [''], omitManagedFields: false}\n\
             - {level: Request, resources: [{group: '', resources: [configmaps], resourceNames: [one]}]}\n\
             - {level: Metadata, nonResourceURLs: ['/healthz*', /version]}\n",
        )
        .unwrap();
        assert_eq!(unknown, Vec::<String>::new());
        let check = |user: &str, method: &str, uri: &str, expected: Level| {
            let user = User::new(user, &["ops"]);
            assert_eq!(policy.decide(Some(&user), &info(method, uri)).level, expected, "{method} {uri}");
        };
        check("robot", "GET", "/api/v1/pods?watch=1", Level::None);
        check("robot", "GET", "/api/v1/namespaces/a/pods", Level::Request);
        check("u", "GET", "/apis/apps/v1/namespaces/a/deployments", Level::RequestResponse);
        check("u", "GET", "/api/v1/namespaces/a/pods/p/log", Level::None);
        check("u", "GET", "/api/v1/namespaces/a/services/s", Level::Request);
        check("u", "GET", "/api/v1/namespaces/a/services/s/proxy", Level::Request);
        check("u", "PUT", "/api/v1/namespaces/a/replicationcontrollers/r/scale", Level::Request);
        check("u", "GET", "/api/v1/nodes", Level::Metadata);
        check("u", "GET", "/api/v1/namespaces/a/configmaps/one", Level::Request);
        check("u", "GET", "/api/v1/namespaces/a/configmaps/two", Level::None);
        check("u", "GET", "/healthz/ping", Level::Metadata);
        check("u", "GET", "/version", Level::Metadata);
        check("u", "GET", "/metrics", Level::None);
        let nobody = policy.decide(None, &info("GET", "/apis/apps/v1/namespaces/a/deployments"));
        assert_eq!(nobody.level, Level::None);
        let found = policy.decide(Some(&User::new("u", &["ops"])), &info("GET", "/apis/apps/v1/deployments"));
        assert!(found.omit_managed_fields && found.omit_stages.has(Stage::Panic));
        assert!(found.omit_stages.has(Stage::RequestReceived) && !found.omit_stages.has(Stage::ResponseComplete));
        assert!(!policy.decide(None, &info("GET", "/api/v1/nodes")).omit_managed_fields);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |rules: &str, expected: &str| {
            let error = policy(rules).map(|_| "fine".to_string()).unwrap_or_else(|e| e);
            assert!(error.contains(expected), "{rules}: {error}");
        };
        check("rules: []", "loaded illegal policy with 0 rules");
        check("rules:\n- level: None\n- level: All\n", "line 5: rules[1].level: Unsupported value");
        check("rules: [{level: All}]", "rules[0].level: Unsupported value: \"All\": supported values:");
        check("rules: [{users: [a]}]", "rules[0].level: Required value");
        check(
            "omitStages: [Later]\nrules: [{level: None}]",
            "omitStages[0]: Invalid value: \"Later\": allowed stages are",
        );
        check("rules: [{level: None, nonResourceURLs: [a]}]", "must begin with a '/' character");
        check("rules: [{level: None, nonResourceURLs: ['/a*/b']}]", "must be the final character of the rule");
        check("rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]", "cannot apply to both");
        check(
            "rules: [{level: None, resources: [{group: A/v1}]}]",
            "rules[0].resources.group: Invalid value: \"A/v1\"",
        );
        check("rules: [{level: None, resources: [{resourceNames: [a]}]}]", "requires at least one resource");
        check("rules: [{level: [None]}]", "failed decoding");
        let error =
            Policy::parse("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]").unwrap_err();
        assert!(error.contains("no kind \"Policy\" is registered for version \"audit.k8s.io/v1beta1\""), "{error}");
        let (_, unknown) = policy("rules: [{level: None, user: [a]}]").unwrap();
        assert_eq!(unknown, ["unknown field \"rules[0].user\""]);
    }
}
