//! Fixtures for the plugins' tests: small pods and nodes, and the one `check` they all go through.
//! Used by `plugins/*` and `cycle` tests only.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    framework::{Plugin, PreFilterResult, PreScoreResult, Status},
    pod_info::{PendingPod, PodInfo},
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
pub fn pod(spec: Value) -> PendingPod {
    named_pod("default", "p", json!({}), spec)
}

pub fn named_pod(namespace: &str, name: &str, labels: Value, mut spec: Value) -> PendingPod {
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    let pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels}, "spec": spec});
    PendingPod::new(Arc::new(serde_json::from_value(pod).unwrap()))
}

pub fn requesting(cpu: &str, memory: &str) -> PendingPod {
    pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}))
}

/// A cluster of `nodes`, with `pods` placed on them by node name.
pub fn cluster(nodes: &[Value], pods: Vec<(&str, PendingPod)>) -> Cluster {
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

/// The plugin without arguments.
pub fn built(new: fn(&Value) -> Result<Plugin, String>) -> Plugin {
    new(&Value::Null).unwrap()
}

pub fn verdicts(plugin: &Plugin, pod: &PendingPod, cluster: &Cluster) -> Vec<Result<(), Status>> {
    let nodes = cluster.cache.nodes();
    let result = plugin.pre_filter.as_ref().map_or(PreFilterResult::AllNodes, |p| p.pre_filter(cluster, pod));
    match result {
        PreFilterResult::Skip => nodes.iter().map(|_| Ok(())).collect(),
        PreFilterResult::Reject(status) => nodes.iter().map(|_| Err(status.clone())).collect(),
        PreFilterResult::AllNodes | PreFilterResult::Nodes(_) => {
            let Some(plugin) = &plugin.filter else { return nodes.iter().map(|_| Ok(())).collect() };
            let filter = plugin.node_filter(cluster, pod);
            nodes.iter().map(|node| filter.filter(node)).collect()
        }
    }
}

pub fn check_among(
    plugin: &Plugin,
    pod: &PendingPod,
    nodes: &[Value],
    pods: Vec<(&str, PendingPod)>,
) -> Vec<Result<(), Status>> {
    verdicts(plugin, pod, &cluster(nodes, pods))
}

/// The verdict on one empty node.
pub fn check(plugin: &Plugin, pod: &PendingPod, node: &Value, wanted: Result<(), &'static str>) {
    let verdict = check_among(plugin, pod, std::slice::from_ref(node), vec![]).pop().unwrap();
    let found = verdict.map_err(|status| status.message());
    assert_eq!(found, wanted.map_err(str::to_string), "{:?} on {node}", pod.pod.spec);
}

pub fn scores(plugin: &Plugin, pod: &PendingPod, cluster: &Cluster) -> Vec<i64> {
    let nodes: Vec<_> = cluster.cache.nodes().iter().collect();
    let result = plugin.pre_score.as_ref().map(|p| p.pre_score(cluster, pod, &nodes));
    let Some(plugin) = plugin.score.as_ref().filter(|_| result != Some(PreScoreResult::Skip)) else {
        return vec![0; nodes.len()];
    };
    let scorer = plugin.node_scorer(cluster, pod, &nodes);
    let mut scores: Vec<_> = nodes.iter().enumerate().map(|(at, node)| scorer.score(at, node)).collect();
    scorer.normalize_score(&mut scores);
    scores
}

pub fn check_scores(plugin: &Plugin, pod: &PendingPod, nodes: &[Value], wanted: &[i64]) {
    check_scores_among(plugin, pod, nodes, vec![], wanted);
}

pub fn check_scores_among(
    plugin: &Plugin,
    pod: &PendingPod,
    nodes: &[Value],
    pods: Vec<(&str, PendingPod)>,
    wanted: &[i64],
) {
    assert_eq!(scores(plugin, pod, &cluster(nodes, pods)), wanted);
}
