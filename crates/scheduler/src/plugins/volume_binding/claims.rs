//! Claims and volumes as the scheduler sees them: what is bound, what waits for a node, which volume would do.
//! Used by `VolumeBinding` and the other volume plugins; facts come from `cluster`.
//! Only looks; a volume reserved for one claim is not offered to another.

use std::collections::HashSet;

use api::{
    quantity::Quantity,
    selectors::{LabelSelector, Operator, Requirement},
};
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity as Text,
};

use crate::{cluster::Cluster, node_info::NodeInfo, node_selector::NodeTerms, pod_info::PodInfo};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const NOT_FOUND: &str = "node(s) didn't find available persistent volumes to bind";
pub const NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What must be done for a claim before its pod can be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimBinding {
    /// Give this volume to the claim.
    Static { claim: String, volume: String },
    /// Ask for a volume to be made for the node.
    Provision { claim: String },
}

pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|name| !name.is_empty())
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref().and_then(|a| a.get(name)).map(String::as_str)
}

pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && annotation(claim, BIND_COMPLETED).is_some()
}

pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, SELECTED_NODE).filter(|node| !node.is_empty())
}

fn class_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).unwrap_or_default()
}

pub fn class<'a>(cluster: &'a Cluster, claim: &PersistentVolumeClaim) -> Option<&'a StorageClass> {
    cluster.storage_classes.get(class_name(claim)).map(|c| &**c)
}

/// Whether binding waits for the scheduler to choose a node.
pub fn waits_for_node(cluster: &Cluster, claim: &PersistentVolumeClaim) -> bool {
    class(cluster, claim).is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

/// Whether the volume can be used on the node.
pub fn reachable(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    affinity.is_none_or(|selector| NodeTerms::new(selector).matches(node))
}

fn bytes(quantities: Option<&std::collections::BTreeMap<String, Text>>) -> i64 {
    let storage = quantities.and_then(|q| q.get("storage"));
    storage.and_then(|text| Quantity::parse(&text.0).ok()).map_or(0, |q| q.value())
}

/// The smallest free volume that suits the claim on this node.
fn matching_volume<'a>(
    cluster: &'a Cluster,
    claim_key: &str,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
    taken: &HashSet<&str>,
) -> Option<&'a str> {
    let spec = claim.spec.as_ref()?;
    let wanted = bytes(spec.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let selector = match &spec.selector {
        Some(selector) => LabelSelector::from_meta(Some(selector)).ok()?,
        None => LabelSelector::everything(),
    };
    let suits = |name: &str, volume: &PersistentVolume| -> Option<i64> {
        let offered = volume.spec.as_ref()?;
        let reserved = cluster.reserved_volumes.get(name).is_some_and(|claim| claim != claim_key);
        let claimed = offered.claim_ref.as_ref().is_some_and(|r| {
            let uid_differs = r.uid.as_ref().is_some_and(|uid| Some(uid) != claim.metadata.uid.as_ref());
            r.namespace != claim.metadata.namespace || r.name != claim.metadata.name || uid_differs
        });
        let modes = offered.access_modes.as_deref().unwrap_or_default();
        let has_modes = spec.access_modes.iter().flatten().all(|mode| modes.contains(mode));
        let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".into());
        let labels = volume.metadata.labels.clone().unwrap_or_default();
        let size = bytes(offered.capacity.as_ref());
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Available");
        (!reserved
            && !claimed
            && !taken.contains(name)
            && volume.metadata.deletion_timestamp.is_none()
            && matches!(phase, "Available" | "Bound" | "Pending")
            && offered.storage_class_name.as_deref().unwrap_or_default() == class_name(claim)
            && has_modes
            && mode(&offered.volume_mode) == mode(&spec.volume_mode)
            && selector.matches(&labels)
            && size >= wanted
            && reachable(volume, node))
        .then_some(size)
    };
    let all = cluster.volumes.iter();
    let suitable = all.filter_map(|(name, volume)| suits(name, volume).map(|size| (size, name.as_str())));
    suitable.min().map(|(_, name)| name)
}

fn can_provision(cluster: &Cluster, claim: &PersistentVolumeClaim, node: &NodeInfo) -> bool {
    let Some(class) = class(cluster, claim) else { return false };
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    class.provisioner != NO_PROVISIONER
        && !class.provisioner.is_empty()
        && (allowed.is_empty() || allowed.iter().any(|term| topology_matches(term, node)))
}

/// Whether the class's driver has said that the node can have a volume of the claim's size, or says nothing of sizes.
fn has_capacity(cluster: &Cluster, claim: &PersistentVolumeClaim, node: &NodeInfo) -> bool {
    let Some(class) = class(cluster, claim) else { return true };
    let driver = cluster.csi_drivers.get(&class.provisioner);
    if driver.is_none_or(|driver| driver.spec.storage_capacity != Some(true)) {
        return true;
    }
    let wanted = bytes(claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()));
    let name = class_name(claim);
    cluster.csi_storage_capacities.values().any(|capacity| {
        let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        let limit = limit.and_then(|text| Quantity::parse(&text.0).ok()).map_or(0, |q| q.value());
        let topology = capacity.node_topology.as_ref();
        let here = topology.is_some_and(|selector| {
            LabelSelector::from_meta(Some(selector)).is_ok_and(|selector| selector.matches(node.labels()))
        });
        capacity.storage_class_name == name && limit >= wanted && here
    })
}

fn topology_matches(term: &TopologySelectorTerm, node: &NodeInfo) -> bool {
    term.match_label_expressions.iter().flatten().all(|expression| {
        Requirement::new(&expression.key, Operator::In, expression.values.clone())
            .is_ok_and(|requirement| requirement.matches(node.labels()))
    })
}

/// What to do so that the claims that wait for a node can be used on this one, or why nothing will do.
pub fn claim_bindings(cluster: &Cluster, pod: &PodInfo, node: &NodeInfo) -> Result<Vec<ClaimBinding>, &'static str> {
    let mut bindings = Vec::new();
    let mut taken: HashSet<&str> = HashSet::new();
    for key in &pod.claims {
        let claim = cluster.claims.get(key).ok_or(NOT_FOUND)?;
        if is_bound(claim) {
            continue;
        }
        // Provisioning for another node is under way: only there can it end.
        if let Some(selected) = selected_node(claim) {
            if *selected != *node.name {
                return Err(NOT_FOUND);
            }
            bindings.push(ClaimBinding::Provision { claim: key.clone() });
            continue;
        }
        match matching_volume(cluster, key, claim, node, &taken) {
            Some(volume) => {
                taken.insert(volume);
                bindings.push(ClaimBinding::Static { claim: key.clone(), volume: volume.to_string() });
            }
            None if !can_provision(cluster, claim, node) => return Err(NOT_FOUND),
            None if !has_capacity(cluster, claim, node) => return Err(NOT_ENOUGH_SPACE),
            None => bindings.push(ClaimBinding::Provision { claim: key.clone() }),
        }
    }
    Ok(bindings)
}

/// The pod's claims that a volume is being made for.
pub fn selected(cluster: &Cluster, pod: &PodInfo) -> HashSet<String> {
    let has_node = |key: &&String| cluster.claims.get(*key).is_some_and(|claim| selected_node(claim).is_some());
    pod.claims.iter().filter(has_node).cloned().collect()
}

/// Whether every claim of the pod is bound.
pub fn all_bound(cluster: &Cluster, pod: &PodInfo) -> bool {
    pod.claims.iter().all(|key| cluster.claims.get(key).is_some_and(|claim| is_bound(claim)))
}
