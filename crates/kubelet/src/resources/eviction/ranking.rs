//! Which pod goes first when a resource is short, and what is said of it.
//! Part of `eviction`.
//! Invariant: pure; pods that the cluster cannot do without are not in the list (tidy: `pure_files`).

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use api::pod_resources;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::thresholds::{Observation, Signal, Threshold};
use crate::{
    pod::{admission::preemption::is_critical, pod_spec},
    runtime::container_config::resources,
};

/// What a pod and its containers use of the short resource.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    pub total: i64,
    /// By container name.
    pub containers: Vec<(String, i64)>,
}

fn request(container: &Container, signal: Signal) -> i64 {
    let requests = container.resources.clone().unwrap_or_default().requests;
    // Nobody can ask for inodes or process ids.
    resources::bytes(&requests, signal.resource()).unwrap_or(0)
}

/// Of the pod as a whole, where that is said.
fn pod_request(pod: &Pod, signal: Signal) -> i64 {
    pod_resources::requests(pod).get(signal.resource()).map_or(0, |amount| amount.value())
}

/// Those that use more than they asked for first, then the least important, then who is furthest above its request.
pub fn rank(mut pods: Vec<(Arc<Pod>, Usage)>, signal: Signal) -> Vec<(Arc<Pod>, Usage)> {
    pods.retain(|(pod, _)| !is_critical(pod));
    pods.sort_by_cached_key(|(pod, usage)| {
        let over = usage.total - pod_request(pod, signal);
        let exceeds = over > 0 || signal == Signal::Pid;
        (Reverse(exceeds), pod_spec::spec(pod).priority.unwrap_or(0), Reverse(over))
    });
    pods
}

/// What is said of a pod that has to go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvictionMessage {
    /// What the pod's status says; people and controllers know these words.
    pub text: String,
    /// Of the Event, for programs.
    pub annotations: BTreeMap<String, String>,
}

pub fn message(pod: &Pod, usage: &Usage, threshold: &Threshold, seen: Observation) -> EvictionMessage {
    let signal = threshold.signal;
    let resource = signal.resource();
    let quantity = |value: i64| match resource {
        "inodes" | "pids" => value.to_string(),
        _ => binary(value),
    };
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        quantity(threshold.least.resolve(seen.capacity)),
        quantity(seen.available)
    );
    let mut annotations = BTreeMap::new();
    let mut annotate = |key: &str, value: String| drop(annotations.insert(key.to_string(), value));
    let of_pod = pod_spec::spec(pod).resources.as_ref();
    if resource == "memory"
        && let Some(request) = of_pod.and_then(|own| resources::bytes(&own.requests, resource))
    {
        let (name, used) = (pod_spec::name(pod), quantity(usage.total));
        let request = quantity(request);
        text.push_str(&format!(
            "Pod {name} was using {used}, request is {request}, has larger consumption of {resource}. "
        ));
        annotate("offending_pod", name.into());
        annotate("offending_pod_usage", used);
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    let all = || pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    // Inodes and process ids are not counted by container.
    for (name, used) in usage.containers.iter().filter(|_| matches!(resource, "memory" | "ephemeral-storage")) {
        let Some(container) = all().find(|container| container.name == *name) else { continue };
        let request = request(container, signal);
        if *used > request {
            text.push_str(&format!(
                "Container {name} was using {}, request is {}, has larger consumption of {resource}. ",
                quantity(*used),
                quantity(request)
            ));
            names.push(name.as_str());
            amounts.push(quantity(*used));
        }
    }
    annotate("offending_containers", names.join(","));
    annotate("offending_containers_usage", amounts.join(","));
    annotate("starved_resource", resource.into());
    EvictionMessage { text, annotations }
}

/// Bytes as the API writes them: whole binary units where they fit.
pub fn binary(bytes: i64) -> String {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes != 0 && bytes % (1 << shift) == 0);
    unit.map_or(bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::eviction::thresholds::Amount;

    fn pod(name: &str, priority: i32, request: &str) -> Arc<Pod> {
        let value = json!({"metadata": {"name": name}, "spec": {"priority": priority,
            "containers": [{"name": "a", "resources": {"requests": {"memory": request}}}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn usage(total: i64) -> Usage {
        Usage { total, containers: vec![("a".into(), total)] }
    }

    #[test]
    fn the_greedy_and_the_unimportant_go_first() {
        let pods = vec![
            (pod("modest", 0, "100"), usage(50)),
            (pod("greedy", 0, "100"), usage(500)),
            (pod("greedier", 0, "0"), usage(600)),
            (pod("important", 10, "0"), usage(900)),
            (pod("critical", 2_000_000_000, "0"), usage(999)),
        ];
        let ranked = rank(pods, Signal::Memory);
        let names: Vec<_> = ranked.iter().map(|(pod, _)| pod_spec::name(pod)).collect();
        assert_eq!(names, ["greedier", "greedy", "important", "modest"]);
    }

    #[test]
    fn the_message_names_the_shortage_and_the_cause() {
        let threshold = Threshold {
            signal: Signal::Memory,
            least: Amount::Absolute(100 << 20),
            grace: Default::default(),
            reclaim: None,
        };
        let seen = Observation { available: 50 << 20, capacity: 1 << 30 };
        let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ";
        let check = |pod: &Pod, signal: Signal, text: &str, expected: &[(&str, &str)]| {
            let found = message(pod, &usage(4 << 10), &Threshold { signal, ..threshold }, seen);
            assert_eq!(found.text, text);
            let expected = expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            assert_eq!(found.annotations, expected, "{text}");
        };
        let of_container = "Container a was using 4Ki, request is 0, has larger consumption of memory. ";
        let blamed =
            [("offending_containers", "a"), ("offending_containers_usage", "4Ki"), ("starved_resource", "memory")];
        check(&pod("p", 0, "0"), Signal::Memory, &format!("{low}{of_container}"), &blamed);
        let mut whole = (*pod("p", 0, "0")).clone();
        let resources = json!({"requests": {"memory": "2Ki"}});
        whole.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
        let of_pod = "Pod p was using 4Ki, request is 2Ki, has larger consumption of memory. ";
        let both = [blamed.as_slice(), &[("offending_pod", "p"), ("offending_pod_usage", "4Ki")]].concat();
        check(&whole, Signal::Memory, &format!("{low}{of_pod}{of_container}"), &both);
        let nobody = [("offending_containers", ""), ("offending_containers_usage", ""), ("starved_resource", "inodes")];
        let text = "The node was low on resource: inodes. Threshold quantity: 104857600, available: 52428800. ";
        check(&whole, Signal::NodeFsInodes, text, &nobody);
    }

    #[test]
    fn what_the_pod_as_a_whole_asks_for_counts() {
        let whole = |request: &str| {
            let mut pod = (*pod("whole", 0, "0")).clone();
            let resources = json!({"requests": {"memory": request}});
            pod.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
            Arc::new(pod)
        };
        let check = |request: &str, expected: [&str; 2]| {
            let ranked = rank(vec![(whole(request), usage(500)), (pod("other", 0, "100"), usage(150))], Signal::Memory);
            let names: Vec<_> = ranked.iter().map(|(pod, _)| pod_spec::name(pod)).collect();
            assert_eq!(names, expected, "{request}");
        };
        check("600", ["other", "whole"]);
        check("400", ["whole", "other"]);
    }
}
