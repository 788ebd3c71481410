//! Pods with equal signatures must be equal to every plugin. Changes every field of a pod that the schema has, on several
//! pods and in a cluster where most of it matters, and compares what the plugins say before and after.
//! A plugin that reads a field that it does not sign fails here, and so does a part that no change ever tests.

use std::sync::Arc;

use api::schema::{self, Node as Shape, TypeId};
use serde_json::{Value, json};

use super::{
    registry::Registry,
    testing::{cluster, labelled, named_pod, scores, verdicts},
};
use crate::{
    Config,
    cluster::Cluster,
    cycle,
    equivalence_class::{PARTS, is_alone, sign, sign_except},
    framework::{FailedAttempt, Plugin, PostFilterResult, Profile},
    pod_info::PendingPod,
};

/// Values for text fields that decide about scheduling; `x` elsewhere.
const WORDS: &[&str] =
    &["x", "v", "n1", "zone", "Never", "Exists", "NotIn", "PreferNoSchedule", "ScheduleAnyway", "Ignore", "Honor"];

fn patch(path: &[String], value: Value) -> Value {
    path.iter().rev().fold(value, |inner, name| match name.as_str() {
        "[]" => json!([inner]),
        "{}" => json!({"k": inner}),
        field => json!({field: inner}),
    })
}

/// Calls `each` with a patch for every value of every field below `shape`.
fn changes(shape: &Shape, path: &mut Vec<String>, each: &mut impl FnMut(Value)) {
    let below = |step: &str, inner: &Shape, path: &mut Vec<String>, each: &mut _| {
        path.push(step.to_string());
        changes(inner, path, each);
        path.pop();
    };
    match shape {
        Shape::Struct(TypeId(id)) => {
            for field in &schema::builtin().get(TypeId(*id)).fields {
                below(&field.name, &field.node, path, each);
            }
        }
        Shape::List(inner, _) => below("[]", inner, path, each),
        Shape::Map(inner, _) => below("{}", inner, path, each),
        Shape::Boolean => each(patch(path, json!(true))),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => each(patch(path, json!(7))),
        Shape::Number => each(patch(path, json!(0.5))),
        Shape::Quantity => each(patch(path, json!("3"))),
        Shape::Time => each(patch(path, json!("2026-01-01T00:00:00Z"))),
        Shape::MicroTime => each(patch(path, json!("2026-01-01T00:00:00.000000Z"))),
        Shape::Bytes => each(patch(path, json!("eA=="))),
        Shape::String | Shape::Duration => {
            let details = ["volumes", "containers", "initContainers", "ephemeralContainers", "status", "managedFields"];
            let words = if path.iter().any(|step| details.contains(&step.as_str())) { &WORDS[..1] } else { WORDS };
            words.iter().for_each(|word| each(patch(path, json!(word))));
        }
        Shape::Any | Shape::Fields => each(patch(path, json!({}))),
    }
}

/// Lays the patch over the pod; lists element by element.
fn lay_over(under: &mut Value, patch: &Value) {
    match (under, patch) {
        (Value::Object(under), Value::Object(patch)) => {
            for (name, value) in patch {
                lay_over(under.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(under), Value::Array(patch)) => {
            for (at, value) in patch.iter().enumerate() {
                match under.get_mut(at) {
                    Some(under) => lay_over(under, value),
                    None => under.push(value.clone()),
                }
            }
        }
        (under, patch) => *under = patch.clone(),
    }
}

/// Nodes n1 to n4, each with something that a pod may stumble over.
fn world() -> Cluster {
    let mut nodes = [("n1", "1"), ("n2", "1"), ("n3", "2"), ("n4", "2")].map(|(name, zone)| {
        let mut node = labelled(name, &[("zone", zone), ("topology.kubernetes.io/zone", zone)]);
        node["status"]["images"] = json!([]);
        node
    });
    nodes[0]["metadata"]["labels"]["k"] = json!("v");
    nodes[1]["spec"] = json!({"taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]});
    nodes[2]["spec"] =
        json!({"taints": [{"key": "t", "value": "v", "effect": "PreferNoSchedule"}], "unschedulable": true});
    nodes[3]["status"]["images"] = json!([{"names": ["web:1"], "sizeBytes": 900_000_000}]);
    let placed = |name: &str, label: &str, spec: Value| named_pod("default", name, json!({"k": label}), spec);
    let asks = |cpu: &str, port: i32| json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}, "ports": [{"containerPort": 1, "hostPort": port}]}]);
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"k": "x"}}}]}});
    let disk = json!([{"name": "d", "gcePersistentDisk": {"pdName": "x"}}]);
    let mut cluster = cluster(
        &nodes,
        vec![
            ("n1", placed("one", "v", json!({"containers": asks("2", 7), "volumes": disk}))),
            ("n4", placed("four", "w", json!({"containers": asks("3", 8), "affinity": away, "priority": 3}))),
            ("n4", placed("five", "v", json!({}))),
        ],
    );
    let set = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"k": "v"}}}});
    cluster.replica_sets.insert("default/a".into(), Arc::new(serde_json::from_value(set).unwrap()));
    cluster
}

/// A plain pod of a ReplicaSet, one that only preemption helps, and one with rules of every sort.
fn bases() -> [Value; 3] {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "a", "controller": true}]);
    let metadata =
        json!({"name": "p", "namespace": "default", "uid": "p", "labels": {"k": "v"}, "ownerReferences": owner});
    let container = |cpu: &str| {
        json!([{"name": "c", "image": "web:1", "resources": {"requests": {"cpu": cpu}},
            "ports": [{"containerPort": 80, "hostPort": 80}]}])
    };
    let term = |key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"k": "v"}}});
    let expression = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1", "2"]}]});
    let rules = json!({
        "containers": container("1"),
        "tolerations": [{"key": "t", "operator": "Equal", "value": "v"}],
        "nodeSelector": {"zone": "2"},
        "volumes": [{"name": "d", "gcePersistentDisk": {"pdName": "d"}}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"k": "v"}}},
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"k": "v"}}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expression]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": expression}]},
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term("zone")],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term("zone")}]},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": 3, "podAffinityTerm": term("kubernetes.io/hostname")}]},
        },
    });
    let large = json!({"containers": container("3"), "priority": 2, "nodeSelector": {"kubernetes.io/hostname": "n4"}});
    [json!({"containers": container("1")}), large, rules].map(|spec| json!({"metadata": metadata, "spec": spec}))
}

fn read(pod: &Value) -> Option<PendingPod> {
    serde_json::from_value(pod.clone()).ok().map(|pod| PendingPod::new(Arc::new(pod)))
}

/// Everything that the plugins say about the pod.
fn opinions(plugins: &[(&str, Plugin)], profile: &Profile, cluster: &Cluster, pod: &PendingPod) -> Vec<String> {
    let mut all = Vec::new();
    for (name, plugin) in plugins {
        all.push(format!("{name} {:?} {:?}", verdicts(plugin, pod, cluster), scores(plugin, pod, cluster)));
    }
    let filters = cycle::run_pre_filter(cluster, profile, pod).ok();
    if let Some(filters) = &filters
        && let Err(diagnosis) = cycle::find_nodes_that_fit(cluster, profile, pod, filters, &mut 0)
    {
        let attempt = FailedAttempt { cluster, pod, filters: Some(filters), diagnosis: &diagnosis, offset: 0 };
        for enabled in &profile.post_filter {
            all.push(match enabled.plugin.post_filter(&attempt) {
                PostFilterResult::Nominate(candidate) => {
                    let victims: Vec<_> = candidate.victims.iter().map(|victim| &victim.key).collect();
                    format!("{} {victims:?}", candidate.node)
                }
                PostFilterResult::Unschedulable { message, .. } | PostFilterResult::Act { message, .. } => message,
            });
        }
    }
    all
}

/// What the schema does not give: a value that another field decides about, a second element.
fn extra_changes() -> Vec<Value> {
    vec![
        json!({"spec": {"containers": [{}, {"name": "second"}]}}),
        json!({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "4"}}}]}}),
        json!({"spec": {"overhead": {"cpu": "4"}}}),
        // What a container without a request counts as, asked for; and nothing, asked for.
        json!({"spec": {"containers": [{"resources": {"requests": {"memory": "200Mi"}}}]}}),
        json!({"spec": {"containers": [{"resources": {"requests": {"memory": "0"}}}]}}),
        json!({"spec": {"resources": {"requests": {"cpu": "4"}}}}),
        json!({"spec": {"tolerations": [{"key": "t", "operator": "Exists", "value": ""}]}}),
        json!({"spec": {"tolerations": [{}, {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}}),
        json!({"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}}),
        json!({"spec": {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]}}),
    ]
}

#[test]
fn equal_signatures_mean_equal_opinions() {
    let cluster = world();
    let profiles = Config::default().profiles().unwrap();
    let profile = &profiles["default-scheduler"];
    let rows = Registry::default();
    let plugins: Vec<_> = rows.rows().iter().map(|row| (row.name, (row.new)(&Value::Null).unwrap())).collect();
    let pod = schema::builtin().find_kind("", "v1", "Pod").unwrap();
    let mut patches = extra_changes();
    changes(&Shape::Struct(pod), &mut Vec::new(), &mut |patch| patches.push(patch));
    assert!(patches.len() > 1000, "the schema has more fields than {}", patches.len());
    let mut caught = vec![false; PARTS as usize];
    for base in bases() {
        let before = read(&base).unwrap();
        assert!(sign(&cluster, profile, &before).is_some());
        let said = opinions(&plugins, profile, &cluster, &before);
        for patch in &patches {
            let mut changed = base.clone();
            lay_over(&mut changed, patch);
            let Some(after) = read(&changed).filter(|after| !is_alone(&cluster, after)) else { continue };
            let is_shared = sign(&cluster, profile, &after) == sign(&cluster, profile, &before);
            // The parts without which the two would share a signature.
            let decisive = (0..PARTS).filter(|part| {
                let sign = |pod| sign_except(&cluster, profile, pod, 1 << part);
                !caught[*part as usize] && !is_shared && sign(&after).is_some() && sign(&after) == sign(&before)
            });
            let decisive: Vec<_> = decisive.collect();
            if !is_shared && decisive.is_empty() {
                continue;
            }
            let says = opinions(&plugins, profile, &cluster, &after);
            let differences: Vec<_> = said.iter().zip(&says).filter(|(a, b)| a != b).collect();
            let is_equal = differences.is_empty() && said.len() == says.len();
            assert!(is_equal || !is_shared, "{patch} makes a difference that nobody signs: {differences:#?}");
            decisive.into_iter().filter(|_| !is_equal).for_each(|part| caught[part as usize] = true);
        }
    }
    let missed: Vec<usize> = (0..caught.len()).filter(|part| !caught[*part]).collect();
    assert_eq!(missed, [0; 0], "no change of a pod shows that these parts must be signed");
}

#[test]
fn a_pod_with_claims_has_no_signature() {
    let (cluster, profiles) = (world(), Config::default().profiles().unwrap());
    let mut claiming = bases()[0].clone();
    lay_over(&mut claiming, &extra_changes().pop().unwrap());
    assert_eq!(sign(&cluster, &profiles["default-scheduler"], &read(&claiming).unwrap()), None);
}

#[test]
fn patches_are_laid_over_element_by_element() {
    let mut under = json!({"a": [{"b": 1}], "c": {"d": 2}});
    lay_over(&mut under, &json!({"a": [{"e": 3}, {"f": 4}], "c": {"g": 5}}));
    assert_eq!(under, json!({"a": [{"b": 1, "e": 3}, {"f": 4}], "c": {"d": 2, "g": 5}}));
    assert_eq!(patch(&["a".into(), "[]".into(), "{}".into()], json!(1)), json!({"a": [{"k": 1}]}));
}
