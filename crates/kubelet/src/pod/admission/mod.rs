//! Whether this node can run a pod that it was given: the last check before anything is made for it. `security` asks
//! what the machine can enforce, `preemption` who makes room for a critical pod, `hook` somebody else's program.
//! Called by `pod_workers` until a pod was admitted or rejected.
//! Invariant: pure; a refused pod fails with a reason that controllers and people know (tidy: `pure_files`).

pub mod hook;
pub mod preemption;
pub mod security;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    kinds::is_extended_resource,
    placement, pod_resources,
    quantity::{self, Quantity},
};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::{
    pod::{pod_spec, pod_status::is_terminal},
    runtime::container_config::sysctl_name,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}

/// Refused for a reason that has no name of its own.
pub const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// What becomes of a pod that may not begin now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// It fails, and whoever made it may make another elsewhere.
    Rejected(Refusal),
    /// It stays Pending, says why, and is looked at again.
    Blocked { refusal: Refusal, retry_in: Duration },
}

/// Why a pod does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PredicateFailure {
    InsufficientResource { name: String, requested: i64, used: i64, capacity: i64 },
    Other(Refusal),
}

impl PredicateFailure {
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Other(refusal) => refusal.clone(),
            Self::InsufficientResource { name, requested, used, capacity } => Refusal {
                reason: format!("OutOf{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                     capacity: {capacity}"
                ),
            },
        }
    }
}

/// Kernel settings that belong to a pod alone, by upstream's list.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Pods of other operating systems are not for this node.
pub fn admit_os(pod: &Pod) -> Result<(), Refusal> {
    let refuse = |reason: &str, message: &str| Err(Refusal { reason: reason.into(), message: message.into() });
    if pod.metadata.labels.iter().flatten().any(|(key, os)| key == "kubernetes.io/os" && os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return refuse("PodOSSelectorNodeLabelDoesNotMatch", message);
    }
    match &pod_spec::spec(pod).os {
        Some(os) if os.name != "linux" => {
            refuse("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
        }
        _ => Ok(()),
    }
}

/// Refuses kernel settings that this node does not allow, or that would not be the pod's own.
pub fn admit_sysctls(pod: &Pod, allowed: &[String]) -> Result<(), Refusal> {
    let spec = pod_spec::spec(pod);
    for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        let name = sysctl_name(&sysctl.name);
        let listed =
            allowed.iter().map(|pattern| sysctl_name(pattern)).any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == pattern,
            });
        if !SAFE_SYSCTLS.contains(&name.as_str()) && !listed {
            return Err(Refusal {
                reason: "SysctlForbidden".into(),
                message: format!("forbidden sysctl: {name:?} not allowlisted"),
            });
        }
        let shared = |host: Option<bool>, what: &str| match host {
            Some(true) => Err(Refusal {
                reason: "SysctlForbidden".into(),
                message: format!("forbidden sysctl: {name:?} not allowed with host {what} enabled"),
            }),
            _ => Ok(()),
        };
        if name.starts_with("net.") {
            shared(spec.host_network, "net")?;
        } else if name.starts_with("kernel.shm")
            || name.starts_with("kernel.msg")
            || name == "kernel.sem"
            || name.starts_with("fs.mqueue.")
        {
            shared(spec.host_ipc, "ipc")?;
        }
    }
    Ok(())
}

/// Whether a pod that runs here can have other resources; else upstream's reason, "Deferred" or "Infeasible", and why.
pub fn admit_resize(pod: &Pod, others: &[Arc<Pod>], node: &Node) -> Result<(), (&'static str, String)> {
    if pod_spec::is_static(pod) {
        return Err(("Infeasible", "In-place resize of static-pods is not supported".into()));
    }
    if let Some(message) = beyond_node(pod, node) {
        return Err(("Infeasible", message));
    }
    admit(pod, others, node).map_err(|refusal| ("Deferred", refusal.message))
}

/// Why a pod could not even have this node to itself: more memory or processors than there are.
fn beyond_node(pod: &Pod, node: &Node) -> Option<String> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone()).unwrap_or_default();
    let requested = requests(pod);
    ["memory", "cpu"].into_iter().find_map(|name| {
        let read = |q| if name == "cpu" { quantity::milli_value(q) } else { quantity::value(q) };
        let capacity = allocatable.get(name).and_then(read).unwrap_or(0);
        let requested = requested.get(name).copied().unwrap_or(0);
        let message =
            || format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}");
        (requested > capacity).then(message)
    })
}

/// `others` are the pods of the node that were admitted before.
fn admit(pod: &Pod, others: &[Arc<Pod>], node: &Node) -> Result<(), Refusal> {
    predicate_failures(pod, others, node).first().map_or(Ok(()), |failure| Err(failure.refusal()))
}

/// Everything that keeps a pod from this node, the first being the one to show.
pub fn predicate_failures(pod: &Pod, others: &[Arc<Pod>], node: &Node) -> Vec<PredicateFailure> {
    let active: Vec<&Arc<Pod>> = others.iter().filter(|other| occupies(other)).collect();
    let mut failures = insufficient_resources(pod, &active, node);
    failures.extend(predicates(pod, &active, node));
    failures
}

fn insufficient_resources(pod: &Pod, active: &[&Arc<Pod>], node: &Node) -> Vec<PredicateFailure> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone()).unwrap_or_default();
    let mut failures = Vec::new();
    let mut check = |name: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && used.saturating_add(requested) > capacity {
            let name = name.to_string();
            failures.push(PredicateFailure::InsufficientResource { name, requested, used, capacity });
        }
    };
    if let Some(capacity) = allocatable.get("pods").and_then(quantity::value) {
        check("pods", 1, active.len() as i64, capacity);
    }
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in active {
        for (name, amount) in requests(other) {
            let used = used.entry(name).or_default();
            *used = used.saturating_add(amount);
        }
    }
    let mut requested: Vec<(String, i64)> = requests(pod).into_iter().collect();
    let usual = |name: &str| ["cpu", "memory", "ephemeral-storage"].iter().position(|known| *known == name);
    requested.sort_by_key(|(name, _)| usual(name).unwrap_or(usize::MAX));
    for (name, amount) in requested {
        let read = |q| if name == "cpu" { quantity::milli_value(q) } else { quantity::value(q) };
        // A resource that this node knows nothing of may belong to the cluster: its scheduler has counted it.
        if is_extended_resource(&name) && !allocatable.contains_key(&name) {
            continue;
        }
        let capacity = allocatable.get(&name).and_then(read).unwrap_or(0);
        check(&name, amount, used.get(&name).copied().unwrap_or(0), capacity);
    }
    failures
}

/// What the scheduler checks as well, for pods that came past it.
fn predicates(pod: &Pod, others: &[&Arc<Pod>], node: &Node) -> Vec<PredicateFailure> {
    let spec = pod_spec::spec(pod);
    // Nobody could place a static pod elsewhere, and taints drive nobody's static pods away.
    let tolerated =
        || pod_spec::is_static(pod) || placement::tolerated(spec, node, |taint| taint.effect == "NoExecute");
    let name = spec.node_name.as_deref().unwrap_or_default();
    let own = node.metadata.name.as_deref().unwrap_or_default();
    let here = name.is_empty() || own.is_empty() || name == own;
    let free = !others.iter().any(|other| placement::ports_clash(spec, pod_spec::spec(other)));
    let failed = [
        (placement::matches(spec, node), "NodeAffinity", "node(s) didn't match Pod's node affinity/selector"),
        (here, "NodeName", "node(s) didn't match the requested node name"),
        (free, "NodePorts", "node(s) didn't have free ports for the requested pod ports"),
        (tolerated(), "TaintToleration", "node(s) had taints that the pod didn't tolerate"),
    ];
    let failed = failed.into_iter().filter(|(holds, ..)| !holds);
    failed
        .map(|(_, name, why)| PredicateFailure::Other(Refusal::new(name, format!("Predicate {name} failed: {why}"))))
        .collect()
}

/// Whether a pod takes anything of the node still.
pub fn occupies(pod: &Pod) -> bool {
    !pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(is_terminal)
}

/// What the pod asks for in all: thousandths of processors, whole units of anything else.
pub fn requests(pod: &Pod) -> BTreeMap<String, i64> {
    let count = |(name, amount): (String, Quantity)| {
        let number = if name == "cpu" { amount.milli_value() } else { amount.value() };
        (name, number)
    };
    pod_resources::requests(pod).into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_of_other_systems_are_refused() {
        let check = |pod: Value, expected: Option<&str>| {
            let found = admit_os(&serde_json::from_value(pod.clone()).unwrap()).err().map(|refusal| refusal.reason);
            assert_eq!(found.as_deref(), expected, "{pod}");
        };
        let of = |os: &str| json!({"spec": {"containers": [], "os": {"name": os}}});
        check(json!({"spec": {"containers": []}}), None);
        check(of("linux"), None);
        check(of("windows"), Some("PodOSNotSupported"));
        let label = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
        check(label, Some("PodOSSelectorNodeLabelDoesNotMatch"));
    }

    #[test]
    fn kernel_settings_of_others_are_refused() {
        let check = |spec: Value, allowed: &[&str], expected: Option<&str>| {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let found = admit_sysctls(&pod, &allowed).err().map(|r| r.message);
            assert_eq!(found.as_deref(), expected, "{spec}");
        };
        let asks =
            |name: &str| json!({"containers": [], "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        check(asks("kernel.shm_rmid_forced"), &[], None);
        check(asks("kernel/shm_rmid_forced"), &[], None);
        check(asks("kernel.msgmax"), &[], Some("forbidden sysctl: \"kernel.msgmax\" not allowlisted"));
        check(asks("kernel.msgmax"), &["kernel.msg*"], None);
        let mut host = asks("net.ipv4.tcp_syncookies");
        host["hostNetwork"] = true.into();
        check(host, &[], Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled"));
    }

    #[test]
    fn pods_that_do_not_fit_are_refused() {
        let pod = |spec: Value| -> Pod { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let node: Node = serde_json::from_value(json!({"metadata": {"labels": {"disk": "ssd"}},
            "status": {"allocatable": {"pods": "2", "cpu": "2", "memory": "1Gi", "example.com/gpu": "1"}}}))
        .unwrap();
        let asks = |cpu: &str| json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]});
        let check = |spec: Value, others: &[Value], expected: Option<&str>| {
            let others: Vec<Arc<Pod>> = others.iter().map(|o| Arc::new(pod(o.clone()))).collect();
            let result = admit(&pod(spec), &others, &node);
            assert_eq!(result.err().map(|r| r.reason).as_deref(), expected);
        };
        check(asks("1"), &[asks("1")], None);
        check(asks("1500m"), &[asks("1")], Some("OutOfcpu"));
        check(asks("0"), &[asks("1"), asks("1")], Some("OutOfpods"));
        let beyond = "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000";
        assert_eq!(beyond_node(&pod(asks("3")), &node).as_deref(), Some(beyond));
        assert_eq!(beyond_node(&pod(asks("2")), &node), None);
        check(json!({"containers": [], "nodeSelector": {"disk": "ssd"}}), &[], None);
        check(json!({"containers": [], "nodeSelector": {"disk": "tape"}}), &[], Some("NodeAffinity"));
        let port = |n: i32| json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "hostPort": n}]}]});
        check(port(8080), &[port(8081)], None);
        check(port(8080), &[port(8080)], Some("NodePorts"));
        let extended =
            |name: &str, n: &str| json!({"containers": [{"name": "a", "resources": {"requests": {name: n}}}]});
        check(extended("example.com/gpu", "2"), &[], Some("OutOfexample.com/gpu"));
        check(extended("example.com/license", "2"), &[], None);
        check(extended("hugepages-2Mi", "2Mi"), &[], Some("OutOfhugepages-2Mi"));
    }
}
