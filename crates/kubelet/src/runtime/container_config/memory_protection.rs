//! How much memory a container keeps when others want it, from where on it is slowed down, and how much of it may be
//! swapped: memory.min, memory.high and memory.swap.max.
//! Used by `container_manager` for containers and pods.
//! Invariant: pure (tidy: `pure_files`).

use api::pod_resources;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::resources;
use crate::pod::pod_spec::{self, QosClass};

/// memory.high is a multiple of it.
const PAGE_BYTES: i64 = 4096;
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    /// In proportion to the memory that a container of a Burstable pod asks for.
    LimitedSwap,
}

/// The machine's memory and swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    pub memory_bytes: i64,
    pub swap_bytes: i64,
    pub allocatable_bytes: i64,
}

/// memory.min and memory.high of a container; None leaves the kernel's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryProtection {
    pub min_bytes: Option<i64>,
    pub high_bytes: Option<i64>,
}

fn memory(container: &Container) -> (i64, i64) {
    let resources = container.resources.clone().unwrap_or_default();
    let of = |list| resources::bytes(list, "memory").unwrap_or(0);
    (of(&resources.requests), of(&resources.limits))
}

/// Above its request a container is slowed down before it reaches its limit, or what the node has for pods.
pub fn memory_protection(container: &Container, throttling_factor: f64, node: NodeMemory) -> MemoryProtection {
    let (request, limit) = memory(container);
    let most = if limit != 0 { limit } else { node.allocatable_bytes.max(0) };
    let high = request as f64 + (most - request) as f64 * throttling_factor;
    let high = (high / PAGE_BYTES as f64).floor() as i64 * PAGE_BYTES;
    MemoryProtection {
        min_bytes: Some(request).filter(|request| *request != 0),
        high_bytes: Some(high).filter(|high| request != limit && most > 0 && *high > request),
    }
}

/// What the pod as a whole keeps; 0 is nothing.
pub fn pod_memory_min(pod: &Pod) -> i64 {
    pod_resources::requests(pod).get("memory").map_or(0, |request| request.value())
}

/// Bytes that the container may swap.
pub fn swap_limit(behavior: SwapBehavior, pod: &Pod, container: &Container, node: NodeMemory) -> i64 {
    let (request, limit) = memory(container);
    let critical = pod_spec::spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
        || pod_spec::is_static(pod)
        || pod_spec::is_mirror(pod);
    let swaps = behavior == SwapBehavior::LimitedSwap
        && !critical
        && pod_spec::qos_class(pod) == QosClass::Burstable
        && request != limit;
    if !swaps || node.memory_bytes <= 0 || request > node.memory_bytes {
        return 0;
    }
    (request as f64 / node.memory_bytes as f64 * node.swap_bytes as f64) as i64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NODE: NodeMemory = NodeMemory { memory_bytes: 8 << 30, swap_bytes: 4 << 30, allocatable_bytes: 6 << 30 };

    fn pod(resources: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})).unwrap()
    }

    #[test]
    fn memory_is_protected_by_request() {
        let check = |resources: Value, min: Option<i64>, high: Option<i64>| {
            let pod = pod(resources.clone());
            let found = memory_protection(&pod_spec::containers(&pod)[0], 0.9, NODE);
            assert_eq!(found, MemoryProtection { min_bytes: min, high_bytes: high }, "{resources}");
        };
        check(json!({}), None, None);
        let room = (512 << 20) + (0.9 * ((6u64 << 30) - (512 << 20)) as f64) as i64;
        check(json!({"requests": {"memory": "512Mi"}}), Some(512 << 20), Some(room / 4096 * 4096));
        check(json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}), Some(1 << 30), None);
        let high = (1 << 30) + (0.9 * (1u64 << 30) as f64) as i64;
        let both = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        check(both, Some(1 << 30), Some(high / 4096 * 4096));
        check(json!({"requests": {"memory": "7Gi"}}), Some(7 << 30), None);
    }

    #[test]
    fn swap_follows_the_request() {
        let check = |behavior, resources: Value, expected: i64| {
            let pod = pod(resources.clone());
            assert_eq!(swap_limit(behavior, &pod, &pod_spec::containers(&pod)[0], NODE), expected, "{resources}");
        };
        let burstable = || json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}});
        check(SwapBehavior::LimitedSwap, burstable(), 1 << 30);
        check(SwapBehavior::NoSwap, burstable(), 0);
        check(SwapBehavior::LimitedSwap, json!({"requests": {"memory": "1Gi"}}), 512 << 20);
        check(SwapBehavior::LimitedSwap, json!({"requests": {"memory": "9Gi"}}), 0);
        check(SwapBehavior::LimitedSwap, json!({}), 0);
        check(SwapBehavior::LimitedSwap, json!({"requests": {"cpu": "1"}}), 0);
        check(SwapBehavior::LimitedSwap, json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}), 0);
        check(SwapBehavior::LimitedSwap, json!({"limits": {"cpu": "1", "memory": "1Gi"}}), 0);
        let mut critical = pod(burstable());
        critical.spec.as_mut().unwrap().priority = Some(SYSTEM_CRITICAL_PRIORITY);
        let container = pod_spec::containers(&critical)[0].clone();
        assert_eq!(swap_limit(SwapBehavior::LimitedSwap, &critical, &container, NODE), 0);
    }
}
