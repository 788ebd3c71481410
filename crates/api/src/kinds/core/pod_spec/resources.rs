//! Validation of resource requirements and of claims on devices.
//! Neighbours: `containers`; quotas and limit ranges check the same names.
//! A request never exceeds its limit.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    field::{ErrorList, ErrorType, Path},
    kinds::common::{
        access::{entries, is_set, items, part, text},
        checks::{NOT_NEGATIVE, complaints},
    },
    names,
    quantity::Quantity,
};

/// Names without a slash that mean something somewhere.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge_pages(name) || name.starts_with("requests.hugepages-")
}

/// What a quota can count that has no domain: all of those but the size of a volume.
pub fn is_quota_resource(name: &str) -> bool {
    name != "storage" && is_standard(name)
}

/// Without a domain, or of kubernetes.io.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.split('/').next().is_some_and(|domain| domain.ends_with("kubernetes.io"))
}

/// Something that a node counts and nobody may overcommit.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether more may be requested in sum than there is.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

pub fn resource_name(errors: &mut ErrorList, path: &Path, name: &str) {
    let found = names::qualified_name(name);
    if !found.is_empty() {
        complaints(errors, path, name, found);
    } else if !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

pub fn container_resource_name(errors: &mut ErrorList, path: &Path, name: &str) {
    resource_name(errors, path, name);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_pages(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// A quantity that is not below zero, and whole where the resource comes in pieces.
pub fn quantity(errors: &mut ErrorList, path: &Path, name: &str, value: &Value) -> Option<Quantity> {
    let Some(quantity) = Quantity::from_value(value) else {
        errors.invalid(path, value.clone(), "must be a valid resource quantity");
        return None;
    };
    if quantity.sign() < 0 {
        errors.invalid(path, quantity.canonical(), NOT_NEGATIVE);
    }
    let whole = is_extended(name) || matches!(name, "pods" | "services" | "secrets" | "configmaps");
    if whole && quantity.milli_value() % 1000 != 0 {
        errors.invalid(path, quantity.canonical(), "must be an integer");
    }
    Some(quantity)
}

/// A map of resources; `container` when the names are those of containers.
pub fn list(errors: &mut ErrorList, path: &Path, list: &Value, container: bool) {
    for (name, value) in list.as_object().into_iter().flatten() {
        let path = path.key(name);
        listed_name(errors, &path, name, container);
        quantity(errors, &path, name, value);
    }
}

/// The same, of whose quantities nothing is said.
pub fn names(errors: &mut ErrorList, path: &Path, list: &Value, container: bool) {
    for name in list.as_object().into_iter().flatten().map(|(name, _)| name) {
        listed_name(errors, &path.key(name), name, container);
    }
}

fn listed_name(errors: &mut ErrorList, path: &Path, name: &str, container: bool) {
    match container {
        true => container_resource_name(errors, path, name),
        false => resource_name(errors, path, name),
    }
}

/// `claims` are the names that containers may refer to; none where claims mean nothing.
pub fn requirements(errors: &mut ErrorList, path: &Path, resources: &Value, claims: Option<&BTreeSet<&str>>) {
    let Some(map) = resources.as_object().filter(|map| !map.is_empty()) else { return };
    let (limits, requests) = (&resources["limits"], &resources["requests"]);
    list(errors, &path.child("limits"), limits, true);
    list(errors, &path.child("requests"), requests, true);
    let request_path = path.child("requests");
    for (name, value) in entries(resources, "requests") {
        let Some(request) = Quantity::from_value(value) else { continue };
        match limits.get(name).and_then(Quantity::from_value) {
            Some(limit) if request != limit && !may_overcommit(name) => errors.invalid(
                &request_path,
                request.canonical(),
                format!("must be equal to {name} limit of {}", limit.canonical()),
            ),
            Some(limit) if request > limit => errors.invalid(
                &request_path,
                request.canonical(),
                format!("must be less than or equal to {name} limit of {}", limit.canonical()),
            ),
            None if !may_overcommit(name) => {
                errors.required(&path.child("limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let has = |wanted: &dyn Fn(&str) -> bool| {
        entries(resources, "limits").chain(entries(resources, "requests")).any(|(name, _)| wanted(name))
    };
    if has(&is_huge_pages) && !has(&|name| matches!(name, "cpu" | "memory")) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    if let (Some(claims), true) = (claims, map.contains_key("claims")) {
        container_claims(errors, &path.child("claims"), resources, claims);
    }
}

fn container_claims(errors: &mut ErrorList, path: &Path, resources: &Value, known: &BTreeSet<&str>) {
    let mut seen = BTreeSet::new();
    for (index, claim) in items(resources, "claims").iter().enumerate() {
        let path = path.index(index);
        let name = text(claim, "name");
        if name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let request = text(claim, "request");
        let key = if request.is_empty() { name.to_string() } else { format!("{name}/{request}") };
        complaints_if(errors, &path, request);
        let whole = seen.contains(name)
            || (request.is_empty() && seen.iter().any(|k: &String| k.split('/').next() == Some(name)));
        if whole || seen.contains(&key) {
            errors.duplicate(&path, if whole { name } else { &key });
        }
        seen.insert(key);
        if !known.contains(name) {
            let detail = if known.is_empty() {
                "must be one of the names in pod.spec.resourceClaims which is empty".to_string()
            } else {
                let all: Vec<&str> = known.iter().copied().collect();
                format!("must be one of the names in pod.spec.resourceClaims: {}", all.join(", "))
            };
            errors.push(ErrorType::NotFound, &path, name, detail);
        }
    }
}

fn complaints_if(errors: &mut ErrorList, path: &Path, request: &str) {
    if !request.is_empty() {
        complaints(errors, &path.child("request"), request, names::dns_label(request, false));
    }
}

/// The claims that the pod declares.
pub fn pod_claims<'a>(errors: &mut ErrorList, path: &Path, spec: &'a Value) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (index, claim) in items(spec, "resourceClaims").iter().enumerate() {
        let path = path.index(index);
        let name = text(claim, "name");
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if !known.insert(name) {
            errors.duplicate(&path.child("name"), name);
        } else {
            complaints(errors, &path.child("name"), name, names::dns_label(name, false));
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|source| is_set(claim, source)).count() {
            0 => errors.invalid(
                &path,
                claim.clone(),
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            1 => {}
            _ => errors.invalid(
                &path,
                claim.clone(),
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
        }
        for source in sources.iter().filter(|source| is_set(claim, source)) {
            let name = text(claim, source);
            complaints(errors, &path.child(source), name, names::dns_subdomain(name, false));
        }
    }
    known
}

/// `spec.resources` of a pod.
pub fn pod_level(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(resources) = part(spec, "resources") else { return };
    let path = path.child("resources");
    if text(&spec["os"], "name") == "windows" {
        return errors.forbidden(&path, "may not be set for a windows pod");
    }
    if is_set(resources, "claims") {
        errors.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(errors, &path, resources, None);
    let mut sum: Vec<(String, Quantity)> = Vec::new();
    for container in items(spec, "containers") {
        for (name, value) in entries(&container["resources"], "requests") {
            let Some(quantity) = Quantity::from_value(value) else { continue };
            match sum.iter_mut().find(|(known, _)| known == name) {
                Some((_, total)) => total.add(&quantity),
                None => sum.push((name.to_string(), quantity)),
            }
        }
    }
    for (name, total) in sum {
        let Some(pod) = resources["requests"].get(&name).and_then(Quantity::from_value).filter(|pod| *pod < total)
        else {
            continue;
        };
        errors.invalid(
            &path.child("requests").key(&name),
            pod.canonical(),
            format!("must be greater than or equal to aggregate container requests of {}", total.canonical()),
        );
    }
}
