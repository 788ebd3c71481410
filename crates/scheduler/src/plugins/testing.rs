//! Fixtures for the plugins' tests: small pods and nodes, and the one `check` they all go through.
//! Used by `plugins/*` and `cycle` tests only.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    framework::{Failure, Plugin, Prepared},
    pod_info::{PodInfo, WaitingPod},
};

pub fn node(name: &str) -> Value {
    sized(name, "4", "8Gi")
}

pub fn sized(name: &str, cpu: &str, memory: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}}})
}

pub fn labelled(name: &str, labels: &[(&str, &str)]) -> Value {
    let mut node = node(name);
    for (key, value) in labels {
        node["metadata"]["labels"][*key] = json!(value);
    }
    node
}

/// A pod in `default` called `p`.
pub fn pod(spec: Value) -> WaitingPod {
    named_pod("default", "p", json!({}), spec)
}

pub fn named_pod(namespace: &str, name: &str, labels: Value, mut spec: Value) -> WaitingPod {
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    let pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels}, "spec": spec});
    WaitingPod::new(Arc::new(serde_json::from_value(pod).unwrap()))
}

pub fn requesting(cpu: &str, memory: &str) -> WaitingPod {
    pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}))
}

/// A cluster of `nodes`, with `pods` placed on them by node name.
pub fn cluster(nodes: &[Value], pods: Vec<(&str, WaitingPod)>) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.cache.set_node(Arc::new(serde_json::from_value(node.clone()).unwrap()));
    }
    for (at, (node, pod)) in pods.into_iter().enumerate() {
        let mut info = PodInfo::new(&pod.pod);
        if cluster.cache.pod(&info.key).is_some() {
            info.key = format!("{}#{at}", info.key);
        }
        cluster.cache.assume(Arc::new(info), node);
    }
    cluster.cache.prepare_order();
    cluster
}

pub fn verdicts(plugin: &dyn Plugin, pod: &WaitingPod, cluster: &Cluster) -> Vec<Result<(), Failure>> {
    let nodes = cluster.cache.nodes();
    match plugin.filter(cluster, pod) {
        Prepared::Skip => nodes.iter().map(|_| Ok(())).collect(),
        Prepared::Reject(failure) => nodes.iter().map(|_| Err(failure.clone())).collect(),
        Prepared::Filter(filter) | Prepared::Only(_, filter) => nodes.iter().map(|n| filter.check(n)).collect(),
    }
}

pub fn check_among(
    plugin: &dyn Plugin,
    pod: &WaitingPod,
    nodes: &[Value],
    pods: Vec<(&str, WaitingPod)>,
) -> Vec<Result<(), Failure>> {
    verdicts(plugin, pod, &cluster(nodes, pods))
}

/// The verdict on one empty node.
pub fn check(plugin: &dyn Plugin, pod: &WaitingPod, node: &Value, wanted: Result<(), &'static str>) {
    let verdict = check_among(plugin, pod, std::slice::from_ref(node), vec![]).pop().unwrap();
    let found = verdict.map_err(|failure| failure.reasons.join(", "));
    assert_eq!(found, wanted.map_err(str::to_string), "{:?} on {node}", pod.pod.spec);
}

pub fn scores(plugin: &dyn Plugin, pod: &WaitingPod, cluster: &Cluster) -> Vec<i64> {
    let nodes: Vec<_> = cluster.cache.nodes().iter().collect();
    let Some(score) = plugin.score(cluster, pod, &nodes) else { return vec![0; nodes.len()] };
    let mut scores: Vec<_> = nodes.iter().enumerate().map(|(at, node)| score.score(at, node)).collect();
    score.normalize(&mut scores);
    scores
}

pub fn check_scores(plugin: &dyn Plugin, pod: &WaitingPod, nodes: &[Value], wanted: &[i64]) {
    check_scores_among(plugin, pod, nodes, vec![], wanted);
}

pub fn check_scores_among(
    plugin: &dyn Plugin,
    pod: &WaitingPod,
    nodes: &[Value],
    pods: Vec<(&str, WaitingPod)>,
    wanted: &[i64],
) {
    assert_eq!(scores(plugin, pod, &cluster(nodes, pods)), wanted);
}
