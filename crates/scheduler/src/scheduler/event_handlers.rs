//! What the scheduler makes of changes in the cluster: its own picture follows, and pods that they may help are woken.
//! Part of `scheduler`; fed by `informers`.
//! A pod is in one place: waiting, on its way, or placed.

use std::sync::Arc;

use client::Change;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::VolumeAttachment,
};

use super::Scheduler;
use crate::{
    cluster::put,
    framework::{ClusterEvent, NodeChange, QueueingHint},
    informers::InformerEvent,
    plugins::volume_binding,
    pod_info::{PendingPod, PodInfo},
    scheduler_metrics::EVENT_HANDLING,
};

impl Scheduler {
    pub(super) fn apply(&mut self, event: InformerEvent) {
        let cluster = &mut self.cluster;
        match event {
            InformerEvent::Pod(change) => self.apply_pod(change),
            InformerEvent::Node(change) => self.apply_node(change),
            InformerEvent::Namespace(change) => {
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
            InformerEvent::Claim(change) => {
                let action = action(&change);
                put(&mut cluster.claims, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::Claim(change.key), action);
            }
            InformerEvent::Volume(change) => {
                let action = action(&change);
                volume_binding::volume_changed(cluster, &change.key, change.new.as_deref());
                put(&mut cluster.volumes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::Volume, action);
            }
            InformerEvent::StorageClass(change) => {
                let action = action(&change);
                put(&mut cluster.storage_classes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::StorageClass, action);
            }
            InformerEvent::CsiNode(change) => {
                let action = action(&change);
                put(&mut cluster.csi_nodes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::CsiNode, action);
            }
            InformerEvent::CsiDriver(change) => {
                let action = action(&change);
                put(&mut cluster.csi_drivers, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::CsiDriver, action);
            }
            InformerEvent::CsiStorageCapacity(change) => {
                let action = action(&change);
                put(&mut cluster.csi_storage_capacities, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::CsiStorageCapacity, action);
            }
            InformerEvent::VolumeAttachment(change) => {
                let node = |va: &Option<Arc<VolumeAttachment>>| va.as_ref().map(|va| va.spec.node_name.clone());
                let (was, is) = (node(&change.old), node(&change.new));
                // Whose it is never changes; how far it is matters to nobody here.
                let is_gone = is.is_none();
                let is_news = was != is;
                let Some(node) = is.or(was) else { return };
                let of_node = cluster.volume_attachments.entry(node.clone()).or_default();
                put(of_node, &change.key, change.new);
                if of_node.is_empty() {
                    cluster.volume_attachments.remove(&node);
                }
                if is_news {
                    cluster.objects_version += 1;
                }
                if is_gone {
                    self.wake_for(&ClusterEvent::VolumeAttachmentGone, "Delete");
                }
            }
            InformerEvent::Service(change) => put(&mut cluster.services, &change.key, change.new),
            InformerEvent::ReplicaSet(change) => put(&mut cluster.replica_sets, &change.key, change.new),
            InformerEvent::ReplicationController(change) => {
                put(&mut cluster.replication_controllers, &change.key, change.new);
            }
            InformerEvent::StatefulSet(change) => put(&mut cluster.stateful_sets, &change.key, change.new),
            InformerEvent::DisruptionBudget(change) => {
                put(&mut cluster.disruption_budgets, &change.key, change.new);
                cluster.objects_version += 1;
            }
            InformerEvent::DeviceClass(change) => {
                let action = action(&change);
                put(&mut cluster.devices.classes, &change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::DeviceClass, action);
            }
            InformerEvent::ResourceSlice(change) => {
                let action = action(&change);
                cluster.devices.set_slice(&change.key, change.new);
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::ResourceSlice, action);
            }
            InformerEvent::ResourceClaim(change) => {
                let action = action(&change);
                cluster.devices.set_claim(&change.key, change.new.clone());
                cluster.objects_version += 1;
                self.wake_for(&ClusterEvent::ResourceClaim { was: change.old, now: change.new }, action);
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
        let was_nominated = change.old.as_ref().is_some_and(|old| nominated(old).is_some());
        let info = PendingPod::new(new);
        if info.is_finished() {
            return self.pod_gone(&info.key);
        }
        if info.node_name().is_some() {
            return self.pod_placed(info.info());
        }
        if info.nominated_node_name().is_none() {
            self.cluster.cache.nomination_seen(&info, was_nominated);
        }
        let Some(profile) = self.profiles.get(info.scheduler_name()) else { return };
        // While a binding is on its way the decision stands; its outcome says what follows.
        if self.in_flight.contains_key(&info.key) || self.cluster.cache.is_assumed(&info.key) {
            return;
        }
        let readiness = profile.run_pre_enqueue(&self.cluster, &info);
        if info.nominated_node_name().is_some() {
            self.cluster.cache.nomination_seen(&info, was_nominated);
        }
        self.queue.add(Arc::new(info), readiness, self.handle.env.monotonic());
    }

    fn pod_placed(&mut self, info: Arc<PodInfo>) {
        self.queue.remove(&info.key);
        match self.in_flight.get(&info.key) {
            // What was reserved on that node is the pod's now.
            Some(flight) if info.node_name() == Some(&*flight.node) => {
                self.in_flight.remove(&info.key);
                self.handle.waiting_pods.remove(&info.key);
            }
            _ => drop(self.end_flight(&info.key)),
        }
        self.cluster.cache.forget_nomination(&info.key);
        self.cluster.preempting.remove(&info.key);
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
        self.end_flight(key);
        let nominated = self.cluster.cache.nomination(key).is_some();
        self.cluster.cache.forget_nomination(key);
        self.cluster.preempting.remove(key);
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
        for enabled in self.profiles.values().flat_map(|profile| &profile.pre_bind) {
            enabled.plugin.cluster_changed(&self.cluster, event);
        }
        if !self.queue.has_unschedulable() {
            return;
        }
        let (profiles, cluster) = (&self.profiles, &self.cluster);
        let (label, began) = (event.label(action), self.handle.env.monotonic());
        self.queue.move_for_event(label, began, |pod| match profiles.get(pod.info.scheduler_name()) {
            Some(profile) => profile.queueing_hint(cluster, &pod.info, pod.unschedulable_plugins, event),
            None => QueueingHint::Skip,
        });
        let took = self.handle.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.observe(&EVENT_HANDLING, &[&format!("{}{}", label.0, label.1)], took);
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
