//! The topology manager: asks every hint provider which NUMA nodes would do, and has them allocate from the same ones.
//! Called by `kubelet` once per pod; `cpu_manager` and `memory_manager` are providers, device managers can be.
//! Invariant: pure; nothing is allocated for a container before its hint is known (tidy: `pure_files`).

mod merge;
pub mod pods;

use std::{collections::BTreeMap, num::IntErrorKind};

use k8s_openapi::api::core::v1::{Container, Pod};

use api::codec::parse_bool;

use crate::{bit_mask::BitMask, machine_topology::NumaNode};
use pods::AllocateError;

/// More make the combinations of hints too many.
const NUMA_NODES_MAX: usize = 8;
const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
const MAX_ALLOWABLE: &str = "max-allowable-numa-nodes";

/// NUMA nodes that could give a resource; None is any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopologyHint {
    pub affinity: Option<BitMask>,
    pub preferred: bool,
}

/// Hints by resource. None: any node will do. Empty: no node has enough. No resource at all: any node will do.
pub type ProviderHints = BTreeMap<String, Option<Vec<TopologyHint>>>;

/// Someone who gives out a resource that lies on NUMA nodes.
pub trait HintProvider {
    fn topology_hints(&self, pod: &Pod, container: &Container) -> ProviderHints;

    /// For all containers of the pod together.
    fn pod_topology_hints(&self, pod: &Pod) -> ProviderHints;

    /// Gives the container what it asks for, from the hint's nodes where that can be. Asked again for a container that
    /// has it already, it changes nothing.
    fn allocate(&mut self, pod: &Pod, container: &Container, hint: &TopologyHint) -> Result<(), AllocateError>;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyName {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl PolicyName {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "" | "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => return None,
        })
    }
}

/// Whether hints are merged for each container or once for the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

/// The NUMA nodes of the machine, as far as merging needs them.
#[derive(Debug, Clone, Default)]
pub struct NumaInfo {
    all: BitMask,
    prefer_closest: bool,
    distances: BTreeMap<usize, Vec<u64>>,
}

impl NumaInfo {
    fn new(nodes: &[NumaNode], prefer_closest: bool) -> Result<Self, TopologyManagerError> {
        if prefer_closest && nodes.iter().any(|node| node.distances.is_empty()) {
            return Err(TopologyManagerError::NoDistances);
        }
        let all = BitMask::new(nodes.iter().map(|node| node.id)).ok_or(TopologyManagerError::BitRange)?;
        let distances = nodes.iter().map(|node| (node.id, node.distances.clone())).collect();
        Ok(Self { all, prefer_closest, distances })
    }

    fn average_distance(&self, mask: BitMask) -> f64 {
        let distance = |from: usize, to: usize| {
            self.distances.get(&from).and_then(|distances| distances.get(to)).map_or(0.0, |distance| *distance as f64)
        };
        let sum: f64 = mask.bits().flat_map(|from| mask.bits().map(move |to| distance(from, to))).sum();
        sum / (mask.count() * mask.count()).max(1) as f64
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyManagerError {
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("unknown scope: \"{0}\"")]
    UnknownScope(String),
    #[error("unknown Topology Manager Policy option: {0:?}")]
    UnknownOption(String),
    #[error("bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    NotBool { name: &'static str, value: String },
    #[error("unable to convert policy option to integer {name:?}: strconv.Atoi: parsing {value:?}: {cause}")]
    NotNumber { name: &'static str, value: String, cause: &'static str },
    #[error("the minimum value of {MAX_ALLOWABLE:?} should not be less than {NUMA_NODES_MAX}")]
    TooFewAllowable,
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
    #[error("bit number must be in range 0-63")]
    BitRange,
}

/// What a pod fails with that cannot have its resources here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionError {
    pub reason: &'static str,
    pub message: String,
}

impl AdmissionError {
    fn topology_affinity() -> Self {
        let message = "Resources cannot be allocated with Topology locality".into();
        Self { reason: "TopologyAffinityError", message }
    }
}

impl From<AllocateError> for AdmissionError {
    fn from(error: AllocateError) -> Self {
        Self { reason: error.reason(), message: error.to_string() }
    }
}

/// Counts of what happened, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyManagerCounts {
    pub admission_requests: u64,
    pub admission_errors: u64,
    /// Under single-numa-node, by scope.
    pub aligned_containers: u64,
    pub aligned_pods: u64,
    pub unaligned_containers: u64,
    pub unaligned_pods: u64,
}

#[derive(Debug, Clone, Default)]
pub struct TopologyManager {
    policy: PolicyName,
    scope: Scope,
    numa: NumaInfo,
    pub counts: TopologyManagerCounts,
}

impl TopologyManager {
    pub fn new(
        nodes: &[NumaNode],
        policy: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<Self, TopologyManagerError> {
        let unknown = || TopologyManagerError::UnknownPolicy(policy.into());
        let policy = PolicyName::parse(policy).ok_or_else(unknown)?;
        if policy == PolicyName::None {
            return Ok(Self::default());
        }
        let (prefer_closest, nodes_max) = parse_options(options)?;
        let numa = NumaInfo::new(nodes, prefer_closest)?;
        if nodes.len() > nodes_max {
            return Err(TopologyManagerError::TooManyNodes(nodes_max));
        }
        let scope = match scope {
            "" | "container" => Scope::Container,
            "pod" => Scope::Pod,
            other => return Err(TopologyManagerError::UnknownScope(other.into())),
        };
        Ok(Self { policy, scope, numa, counts: TopologyManagerCounts::default() })
    }

    pub fn policy(&self) -> PolicyName {
        self.policy
    }

    /// Gives every container of the pod what it asks for. After an error the caller takes back what was given so far.
    pub fn admit(&mut self, pod: &Pod, providers: &mut [&mut dyn HintProvider]) -> Result<(), AdmissionError> {
        self.counts.admission_requests += 1;
        let admitted = match (self.policy, self.scope) {
            (PolicyName::None, _) => {
                pods::all_containers(pod).try_for_each(|c| allocate(pod, c, &TopologyHint::default(), providers))
            }
            (_, Scope::Container) => {
                pods::all_containers(pod).try_for_each(|container| self.admit_container(pod, container, providers))
            }
            (_, Scope::Pod) => self.admit_pod(pod, providers),
        };
        self.counts.admission_errors += u64::from(self.policy != PolicyName::None && admitted.is_err());
        admitted
    }

    fn admit_container(
        &mut self,
        pod: &Pod,
        container: &Container,
        providers: &mut [&mut dyn HintProvider],
    ) -> Result<(), AdmissionError> {
        let hints: Vec<ProviderHints> = providers.iter().map(|p| p.topology_hints(pod, container)).collect();
        let (hint, admitted) = merge::merge(self.policy, &self.numa, &hints);
        let is_guaranteed = u64::from(self.policy == PolicyName::SingleNumaNode);
        if !admitted {
            self.counts.unaligned_containers += is_guaranteed;
            return Err(AdmissionError::topology_affinity());
        }
        allocate(pod, container, &hint, providers)?;
        self.counts.aligned_containers += is_guaranteed;
        Ok(())
    }

    fn admit_pod(&mut self, pod: &Pod, providers: &mut [&mut dyn HintProvider]) -> Result<(), AdmissionError> {
        let hints: Vec<ProviderHints> = providers.iter().map(|p| p.pod_topology_hints(pod)).collect();
        let (hint, admitted) = merge::merge(self.policy, &self.numa, &hints);
        let is_guaranteed = u64::from(self.policy == PolicyName::SingleNumaNode);
        if !admitted {
            self.counts.unaligned_pods += is_guaranteed;
            return Err(AdmissionError::topology_affinity());
        }
        for container in pods::all_containers(pod) {
            allocate(pod, container, &hint, providers)?;
        }
        self.counts.aligned_pods += is_guaranteed;
        Ok(())
    }
}

fn allocate(
    pod: &Pod,
    container: &Container,
    hint: &TopologyHint,
    providers: &mut [&mut dyn HintProvider],
) -> Result<(), AdmissionError> {
    providers.iter_mut().try_for_each(|provider| Ok(provider.allocate(pod, container, hint)?))
}

/// Whether the closest nodes are preferred, and how many nodes a machine may have.
fn parse_options(options: &BTreeMap<String, String>) -> Result<(bool, usize), TopologyManagerError> {
    let (mut prefer_closest, mut nodes_max) = (false, NUMA_NODES_MAX);
    for (name, value) in options {
        match name.as_str() {
            PREFER_CLOSEST => {
                let bad = || TopologyManagerError::NotBool { name: PREFER_CLOSEST, value: value.clone() };
                prefer_closest = parse_bool(value).ok_or_else(bad)?;
            }
            MAX_ALLOWABLE => {
                let number = value.parse::<i64>().map_err(|error| {
                    let cause = match error.kind() {
                        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                        _ => "invalid syntax",
                    };
                    TopologyManagerError::NotNumber { name: MAX_ALLOWABLE, value: value.clone(), cause }
                })?;
                let number = usize::try_from(number).ok().filter(|number| *number >= NUMA_NODES_MAX);
                nodes_max = number.ok_or(TopologyManagerError::TooFewAllowable)?;
            }
            other => return Err(TopologyManagerError::UnknownOption(other.into())),
        }
    }
    Ok((prefer_closest, nodes_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_checked() {
        let check = |nodes: usize, policy: &str, scope: &str, options: &[(&str, &str)], expected: Option<&str>| {
            let nodes: Vec<NumaNode> = (0..nodes).map(|id| NumaNode { id, ..NumaNode::default() }).collect();
            let options = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let found = TopologyManager::new(&nodes, policy, scope, &options).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{policy} {scope} {options:?}");
        };
        check(2, "restricted", "pod", &[(MAX_ALLOWABLE, "8")], None);
        check(9, "none", "", &[], None);
        check(2, "best", "pod", &[], Some("unknown policy: \"best\""));
        check(2, "best-effort", "node", &[], Some("unknown scope: \"node\""));
        check(2, "best-effort", "pod", &[("x", "1")], Some("unknown Topology Manager Policy option: \"x\""));
        let few = "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8";
        check(2, "best-effort", "pod", &[(MAX_ALLOWABLE, "7")], Some(few));
        let text = "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \
                    \"many\": invalid syntax";
        check(2, "best-effort", "pod", &[(MAX_ALLOWABLE, "many")], Some(text));
        check(9, "best-effort", "pod", &[], Some("unsupported on machines with more than 8 NUMA Nodes"));
        check(9, "best-effort", "pod", &[(MAX_ALLOWABLE, "9")], None);
        let distances = "cannot discover NUMA topology: error getting NUMA distances from cadvisor";
        check(2, "best-effort", "pod", &[(PREFER_CLOSEST, "true")], Some(distances));
        let flag =
            "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"2\": invalid syntax";
        check(2, "best-effort", "pod", &[(PREFER_CLOSEST, "2")], Some(flag));
    }
}
