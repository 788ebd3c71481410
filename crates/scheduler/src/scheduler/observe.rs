//! What the scheduler makes of changes in the cluster: its own picture follows, and pods that they may help are woken.
//! Part of `scheduler`; fed by `watches`.
//! Invariant: a pod is in one place: waiting, on its way, or placed.

use std::sync::Arc;

use client::Change;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::Scheduler;
use crate::{
    cluster::put,
    framework::{ClusterEvent, NodeChange},
    pod_info::{PodInfo, WaitingPod},
    watches::Observed,
};

impl Scheduler {
    pub(super) fn apply(&mut self, observed: Observed) {
        let cluster = &mut self.cluster;
        match observed {
            Observed::Pod(change) => self.apply_pod(change),
            Observed::Node(change) => self.apply_node(change),
            Observed::Namespace(change) => {
                let action = action(&change);
                let relabelled = change.old.as_ref().and_then(|n| n.metadata.labels.as_ref())
                    != change.new.as_ref().and_then(|n| n.metadata.labels.as_ref());
                put(&mut cluster.namespaces, &change.key, change.new);
                if relabelled {
                    cluster.namespaces_version += 1;
                    cluster.objects_version += 1;
                    self.wake_for(&ClusterEvent::Namespace, action);
                }
            }
            Observed::Claim(change) => {
                let action = action(&change);
                put(&mut cluster.claims, &change.key, change.new);
                cluster.objects_version += 1;
                self.bind_ready(&change.key);
                self.wake_for(&ClusterEvent::Claim(change.key), action);
            }
            Observed::Volume(change) => {
                let action = action(&change);
                put(&mut cluster.volumes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::Volume, action);
            }
            Observed::StorageClass(change) => {
                let action = action(&change);
                put(&mut cluster.storage_classes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::StorageClass, action);
            }
            Observed::CsiNode(change) => {
                let action = action(&change);
                put(&mut cluster.csi_nodes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::CsiNode, action);
            }
            Observed::Service(change) => put(&mut cluster.services, &change.key, change.new),
            Observed::ReplicaSet(change) => put(&mut cluster.replica_sets, &change.key, change.new),
            Observed::ReplicationController(change) => {
                put(&mut cluster.replication_controllers, &change.key, change.new);
            }
            Observed::StatefulSet(change) => put(&mut cluster.stateful_sets, &change.key, change.new),
            Observed::DisruptionBudget(change) => {
                put(&mut cluster.disruption_budgets, &change.key, change.new);
                cluster.objects_version += 1;
            }
        }
    }

    fn apply_node(&mut self, change: Change<Node>) {
        let Some(new) = change.new else {
            self.cluster.cache.remove_node(&change.key);
            if let Some(was) = change.old {
                self.wake(&ClusterEvent::NodeGone(was));
            }
            return;
        };
        let differences = match &change.old {
            None => NodeChange::ADDED,
            Some(old) => node_change(old, &new),
        };
        self.cluster.cache.set_node(new);
        if differences.any() {
            self.wake(&ClusterEvent::Node { name: change.key, change: differences, was: change.old });
        }
    }

    fn apply_pod(&mut self, change: Change<Pod>) {
        let uid = |pod: &Arc<Pod>| pod.metadata.uid.clone();
        let Some(new) = change.new else { return self.pod_gone(&change.key) };
        if change.old.as_ref().is_some_and(|old| uid(old) != uid(&new)) {
            self.pod_gone(&change.key);
        }
        let nominated = |pod: &Pod| pod.status.as_ref()?.nominated_node_name.clone().filter(|node| !node.is_empty());
        if change.old.as_ref().is_some_and(|old| nominated(old).is_some()) && nominated(&new).is_none() {
            self.cluster.cache.withdraw_nomination(&change.key);
        }
        let info = WaitingPod::new(new);
        if info.is_finished() {
            return self.pod_gone(&info.key);
        }
        if info.node_name().is_some() {
            return self.pod_placed(info.info());
        }
        let Some(profile) = self.profiles.get(info.scheduler_name()) else { return };
        // While a binding is on its way the decision stands; its outcome says what follows.
        if self.in_flight.contains_key(&info.key) || self.cluster.cache.is_assumed(&info.key) {
            return;
        }
        let gated = profile.gates && info.has_gates();
        if let Some(node) = info.nominated_node_name() {
            self.cluster.cache.nominate(info.info(), node);
        }
        self.queue.add(Arc::new(info), gated, self.env.monotonic());
    }

    fn pod_placed(&mut self, info: Arc<PodInfo>) {
        self.queue.remove(&info.key);
        self.landed(&info.key);
        self.cluster.cache.withdraw_nomination(&info.key);
        let before = self.cluster.cache.pod(&info.key).cloned();
        let confirmed = before.is_some() && !self.cluster.cache.is_assumed(&info.key);
        self.cluster.cache.set_pod(info.clone());
        match before {
            Some(before) if confirmed => {
                if before.labels() != info.labels() || before.requests != info.requests {
                    self.wake(&ClusterEvent::PodChanged { was: before, now: info });
                }
            }
            _ => self.wake(&ClusterEvent::PodPlaced(info)),
        }
    }

    fn pod_gone(&mut self, key: &str) {
        self.diagnoses.forget(key);
        self.landed(key);
        let nominated = self.cluster.cache.nomination(key).is_some();
        self.cluster.cache.withdraw_nomination(key);
        let waiting = self.queue.remove(key);
        let placed = self.cluster.cache.remove_pod(key);
        // One that only held a place by nomination makes room too.
        if let Some(gone) = placed.or(waiting.filter(|_| nominated).map(|pod| pod.info())) {
            self.wake(&ClusterEvent::PodGone(gone));
        }
    }

    pub(super) fn wake(&mut self, event: &ClusterEvent) {
        self.wake_for(event, "Update");
    }

    fn wake_for(&mut self, event: &ClusterEvent, action: &'static str) {
        if !self.queue.has_unschedulable() {
            return;
        }
        let (profiles, cluster) = (&self.profiles, &self.cluster);
        self.queue.wake(event.cause(action), self.env.monotonic(), |pod| {
            let profile = profiles.get(pod.info.scheduler_name());
            profile.is_some_and(|p| p.helps(cluster, &pod.info, pod.rejected_by, event))
        });
    }
}

/// What happened to an object, in upstream's words.
fn action<K>(change: &Change<K>) -> &'static str {
    match (&change.old, &change.new) {
        (None, _) => "Add",
        (_, None) => "Delete",
        _ => "Update",
    }
}

/// What of a node is new.
pub fn node_change(old: &Node, new: &Node) -> NodeChange {
    let (old_spec, new_spec) = (old.spec.as_ref(), new.spec.as_ref());
    let unschedulable = |spec: Option<&k8s_openapi::api::core::v1::NodeSpec>| spec.and_then(|s| s.unschedulable);
    NodeChange {
        added: false,
        labels: old.metadata.labels != new.metadata.labels,
        taints: old_spec.and_then(|s| s.taints.as_ref()) != new_spec.and_then(|s| s.taints.as_ref()),
        unschedulable: unschedulable(old_spec) != unschedulable(new_spec),
        allocatable: old.status.as_ref().and_then(|s| s.allocatable.as_ref())
            != new.status.as_ref().and_then(|s| s.allocatable.as_ref()),
    }
}
