//! What a pod asks for as a whole: containers together with sidecars, or the largest init step; pod level; overhead.
//! Used by `quota` and by the API server's limit ranges.
//! Invariant: pure; what cannot be read as a quantity counts nothing, validation refuses it elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as Text,
};

use crate::quantity::Quantity;

pub type Amounts = BTreeMap<String, Quantity>;
type Texts = BTreeMap<String, Text>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Requests,
    Limits,
}

impl Which {
    fn of(self, resources: Option<&ResourceRequirements>) -> Amounts {
        amounts(resources.and_then(|r| match self {
            Which::Requests => r.requests.as_ref(),
            Which::Limits => r.limits.as_ref(),
        }))
    }
}

pub fn amounts(texts: Option<&Texts>) -> Amounts {
    let parse = |(name, text): (&String, &Text)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    texts.into_iter().flatten().filter_map(parse).collect()
}

pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match sum.get_mut(name) {
            Some(known) => known.add(amount),
            None => drop(sum.insert(name.clone(), amount.clone())),
        }
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if most.get(name).is_none_or(|known| known < amount) {
            most.insert(name.clone(), amount.clone());
        }
    }
}

/// What may be said for the pod as a whole, and then stands instead of the sum.
pub fn at_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// As the spec says.
pub fn asked(pod: &Pod, which: Which) -> Amounts {
    total(pod, which, |container| which.of(container.resources.as_ref()))
}

/// The same, where a container that is being resized counts with the most of what it had, has and shall have.
pub fn held(pod: &Pod, which: Which) -> Amounts {
    total(pod, which, |container| of_running(pod, container, which))
}

fn total(pod: &Pod, which: Which, running: impl Fn(&Container) -> Amounts) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut sum = Amounts::new();
    spec.containers.iter().for_each(|c| add(&mut sum, &running(c)));
    let (mut sidecars, mut highest) = (Amounts::new(), Amounts::new());
    // Init containers run one after the other; a sidecar stays from its start on.
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            let own = running(container);
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut highest, &sidecars);
        } else {
            let mut step = which.of(container.resources.as_ref());
            add(&mut step, &sidecars);
            raise(&mut highest, &step);
        }
    }
    raise(&mut sum, &highest);
    sum.extend(which.of(spec.resources.as_ref()).into_iter().filter(|(name, _)| at_pod_level(name)));
    let mut overhead = amounts(spec.overhead.as_ref());
    if which == Which::Limits {
        // Overhead raises a limit that is there; it does not make one.
        overhead.retain(|name, _| sum.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    add(&mut sum, &overhead);
    sum
}

fn of_running(pod: &Pod, container: &Container, which: Which) -> Amounts {
    let wanted = which.of(container.resources.as_ref());
    let Some(status) = &pod.status else { return wanted };
    let mut statuses =
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let Some(found) = statuses.find(|s| s.name == container.name).filter(|s| s.resources.is_some()) else {
        return wanted;
    };
    let mut held = which.of(found.resources.as_ref());
    if which == Which::Requests {
        raise(&mut held, &amounts(found.allocated_resources.as_ref()));
    }
    // What the node can never give is not held for the pod.
    let mut pending = status.conditions.iter().flatten().filter(|c| c.type_ == "PodResizePending");
    if !pending.any(|c| c.reason.as_deref() == Some("Infeasible")) {
        raise(&mut held, &wanted);
    }
    held
}
