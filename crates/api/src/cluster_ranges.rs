//! The cluster's address ranges, and what a Node object says of its own addresses and pod ranges.
//! Asked by all that go by what a node says of itself: pod routes, cluster DNS, approval of serving certificates.
//! Plain data; which node is believed where two claim the same is decided by `proxy::accepted_networks`.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// What is the cluster's, and no node's own.
#[derive(Debug, Clone, Default)]
pub struct ClusterRanges {
    pub pods: Vec<IpNet>,
    pub services: Vec<IpNet>,
}

impl ClusterRanges {
    /// Why a pod range can't be a node's, whoever else there is.
    pub fn range_problem(&self, range: &IpNet) -> Option<String> {
        if !self.pods.iter().any(|cluster| cluster.contains(range)) {
            return Some("is not inside the cluster's pod range".into());
        }
        let service = self.services.iter().find(|services| overlap(services, range))?;
        Some(format!("overlaps with the Service range {service}"))
    }

    /// Why an address can't be a node's, whoever else there is.
    pub fn address_problem(&self, address: IpAddr) -> Option<&'static str> {
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
        };
        if link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Some("is of no use outside the node");
        }
        if self.pods.iter().any(|range| range.contains(&address)) {
            return Some("is inside the cluster's pod range");
        }
        self.services.iter().any(|range| range.contains(&address)).then_some("is inside the cluster's Service range")
    }
}

/// The addresses and pod ranges that a Node object names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    pub ready: bool,
    pub created: Option<Timestamp>,
}

impl NodeNetwork {
    pub fn from_node(node: &Node) -> Self {
        let status = node.status.as_ref();
        let addresses = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten();
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        Self {
            addresses: internal.filter_map(|address| address.address.parse().ok()).collect(),
            pod_cidrs: pod_cidrs(node),
            ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }
}

/// The ranges that a Node object names.
pub fn pod_cidrs(node: &Node) -> Vec<IpNet> {
    let Some(spec) = node.spec.as_ref() else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten();
    let mut ranges: Vec<IpNet> = all.filter_map(|range| range.parse().ok()).collect();
    if ranges.is_empty() {
        ranges.extend(spec.pod_cidr.as_ref().and_then(|range| range.parse::<IpNet>().ok()));
    }
    ranges
}

/// Whether two ranges have an address in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}
