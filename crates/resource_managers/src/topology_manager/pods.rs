//! What the managers read of a pod, and why a container cannot have what it asks for.
//! Used by every hint provider.
//! Invariant: pure (tidy: `pure_files`).

use api::{
    pod_resources::{
        is_pod_level,
        qos::{QosClass, qos_class},
    },
    quantity::Quantity,
};
use k8s_openapi::api::core::v1::{Container, Pod};

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default()
}

pub fn containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default()
}

/// In the order they are admitted.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    init_containers(pod).iter().chain(containers(pod))
}

pub fn is_guaranteed(pod: &Pod) -> bool {
    qos_class(pod) == QosClass::Guaranteed
}

/// Neither the CPU nor the memory manager knows how to divide what a pod has as a whole.
pub fn has_pod_level_resources(pod: &Pod) -> bool {
    let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    resources.is_some_and(|resources| {
        let names = resources.requests.iter().flatten().chain(resources.limits.iter().flatten());
        names.into_iter().any(|(name, _)| is_pod_level(name))
    })
}

pub fn request(container: &Container, name: &str) -> Option<Quantity> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    Quantity::parse(&requests.get(name)?.0).ok()
}

/// Why a hint provider has nothing for a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    SmtAlignment { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {requested}, CPUs per core = {per_core}"
    )]
    PhysicalCpus { requested: usize, per_core: usize, available: usize },
    #[error("Allocate failed due to {0}, which is unexpected")]
    Unexpected(String),
}

impl AllocateError {
    /// Of the pod's status and Event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SmtAlignment { .. } | Self::PhysicalCpus { .. } => "SMTAlignmentError",
            Self::Unexpected(_) => "UnexpectedAdmissionError",
        }
    }
}
