//! What happened in the cluster, as far as pending pods could care, and what it is called in metrics.
//! Made by `scheduler::event_handlers`; judged by plugins (`EnqueueExtensions`).

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceClaim};

use crate::pod_info::PodInfo;

#[derive(Debug, Clone)]
pub enum ClusterEvent {
    Node {
        name: String,
        change: NodeChange,
        /// As it was; none for a node that was added.
        was: Option<Arc<Node>>,
    },
    NodeGone(Arc<Node>),
    /// A pod now counts on a node.
    PodPlaced(Arc<PodInfo>),
    /// A pod on a node has other labels or needs less.
    PodChanged {
        was: Arc<PodInfo>,
        now: Arc<PodInfo>,
    },
    /// A pod no longer counts on a node.
    PodGone(Arc<PodInfo>),
    Claim(String),
    Volume,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    /// A volume was detached.
    VolumeAttachmentGone,
    Namespace,
    ResourceClaim {
        was: Option<Arc<ResourceClaim>>,
        now: Option<Arc<ResourceClaim>>,
    },
    ResourceSlice,
    DeviceClass,
}

/// Whether an event may make a pod schedulable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueingHint {
    Queue,
    Skip,
}

impl QueueingHint {
    pub fn queue_if(helps: bool) -> Self {
        if helps { Self::Queue } else { Self::Skip }
    }
}

/// What brings pods into a part of the queue, in upstream's words: the resource (empty for what happens in the queue
/// itself) and the action.
pub type EventLabel = (&'static str, &'static str);

impl ClusterEvent {
    /// `action` is what happened to an object of which nothing else is known here.
    pub fn label(&self, action: &'static str) -> EventLabel {
        match self {
            ClusterEvent::Node { change, .. } => ("Node", change.action()),
            ClusterEvent::NodeGone(_) => ("Node", "Delete"),
            ClusterEvent::PodPlaced(_) => ("AssignedPod", "Add"),
            ClusterEvent::PodChanged { was, now } if was.labels() != now.labels() => ("AssignedPod", "UpdatePodLabel"),
            ClusterEvent::PodChanged { .. } => ("AssignedPod", "UpdatePodScaleDown"),
            ClusterEvent::PodGone(_) => ("AssignedPod", "Delete"),
            ClusterEvent::Claim(_) => ("PersistentVolumeClaim", action),
            ClusterEvent::Volume => ("PersistentVolume", action),
            ClusterEvent::StorageClass => ("storage.k8s.io/StorageClass", action),
            ClusterEvent::CsiNode => ("storage.k8s.io/CSINode", action),
            ClusterEvent::CsiDriver => ("storage.k8s.io/CSIDriver", action),
            ClusterEvent::CsiStorageCapacity => ("storage.k8s.io/CSIStorageCapacity", action),
            ClusterEvent::VolumeAttachmentGone => ("storage.k8s.io/VolumeAttachment", "Delete"),
            ClusterEvent::Namespace => ("Namespace", action),
            ClusterEvent::ResourceClaim { .. } => ("resource.k8s.io/ResourceClaim", action),
            ClusterEvent::ResourceSlice => ("resource.k8s.io/ResourceSlice", action),
            ClusterEvent::DeviceClass => ("resource.k8s.io/DeviceClass", action),
        }
    }
}

pub fn node_label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Which parts of a node are new. All of them for a node that was added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub added: bool,
    pub labels: bool,
    pub taints: bool,
    pub unschedulable: bool,
    pub allocatable: bool,
}

impl NodeChange {
    pub const ADDED: Self = Self { added: true, labels: true, taints: true, unschedulable: true, allocatable: true };

    /// The first of what is new, in the order in which upstream looks.
    fn action(self) -> &'static str {
        match self {
            Self { added: true, .. } => "Add",
            Self { allocatable: true, .. } => "UpdateNodeAllocatable",
            Self { labels: true, .. } => "UpdateNodeLabel",
            _ => "UpdateNodeTaint",
        }
    }

    pub fn any(self) -> bool {
        self != Self::default()
    }
}
