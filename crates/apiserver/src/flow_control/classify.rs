//! Which FlowSchema a request falls under, and to which of its flows it belongs.
//! Asked by `flow_control` with every request; the schemas come from the cluster's objects.
//! Invariant: pure (tidy: `pure_files`).

use serde_json::Value;

use crate::{
    authn::User,
    json_fields::{items, texts},
    request::request_info::RequestInfo,
};

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    None,
    User,
    Namespace,
}

/// One FlowSchema, ready to be asked.
#[derive(Debug)]
pub struct FlowSchema {
    pub name: String,
    pub uid: String,
    pub level: String,
    precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    cluster_scope: bool,
    namespaces: Vec<String>,
}

#[derive(Debug)]
struct PathRule {
    verbs: Vec<String>,
    paths: Vec<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn lists(list: &[String], item: &str) -> bool {
    list.iter().any(|i| i == "*" || i == item)
}

impl FlowSchema {
    pub fn new(object: &Value) -> Self {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        Self {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            level: text(&spec["priorityLevelConfiguration"]["name"]),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguisher: match spec["distinguisherMethod"]["type"].as_str() {
                Some("ByUser") => Distinguisher::User,
                Some("ByNamespace") => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            rules: items(&spec["rules"]).iter().map(Rule::new).collect(),
        }
    }

    /// Lower comes first; the name decides between equals.
    pub fn order(&self) -> (i64, &str) {
        (self.precedence, &self.name)
    }

    pub fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.matches(user, info))
    }

    /// What tells the flows of this schema apart.
    pub fn flow<'a>(&self, user: &'a User, info: &'a RequestInfo) -> &'a str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        }
    }
}

impl Rule {
    fn new(rule: &Value) -> Self {
        let subject = |subject: &Value| match subject["kind"].as_str()? {
            "User" => Some(Subject::User(text(&subject["user"]["name"]))),
            "Group" => Some(Subject::Group(text(&subject["group"]["name"]))),
            "ServiceAccount" => Some(Subject::ServiceAccount {
                namespace: text(&subject["serviceAccount"]["namespace"]),
                name: text(&subject["serviceAccount"]["name"]),
            }),
            _ => None,
        };
        let resource = |rule: &Value| ResourceRule {
            verbs: texts(&rule["verbs"]),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            cluster_scope: rule["clusterScope"] == true,
            namespaces: texts(&rule["namespaces"]),
        };
        let path = |rule: &Value| PathRule { verbs: texts(&rule["verbs"]), paths: texts(&rule["nonResourceURLs"]) };
        Self {
            subjects: items(&rule["subjects"]).iter().filter_map(subject).collect(),
            resources: items(&rule["resourceRules"]).iter().map(resource).collect(),
            paths: items(&rule["nonResourceRules"]).iter().map(path).collect(),
        }
    }

    fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        self.subjects.iter().any(|subject| subject.matches(user))
            && match info.is_resource {
                true => self.resources.iter().any(|rule| rule.matches(info)),
                false => self.paths.iter().any(|rule| rule.matches(info)),
            }
    }
}

impl Subject {
    fn matches(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => name == "*" || *name == user.name,
            Subject::Group(name) => name == "*" || user.groups.iter().any(|group| group == name),
            Subject::ServiceAccount { namespace, name } => {
                let account = user.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
                account.is_some_and(|(found, of)| found == namespace && (name == "*" || name == of))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let here = match info.namespace.is_empty() {
            true => self.cluster_scope,
            false => lists(&self.namespaces, &info.namespace),
        };
        let named = |resource: &String| match info.subresource.as_str() {
            _ if resource == "*" => true,
            "" => *resource == info.resource,
            subresource => resource.split_once('/') == Some((info.resource.as_str(), subresource)),
        };
        here && lists(&self.verbs, info.verb.as_str())
            && lists(&self.groups, &info.group)
            && self.resources.iter().any(named)
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let covers = |pattern: &String| {
            *pattern == info.path || pattern.strip_suffix('*').is_some_and(|prefix| info.path.starts_with(prefix))
        };
        lists(&self.verbs, info.verb.as_str()) && self.paths.iter().any(covers)
    }
}

#[cfg(test)]
mod tests {
    use api::kinds::flow_control_bootstrap::objects;

    use super::*;
    use crate::request::query::Query;

    #[test]
    fn requests_fall_under_the_first_schema_that_matches() {
        let schemas = objects().into_iter().filter(|(_, object)| object["kind"] == "FlowSchema");
        let mut schemas: Vec<_> = schemas.map(|(_, object)| FlowSchema::new(&object)).collect();
        schemas.sort_by(|a, b| a.order().cmp(&b.order()));
        let check = |user: &str, groups: &[&str], method: &str, uri: &str, expected: &str| {
            let uri: http::Uri = uri.parse().unwrap();
            let query = Query::parse(uri.query().unwrap_or_default());
            let info = RequestInfo::parse(&method.parse().unwrap(), uri.path(), &query);
            let user = User::new(user, groups);
            let found = schemas.iter().find(|schema| schema.matches(&user, &info)).unwrap();
            let shown = format!("{} {} {}", found.name, found.level, found.flow(&user, &info));
            assert_eq!(shown.trim_end(), expected, "{} {method} {uri}", user.name);
        };
        let nodes: &[&str] = &["system:nodes"];
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
        check("admin", &["system:masters"], "GET", "/api/v1/pods", "exempt exempt");
        check("u", &[], "GET", "/healthz", "probes exempt");
        check("system:node:n1", nodes, "PUT", leases, "system-node-high node-high system:node:n1");
        check("system:node:n1", nodes, "GET", "/api/v1/pods", "system-nodes system system:node:n1");
        check("u", &[], "GET", "/api/v1/pods", "global-default global-default u");
        check(
            "system:kube-scheduler",
            &[],
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
            "system-leader-election leader-election system:kube-scheduler",
        );
        check("system:kube-controller-manager", &[], "GET", "/api/v1/pods", "kube-controller-manager workload-high");
        let account = "system:serviceaccount:a:b";
        let groups: &[&str] = &["system:serviceaccounts"];
        check(
            account,
            groups,
            "GET",
            "/api/v1/namespaces/x/pods",
            "service-accounts workload-low system:serviceaccount:a:b",
        );
    }

    #[test]
    fn rules_are_matched_field_by_field() {
        let schema = |rule: Value| {
            let subject =
                serde_json::json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": "a", "name": "*" } });
            let spec = serde_json::json!({ "rules": [{ "subjects": [subject], "resourceRules": [rule] }] });
            FlowSchema::new(&serde_json::json!({ "spec": spec }))
        };
        let check = |rule: Value, user: &str, path: &str, expected: bool| {
            let info = RequestInfo::parse(&http::Method::GET, path, &Query::parse(""));
            assert_eq!(schema(rule.clone()).matches(&User::new(user, &[]), &info), expected, "{rule} {user} {path}");
        };
        let all = serde_json::json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"] });
        let own = "system:serviceaccount:a:x";
        check(all.clone(), own, "/api/v1/namespaces/n/pods", true);
        check(all.clone(), own, "/api/v1/pods", false);
        check(all.clone(), own, "/version", false);
        check(all.clone(), "system:serviceaccount:b:x", "/api/v1/namespaces/n/pods", false);
        let one = serde_json::json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/status"],
            "namespaces": ["n"] });
        check(one.clone(), own, "/api/v1/namespaces/n/pods/p", true);
        check(one.clone(), own, "/api/v1/namespaces/n/pods/p/status", true);
        check(one.clone(), own, "/api/v1/namespaces/n/pods/p/scale", false);
        check(one.clone(), own, "/api/v1/namespaces/n/pods", false);
        check(one.clone(), own, "/api/v1/namespaces/m/pods/p", false);
        check(one, own, "/apis/apps/v1/namespaces/n/pods/p", false);
    }
}
