//! Which pod goes first when a resource is short, and what is said of it.
//! Part of `eviction`.
//! Invariant: pure; pods that the cluster cannot do without are not in the list (tidy: `pure_files`).

use std::{cmp::Reverse, sync::Arc};

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

fn pod_request(pod: &Pod, signal: Signal) -> i64 {
    let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
    pod_spec::containers(pod).iter().chain(sidecars).map(|container| request(container, signal)).sum()
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

/// What the pod's status says; people and controllers know these words.
pub fn message(pod: &Pod, usage: &Usage, threshold: &Threshold, seen: Observation) -> String {
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
    for (name, used) in &usage.containers {
        let Some((_, container)) = pod_spec::find_container(pod, name) else { continue };
        let request = request(&container, signal);
        if *used > request {
            text.push_str(&format!(
                "Container {name} was using {}, request is {}, has larger consumption of {resource}. ",
                quantity(*used),
                quantity(request)
            ));
        }
    }
    text
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
        let text = message(&pod("p", 0, "0"), &usage(4 << 10), &threshold, seen);
        assert_eq!(
            text,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container a was using \
             4Ki, request is 0, has larger consumption of memory. "
        );
    }
}
