//! The FlowSchemas and PriorityLevelConfigurations that every cluster has.
//! Written and kept by the API server; `flow_schema` and `priority_level_configuration` refuse changes of those that are mandatory.
//! A level comes before the schemas that name it.

use serde_json::{Value, json};

const API: &str = "flowcontrol.apiserver.k8s.io/v1";
/// On a bootstrap object: whether its spec follows what the server ships. `false` keeps an administrator's changes.
pub const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Without these two levels and schemas there would be requests that nothing covers.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

pub fn is_mandatory(name: &str) -> bool {
    MANDATORY.contains(&name)
}

/// The spec that a mandatory object of this kind has.
pub fn mandatory_spec(kind: &str, name: &str) -> Option<Value> {
    if !is_mandatory(name) {
        return None;
    }
    let found = |(_, object): &(String, Value)| object["kind"] == kind && object["metadata"]["name"] == name;
    objects().into_iter().find(found).map(|(_, mut object)| object["spec"].take())
}

/// Name, shares, percent that may be lent, and queues, hand size and queue length; no queues: beyond the share, 429.
const LEVELS: [(&str, i64, i64, Option<(i64, i64, i64)>); 7] = [
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6, 50))),
    ("node-high", 40, 25, Some((64, 6, 50))),
    ("leader-election", 10, 0, Some((16, 4, 50))),
    ("workload-high", 40, 50, Some((128, 6, 50))),
    ("workload-low", 100, 90, Some((128, 6, 50))),
    ("global-default", 20, 50, Some((128, 6, 50))),
];

const EVERYBODY: &[&str] = &["group=system:unauthenticated", "group=system:authenticated"];
const CONTROLLERS: &[&str] = &["user=system:kube-controller-manager"];
const SCHEDULER: &[&str] = &["user=system:kube-scheduler"];
const LEADERS: &[&str] = &["user=system:kube-controller-manager", "user=system:kube-scheduler", "account=*"];

enum Rules {
    Everything,
    Paths(&'static [&'static str]),
    /// Verbs, group, resources, and whether of the whole cluster too.
    Resources(&'static [(&'static [&'static str], &'static str, &'static [&'static str], bool)]),
}

/// Name, level, precedence, how flows are told apart, who, and what.
type Schema = (&'static str, &'static str, i64, &'static str, &'static [&'static str], Rules);

const SCHEMAS: [Schema; 11] = [
    ("exempt", "exempt", 1, "", &["group=system:masters"], Rules::Everything),
    ("probes", "exempt", 2, "", EVERYBODY, Rules::Paths(&["/healthz", "/readyz", "/livez"])),
    (
        "system-leader-election",
        "leader-election",
        100,
        "ByUser",
        LEADERS,
        Rules::Resources(&[(&["get", "create", "update"], "coordination.k8s.io", &["leases"], false)]),
    ),
    (
        "system-node-high",
        "node-high",
        400,
        "ByUser",
        &["group=system:nodes"],
        Rules::Resources(&[
            (&["*"], "", &["nodes", "nodes/status"], true),
            (&["*"], "coordination.k8s.io", &["leases"], false),
        ]),
    ),
    ("system-nodes", "system", 500, "ByUser", &["group=system:nodes"], Rules::Everything),
    ("kube-controller-manager", "workload-high", 800, "ByNamespace", CONTROLLERS, Rules::Everything),
    ("kube-scheduler", "workload-high", 800, "ByNamespace", SCHEDULER, Rules::Everything),
    ("kube-system-service-accounts", "workload-high", 900, "ByNamespace", &["account=*"], Rules::Everything),
    ("service-accounts", "workload-low", 9000, "ByUser", &["group=system:serviceaccounts"], Rules::Everything),
    ("global-default", "global-default", 9900, "ByUser", EVERYBODY, Rules::Everything),
    ("catch-all", "catch-all", 10000, "ByUser", EVERYBODY, Rules::Everything),
];

/// Collections and objects, levels before the schemas that name them.
pub fn objects() -> Vec<(String, Value)> {
    let exempt = json!({ "type": "Exempt", "exempt": { "nominalConcurrencyShares": 0, "lendablePercent": 0 } });
    let levels = LEVELS.iter().map(|(name, shares, lendable, queues)| {
        let response = match queues {
            Some((queues, hand, length)) => json!({
                "type": "Queue", "queuing": { "queues": queues, "handSize": hand, "queueLengthLimit": length },
            }),
            None => json!({ "type": "Reject" }),
        };
        let limited =
            json!({ "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response });
        (*name, json!({ "type": "Limited", "limited": limited }))
    });
    let levels = std::iter::once(("exempt", exempt)).chain(levels);
    let levels = levels.map(|(name, spec)| object("PriorityLevelConfiguration", name, spec));
    levels.chain(SCHEMAS.iter().map(schema)).collect()
}

fn object(kind: &str, name: &str, spec: Value) -> (String, Value) {
    let metadata = json!({ "name": name, "annotations": { AUTOUPDATE: "true" } });
    let object = json!({ "apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec });
    (format!("/apis/{API}/{}s", kind.to_ascii_lowercase()), object)
}

fn schema((name, level, precedence, distinguish, who, rules): &Schema) -> (String, Value) {
    let subjects: Vec<_> = who.iter().map(|s| subject(s)).collect();
    let mut rule = json!({ "subjects": subjects });
    let resources = |verbs: &[&str], group: &str, resources: &[&str], cluster: bool| {
        let mut rule = json!({ "verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"] });
        if cluster {
            rule["clusterScope"] = true.into();
        }
        rule
    };
    match rules {
        Rules::Everything => {
            rule["resourceRules"] = json!([resources(&["*"], "*", &["*"], true)]);
            rule["nonResourceRules"] = json!([{ "verbs": ["*"], "nonResourceURLs": ["*"] }]);
        }
        Rules::Paths(paths) => rule["nonResourceRules"] = json!([{ "verbs": ["get"], "nonResourceURLs": paths }]),
        Rules::Resources(list) => {
            rule["resourceRules"] = list.iter().map(|(v, g, r, c)| resources(v, g, r, *c)).collect();
        }
    }
    let mut spec = json!({
        "priorityLevelConfiguration": { "name": level }, "matchingPrecedence": precedence, "rules": [rule],
    });
    if !distinguish.is_empty() {
        spec["distinguisherMethod"] = json!({ "type": distinguish });
    }
    object("FlowSchema", name, spec)
}

fn subject(text: &str) -> Value {
    match text.split_once('=').unwrap_or_default() {
        ("group", name) => json!({ "kind": "Group", "group": { "name": name } }),
        ("user", name) => json!({ "kind": "User", "user": { "name": name } }),
        (_, name) => {
            json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": "kube-system", "name": name } })
        }
    }
}

/// Equal, where nothing and an empty thing are the same.
pub fn alike(left: &Value, right: &Value) -> bool {
    let is_empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match (left, right) {
        (l, r) if is_empty(l) || is_empty(r) => is_empty(l) && is_empty(r),
        (Value::Object(l), Value::Object(r)) => {
            l.keys().chain(r.keys()).all(|key| alike(&left[key.as_str()], &right[key.as_str()]))
        }
        (Value::Array(l), Value::Array(r)) => l.len() == r.len() && l.iter().zip(r).all(|(l, r)| alike(l, r)),
        (l, r) => l == r,
    }
}
