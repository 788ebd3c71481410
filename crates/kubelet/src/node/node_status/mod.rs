//! Registers the node and reports its condition: the Node object, its status when it changes, and a Lease every few
//! seconds as the sign of life.
//! Run by `wiring`; reads the runtime's own status.
//! Labels, taints and fields of other owners are left as they are.

mod cloud_provider;
mod comparison;
mod devices;
pub mod events;
mod extended_resources;
mod lease;
mod machine;
mod pod_cidrs;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use client::{Client, EventRecorder, Informer, Patch};
use comparison::{differs, is_newer};
use cri::Runtime;
use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
        NodeSwapStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
pub use machine::{Machine, default_address};
use node_plugins::devices::manager::DeviceManager;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    config::Config,
    csi::mounter::CsiManager,
    node::{node_shutdown::ShutdownState, node_startup::NodeStartup},
    pod::pod_status::whole_seconds,
    resources::eviction::{Pressure, Pressures, Signal, Threshold, condition_name},
    runtime::{
        pleg::Pleg,
        runtime_features::{RuntimeFeatures, aggregated, network_problem, runtime_problem},
    },
    volumes::local_storage,
};

/// The first look after something that may have ended a problem.
const STATUS_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// A runtime that has not answered for this long makes the node unready.
const RUNTIME_SILENCE_MAX: Duration = Duration::from_secs(180);
/// What a node says of itself at every start; all other labels are given once, when the Node object is made.
const DEFAULT_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// How long the runtime may take to answer about itself.
const RUNTIME_STATUS_TIMEOUT: Duration = Duration::from_secs(10);

pub struct NodeStatusManager {
    pub config: Arc<Config>,
    pub client: Client,
    pub env: Env,
    pub runtime: Arc<dyn Runtime>,
    pub runtime_version: String,
    pub recorder: EventRecorder,
    pub machine: Machine,
    pub addresses: Vec<IpAddr>,
    pub pleg: Arc<Pleg>,
    /// Where the node's server really listens.
    pub server_port: u16,
    /// Our Node object as last seen; shared with admission.
    pub node: Arc<Mutex<Node>>,
    pub pressures: Arc<Pressures>,
    pub shutdown: Arc<ShutdownState>,
    pub allocatable: Allocatable,
    pub features: Arc<RuntimeFeatures>,
    /// Volumes of drivers that are in use.
    pub csi: Arc<CsiManager>,
    pub devices: Arc<DeviceManager>,
    pub startup: NodeStartup,
    /// Asks for a look at the status at once.
    pub wake: Arc<Notify>,
}

/// What pods may have of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocatable {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub ephemeral_bytes: i64,
}

/// All there is, without what is reserved and without what must stay free or pods are evicted.
pub fn allocatable(machine: &Machine, config: &Config, thresholds: &[Threshold]) -> Allocatable {
    let kept = |signal: Signal, capacity: i64| {
        let hard = thresholds.iter().filter(|t| t.signal == signal && t.grace.is_zero());
        hard.map(|t| t.least.resolve(capacity)).max().unwrap_or(0)
    };
    let reserved = &config.reserved;
    let memory = machine.memory_bytes;
    let hugepages: i64 = machine.hugepages.iter().map(|(_, bytes)| bytes).sum();
    Allocatable {
        cpu_milli: (machine.cpus * 1000 - reserved.cpu_milli).max(0),
        memory_bytes: (memory - hugepages - reserved.memory_bytes - kept(Signal::Memory, memory)).max(0),
        ephemeral_bytes: (machine.disk_bytes - reserved.ephemeral_bytes - kept(Signal::NodeFs, machine.disk_bytes))
            .max(0),
    }
}

fn most_pods(cpus: i64, config: &Config) -> i64 {
    match i64::from(config.pods_per_core) {
        0 => i64::from(config.max_pods),
        per_core => (cpus * per_core).min(i64::from(config.max_pods)),
    }
}

impl NodeStatusManager {
    /// Everything about the node that is not a condition.
    pub fn describe(&self) -> Node {
        let name = &self.config.node_name;
        let mut labels: BTreeMap<String, String> = [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", architecture()),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", architecture()),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into();
        labels.extend(self.config.labels.clone());
        let mut annotations =
            BTreeMap::from([("volumes.kubernetes.io/controller-managed-attach-detach".into(), "true".into())]);
        annotations.extend(local_storage::announcement(&self.config));
        let mut taints = self.config.taints.clone();
        if self.config.external_cloud_provider {
            annotations.extend(cloud_provider::announcement(&self.addresses));
            taints.push(cloud_provider::taint());
        }
        Node {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels),
                annotations: Some(annotations),
                ..Default::default()
            },
            spec: Some(NodeSpec {
                taints: (!taints.is_empty()).then_some(taints),
                provider_id: Some(self.config.provider_id.clone()).filter(|id| !id.is_empty()),
                ..Default::default()
            }),
            status: Some(self.static_status()),
        }
    }

    fn static_status(&self) -> NodeStatus {
        let machine = &self.machine;
        let text = |number: i64| Quantity(number.to_string());
        let kilobytes = |bytes: i64| Quantity(format!("{}Ki", bytes / 1024));
        let mut capacity: BTreeMap<String, Quantity> = BTreeMap::from([
            ("cpu".into(), text(machine.cpus)),
            ("memory".into(), kilobytes(machine.memory_bytes)),
            ("ephemeral-storage".into(), kilobytes(machine.disk_bytes)),
            ("pods".into(), text(most_pods(machine.cpus, &self.config))),
        ]);
        for (size, bytes) in &machine.hugepages {
            capacity.insert(format!("hugepages-{size}"), text(*bytes));
        }
        if !self.config.local_storage_isolation {
            capacity.remove("ephemeral-storage");
        }
        let mut allocatable = capacity.clone();
        let left = &self.allocatable;
        let cpu = left.cpu_milli;
        allocatable.insert("cpu".into(), if cpu % 1000 == 0 { text(cpu / 1000) } else { Quantity(format!("{cpu}m")) });
        allocatable.insert("memory".into(), kilobytes(left.memory_bytes));
        if self.config.local_storage_isolation {
            allocatable.insert("ephemeral-storage".into(), text(left.ephemeral_bytes));
        }
        let mut addresses: Vec<NodeAddress> = self
            .addresses
            .iter()
            .map(|ip| NodeAddress { type_: "InternalIP".into(), address: ip.to_string() })
            .collect();
        addresses.push(NodeAddress { type_: "Hostname".into(), address: self.config.node_name.clone() });
        NodeStatus {
            capacity: Some(capacity),
            allocatable: Some(allocatable),
            addresses: Some(addresses),
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(self.server_port) }),
            }),
            node_info: Some(NodeSystemInfo {
                architecture: architecture().into(),
                boot_id: machine.boot_id.clone(),
                container_runtime_version: self.runtime_version.clone(),
                kernel_version: machine.kernel.clone(),
                kube_proxy_version: String::new(),
                kubelet_version: api::GIT_VERSION.into(),
                machine_id: machine.machine_id.clone(),
                operating_system: "linux".into(),
                os_image: machine.os_image.clone(),
                system_uuid: machine.system_uuid.clone(),
                swap: swap(machine),
            }),
            ..Default::default()
        }
    }

    async fn conditions(&self, previous: &[NodeCondition]) -> Vec<NodeCondition> {
        let now = whole_seconds(self.env.now());
        let mut result: Vec<NodeCondition> = [Pressure::Memory, Pressure::Disk, Pressure::Pid]
            .into_iter()
            .map(|pressure| {
                let short = self.pressures.has(pressure);
                let (reason, message) = event_message(pressure, short);
                condition(previous, condition_name(pressure), short, reason, message, now)
            })
            .collect();
        let problem = self.problem().await;
        result.push(match &problem {
            None => condition(previous, "Ready", true, "KubeletReady", "kubelet is posting ready status", now),
            Some(text) => condition(previous, "Ready", false, "KubeletNotReady", text, now),
        });
        result
    }

    /// Why the node cannot run pods just now: all there is to say.
    async fn problem(&self) -> Option<String> {
        let mut problems = Vec::new();
        let answer = match self.env.timeout(RUNTIME_STATUS_TIMEOUT, self.runtime.status(false)).await {
            Some(Ok(answer)) => Some(answer),
            Some(Err(error)) => {
                problems.push(format!("container runtime is down: {error}"));
                None
            }
            None => {
                problems.push("container runtime is down: it does not answer".into());
                None
            }
        };
        let silence = self.pleg.silence();
        if silence > RUNTIME_SILENCE_MAX.max(self.config.relist_interval * 2) {
            problems.push(format!("PLEG is not healthy: pleg was last seen active {silence:?} ago"));
        }
        if let Some(answer) = &answer {
            self.features.observe(answer);
            problems.extend(runtime_problem(answer));
            problems.extend(network_problem(answer));
        }
        if self.shutdown.is_active() {
            problems.push("node is shutting down".into());
        }
        aggregated(problems)
    }

    /// `None` when the runtime doesn't say: a silent one must not keep the node from saying so.
    async fn images(&self) -> Option<Vec<ContainerImage>> {
        let mut images = self.env.timeout(RUNTIME_STATUS_TIMEOUT, self.runtime.list_images(None)).await?.ok()?;
        images.sort_by_key(|image| std::cmp::Reverse(image.size));
        let shown = images
            .into_iter()
            .take(self.config.max_reported_images)
            .map(|image| ContainerImage {
                names: Some(image.repo_digests.into_iter().chain(image.repo_tags).take(5).collect()),
                size_bytes: i64::try_from(image.size).ok(),
            })
            .collect();
        Some(shown)
    }

    /// Makes the Node object, or brings an existing one up to date.
    pub async fn register(&self) {
        let mut backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        let wanted = self.describe();
        let api = self.client.api::<Node>();
        loop {
            self.startup.attempt(self.env.now());
            let result = match api.find(&self.config.node_name).await {
                Ok(Some(existing)) => {
                    let patch = again(&wanted, &existing).map(Patch::Merge);
                    let patched = match &patch {
                        Some(patch) => api.patch(&self.config.node_name, patch).await,
                        None => Ok(existing.clone()),
                    };
                    patched.or_else(|error| {
                        tracing::warn!(%error, "failed to set the node's labels");
                        Ok(existing)
                    })
                }
                Ok(None) if self.config.register_node => {
                    api.create(&wanted).await.inspect(|_| self.startup.registered(self.env.now()))
                }
                Ok(None) => Err(api::ApiError::not_found("", "nodes", &self.config.node_name)),
                Err(error) => Err(error),
            };
            match result {
                Ok(node) => {
                    let reset = self.without_lost_resources(node).await;
                    *self.node.lock() = reset;
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to register the node");
                    self.env.sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Reports changes of the status when they happen, and everything once in a while.
    pub async fn run_status(self: Arc<Self>) {
        self.record_allocatable_enforced();
        let mut last_report = None;
        let mut soon = STATUS_INTERVAL_MIN;
        loop {
            let ready = self.update_status(&mut last_report).await;
            // What ends a problem is told before the runtime shows it, so the next looks come soon, then less so.
            let wait =
                if ready { self.config.status_update_interval } else { soon.min(self.config.status_update_interval) };
            let woken = tokio::select! {
                woken = self.env.timeout(wait, self.wake.notified()) => woken.is_some(),
                () = self.pleg.back.notified() => true,
            };
            soon = if ready || woken { STATUS_INTERVAL_MIN } else { soon * 2 };
        }
    }

    /// Has the status looked at whenever the configuration of pod networks changes.
    pub async fn run_network_watch(self: Arc<Self>) {
        let Some(directory) = self.config.cni_conf_dir.clone() else { return };
        let watched = std::fs::create_dir_all(&directory).and_then(|()| watch(&directory));
        let mut changes = match watched {
            Ok(changes) => changes,
            Err(error) => return tracing::warn!(%error, directory = %directory.display(), "can't watch pod networks"),
        };
        while changes.next().await.is_some() {
            self.wake.notify_one();
        }
    }

    /// Keeps our copy of the Node object true: labels, taints and allocatable decide which pods are admitted.
    /// Somebody else's words about our condition are set right at once.
    pub async fn run_watch(self: Arc<Self>, nodes: Informer<Node>) {
        let mut changes = nodes.subscribe();
        let (mut pod_cidrs, mut unschedulable) = (String::new(), false);
        while let Some(change) = changes.next().await {
            let Some(newest) = change.new else { continue };
            let foreign = {
                let mut held = self.node.lock();
                // What an answer brought may be newer than what the watch brings.
                if !is_newer(&newest, &held) {
                    continue;
                }
                let status = |node: &Node| node.status.clone().unwrap_or_default();
                let foreign = differs(&status(&held), &status(&newest));
                *held = (*newest).clone();
                foreign
            };
            self.tell_pod_cidrs(&newest, &mut pod_cidrs).await;
            if let Some(event) = events::schedulable_event(unschedulable, &newest) {
                unschedulable = !unschedulable;
                self.record_event(event);
            }
            if foreign {
                self.wake.notify_one();
            }
        }
    }

    async fn update_status(&self, last_report: &mut Option<Duration>) -> bool {
        let known = self.node.lock().clone();
        let previous = known.status.clone().unwrap_or_default();
        let mut status = self.static_status();
        devices::add(&mut status, self.devices.capacity().await);
        let stale = extended_resources::carry_over(&mut status, &previous);
        if self.config.external_cloud_provider {
            cloud_provider::keep_addresses(&mut status, &previous);
        }
        status.conditions = Some(self.conditions(previous.conditions.as_deref().unwrap_or_default()).await);
        status.images = self.images().await.or(previous.images.clone());
        status.runtime_handlers = self.features.node_handlers();
        status.features = self.features.shown_features();
        let in_use = self.csi.volumes_in_use();
        // An empty list takes away what was said before.
        let said = previous.volumes_in_use.as_ref().is_some_and(|said| !said.is_empty());
        status.volumes_in_use = (said || !in_use.is_empty()).then_some(in_use);
        let is_ready = |s: &NodeStatus| s.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let (ready, was_ready) = (is_ready(&status), is_ready(&previous));
        let due = last_report.is_none_or(|at| self.env.monotonic() - at >= self.config.status_report_interval);
        if !due && stale.is_empty() && !differs(&previous, &status) {
            return ready;
        }
        let api = self.client.api::<Node>();
        let Ok(mut body) = serde_json::to_value(&status) else { return ready };
        for name in stale {
            body["allocatable"][name] = serde_json::Value::Null;
        }
        // Addresses are merged by type; a stale one would stay.
        if let Some(addresses) = body.get_mut("addresses").and_then(|a| a.as_array_mut()) {
            addresses.insert(0, json!({"$patch": "replace"}));
        }
        match api.patch_status(&self.config.node_name, &Patch::Strategic(json!({"status": body}))).await {
            Ok(node) => {
                *self.node.lock() = node;
                *last_report = Some(self.env.monotonic());
                if ready {
                    self.startup.ready(self.env.now());
                }
                if ready != was_ready {
                    self.record_event(if ready { "NodeReady" } else { "NodeNotReady" });
                }
                self.record_changed_pressures(&previous, &status);
            }
            Err(error) if error.is_not_found() => {
                tracing::warn!("the node was deleted; registering it again");
                self.register().await;
            }
            Err(error) => tracing::warn!(%error, "failed to report the node's status"),
        }
        ready
    }
}

/// What has to be said again of a Node object that is there.
fn again(wanted: &Node, existing: &Node) -> Option<serde_json::Value> {
    let missing = |wanted: &Option<BTreeMap<String, String>>, existing: &Option<BTreeMap<String, String>>| {
        let differs = |(key, value): &(&String, &String)| existing.as_ref().and_then(|e| e.get(*key)) != Some(value);
        let all = wanted.iter().flatten().filter(differs);
        all.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<String, String>>()
    };
    let mut labels = missing(&wanted.metadata.labels, &existing.metadata.labels);
    labels.retain(|key, _| DEFAULT_LABELS.contains(&key.as_str()));
    let annotations = missing(&wanted.metadata.annotations, &existing.metadata.annotations);
    let nothing = labels.is_empty() && annotations.is_empty();
    (!nothing).then(|| json!({"metadata": {"labels": labels, "annotations": annotations}}))
}

fn watch(directory: &std::path::Path) -> std::io::Result<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init()?;
    inotify.watches().add(directory, WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE)?;
    inotify.into_event_stream([0; 1024])
}

/// Machines that never swap say nothing of it.
fn swap(machine: &Machine) -> Option<NodeSwapStatus> {
    (machine.swap_bytes > 0).then_some(NodeSwapStatus { capacity: Some(machine.swap_bytes) })
}

pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn event_message(pressure: Pressure, short: bool) -> (&'static str, &'static str) {
    match (pressure, short) {
        (Pressure::Memory, false) => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        (Pressure::Memory, true) => ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        (Pressure::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        (Pressure::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        (Pressure::Pid, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        (Pressure::Pid, true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    }
}

fn condition(
    previous: &[NodeCondition],
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> NodeCondition {
    let text = if status { "True" } else { "False" };
    let before = previous.iter().find(|c| c.type_ == kind && c.status == text);
    NodeCondition {
        type_: kind.into(),
        status: text.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Reserved;

    #[test]
    fn swap_is_told_of_where_there_is_some() {
        let told = |swap_bytes| swap(&Machine { swap_bytes, ..Machine::default() }).and_then(|swap| swap.capacity);
        assert_eq!((told(0), told(1 << 30)), (None, Some(1 << 30)));
    }

    #[test]
    fn a_node_that_is_there_keeps_the_labels_it_was_given() {
        let node = |labels: serde_json::Value, annotations: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"labels": labels, "annotations": annotations}})).unwrap()
        };
        let attach = "volumes.kubernetes.io/controller-managed-attach-detach";
        let wanted = node(
            json!({"kubernetes.io/hostname": "n", "team": "a", "gone": "x", "topology.kubernetes.io/zone": "z"}),
            json!({attach: "true"}),
        );
        let existing = node(json!({"kubernetes.io/hostname": "other", "team": "b", "own": "1"}), json!({}));
        let labels = json!({"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z"});
        let expected = json!({"metadata": {"labels": labels, "annotations": {attach: "true"}}});
        assert_eq!(again(&wanted, &existing), Some(expected));
        assert_eq!(again(&wanted, &wanted), None);
    }

    #[test]
    fn pods_get_what_is_neither_reserved_nor_kept_free() {
        let machine = Machine { cpus: 4, memory_bytes: 1000 << 20, disk_bytes: 1000, ..Machine::default() };
        let check = |hard: &[(&str, &str)], reserved: Reserved, expected: (i64, i64, i64)| {
            let hard = hard.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let thresholds = crate::resources::eviction::parse(&hard, &BTreeMap::new(), &BTreeMap::new()).unwrap();
            let found = allocatable(&machine, &Config { reserved, ..Config::default() }, &thresholds);
            assert_eq!((found.cpu_milli, found.memory_bytes >> 20, found.ephemeral_bytes), expected);
        };
        check(&[], Reserved::default(), (4000, 1000, 1000));
        check(&[("memory.available", "100Mi"), ("nodefs.available", "10%")], Reserved::default(), (4000, 900, 900));
        let reserved = Reserved { cpu_milli: 500, memory_bytes: 200 << 20, ephemeral_bytes: 50, pids: 0 };
        check(&[("memory.available", "10%")], reserved, (3500, 700, 950));
        let config = Config { pods_per_core: 10, ..Config::default() };
        assert_eq!((most_pods(4, &config), most_pods(32, &config)), (40, 110));
    }
}
