//! What an object uses of the resources that ResourceQuotas bound, and which quotas cover it.
//! Asked by admission, which charges, and by the quota controller, which counts anew.
//! Invariant: pure, and asked by both, so that no charge is taken back by a count that sees things differently (tidy:
//! `pure_files`).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, PodAffinityTerm, PodSpec, ResourceQuotaSpec, Service},
    resource::v1::ResourceClaim,
};

use crate::{
    kinds::is_extended_resource,
    pod_resources::{
        Amounts, RequestsOrLimits, ResourceList,
        qos::{QosClass, qos_class},
        with_status,
    },
    quantity::{Format, Quantity},
};

pub type Usage = BTreeMap<String, Quantity>;

/// What asking for all devices counts as.
const DEVICES_OF_CLAIM_MAX: i64 = 32;

const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

fn number(count: usize) -> Quantity {
    Quantity::new(count as i64, Format::DecimalSI)
}

fn one() -> Quantity {
    number(1)
}

/// When a pod that is being deleted is no longer charged, although it is still there: its node may be lost for good.
pub fn charged_until(pod: &Pod) -> Option<Timestamp> {
    let grace = u64::try_from(pod.metadata.deletion_grace_period_seconds?).unwrap_or(0);
    pod.metadata.deletion_timestamp.as_ref()?.0.checked_add(Duration::from_secs(grace)).ok()
}

/// A pod that has ended, or should have, only counts as an object.
pub fn pod(pod: &Pod, now: Timestamp) -> Usage {
    let mut usage = Usage::from([("count/pods".to_string(), one())]);
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    if matches!(phase, "Failed" | "Succeeded") || charged_until(pod).is_some_and(|at| at <= now) {
        return usage;
    }
    usage.insert("pods".into(), one());
    for (name, amount) in with_status(pod, RequestsOrLimits::Requests) {
        let plain = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if plain {
            usage.insert(name.clone(), amount.clone());
        }
        if plain || is_extended_resource(&name) || name.starts_with("deviceclass.resource.kubernetes.io/") {
            usage.insert(format!("requests.{name}"), amount);
        }
    }
    let limits =
        with_status(pod, RequestsOrLimits::Limits).into_iter().filter(|(name, _)| COMPUTE.contains(&name.as_str()));
    usage.extend(limits.map(|(name, amount)| (format!("limits.{name}"), amount)));
    usage
}

pub fn service(service: &Service) -> Usage {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let balancer = spec.type_.as_deref() == Some("LoadBalancer");
    let node_ports = match spec.type_.as_deref() {
        Some("NodePort") => ports.len(),
        Some("LoadBalancer") if spec.allocate_load_balancer_node_ports == Some(false) => {
            ports.iter().filter(|p| p.node_port.is_some_and(|n| n != 0)).count()
        }
        Some("LoadBalancer") => ports.len(),
        _ => 0,
    };
    Usage::from([
        ("count/services".into(), one()),
        ("services".into(), one()),
        ("services.nodeports".into(), number(node_ports)),
        ("services.loadbalancers".into(), number(usize::from(balancer))),
    ])
}

pub fn claim(claim: &PersistentVolumeClaim) -> Usage {
    let annotations = claim.metadata.annotations.as_ref();
    let class = annotations.and_then(|a| a.get("volume.beta.kubernetes.io/storage-class"));
    let class = class.or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref()).filter(|name| !name.is_empty());
    let mut used = vec![("persistentvolumeclaims", one())];
    used.extend(storage(claim).map(|storage| ("requests.storage", storage)));
    let mut usage = Usage::from([("count/persistentvolumeclaims".to_string(), one())]);
    for (name, amount) in used {
        if let Some(class) = class {
            usage.insert(format!("{class}.storageclass.storage.k8s.io/{name}"), amount.clone());
        }
        usage.insert(name.into(), amount);
    }
    usage
}

/// Devices that a claim may get at most, by their class.
pub fn resource_claim(claim: &ResourceClaim) -> Usage {
    let mut usage = Usage::from([("count/resourceclaims.resource.k8s.io".to_string(), one())]);
    let devices = |mode: Option<&str>, count: Option<i64>| match mode.unwrap_or("ExactCount") {
        "ExactCount" => count.unwrap_or(1),
        "All" => DEVICES_OF_CLAIM_MAX,
        _ => 0,
    };
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    for request in requests {
        // Of alternatives, the one that takes most of a class.
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for one in request.first_available.iter().flatten() {
            let count = devices(one.allocation_mode.as_deref(), one.count);
            let known = most.entry(&one.device_class_name).or_default();
            *known = count.max(*known);
        }
        if let Some(exactly) = &request.exactly {
            most.insert(&exactly.device_class_name, devices(exactly.allocation_mode.as_deref(), exactly.count));
        }
        for (class, count) in most {
            let amount = Quantity::new(count, Format::DecimalSI);
            usage
                .entry(format!("{class}.deviceclass.resource.k8s.io/devices"))
                .or_insert_with(|| number(0))
                .add(&amount);
        }
    }
    usage
}

/// In whole bytes: what is asked for, or what an expansion has already taken.
fn storage(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref());
    let asked = Amounts::from_quantities(requests).remove("storage")?;
    let taken =
        Amounts::from_quantities(claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref())).remove("storage");
    let storage = taken.filter(|taken| *taken > asked).unwrap_or(asked);
    let whole = Quantity::new(storage.value(), storage.format());
    Some(if whole == storage { storage } else { whole })
}

/// One condition of a quota's scopes.
struct Term<'a> {
    scope: &'a str,
    operator: &'a str,
    values: &'a [String],
}

impl Term<'_> {
    fn holds(&self, names: &[&str]) -> bool {
        let listed = |name: &&str| self.values.iter().any(|v| v == name);
        match self.operator {
            "In" => names.iter().any(listed),
            "NotIn" => names.is_empty() || !names.iter().all(listed),
            "DoesNotExist" => names.is_empty(),
            _ => !names.is_empty(),
        }
    }
}

fn terms(quota: &ResourceQuotaSpec) -> impl Iterator<Item = Term<'_>> {
    let plain = quota.scopes.iter().flatten().map(|scope| Term { scope, operator: "Exists", values: &[] });
    let selected = quota.scope_selector.iter().flat_map(|s| s.match_expressions.iter().flatten());
    plain.chain(selected.map(|r| Term {
        scope: &r.scope_name,
        operator: &r.operator,
        values: r.values.as_deref().unwrap_or_default(),
    }))
}

/// Whether the quota has scopes: then it counts nothing but the pods or claims in them.
pub fn scoped(quota: &ResourceQuotaSpec) -> bool {
    terms(quota).next().is_some()
}

pub fn covers_pod(quota: &ResourceQuotaSpec, pod: &Pod) -> bool {
    terms(quota).all(|term| pod.spec.as_ref().is_some_and(|spec| in_scope(&term, pod, spec)))
}

pub fn covers_claim(quota: &ResourceQuotaSpec, claim: &PersistentVolumeClaim) -> bool {
    let classes = attributes_classes(claim);
    terms(quota).all(|term| term.scope == "VolumeAttributesClass" && term.holds(&classes))
}

fn in_scope(term: &Term, pod: &Pod, spec: &PodSpec) -> bool {
    let terminating = spec.active_deadline_seconds.is_some_and(|s| s >= 0);
    match term.scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => qos_class(pod) == QosClass::BestEffort,
        "NotBestEffort" => qos_class(pod) != QosClass::BestEffort,
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
            term.holds(class.as_slice())
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(spec),
        _ => false,
    }
}

/// The classes that a claim has, had last, or is on its way to.
fn attributes_classes(claim: &PersistentVolumeClaim) -> Vec<&str> {
    let status = claim.status.as_ref();
    let names = [
        claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()),
        status.and_then(|s| s.current_volume_attributes_class_name.as_deref()),
        status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_deref()),
    ];
    names.into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

fn crosses_namespaces(spec: &PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else { return false };
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|n| !n.is_empty()) || term.namespace_selector.is_some()
    };
    let (with, without) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let required = [
        with.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
        without.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = [
        with.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
        without.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
    ];
    required.into_iter().flatten().flatten().any(crosses)
        || preferred.into_iter().flatten().flatten().any(|weighted| crosses(&weighted.pod_affinity_term))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    #[test]
    fn claims_count_the_devices_that_they_may_get() {
        let exactly = |class: &str, more: Value| {
            let mut exactly = json!({ "deviceClassName": class, "allocationMode": "ExactCount", "count": 2 });
            more.as_object().unwrap().iter().for_each(|(k, v)| exactly[k] = v.clone());
            exactly
        };
        let requests = json!([
            { "name": "a", "exactly": exactly("gpu", json!({})) },
            { "name": "b", "exactly": exactly("nic", json!({ "allocationMode": "All" })) },
            { "name": "c", "firstAvailable": [exactly("gpu", json!({ "count": 1 })), exactly("gpu", json!({ "count": 4 })),
                exactly("tpu", json!({ "count": 3 }))] },
        ]);
        let claim = json!({ "metadata": {}, "spec": { "devices": { "requests": requests } } });
        let mut claim = claim;
        for sub in claim["spec"]["devices"]["requests"][2]["firstAvailable"].as_array_mut().unwrap() {
            sub["name"] = json!("x");
        }
        check(
            resource_claim(&serde_json::from_value(claim).unwrap()),
            &[
                ("count/resourceclaims.resource.k8s.io", "1"),
                ("gpu.deviceclass.resource.k8s.io/devices", "6"),
                ("nic.deviceclass.resource.k8s.io/devices", "32"),
                ("tpu.deviceclass.resource.k8s.io/devices", "3"),
            ],
        );
    }

    fn check(usage: Usage, expected: &[(&str, &str)]) {
        let found: Vec<_> = usage.iter().map(|(name, amount)| (name.as_str(), amount.canonical())).collect();
        let expected: Vec<_> = expected.iter().map(|(name, amount)| (*name, amount.to_string())).collect();
        assert_eq!(found, expected);
    }

    fn read(change: Value) -> Pod {
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c" }] }, "status": {} });
        json_patch::merge(&mut pod, &change);
        serde_json::from_value(pod).unwrap()
    }

    fn asks(resources: Value) -> Value {
        json!([{ "name": "c", "resources": resources }])
    }

    #[test]
    fn what_pods_use() {
        let check = |change: Value, expected: &[(&str, &str)]| {
            let charged = [("count/pods", "1"), ("pods", "1")];
            let mut expected = [&charged, expected].concat();
            expected.sort();
            check(pod(&read(change), NOW.parse().unwrap()), &expected);
        };
        check(json!({}), &[]);
        let steps = json!({ "spec": {
            "containers": [{ "name": "a", "resources": { "requests": { "cpu": "100m" }, "limits": { "memory": "1Gi" } } },
                           { "name": "b", "resources": { "requests": { "cpu": "200m", "example.com/gpu": "1" } } }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "1" } } },
                { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "50m" } } }],
        } });
        let used = [("cpu", "1"), ("limits.memory", "1Gi"), ("requests.cpu", "1"), ("requests.example.com/gpu", "1")];
        check(steps, &used);
        let pages = json!({ "hugepages-2Mi": "4Mi", "example.com/gpu": "1" });
        let pages = json!({ "spec": { "containers": asks(json!({ "requests": pages, "limits": pages })) } });
        let used = [("hugepages-2Mi", "4Mi"), ("requests.example.com/gpu", "1"), ("requests.hugepages-2Mi", "4Mi")];
        check(pages, &used);
        let whole = json!({ "spec": {
            "containers": asks(json!({ "requests": { "cpu": "3", "memory": "1Mi" }, "limits": { "cpu": "3" } })),
            "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "4" } },
        } });
        let used =
            [("cpu", "2"), ("limits.cpu", "4"), ("memory", "1Mi"), ("requests.cpu", "2"), ("requests.memory", "1Mi")];
        check(whole, &used);
        let overhead = json!({ "spec": { "overhead": { "cpu": "10m", "memory": "8Mi" },
            "containers": asks(json!({ "limits": { "cpu": "1" } })) } });
        let used = [
            ("cpu", "10m"),
            ("limits.cpu", "1010m"),
            ("memory", "8Mi"),
            ("requests.cpu", "10m"),
            ("requests.memory", "8Mi"),
        ];
        check(overhead, &used);
    }

    #[test]
    fn pods_that_are_being_resized() {
        let check = |reason: &str, expected: &[(&str, &str)]| {
            let shrinks = json!({
                "spec": { "containers": asks(json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "9" } })) },
                "status": { "conditions": [{ "type": "PodResizePending", "status": "True", "reason": reason }],
                    "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": "3" },
                    "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "2" } } }] },
            });
            check(pod(&read(shrinks), NOW.parse().unwrap()), expected);
        };
        let one =
            |limit| [("count/pods", "1"), ("cpu", "3"), ("limits.cpu", limit), ("pods", "1"), ("requests.cpu", "3")];
        check("Deferred", &one("9"));
        check("Infeasible", &one("2"));
    }

    #[test]
    fn pods_that_have_ended_or_should_have() {
        let check = |change: Value, charged: bool| {
            let usage = pod(&read(change.clone()), NOW.parse().unwrap());
            assert_eq!((usage.contains_key("pods"), usage.contains_key("count/pods")), (charged, true), "{change}");
        };
        let deleted = |at: &str, grace: Option<i64>| json!({ "metadata": { "deletionTimestamp": at, "deletionGracePeriodSeconds": grace } });
        check(json!({ "status": { "phase": "Running" } }), true);
        check(json!({ "status": { "phase": "Succeeded" } }), false);
        check(json!({ "status": { "phase": "Failed" } }), false);
        check(deleted("2026-01-01T00:00:29Z", Some(30)), false);
        check(deleted("2026-01-01T00:00:31Z", Some(30)), true);
        check(deleted("2026-01-01T00:00:00Z", None), true);
    }

    #[test]
    fn what_claims_and_services_use() {
        let check_claim = |change: Value, expected: &[(&str, &str)]| {
            let mut found = json!({ "spec": { "resources": { "requests": { "storage": "1Gi" } } }, "status": {} });
            json_patch::merge(&mut found, &change);
            check(claim(&serde_json::from_value(found).unwrap()), expected);
        };
        let counted = [("count/persistentvolumeclaims", "1"), ("persistentvolumeclaims", "1")];
        check_claim(json!({}), &[&counted[..], &[("requests.storage", "1Gi")]].concat());
        let part = json!({ "spec": { "resources": { "requests": { "storage": "1500m" } } } });
        check_claim(part, &[&counted[..], &[("requests.storage", "2")]].concat());
        let grown =
            json!({ "spec": { "storageClassName": "fast" }, "status": { "allocatedResources": { "storage": "2Gi" } } });
        let expected = [
            ("count/persistentvolumeclaims", "1"),
            ("fast.storageclass.storage.k8s.io/persistentvolumeclaims", "1"),
            ("fast.storageclass.storage.k8s.io/requests.storage", "2Gi"),
            ("persistentvolumeclaims", "1"),
            ("requests.storage", "2Gi"),
        ];
        check_claim(grown, &expected);

        let check_service = |spec: Value, balancers: &str, node_ports: &str| {
            let found = serde_json::from_value(json!({ "spec": spec })).unwrap();
            let counted = [("count/services", "1"), ("services", "1")];
            let special = [("services.loadbalancers", balancers), ("services.nodeports", node_ports)];
            check(service(&found), &[counted, special].concat());
        };
        let ports = json!([{ "port": 80, "nodePort": 30080 }, { "port": 81 }]);
        check_service(json!({ "type": "ClusterIP", "ports": ports }), "0", "0");
        check_service(json!({ "type": "NodePort", "ports": ports }), "0", "2");
        check_service(json!({ "type": "LoadBalancer", "ports": ports }), "1", "2");
        let own = json!({ "type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false });
        check_service(own, "1", "1");
    }

    fn selector(scope: &str, operator: &str, values: &[&str]) -> Value {
        let term = json!({ "scopeName": scope, "operator": operator, "values": values });
        json!({ "scopeSelector": { "matchExpressions": [term] } })
    }

    #[test]
    fn scopes_of_pods() {
        let check = |quota: Value, spec: Value, expected: bool| {
            let found: ResourceQuotaSpec = serde_json::from_value(quota.clone()).unwrap();
            assert_eq!(covers_pod(&found, &read(json!({ "spec": spec }))), expected, "{quota} {spec}");
        };
        let scope = |scope: &str| json!({ "scopes": [scope] });
        check(json!({}), json!({}), true);
        check(scope("BestEffort"), json!({}), true);
        check(scope("NotBestEffort"), json!({}), false);
        check(scope("BestEffort"), json!({ "containers": asks(json!({ "requests": { "cpu": "0" } })) }), true);
        check(scope("BestEffort"), json!({ "containers": asks(json!({ "limits": { "cpu": "1" } })) }), false);
        check(scope("BestEffort"), json!({ "resources": { "limits": { "memory": "1Gi" } } }), false);
        check(scope("Terminating"), json!({}), false);
        check(scope("Terminating"), json!({ "activeDeadlineSeconds": 5 }), true);
        check(scope("NotTerminating"), json!({ "activeDeadlineSeconds": 5 }), false);
        check(scope("VolumeAttributesClass"), json!({}), false);
        let high = json!({ "priorityClassName": "high" });
        for (operator, values, with, without) in [
            ("In", &["high"][..], true, false),
            ("In", &["low"], false, false),
            ("NotIn", &["high"], false, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
        ] {
            check(selector("PriorityClass", operator, values), high.clone(), with);
            check(selector("PriorityClass", operator, values), json!({}), without);
        }
        let term = |namespaces: Value| json!({ "topologyKey": "zone", "namespaces": namespaces });
        let near = |namespaces: Value| {
            let rule = json!([{ "weight": 1, "podAffinityTerm": term(namespaces) }]);
            json!({ "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": rule } } })
        };
        check(scope("CrossNamespacePodAffinity"), near(json!(["other"])), true);
        check(scope("CrossNamespacePodAffinity"), near(json!([])), false);
    }

    #[test]
    fn scopes_of_claims() {
        let check = |quota: Value, claim: Value, expected: bool| {
            let found: ResourceQuotaSpec = serde_json::from_value(quota.clone()).unwrap();
            assert_eq!(covers_claim(&found, &serde_json::from_value(claim).unwrap()), expected, "{quota}");
        };
        let gold = || json!({ "spec": { "volumeAttributesClassName": "gold" } });
        let leaves = || json!({ "spec": {}, "status": { "currentVolumeAttributesClassName": "gold" } });
        let class = |operator: &str, values: &[&str]| selector("VolumeAttributesClass", operator, values);
        check(json!({}), gold(), true);
        check(json!({ "scopes": ["BestEffort"] }), gold(), false);
        check(class("In", &["gold"]), gold(), true);
        check(class("In", &["gold"]), leaves(), true);
        check(class("In", &["silver"]), gold(), false);
        check(class("In", &["gold"]), json!({}), false);
        check(class("Exists", &[]), gold(), true);
        check(class("DoesNotExist", &[]), json!({}), true);
    }
}
