//! Amounts of resources: what a pod asks for and what a node offers, as plain integers.
//! The sums over a pod are `api::pod_resources`; read by `node_info` and the resource plugins.
//! Arithmetic saturates; a quantity that can't be read counts as zero.

use std::collections::BTreeMap;

use api::{
    pod_resources::{RequestsOrLimits, ResourceList, total, with_container_status},
    quantity::Quantity,
};
use k8s_openapi::api::core::v1::{Container, Pod};

/// What a container without a request is taken to need when nodes are compared (never when they are filtered).
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Room for pods; only nodes have it.
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes, by name.
    pub scalars: BTreeMap<String, i64>,
}

impl Resources {
    /// The amount of a resource by its API name.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.scalars.get(other).copied().unwrap_or(0),
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// The larger of the two, resource by resource.
    pub fn max(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.scalars {
            match self.scalars.get_mut(name) {
                Some(own) => *own = with(*own, *amount),
                None => drop(self.scalars.insert(name.clone(), with(0, *amount))),
            }
        }
    }
}

impl ResourceList for Resources {
    fn set(&mut self, name: &str, amount: Quantity) {
        match name {
            "cpu" => self.milli_cpu = amount.milli_value(),
            "memory" => self.memory = amount.value(),
            "ephemeral-storage" => self.ephemeral_storage = amount.value(),
            "pods" => self.pods = amount.value(),
            other => drop(self.scalars.insert(other.to_string(), amount.value())),
        }
    }

    fn is_zero(&self, name: &str) -> bool {
        self.get(name) == 0
    }

    fn add(&mut self, other: &Self) {
        Self::add(self, other);
    }

    fn max(&mut self, other: &Self) {
        Self::max(self, other);
    }
}

/// What a pod needs, and the same with defaults for containers that ask for nothing.
pub fn pod_requests(pod: &Pod) -> (Resources, Resources) {
    let of = |container: &Container, kind| with_container_status(pod, container, kind, RequestsOrLimits::Requests);
    let exact = total(pod, RequestsOrLimits::Requests, of);
    let with_defaults = total(pod, RequestsOrLimits::Requests, |container, kind| {
        let mut resources: Resources = of(container, kind);
        let declared = RequestsOrLimits::Requests.list(container.resources.as_ref());
        let asks = |name: &str| declared.is_some_and(|requests| requests.contains_key(name));
        if !asks("cpu") {
            resources.milli_cpu = resources.milli_cpu.max(DEFAULT_MILLI_CPU);
        }
        if !asks("memory") {
            resources.memory = resources.memory.max(DEFAULT_MEMORY_BYTES);
        }
        resources
    });
    (exact, with_defaults)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value, milli_cpu: i64, memory: i64) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let (exact, _) = pod_requests(&pod);
        assert_eq!((exact.milli_cpu, exact.memory), (milli_cpu, memory), "{spec}");
    }

    #[test]
    fn a_pod_needs_the_most_it_ever_runs_at_once() {
        let cpu = |c: &str| json!({"name": "c", "resources": {"requests": {"cpu": c, "memory": "1Ki"}}});
        let mut sidecar = cpu("500m");
        sidecar["restartPolicy"] = json!("Always");
        check(json!({"containers": [cpu("100m"), cpu("200m")]}), 300, 2048);
        check(json!({"containers": [cpu("100m")], "initContainers": [cpu("1")]}), 1000, 1024);
        check(json!({"containers": [cpu("100m")], "initContainers": [sidecar, cpu("1")]}), 1500, 2048);
        check(json!({"containers": [cpu("100m")], "initContainers": [cpu("550m"), sidecar]}), 600, 2048);
        check(json!({"containers": [cpu("100m")], "overhead": {"cpu": "50m"}}), 150, 1024);
        check(json!({"containers": [cpu("100m")], "resources": {"requests": {"cpu": "2"}}}), 2000, 1024);
    }

    #[test]
    fn a_resize_holds_what_runs_and_what_is_wanted_unless_it_can_never_be() {
        for (reason, milli_cpu) in [("Deferred", 2000), ("Infeasible", 700)] {
            let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
            let running = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": asks("500m"), "allocatedResources": {"cpu": "700m"}});
            let pending = json!({"type": "PodResizePending", "status": "True", "reason": reason});
            let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": asks("2")}]},
                "status": {"conditions": [pending], "containerStatuses": [running]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(pod_requests(&pod).0.milli_cpu, milli_cpu, "{reason}");
        }
    }

    #[test]
    fn containers_that_ask_for_nothing_get_defaults_when_compared() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}))
                .unwrap();
        let (exact, with_defaults) = pod_requests(&pod);
        assert_eq!(exact, Resources::default());
        assert_eq!((with_defaults.milli_cpu, with_defaults.memory), (200, 2 * DEFAULT_MEMORY_BYTES));
    }
}
