//! A node and what is on it: pods, requested amounts, ports, images, claims in use.
//! Kept by `cache`; read by every plugin; cloned only to try preemption and nominated pods.
//! The sums equal the sums over `pods`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api::{placement::HostPort, pod_resources::ResourceList};
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::{pod_info::PodInfo, resources::Resources};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// The label of a node's or volume's region, and the old one that means the same.
pub const REGION: (&str, &str) = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region");
/// The same of its zone.
pub const ZONE: (&str, &str) = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone");

#[derive(Debug, Clone)]
pub struct NodeInfo {
    pub name: Arc<str>,
    pub node: Arc<Node>,
    pub allocatable: Resources,
    pub requested: Resources,
    /// With defaults for containers that ask for nothing.
    pub non_zero_requested: Resources,
    pub pods: Vec<Arc<PodInfo>>,
    pub used_ports: Vec<HostPort>,
    /// How many of `pods` have affinity terms of any sort, and required anti-affinity.
    pub pods_with_affinity: usize,
    pub pods_with_required_anti_affinity: usize,
    /// Claims in use here, and by how many pods.
    pub claims: HashMap<String, u32>,
    /// Size of each image that is here, by every name it has.
    pub images: Arc<HashMap<String, i64>>,
}

impl NodeInfo {
    pub fn new(node: Arc<Node>) -> Self {
        let mut info = Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            node: node.clone(),
            allocatable: Resources::default(),
            requested: Resources::default(),
            non_zero_requested: Resources::default(),
            pods: Vec::new(),
            used_ports: Vec::new(),
            pods_with_affinity: 0,
            pods_with_required_anti_affinity: 0,
            claims: HashMap::new(),
            images: Arc::default(),
        };
        info.set_node(node);
        info
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let status = node.status.as_ref();
        self.allocatable = Resources::from_quantities(status.and_then(|s| s.allocatable.as_ref()));
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
        let sizes = images.flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            image.names.iter().flatten().map(move |name| (name.clone(), size))
        });
        self.images = Arc::new(sizes.collect());
        self.node = node;
    }

    /// Whether the node itself gives plugins no other answers than `other`.
    pub fn is_like(&self, other: &Self) -> bool {
        self.labels() == other.labels()
            && self.taints() == other.taints()
            && self.is_unschedulable() == other.is_unschedulable()
            && self.allocatable == other.allocatable
            && self.images == other.images
    }

    /// Has the pods that were on `before`.
    pub fn take_pods(&mut self, before: Self) {
        let (name, node) = (self.name.clone(), self.node.clone());
        let (allocatable, images) = (std::mem::take(&mut self.allocatable), self.images.clone());
        *self = Self { name, node, allocatable, images, ..before };
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.node.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key).map(String::as_str)
    }

    pub fn taints(&self) -> &[Taint] {
        self.node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }

    pub fn is_unschedulable(&self) -> bool {
        self.node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false)
    }

    /// `region` and `zone`, for spreading the order in which nodes are looked at.
    pub fn zone(&self) -> (&str, &str) {
        let label = |new: &str, old: &str| self.label(new).or_else(|| self.label(old)).unwrap_or_default();
        (label(REGION.0, REGION.1), label(ZONE.0, ZONE.1))
    }

    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.non_zero_requested.add(&pod.non_zero_requests);
        self.used_ports.extend(pod.host_ports.iter().cloned());
        self.pods_with_affinity += usize::from(pod.affinity.is_some());
        self.pods_with_required_anti_affinity += usize::from(pod.has_required_anti_affinity());
        for claim in &pod.claims {
            *self.claims.entry(claim.clone()).or_default() += 1;
        }
        self.pods.push(pod);
    }

    /// The same pod in another version that takes the same room.
    pub fn replace_pod(&mut self, pod: Arc<PodInfo>) {
        if let Some(place) = self.pods.iter_mut().find(|p| p.key == pod.key) {
            *place = pod;
        }
    }

    /// The pod as it was here, if it was.
    pub fn remove_pod(&mut self, key: &str) -> Option<Arc<PodInfo>> {
        let position = self.pods.iter().position(|p| p.key == key)?;
        let pod = self.pods.swap_remove(position);
        self.requested.sub(&pod.requests);
        self.non_zero_requested.sub(&pod.non_zero_requests);
        for port in &pod.host_ports {
            if let Some(position) = self.used_ports.iter().position(|used| used == port) {
                self.used_ports.swap_remove(position);
            }
        }
        self.pods_with_affinity -= usize::from(pod.affinity.is_some());
        self.pods_with_required_anti_affinity -= usize::from(pod.has_required_anti_affinity());
        for claim in &pod.claims {
            if let Some(count) = self.claims.get_mut(claim) {
                *count -= 1;
                if *count == 0 {
                    self.claims.remove(claim);
                }
            }
        }
        Some(pod)
    }
}
