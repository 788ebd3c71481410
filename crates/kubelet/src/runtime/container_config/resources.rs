//! A container's share of the machine in the runtime's terms: cpu shares and quota, memory, oom_score_adj.
//! Used by `container_config` and by `container_manager` for the pod's cgroup.
//! Invariant: pure (tidy: `pure_files`).

use api::{
    pod_resources::{self, Amounts, RequestsOrLimits, ResourceList},
    quantity,
};
use cri::v1;
use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use std::collections::BTreeMap;

use crate::pod::pod_spec::{self, Kind, QosClass};

pub const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
pub const QUOTA_PERIOD: i64 = 100_000;
const MIN_QUOTA: i64 = 1000;

pub fn cpu_shares(milli: i64) -> i64 {
    if milli <= 0 { MIN_SHARES } else { (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Microseconds per period; 0 is no limit.
pub fn cpu_quota(milli: i64) -> i64 {
    if milli <= 0 { 0 } else { (milli.saturating_mul(QUOTA_PERIOD) / 1000).max(MIN_QUOTA) }
}

pub fn get(list: &Option<BTreeMap<String, Quantity>>, name: &str) -> Option<Quantity> {
    list.as_ref().and_then(|l| l.get(name)).cloned()
}

pub fn cpu_milli(list: &Option<BTreeMap<String, Quantity>>) -> Option<i64> {
    get(list, "cpu").as_ref().and_then(quantity::milli_value)
}

pub fn bytes(list: &Option<BTreeMap<String, Quantity>>, name: &str) -> Option<i64> {
    get(list, name).as_ref().and_then(quantity::value)
}

pub fn linux_resources(pod: &Pod, container: &Container, kind: Kind, node_memory: i64) -> v1::LinuxContainerResources {
    let resources = container.resources.clone().unwrap_or_default();
    let limit_cpu = cpu_milli(&resources.limits);
    // Without a request the limit is the request; with neither the container gets the least.
    let request_cpu = cpu_milli(&resources.requests).or(limit_cpu).unwrap_or(0);
    let memory = bytes(&resources.limits, "memory").unwrap_or(0);
    v1::LinuxContainerResources {
        cpu_period: QUOTA_PERIOD,
        cpu_quota: limit_cpu.map_or(0, cpu_quota),
        cpu_shares: cpu_shares(request_cpu),
        memory_limit_in_bytes: memory,
        oom_score_adj: oom_score_adj(pod, container, kind, node_memory),
        hugepage_limits: hugepages(&resources),
        ..Default::default()
    }
}

fn hugepages(resources: &ResourceRequirements) -> Vec<v1::HugepageLimit> {
    let limits = resources.limits.iter().flatten();
    limits
        .filter_map(|(name, amount)| {
            let size = name.strip_prefix("hugepages-")?;
            let limit = quantity::value(amount)?.try_into().ok()?;
            // "2Mi" in the API is "2MB" in the cgroup.
            Some(v1::HugepageLimit { page_size: size.replace('i', "B"), limit })
        })
        .collect()
}

/// The most huge pages the pod may have, for every size of the machine: what it does not name it gets none of.
pub fn pod_hugepages(pod: &Pod, sizes: &[String]) -> Vec<(String, i64)> {
    let limits = pod_resources::limits(pod);
    let of = |size: &String| {
        let limit = limits.get(&format!("hugepages-{size}")).map_or(0, |limit| limit.value());
        (size.replace('i', "B"), limit)
    };
    sizes.iter().map(of).collect()
}

/// The more of its request a pod could overrun, the sooner the kernel kills it.
pub fn oom_score_adj(pod: &Pod, container: &Container, kind: Kind, node_memory: i64) -> i64 {
    if pod_spec::spec(pod).priority.is_some_and(|p| p >= 2_000_000_000) {
        return -997;
    }
    match pod_spec::qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = |c: &Container| {
                let resources = c.resources.clone().unwrap_or_default();
                bytes(&resources.requests, "memory").or_else(|| bytes(&resources.limits, "memory")).unwrap_or(0)
            };
            let mut own = request(container);
            if kind == Kind::Init && pod_spec::is_sidecar(container) {
                // A sidecar outlives the apps it serves: it is treated as well as the least of them.
                let smallest = pod_spec::containers(pod).iter().map(request).min().unwrap_or(0);
                own = own.max(smallest);
            }
            let score = 1000 - (1000 * own) / node_memory.max(1);
            score.clamp(3, 999)
        }
    }
}

/// What the whole pod may use, for its cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodLimits {
    pub cpu_shares: i64,
    /// 0 when some container has no limit.
    pub cpu_quota: i64,
    pub memory_bytes: Option<i64>,
}

/// Thousandths of a processor that the pod asks for: the most at any time. Without a request the limit is the request.
pub fn pod_cpu_request(pod: &Pod) -> i64 {
    let requests: Amounts = pod_resources::total(pod, RequestsOrLimits::Requests, |container, _| {
        let list = |which: RequestsOrLimits| Amounts::from_quantities(which.list(container.resources.as_ref()));
        let mut requests = list(RequestsOrLimits::Limits);
        requests.extend(list(RequestsOrLimits::Requests));
        requests
    });
    requests.get("cpu").map_or(0, |request| request.milli_value())
}

pub fn pod_limits(pod: &Pod) -> PodLimits {
    let limits = pod_resources::limits(pod);
    let limit = |name: &str| limits.get(name).filter(|_| is_limited(pod, name));
    PodLimits {
        cpu_shares: cpu_shares(pod_cpu_request(pod)),
        cpu_quota: limit("cpu").map_or(0, |limit| cpu_quota(limit.milli_value())),
        memory_bytes: limit("memory").map(|limit| limit.value()),
    }
}

/// Whether the pod as a whole has a limit, or every one of its containers: a single one without could use anything.
fn is_limited(pod: &Pod, name: &str) -> bool {
    let limits = |resources: &Option<ResourceRequirements>| {
        resources.as_ref().and_then(|r| bytes(&r.limits, name)).is_some_and(|limit| limit > 0)
    };
    let mut containers = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    limits(&pod_spec::spec(pod).resources) || containers.all(|container| limits(&container.resources))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn shares_and_quota() {
        let check =
            |milli, shares, quota| assert_eq!((cpu_shares(milli), cpu_quota(milli)), (shares, quota), "{milli}");
        check(0, 2, 0);
        check(1, 2, 1000);
        check(100, 102, 10_000);
        check(2000, 2048, 200_000);
    }

    #[test]
    fn limits_of_a_pod_are_the_most_it_uses_at_once() {
        let check = |spec: Value, shares, quota, memory| {
            let expected = PodLimits { cpu_shares: shares, cpu_quota: quota, memory_bytes: memory };
            assert_eq!(pod_limits(&pod(spec.clone())), expected, "{spec}");
        };
        let with =
            |name: &str, cpu: &str| json!({"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Mi"}}});
        let mut sidecar = with("s", "200m");
        sidecar["restartPolicy"] = "Always".into();
        check(json!({"containers": [{"name": "a"}]}), 2, 0, None);
        check(json!({"containers": [with("a", "1"), with("b", "500m")]}), 1536, 150_000, Some(2 << 20));
        check(json!({"containers": [with("a", "1"), {"name": "b"}]}), 1024, 0, None);
        check(
            json!({"containers": [with("a", "1")], "initContainers": [with("i", "2")]}),
            2048,
            200_000,
            Some(1 << 20),
        );
        check(
            json!({"containers": [with("a", "1")], "initContainers": [sidecar, with("i", "500m")]}),
            1228,
            120_000,
            Some(2 << 20),
        );
    }

    #[test]
    fn overhead_comes_on_top_of_pod_level_resources() {
        let check = |spec: Value, shares, quota, memory| {
            let expected = PodLimits { cpu_shares: shares, cpu_quota: quota, memory_bytes: memory };
            assert_eq!(pod_limits(&pod(spec.clone())), expected, "{spec}");
        };
        let (some, overhead) = (json!({"cpu": "1", "memory": "1Mi"}), json!({"cpu": "500m", "memory": "1Mi"}));
        let container = json!({"name": "a", "resources": {"limits": some, "requests": some}});
        check(json!({"containers": [container], "overhead": overhead}), 1536, 150_000, Some(2 << 20));
        let resources = json!({"limits": some, "requests": some});
        let spec = json!({"containers": [{"name": "a"}], "resources": resources, "overhead": overhead});
        check(spec, 1536, 150_000, Some(2 << 20));
        // Pod level names cpu alone: memory is limited by the containers.
        let resources = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}});
        check(json!({"containers": [container], "resources": resources}), 2048, 200_000, Some(1 << 20));
        let unlimited = json!([{"name": "a"}, container]);
        check(json!({"containers": unlimited, "resources": resources}), 2048, 200_000, None);
    }

    #[test]
    fn the_kernel_kills_best_effort_first() {
        let check = |spec: Value, expected| {
            let pod = pod(spec);
            let score = oom_score_adj(&pod, &pod_spec::containers(&pod)[0], Kind::App, 1 << 30);
            assert_eq!(score, expected);
        };
        check(json!({"containers": [{"name": "a"}]}), 1000);
        check(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}), -997);
        check(json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "512Mi"}}}]}), 500);
        check(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1m"}}}]}), 999);
    }
}
