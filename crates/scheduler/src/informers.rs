//! The informers the scheduler listens to, merged into one stream of changes.
//! Feeds `scheduler`, which owns all state.
//! Everything listed at the start is delivered before the first pod is tried.

use client::{Change, InformerFactory, Subscription};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service},
    policy::v1::PodDisruptionBudget,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// Changes waiting to be applied; beyond this the forwarding tasks wait, and changes wait in the informers.
const CHANGES_MAX: usize = 4096;

pub enum InformerEvent {
    Pod(Change<Pod>),
    Node(Change<Node>),
    Namespace(Change<Namespace>),
    Claim(Change<PersistentVolumeClaim>),
    Volume(Change<PersistentVolume>),
    StorageClass(Change<StorageClass>),
    CsiNode(Change<CSINode>),
    CsiDriver(Change<CSIDriver>),
    CsiStorageCapacity(Change<CSIStorageCapacity>),
    VolumeAttachment(Change<VolumeAttachment>),
    Service(Change<Service>),
    ReplicaSet(Change<ReplicaSet>),
    ReplicationController(Change<ReplicationController>),
    StatefulSet(Change<StatefulSet>),
    DisruptionBudget(Change<PodDisruptionBudget>),
    DeviceClass(Change<DeviceClass>),
    ResourceSlice(Change<ResourceSlice>),
    ResourceClaim(Change<ResourceClaim>),
}

/// What is listened to, in the order in which the first lists are applied.
macro_rules! informed_kinds {
    ($each:ident) => {
        $each! {
            namespaces: Namespace => InformerEvent::Namespace,
            claims: PersistentVolumeClaim => InformerEvent::Claim,
            volumes: PersistentVolume => InformerEvent::Volume,
            storage_classes: StorageClass => InformerEvent::StorageClass,
            csi_nodes: CSINode => InformerEvent::CsiNode,
            csi_drivers: CSIDriver => InformerEvent::CsiDriver,
            csi_storage_capacities: CSIStorageCapacity => InformerEvent::CsiStorageCapacity,
            volume_attachments: VolumeAttachment => InformerEvent::VolumeAttachment,
            services: Service => InformerEvent::Service,
            replica_sets: ReplicaSet => InformerEvent::ReplicaSet,
            replication_controllers: ReplicationController => InformerEvent::ReplicationController,
            stateful_sets: StatefulSet => InformerEvent::StatefulSet,
            disruption_budgets: PodDisruptionBudget => InformerEvent::DisruptionBudget,
            device_classes: DeviceClass => InformerEvent::DeviceClass,
            resource_slices: ResourceSlice => InformerEvent::ResourceSlice,
            resource_claims: ResourceClaim => InformerEvent::ResourceClaim,
            nodes: Node => InformerEvent::Node,
            pods: Pod => InformerEvent::Pod,
        }
    };
}

/// Begins to list and watch everything, for one that is to lead some day and then knows the cluster at once.
pub fn begin(informers: &InformerFactory) {
    macro_rules! informers {
        ($($name:ident: $kind:ty => $wrap:path,)*) => { $(informers.informer::<$kind>();)* };
    }
    informed_kinds!(informers);
}

/// Subscribes to everything, waits for the first lists, hands them to `apply`, then streams what follows.
pub async fn start(
    informers: &InformerFactory,
    env: &env::Env,
    mut apply: impl FnMut(InformerEvent),
) -> mpsc::Receiver<InformerEvent> {
    let (sender, receiver) = mpsc::channel(CHANGES_MAX);
    macro_rules! subscriptions {
        ($($name:ident: $kind:ty => $wrap:path,)*) => {
            $(let $name = informers.informer::<$kind>();)*
            $(let mut $name = ($name.subscribe(), $name);)*
            $($name.1.synced().await;)*
            // Pods come last, so that what they refer to is there.
            $(while let Some(change) = $name.0.try_next() { apply($wrap(change)); })*
            $(env.spawn(forward($name.0, sender.clone(), $wrap));)*
        };
    }
    informed_kinds!(subscriptions);
    receiver
}

async fn forward<K: DeserializeOwned + Send + Sync + 'static>(
    mut changes: Subscription<K>,
    sender: mpsc::Sender<InformerEvent>,
    wrap: fn(Change<K>) -> InformerEvent,
) {
    while let Some(change) = changes.next().await {
        if sender.send(wrap(change)).await.is_err() {
            return;
        }
    }
}
