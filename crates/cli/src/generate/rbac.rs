//! `create role`, `create clusterrole`, `create rolebinding` and `create clusterrolebinding`.
//! Neighbours: the verb finds the group of each resource by discovery.
//! A role without verbs or objects of them is refused.

use serde_json::{Value, json};

use super::metadata;

const GROUP: &str = "rbac.authorization.k8s.io";
/// Verbs that a server knows for resources.
const RESOURCE_VERBS: &[&str] = &[
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
];
const URL_VERBS: &[&str] = &["*", "get", "post", "put", "delete", "patch", "head", "options"];

/// A resource as `--resource` names it, with the group that discovery found.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceName {
    pub group: String,
    pub resource: String,
    pub subresource: String,
}

/// `deployments.apps/scale`: resource, group and version as given, subresource.
pub fn split_resource(text: &str) -> Result<(String, String, String), String> {
    let (resource, subresource) = text.split_once('/').unwrap_or((text, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    if resource.is_empty() && (!group.is_empty() || !subresource.is_empty()) {
        return Err("resource must be specified if apiGroup/subresource specified".to_string());
    }
    Ok((resource.to_string(), group.to_string(), subresource.to_string()))
}

/// A `*` among verbs stands for all of them.
pub fn verbs(given: &[String]) -> Vec<String> {
    if given.iter().any(|verb| verb == "*") {
        return vec!["*".to_string()];
    }
    let mut kept: Vec<String> = Vec::new();
    for verb in given {
        if !kept.contains(verb) {
            kept.push(verb.clone());
        }
    }
    kept
}

/// What is said of a verb that servers do not know.
pub fn verb_warnings(verbs: &[String]) -> Vec<String> {
    let unknown = verbs.iter().filter(|verb| !RESOURCE_VERBS.contains(&verb.as_str()));
    unknown.map(|verb| format!("Warning: '{verb}' is not a standard resource verb")).collect()
}

/// Resources of one group share a rule; a rule for each group in the order in which they were named.
fn rules(verbs: &[String], resources: &[ResourceName], names: &[String]) -> Vec<Value> {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for resource in resources {
        let text = match resource.subresource.as_str() {
            "" => resource.resource.clone(),
            subresource => format!("{}/{subresource}", resource.resource),
        };
        match groups.iter_mut().find(|(group, _)| *group == resource.group) {
            Some((_, listed)) => listed.push(text),
            None => groups.push((&resource.group, vec![text])),
        }
    }
    let rule = |(group, resources): (&str, Vec<String>)| {
        let mut rule = json!({ "verbs": verbs, "apiGroups": [group], "resources": resources });
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    groups.into_iter().map(rule).collect()
}

pub fn role(
    name: &str,
    namespace: Option<&str>,
    verbs: &[String],
    resources: &[ResourceName],
    names: &[String],
) -> Result<Value, String> {
    if verbs.is_empty() {
        return Err("at least one verb must be specified".to_string());
    }
    if resources.is_empty() {
        return Err("at least one resource must be specified".to_string());
    }
    Ok(json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": metadata(name, namespace),
        "rules": rules(verbs, resources, names),
    }))
}

/// The flags of `create clusterrole`.
#[derive(Default)]
pub struct ClusterRole<'a> {
    pub name: &'a str,
    pub verbs: &'a [String],
    pub resources: &'a [ResourceName],
    pub resource_names: &'a [String],
    pub urls: &'a [String],
    /// Labels of the roles to aggregate.
    pub aggregation: &'a [(String, String)],
}

pub fn cluster_role(options: &ClusterRole) -> Result<Value, String> {
    let ClusterRole { name, verbs, resources, resource_names, urls, aggregation } = options;
    let mut object =
        json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": metadata(name, None) });
    if !aggregation.is_empty() {
        if !(verbs.is_empty() && resources.is_empty() && resource_names.is_empty() && urls.is_empty()) {
            return Err(
                "aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames"
                    .to_string(),
            );
        }
        let labels: serde_json::Map<String, Value> =
            aggregation.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        object["aggregationRule"] = json!({ "clusterRoleSelectors": [{ "matchLabels": labels }] });
        object["rules"] = Value::Null;
        return Ok(object);
    }
    if verbs.is_empty() {
        return Err("at least one verb must be specified".to_string());
    }
    if resources.is_empty() && urls.is_empty() {
        return Err("one of resource or nonResourceURL must be specified".to_string());
    }
    let mut all = rules(verbs, resources, resource_names);
    if !urls.is_empty() {
        if let Some(verb) = verbs.iter().find(|verb| !URL_VERBS.contains(&verb.as_str())) {
            return Err(format!("invalid verb: '{verb}' for nonResourceURL"));
        }
        for url in urls.iter().filter(|url| *url != "*") {
            if !url.starts_with('/') {
                return Err("nonResourceURL should start with /".to_string());
            }
            if url[..url.len() - 1].contains('*') {
                return Err("nonResourceURL only supports wildcard matches when '*' is at the end".to_string());
            }
        }
        all.push(json!({ "verbs": verbs, "nonResourceURLs": urls }));
    }
    object["rules"] = all.into();
    Ok(object)
}

/// Whom a binding is for.
#[derive(Default)]
pub struct Subjects<'a> {
    pub users: &'a [String],
    pub groups: &'a [String],
    pub service_accounts: &'a [String],
}

impl Subjects<'_> {
    pub fn to_values(&self) -> Result<Vec<Value>, String> {
        let named = |kind: &str, name: &String| json!({ "apiGroup": GROUP, "kind": kind, "name": name });
        let mut subjects: Vec<Value> = self.users.iter().map(|user| named("User", user)).collect();
        subjects.extend(self.groups.iter().map(|group| named("Group", group)));
        for account in self.service_accounts {
            let parts: Vec<&str> = account.split(':').collect();
            let [namespace, name] = parts[..] else {
                return Err("serviceaccount must be <namespace>:<name>".to_string());
            };
            if namespace.is_empty() || name.is_empty() {
                return Err("serviceaccount must be <namespace>:<name>".to_string());
            }
            subjects.push(json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }));
        }
        Ok(subjects)
    }
}

fn binding(
    kind: &str,
    name: &str,
    namespace: Option<&str>,
    role: (&str, &str),
    subjects: &Subjects,
) -> Result<Value, String> {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata(name, namespace),
        "roleRef": { "apiGroup": GROUP, "kind": role.0, "name": role.1 },
    });
    let subjects = subjects.to_values()?;
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    Ok(object)
}

pub fn role_binding(
    name: &str,
    namespace: Option<&str>,
    (cluster_role, role): (&str, &str),
    subjects: &Subjects,
) -> Result<Value, String> {
    match (cluster_role, role) {
        ("", "") => Err("exactly one of clusterrole or role must be specified".to_string()),
        ("", role) => binding("RoleBinding", name, namespace, ("Role", role), subjects),
        (cluster_role, "") => binding("RoleBinding", name, namespace, ("ClusterRole", cluster_role), subjects),
        _ => Err("exactly one of clusterrole or role must be specified".to_string()),
    }
}

pub fn cluster_role_binding(name: &str, cluster_role: &str, subjects: &Subjects) -> Result<Value, String> {
    if cluster_role.is_empty() {
        return Err("name must be specified".to_string());
    }
    binding("ClusterRoleBinding", name, None, ("ClusterRole", cluster_role), subjects)
}
