//! What a pod requests and what it is limited to, as a whole: upstream's `PodRequests` and `PodLimits`.
//! Used by quota, limit ranges, the scheduler and the kubelet, each with amounts of its own form (`ResourceList`).
//! Invariant: pure; what cannot be read as a quantity counts nothing, validation refuses it elsewhere (tidy:
//! `pure_files`).

pub mod qos;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as Text,
};
use serde_json::Value;

use crate::quantity::Quantity;

/// Exact amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;
type Texts = BTreeMap<String, Text>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestsOrLimits {
    Requests,
    Limits,
}

impl RequestsOrLimits {
    pub fn list(self, resources: Option<&ResourceRequirements>) -> Option<&Texts> {
        resources.and_then(|r| match self {
            RequestsOrLimits::Requests => r.requests.as_ref(),
            RequestsOrLimits::Limits => r.limits.as_ref(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerType {
    Regular,
    /// Runs to its end before the next one starts.
    Init,
    /// A restartable init container: stays from its start on.
    Sidecar,
}

/// Whether an init container is restartable.
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Amounts by resource name, in whatever form somebody computes with.
pub trait ResourceList: Default {
    fn set(&mut self, name: &str, amount: Quantity);
    fn is_zero(&self, name: &str) -> bool;
    fn add(&mut self, other: &Self);
    /// The larger of the two, resource by resource.
    fn max(&mut self, other: &Self);

    fn from_quantities(texts: Option<&Texts>) -> Self {
        let mut list = Self::default();
        for (name, text) in texts.into_iter().flatten() {
            if let Ok(amount) = Quantity::parse(&text.0) {
                list.set(name, amount);
            }
        }
        list
    }
}

impl ResourceList for Amounts {
    fn set(&mut self, name: &str, amount: Quantity) {
        self.insert(name.to_string(), amount);
    }

    fn is_zero(&self, name: &str) -> bool {
        self.get(name).is_none_or(Quantity::is_zero)
    }

    fn add(&mut self, other: &Self) {
        for (name, amount) in other {
            match self.get_mut(name) {
                Some(known) => known.add(amount),
                None => drop(self.insert(name.clone(), amount.clone())),
            }
        }
    }

    fn max(&mut self, other: &Self) {
        for (name, amount) in other {
            if self.get(name).is_none_or(|known| known < amount) {
                self.insert(name.clone(), amount.clone());
            }
        }
    }
}

/// The amounts of a `requests` or `limits` that is still JSON.
pub fn amounts_from_value(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, amount)| Some((name.clone(), Quantity::from_value(amount)?))).collect()
}

/// What may be said for the pod as a whole, and then stands instead of the sum over its containers.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// What the spec requests.
pub fn requests(pod: &Pod) -> Amounts {
    of_spec(pod, RequestsOrLimits::Requests)
}

/// What the spec limits.
pub fn limits(pod: &Pod) -> Amounts {
    of_spec(pod, RequestsOrLimits::Limits)
}

fn of_spec(pod: &Pod, which: RequestsOrLimits) -> Amounts {
    total(pod, which, |container, _| Amounts::from_quantities(which.list(container.resources.as_ref())))
}

/// As the spec says, where a container that is being resized counts with the most of what it had, has and shall have:
/// upstream's `UseStatusResources`.
pub fn with_status(pod: &Pod, which: RequestsOrLimits) -> Amounts {
    total(pod, which, |container, kind| with_container_status(pod, container, kind, which))
}

/// The sum over a pod, where `of` says what one container counts.
pub fn total<R: ResourceList>(pod: &Pod, which: RequestsOrLimits, of: impl Fn(&Container, ContainerType) -> R) -> R {
    let Some(spec) = &pod.spec else { return R::default() };
    let mut sum = R::default();
    spec.containers.iter().for_each(|container| sum.add(&of(container, ContainerType::Regular)));
    // Init containers run one after the other, each beside the sidecars that started before it.
    let (mut sidecars, mut highest) = (R::default(), R::default());
    for container in spec.init_containers.iter().flatten() {
        if is_sidecar(container) {
            let own = of(container, ContainerType::Sidecar);
            sum.add(&own);
            sidecars.add(&own);
            highest.max(&sidecars);
        } else {
            let mut step = of(container, ContainerType::Init);
            step.add(&sidecars);
            highest.max(&step);
        }
    }
    sum.max(&highest);
    for (name, text) in which.list(spec.resources.as_ref()).into_iter().flatten().filter(|(name, _)| is_pod_level(name))
    {
        if let Ok(amount) = Quantity::parse(&text.0) {
            sum.set(name, amount);
        }
    }
    // Overhead comes on top, also of what is set at pod level. It raises a limit that is there; it does not make one.
    let Some(overhead) = &spec.overhead else { return sum };
    match which {
        RequestsOrLimits::Requests => sum.add(&R::from_quantities(Some(overhead))),
        RequestsOrLimits::Limits => {
            let limited = overhead.iter().filter(|(name, _)| !sum.is_zero(name));
            let limited = limited.map(|(name, text)| (name.clone(), text.clone())).collect();
            sum.add(&R::from_quantities(Some(&limited)));
        }
    }
    sum
}

/// What one container counts while its status may lag behind, or run ahead of, its spec.
pub fn with_container_status<R: ResourceList>(
    pod: &Pod,
    container: &Container,
    kind: ContainerType,
    which: RequestsOrLimits,
) -> R {
    let wanted = R::from_quantities(which.list(container.resources.as_ref()));
    let Some(status) = pod.status.as_ref().filter(|_| kind != ContainerType::Init) else { return wanted };
    let statuses = match kind {
        ContainerType::Regular => &status.container_statuses,
        _ => &status.init_container_statuses,
    };
    let mut statuses = statuses.iter().flatten();
    let Some(found) = statuses.find(|s| s.name == container.name).filter(|s| s.resources.is_some()) else {
        return wanted;
    };
    let mut held = R::from_quantities(which.list(found.resources.as_ref()));
    if which == RequestsOrLimits::Requests {
        held.max(&R::from_quantities(found.allocated_resources.as_ref()));
    }
    // What the node can never give is not held for the pod.
    if !is_resize_infeasible(status) {
        held.max(&wanted);
    }
    held
}

fn is_resize_infeasible(status: &PodStatus) -> bool {
    let mut pending = status.conditions.iter().flatten().filter(|c| c.type_ == "PodResizePending");
    pending.any(|c| c.reason.as_deref() == Some("Infeasible"))
}
