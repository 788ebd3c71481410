//! The resources a pod was granted on this node, against those its specification asks for after an in-place resize.
//! Used by `allocation_manager` and `pod_workers`: a pod is run by what it was granted, and shown with what was put
//! into effect.
//! Invariant: pure (tidy: `pure_files`).

use std::collections::BTreeMap;

use api::quantity;
use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{pod::pod_spec, runtime::container_config::resources::PodLimits};

/// Resources by container name, of apps and sidecars.
pub type Allocation = BTreeMap<String, ResourceRequirements>;

/// Whether a container's resources can change while it is there.
fn resizable(container: &Container, init: bool) -> bool {
    !init || pod_spec::is_sidecar(container)
}

/// Those whose resources can change.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let apps = pod_spec::containers(pod).iter().map(|c| (c, false));
    let inits = pod_spec::init_containers(pod).iter().map(|c| (c, true));
    apps.chain(inits).filter(|(container, init)| resizable(container, *init)).map(|(container, _)| container)
}

/// What the specification asks for.
pub fn asked(pod: &Pod) -> Allocation {
    containers(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
}

fn shown(pod: &Pod) -> impl Iterator<Item = (&String, &ResourceRequirements)> {
    let lists = pod.status.iter().flat_map(|s| [&s.container_statuses, &s.init_container_statuses]);
    lists.flatten().flatten().filter_map(|s| Some((&s.name, s.resources.as_ref()?)))
}

/// What the pod's status in the API shows to be in effect.
pub fn in_effect(pod: &Pod) -> Allocation {
    shown(pod).map(|(name, resources)| (name.clone(), resources.clone())).collect()
}

/// Whether a pod takes no more and no less from others than it asks for; so do all that were never resized, and this
/// is asked of every pod for each that comes.
pub fn takes_what_it_asks(pod: &Pod, granted: Option<&Allocation>) -> bool {
    let none = ResourceRequirements::default();
    containers(pod).all(|container| {
        let asked = container.resources.as_ref().unwrap_or(&none);
        let in_effect = shown(pod).find(|(name, _)| **name == container.name).map(|(_, resources)| resources);
        let more = |actual: &ResourceRequirements| {
            let greater = |name| amount(&actual.requests, name) > amount(&asked.requests, name);
            actual.requests != asked.requests && ["cpu", "memory"].into_iter().any(greater)
        };
        match granted {
            Some(granted) => {
                let granted = granted.get(&container.name).unwrap_or(&none);
                (granted == asked || same_resources(granted, asked)) && !in_effect.is_some_and(more)
            }
            // What is shown is what was granted, as far as we know.
            None => in_effect.is_none_or(|actual| actual == asked || same_resources(actual, asked)),
        }
    })
}

/// What a pod that runs already had in effect, as far as its status in the API tells; else what it asks for.
pub fn reported(pod: &Pod) -> Allocation {
    let mut shown = in_effect(pod);
    asked(pod).into_iter().map(|(name, asked)| shown.remove_entry(&name).unwrap_or((name, asked))).collect()
}

/// The pod as if it asked for what it was given.
pub fn with(pod: &Pod, allocation: &Allocation) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits.filter(|c| pod_spec::is_sidecar(c))) {
        if let Some(resources) = allocation.get(&container.name) {
            container.resources = Some(resources.clone());
        }
    }
    pod
}

fn amount(list: &Option<BTreeMap<String, Quantity>>, name: &str) -> Option<i64> {
    let found = list.as_ref()?.get(name)?;
    if name == "cpu" { quantity::milli_value(found) } else { quantity::value(found) }
}

/// Whether one resource is the same, in whatever words.
pub fn same_amount(a: &ResourceRequirements, b: &ResourceRequirements, name: &str) -> bool {
    amount(&a.requests, name) == amount(&b.requests, name) && amount(&a.limits, name) == amount(&b.limits, name)
}

/// Whether all that can change in place is the same, in whatever words.
pub fn same_resources(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    ["cpu", "memory"].into_iter().all(|name| same_amount(a, b, name))
}

pub fn same(a: &Allocation, b: &Allocation) -> bool {
    a.len() == b.len()
        && a.iter().all(|(name, resources)| b.get(name).is_some_and(|other| same_resources(resources, other)))
}

/// How the wishes of containers changed: resource, requirement and operation, as they are counted.
pub fn operations(old: &Pod, new: &Pod) -> Vec<[&'static str; 3]> {
    let mut all = Vec::new();
    for before in containers(old) {
        let Some(after) = containers(new).find(|container| container.name == before.name) else { continue };
        for (resource, requirement) in
            [("memory", "requests"), ("memory", "limits"), ("cpu", "requests"), ("cpu", "limits")]
        {
            let of = |container: &Container| {
                let resources = container.resources.as_ref()?;
                let list = if requirement == "requests" { &resources.requests } else { &resources.limits };
                amount(list, resource)
            };
            let (before, after) = (of(before).unwrap_or(0), of(after).unwrap_or(0));
            let operation = match (before, after) {
                _ if before == after => continue,
                (0, _) => "add",
                (_, 0) => "remove",
                _ if before < after => "increase",
                _ => "decrease",
            };
            all.push([resource, requirement, operation]);
        }
    }
    all
}

/// What is taken from others while a resize is on its way: of each request the greater.
pub fn taken(granted: &Allocation, in_effect: &Allocation) -> Allocation {
    let mut result = granted.clone();
    for (container, resources) in &mut result {
        let Some(actual) = in_effect.get(container).and_then(|r| r.requests.as_ref()) else { continue };
        for name in ["cpu", "memory"] {
            let Some(quantity) = actual.get(name) else { continue };
            if amount(&in_effect[container].requests, name) > amount(&resources.requests, name) {
                resources.requests.get_or_insert_default().insert(name.into(), quantity.clone());
            }
        }
    }
    result
}

/// A memory limit that is new or smaller.
pub fn is_tighter(before: i64, wanted: i64) -> bool {
    wanted > 0 && (before <= 0 || wanted < before)
}

/// Limits that neither the one nor the other exceeds: a group must not be smaller than what is in it, at any moment.
pub fn widest(a: PodLimits, b: PodLimits) -> PodLimits {
    PodLimits {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: if a.cpu_quota == 0 || b.cpu_quota == 0 { 0 } else { a.cpu_quota.max(b.cpu_quota) },
        memory_bytes: a.memory_bytes.zip(b.memory_bytes).map(|(a, b)| a.max(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_runs_by_what_it_was_granted() {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod: Pod = serde_json::from_value(json!({
            "spec": {
                "containers": [{"name": "a", "resources": resources("2")}, {"name": "b"}],
                "initContainers": [{"name": "i", "resources": resources("9")},
                    {"name": "s", "restartPolicy": "Always", "resources": resources("3")}],
            },
            "status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": resources("1")}]},
        }))
        .unwrap();
        let cpu = |allocation: &Allocation, name: &str| {
            let requests = allocation.get(name).and_then(|r| r.requests.clone()).unwrap_or_default();
            requests.get("cpu").map(|q| q.0.clone()).unwrap_or_default()
        };
        let check = |allocation: &Allocation, expected: [&str; 4]| {
            assert_eq!(["a", "b", "i", "s"].map(|name| cpu(allocation, name)), expected);
        };
        check(&asked(&pod), ["2", "", "", "3"]);
        check(&reported(&pod), ["1", "", "", "3"]);
        let granted = with(&pod, &reported(&pod));
        check(&asked(&granted), ["1", "", "", "3"]);
        assert_eq!(granted.spec.unwrap().init_containers, pod.spec.unwrap().init_containers);
    }

    #[test]
    fn changed_wishes_are_told_apart() {
        let of = |a: serde_json::Value, init: &str| -> Pod {
            let spec = json!({"containers": [{"name": "a", "resources": a}], "initContainers": [
                {"name": "i", "resources": {"requests": {"cpu": init}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"memory": init}}}]});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let old = of(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}), "1");
        let new = of(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1", "memory": "1Gi"}}), "2");
        let expected = [
            ["memory", "requests", "remove"],
            ["memory", "limits", "add"],
            ["cpu", "requests", "increase"],
            ["cpu", "limits", "decrease"],
            ["memory", "limits", "increase"],
        ];
        assert_eq!(operations(&old, &new), expected);
        assert!(
            operations(
                &old,
                &of(json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": "2"}}), "1")
            )
            .is_empty()
        );
    }

    #[test]
    fn groups_are_widened_before_they_are_narrowed() {
        let limits = |cpu_quota, memory_bytes| PodLimits { cpu_shares: 2, cpu_quota, memory_bytes };
        let check = |a, b, expected| assert_eq!(widest(a, b), expected);
        check(limits(10, Some(5)), limits(20, Some(3)), limits(20, Some(5)));
        check(limits(0, None), limits(20, Some(3)), limits(0, None));
    }

    #[test]
    fn what_changes_takes_the_more_of_both_and_words_do_not_count() {
        let of =
            |resources: serde_json::Value| Allocation::from([("a".into(), serde_json::from_value(resources).unwrap())]);
        let cpu = |amount: &str| of(json!({"requests": {"cpu": amount}, "limits": {"memory": "1Gi"}}));
        assert!(same(&cpu("0.5"), &cpu("500m")));
        assert!(!same(&cpu("0.5"), &cpu("501m")));
        assert!(!same(&cpu("0.5"), &of(json!({"requests": {"cpu": "500m"}}))));
        assert!(!same(&cpu("0.5"), &Allocation::new()));
        assert_eq!(taken(&cpu("1"), &cpu("1500m")), cpu("1500m"));
        assert_eq!(taken(&cpu("2"), &cpu("1500m")), cpu("2"));
        assert_eq!(taken(&cpu("2"), &Allocation::new()), cpu("2"));
    }

    #[test]
    fn limits_are_tighter_when_new_or_smaller() {
        let check = |before, wanted, expected| assert_eq!(is_tighter(before, wanted), expected, "{before} {wanted}");
        check(0, 5, true);
        check(10, 5, true);
        check(5, 5, false);
        check(5, 10, false);
        check(5, 0, false);
    }
}
