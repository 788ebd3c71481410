//! NetworkPolicies and pods as the rules need them: small, typed, without what does not matter here.
//! Fed by `run` from informers; read by `policy_index`.
//! Invariant: pure (tidy: `pure_files`). What can't be read selects or admits nothing; it is never taken as absent.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use api::{names, selectors::LabelSelector};
use ipnet::IpNet;
use k8s_openapi::{
    api::{
        core::v1::{Container, Pod},
        networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    },
    apimachinery::pkg::{apis::meta::v1 as meta, util::intstr::IntOrString},
};
use netfilter::Protocol;

use crate::address_range::AddressRange;

pub type Labels = BTreeMap<String, String>;

/// What a mirror pod says of the static pod it stands for: the UID that the runtime knows.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod that has an address of its own. Others are the node's traffic, which no policy selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInfo {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub labels: Arc<Labels>,
    pub ips: Vec<IpAddr>,
    /// On this node: its traffic passes here.
    pub local: bool,
    pub named_ports: Vec<(Protocol, Arc<str>, u16)>,
}

impl PodInfo {
    /// `None` for host-network pods and those that have ended, whose address may be another's by now.
    pub fn read(pod: &Pod, node_name: &str) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let ended = matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
        if spec.host_network == Some(true) || ended {
            return None;
        }
        let listed = status.iter().flat_map(|s| s.pod_ips.iter().flatten()).map(|ip| ip.ip.as_str());
        let mut ips: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
        if ips.is_empty() {
            ips.extend(status.and_then(|s| s.pod_ip.as_deref()?.parse::<IpAddr>().ok()));
        }
        let mirrored = pod.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_MIRROR));
        let uid = mirrored.or(pod.metadata.uid.as_ref()).map_or("", String::as_str);
        let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar));
        let ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named_ports = ports.filter_map(|port| {
            let number = u16::try_from(port.container_port).ok()?;
            Some((Protocol::parse(port.protocol.as_deref())?, Arc::from(port.name.as_deref()?), number))
        });
        Some(Self {
            uid: uid.into(),
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
            labels: Arc::new(pod.metadata.labels.clone().unwrap_or_default()),
            ips,
            local: spec.node_name.as_deref() == Some(node_name),
            named_ports: named_ports.collect(),
        })
    }

    /// The numbers that the pod has under a port's name.
    pub fn ports_named<'a>(&'a self, protocol: Protocol, name: &'a str) -> impl Iterator<Item = u16> + 'a {
        let matching = self.named_ports.iter().filter(move |(p, n, _)| *p == protocol && **n == *name);
        matching.map(|(_, _, number)| *number)
    }
}

/// Pods by their namespaces and labels. Two with the same text are the same.
#[derive(Debug, Clone)]
pub struct PodSelector {
    pub namespaces: NamespaceScope,
    pub pods: LabelSelector,
    text: String,
}

#[derive(Debug, Clone)]
pub enum NamespaceScope {
    Own(Arc<str>),
    Matching(LabelSelector),
}

impl PodSelector {
    pub fn new(namespaces: NamespaceScope, pods: LabelSelector) -> Self {
        // Neither names nor selectors have this character, so the parts can't be taken for each other.
        let text = match &namespaces {
            NamespaceScope::Own(name) => format!("{name}|{}", text_of(&pods)),
            NamespaceScope::Matching(selector) => format!("|{}|{}", text_of(selector), text_of(&pods)),
        };
        Self { namespaces, pods, text }
    }

    /// All pods of all namespaces.
    pub fn everything() -> Self {
        Self::new(NamespaceScope::Matching(LabelSelector::everything()), LabelSelector::everything())
    }
}

/// One that matches nothing has no requirements either.
fn text_of(selector: &LabelSelector) -> String {
    let nothing = selector.requirements().is_empty() && !selector.is_empty();
    if nothing { "|nothing".to_owned() } else { selector.to_string() }
}

impl PartialEq for PodSelector {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for PodSelector {}
impl PartialOrd for PodSelector {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for PodSelector {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}
impl Hash for PodSelector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyInfo {
    pub namespace: Arc<str>,
    pub subjects: LabelSelector,
    /// `None`: the policy says nothing about this direction.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `None`: everybody.
    pub peers: Option<Peers>,
    /// `None`: every port of every protocol.
    pub ports: Option<Vec<PortMatch>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    pub pods: Vec<Arc<PodSelector>>,
    pub blocks: Vec<AddressRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortMatch {
    Numbers(Protocol, u16, u16),
    Named(Protocol, Arc<str>),
}

impl PolicyInfo {
    pub fn read(policy: &NetworkPolicy) -> Option<Self> {
        let spec = policy.spec.as_ref()?;
        let namespace: Arc<str> = policy.metadata.namespace.as_deref()?.into();
        let types = spec.policy_types.iter().flatten();
        let has = |wanted: &str| types.clone().any(|given| given == wanted);
        let unsaid = types.clone().next().is_none();
        let rule = |peers: &Option<Vec<NetworkPolicyPeer>>, ports: &Option<Vec<NetworkPolicyPort>>| Rule {
            peers: peers.as_deref().filter(|peers| !peers.is_empty()).map(|peers| read_peers(peers, &namespace)),
            ports: ports.as_deref().filter(|ports| !ports.is_empty()).map(read_ports),
        };
        let ingress = spec.ingress.iter().flatten().map(|given| rule(&given.from, &given.ports)).collect();
        let egress: Vec<Rule> = spec.egress.iter().flatten().map(|given| rule(&given.to, &given.ports)).collect();
        Some(Self {
            // Left out it selects all, as `{}` does.
            subjects: spec.pod_selector.as_ref().map_or_else(LabelSelector::everything, selector),
            ingress: (unsaid || has("Ingress")).then_some(ingress),
            egress: (has("Egress") || unsaid && !egress.is_empty()).then_some(egress),
            namespace,
        })
    }

    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

fn selector(given: &meta::LabelSelector) -> LabelSelector {
    LabelSelector::from_meta(Some(given)).unwrap_or_else(|_| LabelSelector::nothing())
}

fn read_peers(given: &[NetworkPolicyPeer], namespace: &Arc<str>) -> Peers {
    let mut peers = Peers::default();
    for peer in given {
        if let Some(block) = &peer.ip_block {
            peers.blocks.extend(read_block(block));
        } else if peer.pod_selector.is_some() || peer.namespace_selector.is_some() {
            let namespaces = match &peer.namespace_selector {
                Some(given) => NamespaceScope::Matching(selector(given)),
                None => NamespaceScope::Own(namespace.clone()),
            };
            let pods = peer.pod_selector.as_ref().map_or_else(LabelSelector::everything, selector);
            peers.pods.push(Arc::new(PodSelector::new(namespaces, pods)));
        }
    }
    peers.blocks = AddressRange::union(peers.blocks);
    peers
}

fn read_block(block: &IPBlock) -> Vec<AddressRange> {
    // As the API server reads them: other readers know fewer spellings.
    let read = |text: &String| {
        let (address, length) = names::parse_cidr(text)?;
        IpNet::new(address, length).ok()
    };
    let except: Option<Vec<IpNet>> = block.except.iter().flatten().map(read).collect();
    // An exception that can't be read is not left out.
    let (Some(network), Some(except)) = (read(&block.cidr), except) else { return Vec::new() };
    AddressRange::of(network).without(except.into_iter().map(AddressRange::of))
}

fn read_ports(given: &[NetworkPolicyPort]) -> Vec<PortMatch> {
    let read = |port: &NetworkPolicyPort| {
        let protocol = Protocol::parse(port.protocol.as_deref())?;
        match &port.port {
            None => Some(PortMatch::Numbers(protocol, 0, u16::MAX)),
            Some(IntOrString::String(name)) => Some(PortMatch::Named(protocol, name.as_str().into())),
            Some(IntOrString::Int(first)) => {
                let first = u16::try_from(*first).ok()?;
                let last = port.end_port.map_or(Some(first), |last| u16::try_from(last).ok())?;
                (first <= last).then_some(PortMatch::Numbers(protocol, first, last))
            }
        }
    };
    given.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_that_is_spelled_oddly_is_not_left_out() {
        let ranges = |cidr: &str, except: &str| {
            read_block(&IPBlock { cidr: cidr.into(), except: Some(vec![except.to_string()]) }).len()
        };
        assert_eq!(ranges("10.0.0.0/8", "10.1.0.0/16"), 2);
        assert_eq!(ranges("10.0.0.0/008", "10.1.0.0/016"), 2, "as the API server reads both");
        assert_eq!(ranges("10.0.0.0/8", "10.1.0.0"), 0, "nobody rather than whom it should keep out");
    }
}
