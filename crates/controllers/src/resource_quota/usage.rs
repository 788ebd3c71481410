//! The core: what the objects of a namespace use of the resources that a quota names.
//! Called by the controller beside it.
//! Invariant: finished pods use no compute; a name that nothing provides uses zero.

use std::collections::BTreeMap;

use api::quantity::{Format, Quantity};
use k8s_openapi::{
    api::core::v1::{
        Container, PersistentVolumeClaim, Pod, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
    },
    apimachinery::pkg::api::resource::Quantity as Text,
};

use crate::{pods, volume};

pub type Usage = BTreeMap<String, Quantity>;

fn one() -> Quantity {
    Quantity::new(1, Format::DecimalSI)
}

pub fn add(usage: &mut Usage, name: impl Into<String>, amount: &Quantity) {
    let zero = || Quantity::new(0, amount.format());
    usage.entry(name.into()).or_insert_with(zero).add(amount);
}

type Resources = BTreeMap<String, Text>;

fn amounts(resources: Option<&Resources>) -> Usage {
    let parse = |(name, text): (&String, &Text)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    resources.into_iter().flatten().filter_map(parse).collect()
}

fn raise(usage: &mut Usage, other: Usage) {
    for (name, amount) in other {
        match usage.get(&name) {
            Some(known) if *known >= amount => {}
            _ => {
                usage.insert(name, amount);
            }
        }
    }
}

/// What a pod asks for as a whole: its containers together with sidecars, or its largest init step; plus overhead.
fn of_pod(pod: &Pod, read: impl Fn(&Container) -> Option<&Resources>, overhead: bool) -> Usage {
    let Some(spec) = &pod.spec else { return Usage::new() };
    let mut total = Usage::new();
    let merge = |into: &mut Usage, from: &Usage| from.iter().for_each(|(name, amount)| add(into, name, amount));
    for container in &spec.containers {
        merge(&mut total, &amounts(read(container)));
    }
    let (mut sidecars, mut largest) = (Usage::new(), Usage::new());
    for container in spec.init_containers.iter().flatten() {
        let mut step = amounts(read(container));
        if container.restart_policy.as_deref() == Some("Always") {
            merge(&mut total, &step);
            merge(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            merge(&mut step, &sidecars);
        }
        raise(&mut largest, step);
    }
    raise(&mut total, largest);
    if overhead {
        merge(&mut total, &amounts(spec.overhead.as_ref()));
    }
    total
}

pub fn pod(pod: &Pod) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "count/pods", &one());
    if pods::finished(pod) {
        return usage;
    }
    add(&mut usage, "pods", &one());
    for (name, amount) in of_pod(pod, |c| c.resources.as_ref()?.requests.as_ref(), true) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            add(&mut usage, &name, &amount);
        }
        add(&mut usage, format!("requests.{name}"), &amount);
    }
    for (name, amount) in of_pod(pod, |c| c.resources.as_ref()?.limits.as_ref(), true) {
        add(&mut usage, format!("limits.{name}"), &amount);
    }
    usage
}

pub fn service(service: &Service) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "services", &one());
    add(&mut usage, "count/services", &one());
    let Some(spec) = &service.spec else { return usage };
    let ports = spec.ports.as_ref().map_or(0, Vec::len) as i64;
    match spec.type_.as_deref() {
        Some("NodePort") => add(&mut usage, "services.nodeports", &Quantity::new(ports, Format::DecimalSI)),
        Some("LoadBalancer") => {
            add(&mut usage, "services.loadbalancers", &one());
            let given = spec.ports.iter().flatten().filter(|p| p.node_port.is_some_and(|n| n != 0)).count() as i64;
            let ports = if spec.allocate_load_balancer_node_ports == Some(false) { given } else { ports };
            add(&mut usage, "services.nodeports", &Quantity::new(ports, Format::DecimalSI));
        }
        _ => {}
    }
    usage
}

pub fn claim(claim: &PersistentVolumeClaim) -> Usage {
    let mut usage = Usage::new();
    let class = volume::class_of_claim(claim);
    let scoped = |name: &str| format!("{class}.storageclass.storage.k8s.io/{name}");
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref());
    let storage = amounts(requests).remove("storage");
    add(&mut usage, "persistentvolumeclaims", &one());
    add(&mut usage, "count/persistentvolumeclaims", &one());
    if let Some(storage) = &storage {
        add(&mut usage, "requests.storage", storage);
    }
    if !class.is_empty() {
        add(&mut usage, scoped("persistentvolumeclaims"), &one());
        if let Some(storage) = &storage {
            add(&mut usage, scoped("requests.storage"), storage);
        }
    }
    usage
}

/// Whether the quota's scopes cover this pod. A quota without scopes covers everything.
pub fn covers(quota: &ResourceQuotaSpec, pod: &Pod) -> bool {
    let plain = quota.scopes.iter().flatten().all(|scope| in_scope(scope, "Exists", &[], pod));
    let selected = quota.scope_selector.iter().flat_map(|s| s.match_expressions.iter().flatten());
    plain
        && selected.into_iter().all(|r: &ScopedResourceSelectorRequirement| {
            in_scope(&r.scope_name, &r.operator, r.values.as_deref().unwrap_or_default(), pod)
        })
}

/// Whether the quota has scopes at all: then it counts only pods.
pub fn scoped(quota: &ResourceQuotaSpec) -> bool {
    quota.scopes.as_ref().is_some_and(|s| !s.is_empty())
        || quota.scope_selector.as_ref().is_some_and(|s| s.match_expressions.as_ref().is_some_and(|m| !m.is_empty()))
}

fn in_scope(scope: &str, operator: &str, values: &[String], pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let best_effort = || {
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.into_iter().filter_map(|c| c.resources.as_ref()).all(|r| {
            let none =
                |m: &Option<Resources>| m.as_ref().is_none_or(|m| !m.contains_key("cpu") && !m.contains_key("memory"));
            none(&r.requests) && none(&r.limits)
        })
    };
    match scope {
        "Terminating" => spec.active_deadline_seconds.is_some_and(|s| s >= 0),
        "NotTerminating" => spec.active_deadline_seconds.is_none(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().unwrap_or_default();
            match operator {
                "In" => values.iter().any(|v| v == class),
                "NotIn" => !values.iter().any(|v| v == class),
                "DoesNotExist" => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.clone()).unwrap_or_default();
    let (with, without) = (affinity.pod_affinity.unwrap_or_default(), affinity.pod_anti_affinity.unwrap_or_default());
    let required = [
        with.required_during_scheduling_ignored_during_execution,
        without.required_during_scheduling_ignored_during_execution,
    ];
    let preferred = [
        with.preferred_during_scheduling_ignored_during_execution,
        without.preferred_during_scheduling_ignored_during_execution,
    ];
    let terms = required.into_iter().flatten().flatten();
    let terms = terms.chain(preferred.into_iter().flatten().flatten().map(|t| t.pod_affinity_term));
    let mut terms = terms.into_iter();
    terms.any(|t| t.namespaces.is_some_and(|n| !n.is_empty()) || t.namespace_selector.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(usage: &Usage, name: &str) -> String {
        usage.get(name).map(|q| q.canonical()).unwrap_or_default()
    }

    #[test]
    fn what_pods_use() {
        let example: Pod = serde_json::from_value(json!({ "spec": {
            "containers": [{ "name": "a", "resources": { "requests": { "cpu": "100m" }, "limits": { "memory": "1Gi" } } },
                           { "name": "b", "resources": { "requests": { "cpu": "200m", "example.com/gpu": "1" } } }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "1" } } },
                               { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "50m" } } }],
        } }))
        .unwrap();
        let usage = pod(&example);
        let check = |name: &str, expected: &str| assert_eq!(read(&usage, name), expected, "{name}");
        check("pods", "1");
        check("requests.cpu", "1");
        check("cpu", "1");
        check("limits.memory", "1Gi");
        check("requests.example.com/gpu", "1");
        let mut done = example.clone();
        done.status = serde_json::from_value(json!({ "phase": "Succeeded" })).unwrap();
        assert_eq!((read(&pod(&done), "pods"), read(&pod(&done), "count/pods")), (String::new(), "1".to_string()));
    }

    #[test]
    fn scopes() {
        let check = |quota: serde_json::Value, spec: serde_json::Value, expected: bool| {
            let quota: ResourceQuotaSpec = serde_json::from_value(quota).unwrap();
            let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
            assert_eq!(covers(&quota, &pod), expected);
        };
        let bare = json!({ "containers": [{ "name": "c" }] });
        check(json!({}), bare.clone(), true);
        check(json!({ "scopes": ["BestEffort"] }), bare.clone(), true);
        check(json!({ "scopes": ["NotBestEffort"] }), bare.clone(), false);
        check(json!({ "scopes": ["Terminating"] }), bare.clone(), false);
        check(json!({ "scopes": ["NotTerminating"] }), bare, true);
        let class = json!({ "containers": [], "priorityClassName": "high" });
        let selector = |values: &[&str]| {
            json!({ "scopeSelector": { "matchExpressions": [
            { "scopeName": "PriorityClass", "operator": "In", "values": values }] } })
        };
        check(selector(&["high"]), class.clone(), true);
        check(selector(&["low"]), class, false);
    }
}
