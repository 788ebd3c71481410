//! The roles and bindings every cluster has, from `policy.table`, reconciled at each start.
//! Run by `post_start_hooks`.
//! Only adds; what carries `autoupdate: "false"` is left alone.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use api::{ApiError, Reason, feature_gates::FeatureGates};

use super::{Rule, missing};
use crate::server::{loopback::send, pipeline::ApiServer};

const TABLE: &str = include_str!("policy.table");
const API: &str = "rbac.authorization.k8s.io/v1";
const LABEL: &str = "rbac.authorization.k8s.io/aggregate-to-";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const READ: [&str; 3] = ["get", "list", "watch"];
/// Servers that start together complete the same objects.
const ATTEMPTS_MAX: usize = 10;
/// How the names of what only nodes of our own agents need begin.
const AGENT_NODE: &str = "minke:node";
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// Creates what is missing and completes what is there: roles first, as bindings need them.
pub async fn run(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let for_agents = |o: &Value| o["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(AGENT_NODE));
    let wanted =
        objects(&server.config.feature_gates).into_iter().filter(|o| server.config.admits_agents || !for_agents(o));
    let (bindings, roles): (Vec<_>, Vec<_>) = wanted.partition(|o| o["roleRef"].is_object());
    for batch in [roles, bindings] {
        // Side by side, so that the store commits them in groups.
        try_join_all(batch.into_iter().map(|wanted| ensure(server, wanted))).await?;
    }
    // Components start to ask right after this; what was just granted is to be known by then.
    server.cluster.cache.wait_until_fresh().await
}

/// Looks again where another server wrote in between.
async fn ensure(server: &Arc<ApiServer>, wanted: Value) -> Result<(), ApiError> {
    let mut refused = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        match attempt(server, &wanted).await {
            Err(e) if matches!(e.reason, Reason::Conflict | Reason::NotFound | Reason::AlreadyExists) => {
                refused = Err(e);
                server.cluster.cache.wait_until_fresh().await?;
            }
            ended => return ended,
        }
    }
    refused
}

async fn attempt(server: &Arc<ApiServer>, wanted: &Value) -> Result<(), ApiError> {
    let text = |field: &str| wanted["metadata"][field].as_str().unwrap_or_default();
    let plural = format!("{}s", wanted["kind"].as_str().unwrap_or_default().to_ascii_lowercase());
    let (namespace, name) = (text("namespace"), text("name"));
    let collection = match namespace {
        "" => format!("/apis/{API}/{plural}"),
        _ => format!("/apis/{API}/namespaces/{namespace}/{plural}"),
    };
    let one =
        format!("{collection}/{}", percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC));
    let Some(existing) = server.cluster.get(&plural, namespace, name).map(|o| o.value()) else {
        return send(server, Method::POST, &collection, wanted).await.map(drop);
    };
    match complete(wanted, &existing) {
        Completion::Nothing => Ok(()),
        Completion::Update(object) => send(server, Method::PUT, &one, &object).await.map(drop),
        Completion::Replace => {
            send(server, Method::DELETE, &one, &Value::Null).await?;
            send(server, Method::POST, &collection, wanted).await.map(drop)
        }
    }
}

#[derive(Debug, PartialEq)]
enum Completion {
    Nothing,
    Update(Value),
    /// The role a binding refers to cannot be changed.
    Replace,
}

fn complete(wanted: &Value, existing: &Value) -> Completion {
    if existing["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return Completion::Nothing;
    }
    if wanted["roleRef"] != existing["roleRef"] {
        return Completion::Replace;
    }
    let mut new = existing.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            new["metadata"][field][key] = value.clone();
        }
    }
    if wanted["aggregationRule"].is_object() {
        if new["aggregationRule"].is_null() {
            new["aggregationRule"] = wanted["aggregationRule"].clone();
        }
    } else if wanted["rules"].is_array() {
        let rules = |o: &Value| serde_json::from_value::<Vec<Rule>>(o["rules"].clone()).unwrap_or_default();
        let lacking = missing(&rules(existing), &rules(wanted));
        append(&mut new, "rules", lacking.iter().map(|r| json!(r)));
    }
    if let Some(subjects) = wanted["subjects"].as_array() {
        let known = existing["subjects"].as_array().cloned().unwrap_or_default();
        append(&mut new, "subjects", subjects.iter().filter(|s| !known.contains(s)).cloned());
    }
    if new == *existing { Completion::Nothing } else { Completion::Update(new) }
}

fn append(object: &mut Value, list: &str, items: impl Iterator<Item = Value>) {
    for item in items {
        match object[list].as_array_mut() {
            Some(found) => found.push(item),
            None => object[list] = json!([item]),
        }
    }
}

/// The rules of the role `system:node`, which the node authorizer goes by.
pub fn node_rules(gates: &FeatureGates) -> Vec<Rule> {
    let node = objects(gates).into_iter().find(|o| o["metadata"]["name"] == "system:node" && o["rules"].is_array());
    node.and_then(|o| serde_json::from_value(o["rules"].clone()).ok()).unwrap_or_default()
}

/// What follows a gate at the beginning of a line; `None` where that gate is off.
fn behind_gate<'a>(line: &'a str, gates: &FeatureGates) -> Option<&'a str> {
    match line.strip_prefix('?').and_then(|rest| rest.split_once(' ')) {
        Some((gate, rest)) => gates.enabled(gate).then_some(rest),
        None => Some(line),
    }
}

/// The table as objects.
pub fn objects(gates: &FeatureGates) -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    let mut included: Vec<(usize, &str)> = Vec::new();
    let mut left_out = false;
    for line in TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (rule, line) = line.strip_prefix("  ").map_or((false, line), |rule| (true, rule));
        let line = behind_gate(line, gates);
        if !rule {
            left_out = line.is_none();
        }
        let Some(line) = line.filter(|_| !left_out) else { continue };
        match rule.then_some(line) {
            Some(rule) => match rule.strip_prefix("include ") {
                Some(prefix) => included.push((objects.len() - 1, prefix)),
                None => {
                    append(objects.last_mut().expect("a rule follows a role"), "rules", std::iter::once(rule_of(rule)))
                }
            },
            None => objects.push(head(line)),
        }
    }
    let accounts: Vec<_> = objects.iter().filter(|o| o["kind"] == "ClusterRole").filter_map(controller).collect();
    for (at, prefix) in included {
        let named = |o: &&Value| o["metadata"]["name"].as_str().is_some_and(|n| n.starts_with(prefix));
        let mut rules: Vec<Value> = Vec::new();
        for rule in objects.iter().filter(named).flat_map(|o| o["rules"].as_array().into_iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        append(&mut objects[at], "rules", rules.into_iter());
    }
    objects.extend(accounts);
    aggregate(&mut objects);
    objects
}

/// Each controller's role is bound to the account of the same name.
fn controller(role: &Value) -> Option<Value> {
    let name = role["metadata"]["name"].as_str()?;
    let account = name.strip_prefix("system:controller:").or_else(|| name.strip_prefix("minke:controller:"))?;
    Some(head(&format!("clusterrolebinding {name} -> clusterrole {name}: account=kube-system/{account}")))
}

/// Fills in what collecting roles collect; three rounds, as admin collects edit, which collects view.
fn aggregate(objects: &mut [Value]) {
    for _ in 0..3 {
        let mut collected: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for role in objects.iter() {
            let labels = role["metadata"]["labels"].as_object().into_iter().flatten();
            for (label, _) in labels.filter(|(label, _)| label.starts_with(LABEL)) {
                let rules = collected.entry(label.clone()).or_default();
                for rule in role["rules"].as_array().into_iter().flatten() {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        for role in objects.iter_mut() {
            let selector = role["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"].as_object();
            let label = selector.and_then(|s| s.keys().next()).cloned();
            if let Some(rules) = label.and_then(|l| collected.get(&l)) {
                role["rules"] = json!(rules);
            }
        }
    }
}

/// A line that starts an object.
fn head(line: &str) -> Value {
    let (line, subjects) = match line.split_once(": ") {
        Some((line, subjects)) => (line, subjects.split_whitespace().map(subject).collect::<Vec<_>>()),
        None => (line.trim_end_matches(':'), Vec::new()),
    };
    let mut words = line.split_whitespace();
    let kind = match words.next().unwrap_or_default() {
        "clusterrole" => "ClusterRole",
        "role" => "Role",
        "clusterrolebinding" => "ClusterRoleBinding",
        _ => "RoleBinding",
    };
    let full = words.next().unwrap_or_default();
    let mut labels = json!({ "kubernetes.io/bootstrapping": "rbac-defaults" });
    let mut object = json!({ "apiVersion": API, "kind": kind, "metadata": { "annotations": { AUTOUPDATE: "true" } } });
    match full.split_once('/').filter(|_| !kind.starts_with("Cluster")) {
        Some((namespace, name)) => {
            object["metadata"]["namespace"] = namespace.into();
            object["metadata"]["name"] = name.into();
        }
        None => object["metadata"]["name"] = full.into(),
    }
    if words.clone().next() == Some("->") {
        let kind = if words.nth(1) == Some("role") { "Role" } else { "ClusterRole" };
        object["roleRef"] =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": words.next().unwrap_or_default() });
        if !subjects.is_empty() {
            object["subjects"] = subjects.into();
        }
    }
    for word in words {
        if let Some(part_of) = word.strip_prefix('+') {
            labels[format!("{LABEL}{part_of}")] = "true".into();
        }
        if let Some(collects) = word.strip_prefix('=') {
            let selector = json!({ "matchLabels": { format!("{LABEL}{collects}"): "true" } });
            object["aggregationRule"] = json!({ "clusterRoleSelectors": [selector] });
        }
    }
    object["metadata"]["labels"] = labels;
    object
}

fn subject(word: &str) -> Value {
    let (kind, name) = word.split_once('=').unwrap_or_default();
    match (kind, name.split_once('/')) {
        ("account", Some((namespace, name))) => {
            json!({ "kind": "ServiceAccount", "namespace": namespace, "name": name })
        }
        ("group", _) => json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name }),
        _ => json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }),
    }
}

fn rule_of(line: &str) -> Value {
    let (verbs, target) = line.split_once(' ').unwrap_or_default();
    let verbs = verbs.split(',').flat_map(|verb| match verb {
        "read" => READ.to_vec(),
        "write" => WRITE.to_vec(),
        one => vec![one],
    });
    let mut verbs: Vec<_> = verbs.collect();
    verbs.sort_unstable();
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    match target.split_once(": ").filter(|_| !target.starts_with('/')) {
        Some((groups, resources)) => {
            let (resources, names) = resources.split_once(" = ").unwrap_or((resources, ""));
            let groups: Vec<_> = groups.split(',').map(|g| if g == "core" { "" } else { g }).collect();
            let mut rule = json!({ "apiGroups": groups, "resources": words(resources), "verbs": verbs });
            if !names.is_empty() {
                rule["resourceNames"] = json!(words(names));
            }
            rule
        }
        None => json!({ "nonResourceURLs": words(target), "verbs": verbs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(kind: &str, name: &str) -> Value {
        let found =
            objects(&FeatureGates::default()).into_iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{kind} {name}"))
    }

    #[test]
    fn table_becomes_objects() {
        let admin = find("ClusterRole", "cluster-admin");
        let all = json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] });
        assert_eq!(admin["rules"], json!([all, { "nonResourceURLs": ["*"], "verbs": ["*"] }]));
        let binding = find("ClusterRoleBinding", "system:controller:job-controller");
        assert_eq!(binding["subjects"][0]["name"], "job-controller");
        let role = find("Role", "system::leader-locking-kube-scheduler");
        assert_eq!(role["metadata"]["namespace"], "kube-system");
        let holds = |role: &str, resource: &str, verb: &str| {
            let rules: Vec<Rule> = serde_json::from_value(find("ClusterRole", role)["rules"].clone()).unwrap();
            let has = |list: &Vec<String>, wanted: &str| list.iter().any(|w| w == wanted);
            rules.iter().any(|r| has(&r.resources, resource) && has(&r.verbs, verb))
        };
        for (role, resource, verb, expected) in [
            ("view", "pods", "list", true),
            ("view", "secrets", "get", false),
            ("view", "pods", "create", false),
            ("edit", "pods", "create", true),
            ("edit", "pods", "list", true),
            ("edit", "rolebindings", "create", false),
            ("admin", "rolebindings", "create", true),
            ("admin", "secrets", "get", true),
            ("minke:kube-controller-manager", "replicasets", "create", true),
        ] {
            assert_eq!(holds(role, resource, verb), expected, "{role} {verb} {resource}");
        }
    }

    /// As after an upgrade: both see what is lacking, and both write.
    #[tokio::test]
    async fn servers_that_start_together_complete_the_same_objects() {
        let env = env::Env::real();
        let config = crate::Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = crate::ApiServer::new(config, store, env).await.unwrap();
        let path = |kind: &str, name: &str| format!("/apis/{API}/{kind}/{name}");
        let (role, binding) = (path("clusterroles", "system:basic-user"), path("clusterrolebindings", "cluster-admin"));
        let mut lacking = send(&server, Method::GET, &role, &Value::Null).await.unwrap();
        lacking["rules"] = json!([]);
        send(&server, Method::PUT, &role, &lacking).await.unwrap();
        let mut other = send(&server, Method::GET, &binding, &Value::Null).await.unwrap();
        other["roleRef"]["name"] = "view".into();
        other["metadata"] = json!({ "name": "cluster-admin" });
        send(&server, Method::DELETE, &binding, &Value::Null).await.unwrap();
        send(&server, Method::POST, &format!("/apis/{API}/clusterrolebindings"), &other).await.unwrap();
        server.cluster.cache.wait_until_fresh().await.unwrap();
        let (a, b) = tokio::join!(run(&server), run(&server));
        a.unwrap();
        b.unwrap();
        let role = send(&server, Method::GET, &role, &Value::Null).await.unwrap();
        let rules = |role: &Value| serde_json::from_value::<Vec<Rule>>(role["rules"].clone()).unwrap();
        let lacks = missing(&rules(&role), &rules(&find("ClusterRole", "system:basic-user")));
        assert!(lacks.is_empty() && rules(&role).len() == 3, "{role}");
        let binding = send(&server, Method::GET, &binding, &Value::Null).await.unwrap();
        assert_eq!(binding["roleRef"]["name"], "cluster-admin");
    }

    /// The single permissions of a role, or the subjects of a binding, one per line.
    fn lines(object: &Value) -> Vec<String> {
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|t| t.as_str().map(str::to_string)).collect()
        };
        let mut lines = Vec::new();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = match texts(&rule["resourceNames"]) {
                names if names.is_empty() => vec![String::new()],
                names => names,
            };
            for verb in texts(&rule["verbs"]) {
                lines.extend(texts(&rule["nonResourceURLs"]).iter().map(|path| format!("url|{path}|{verb}")));
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        lines.extend(names.iter().map(|name| format!("{group}|{resource}|{name}|{verb}")));
                    }
                }
            }
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        for subject in object["subjects"].as_array().into_iter().flatten() {
            let role = &object["roleRef"];
            let parts =
                [&role["kind"], &role["name"], &subject["kind"], &subject["namespace"], &subject["name"]].map(text);
            lines.push(parts.join("|"));
        }
        lines.sort();
        lines.dedup();
        lines
    }

    #[test]
    fn roles_and_bindings_are_upstreams() {
        use sha2::{Digest, Sha256};
        let upstream: BTreeMap<String, String> = include_str!("upstream.table")
            .lines()
            .filter(|l| !l.starts_with('#'))
            .filter_map(|line| {
                let mut words = line.splitn(3, ' ');
                Some((format!("{} {}", words.next()?, words.next()?), words.next()?.to_string()))
            })
            .collect();
        let mut ours = BTreeMap::new();
        for object in objects(&FeatureGates::default()) {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let place = if text("namespace").is_empty() { String::new() } else { format!("{}/", text("namespace")) };
            let name = format!("{} {place}{}", object["kind"].as_str().unwrap_or_default(), text("name"));
            let mut lines = lines(&object);
            // What serves metrics brings the right to read them along; upstream that is another program.
            lines.retain(|l| !object["aggregationRule"].is_object() || !l.starts_with("metrics.k8s.io|"));
            let digest: String = Sha256::digest(lines.join("\n")).iter().map(|byte| format!("{byte:02x}")).collect();
            ours.insert(name, format!("{} {}", lines.len(), &digest[..16]));
        }
        // What is ours alone: the components of one process.
        ours.retain(|name, _| !name.contains("minke:") && !name.ends_with("system:aggregated-metrics-reader"));
        let different: Vec<_> =
            upstream.keys().chain(ours.keys()).filter(|n| upstream.get(*n) != ours.get(*n)).collect();
        assert!(different.is_empty(), "{different:?}");
        assert_eq!(upstream.len(), 131);
    }

    #[test]
    fn gates_bring_their_roles_and_rules() {
        let check = |gates: &str, name: &str, expected: &[&str]| {
            let gates = FeatureGates::parse(gates.split(',')).unwrap();
            let found = objects(&gates).into_iter().filter(|o| o["metadata"]["name"] == name);
            let lines: Vec<String> = found.flat_map(|o| lines(&o)).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).filter(|l| !l.contains("events")).collect();
            assert_eq!(lines, expected, "{gates:?} {name}");
        };
        let cleaner = "system:controller:podcertificaterequestcleaner";
        check("", cleaner, &[]);
        let rules =
            ["delete", "get", "list", "watch"].map(|v| format!("certificates.k8s.io|podcertificaterequests||{v}"));
        let bound = format!("ClusterRole|{cleaner}|ServiceAccount|kube-system|podcertificaterequestcleaner");
        let all: Vec<&str> = rules.iter().chain([&bound]).map(String::as_str).collect();
        check("PodCertificateRequest=true", cleaner, &all);
        let node = |gates: &str| {
            let gates = FeatureGates::parse(gates.split(',')).unwrap();
            let rules = node_rules(&gates);
            let names = |wanted: &str| rules.iter().any(|r| r.resources.iter().any(|r| r == wanted));
            (names("clustertrustbundles"), names("podcertificaterequests"), names("serviceaccounts"))
        };
        assert_eq!(node(""), (false, false, true));
        assert_eq!(node("ClusterTrustBundle=true"), (true, false, true));
        assert_eq!(node("PodCertificateRequest=true"), (false, true, true));
    }

    #[test]
    fn completion_only_adds() {
        let wanted = find("ClusterRole", "system:basic-user");
        assert_eq!(complete(&wanted, &wanted), Completion::Nothing);
        let mut less = wanted.clone();
        less["rules"] = json!([{ "apiGroups": ["x"], "resources": ["y"], "verbs": ["z"] }]);
        let Completion::Update(more) = complete(&wanted, &less) else { panic!("not completed") };
        assert_eq!(more["rules"].as_array().map(Vec::len), Some(4));
        assert_eq!(complete(&wanted, &more), Completion::Nothing);
        less["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(complete(&wanted, &less), Completion::Nothing);
        let binding = find("ClusterRoleBinding", "system:discovery");
        let mut other = binding.clone();
        other["roleRef"]["name"] = "other".into();
        assert_eq!(complete(&binding, &other), Completion::Replace);
    }
}
