//! What may change in a pod once it exists, through the pod itself and through its subresources.
//! Neighbours: `pod`. The API server calls the `ephemeral_containers` and `resize` functions for those subresources.
//! Containers are never added, removed or renamed.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        behavior::{ALL_METADATA, reset_to_old},
        common::{
            access::{entries, int, is_set, items, items_mut, part_mut, set, text},
            checks::{self, IMMUTABLE, complaints, same},
        },
        core::{pod::app_armor::ANNOTATION_PREFIX, pod_spec},
    },
    names,
    pod_resources::qos::qos_class_of_value,
};

const MIRROR: &str = "kubernetes.io/config.mirror";
const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// The rules of an update of the pod itself; the specification has been checked already.
pub fn validate(errors: &mut ErrorList, new: &Value, old: &Value) {
    annotations(errors, new, old);
    let path = Path::new("spec");
    let (new, old) = (&new["spec"], &old["spec"]);
    for list in ["containers", "initContainers"] {
        if items(new, list).len() != items(old, list).len() {
            return errors.forbidden(&path.child(list), "pod updates may not add or remove containers");
        }
        // Said by the rules of the spec before, and by those of updates again.
        for (index, container) in items(new, list).iter().enumerate() {
            checks::required(errors, &path.child(list).index(index), container, "image");
        }
    }
    active_deadline(errors, &path, new, old);
    tolerations(errors, &path.child("tolerations"), new, old);
    let gates: Vec<&str> = items(old, "schedulingGates").iter().map(|gate| text(gate, "name")).collect();
    for (index, gate) in items(new, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        if !gates.contains(&name) {
            errors.forbidden(
                &path.child("schedulingGates").index(index).child("name"),
                format!("only deletion is allowed, but found new scheduling gate '{name}'"),
            );
        }
    }
    if same(new, old) {
        return;
    }
    let mut allowed = new.clone();
    for list in ["containers", "initContainers"] {
        for (container, before) in items_mut(&mut allowed, list).zip(items(old, list)) {
            set(container, "image", before["image"].clone());
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        set(&mut allowed, field, old[field].clone());
    }
    if int(old, "terminationGracePeriodSeconds").is_some_and(|s| s < 0)
        && int(new, "terminationGracePeriodSeconds") == Some(1)
    {
        set(&mut allowed, "terminationGracePeriodSeconds", old["terminationGracePeriodSeconds"].clone());
    }
    if !gates.is_empty() {
        gated(errors, &path, &mut allowed, old);
    }
    if !same(&allowed, old) {
        errors.forbidden(
            &path,
            format!("pod updates may not change fields other than {UPDATABLE}\nchanged: {}", changed(&allowed, old)),
        );
    }
}

/// The top-level fields that differ, for the reader of the error.
fn changed(new: &Value, old: &Value) -> String {
    let mut fields: Vec<&str> =
        [new, old].into_iter().filter_map(Value::as_object).flatten().map(|(k, _)| k.as_str()).collect();
    fields.sort_unstable();
    fields.dedup();
    fields.retain(|field| !same(&new[*field], &old[*field]));
    fields.join(", ")
}

fn active_deadline(errors: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    let path = path.child("activeDeadlineSeconds");
    match (int(new, "activeDeadlineSeconds"), int(old, "activeDeadlineSeconds")) {
        (Some(now), Some(before)) if before < now => {
            errors.invalid(&path, now, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            errors.invalid(&path, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
}

fn tolerations(errors: &mut ErrorList, path: &Path, new: &Value, old: &Value) {
    for before in items(old, "tolerations") {
        let kept = items(new, "tolerations").iter().any(|now| {
            let mut now = now.clone();
            set(&mut now, "tolerationSeconds", before["tolerationSeconds"].clone());
            same(&now, before)
        });
        if !kept {
            errors.forbidden(path, "existing toleration can not be modified except its tolerationSeconds");
        }
    }
}

/// While a pod is held back its node selection may become narrower.
fn gated(errors: &mut ErrorList, path: &Path, allowed: &mut Value, old: &Value) {
    for (key, value) in entries(old, "nodeSelector") {
        if allowed["nodeSelector"].get(key) != Some(value) {
            errors.invalid(
                &path.child("nodeSelector"),
                allowed["nodeSelector"].clone(),
                "only additions are allowed (no mutations or deletions)",
            );
            break;
        }
    }
    set(allowed, "nodeSelector", old["nodeSelector"].clone());
    let now = allowed["affinity"]["nodeAffinity"].clone();
    let before = old["affinity"]["nodeAffinity"].clone();
    if same(&now, &before) {
        return;
    }
    if !before.is_null() {
        let required = |affinity: &Value| {
            items(&affinity["requiredDuringSchedulingIgnoredDuringExecution"], "nodeSelectorTerms").len()
        };
        if required(&before) != 0 && required(&before) != required(&now) {
            errors.invalid(
                &path
                    .child("affinity")
                    .child("nodeAffinity")
                    .child("requiredDuringSchedulingIgnoredDuringExecution")
                    .child("nodeSelectorTerms"),
                now.clone(),
                "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
            );
        }
    }
    if let Some(affinity) = part_mut(allowed, "affinity") {
        set(affinity, "nodeAffinity", before);
    }
}

fn annotations(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("metadata").child("annotations");
    let (new, old) = (&new["metadata"], &old["metadata"]);
    for (key, _) in entries(old, "annotations").filter(|(key, value)| new["annotations"].get(key) != Some(value)) {
        if key.starts_with(ANNOTATION_PREFIX) {
            errors.forbidden(&path.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for (key, _) in entries(new, "annotations").filter(|(key, _)| old["annotations"].get(key).is_none()) {
        if key.starts_with(ANNOTATION_PREFIX) {
            errors.forbidden(&path.key(key), "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not add mirror pod annotation");
        }
    }
}

/// The rules of an update of `status`.
pub fn validate_status(errors: &mut ErrorList, new: &Value, old: &Value) {
    annotations(errors, new, old);
    let path = Path::new("status");
    let spec = &old["spec"];
    let (new, old) = (&new["status"], &old["status"]);
    for (index, condition) in items(new, "conditions").iter().enumerate() {
        let kind = text(condition, "type");
        let path = path.child("conditions").index(index);
        if int(condition, "observedGeneration").is_some_and(|g| g < 0) {
            errors.invalid(
                &path.child("observedGeneration"),
                int(condition, "observedGeneration"),
                "must be a non-negative integer",
            );
        }
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            complaints(errors, &path.child("Type"), kind, names::qualified_name(kind));
        }
    }
    let nominated = text(new, "nominatedNodeName");
    if nominated != text(old, "nominatedNodeName") && !nominated.is_empty() {
        complaints(errors, &path.child("nominatedNodeName"), nominated, names::dns_subdomain(nominated, false));
    }
    if let Some(generation) = int(new, "observedGeneration").filter(|generation| *generation < 0) {
        errors.invalid(&path.child("observedGeneration"), generation, "must be a non-negative integer");
    }
    if text(new, "qosClass") != text(old, "qosClass") {
        errors.invalid(&path.child("qosClass"), text(new, "qosClass"), IMMUTABLE);
    }
    transitions(errors, &path.child("containerStatuses"), new, old, spec);
    for field in ["podIPs", "hostIPs"] {
        for (index, entry) in items(new, field).iter().enumerate() {
            let ip = text(entry, "ip");
            complaints(errors, &path.child(field).index(index), ip, names::ip(ip));
        }
    }
}

/// What has ended for good stays ended. Init containers may be sidecars, which restart, and are not judged.
fn transitions(errors: &mut ErrorList, path: &Path, new: &Value, old: &Value, spec: &Value) {
    for (index, before) in items(old, "containerStatuses").iter().enumerate() {
        let terminated = &before["state"]["terminated"];
        if !terminated.is_object() {
            continue;
        }
        let same = |other: &&Value| text(other, "name") == text(before, "name");
        let exit_code = int(terminated, "exitCode").unwrap_or(0);
        let container = items(spec, "containers").iter().find(same);
        let left = items(new, "containerStatuses")
            .iter()
            .find(same)
            .is_some_and(|now| !now["state"]["terminated"].is_object());
        if left && !container.is_some_and(|container| restarts(container, spec, exit_code)) {
            errors.forbidden(&path.index(index).child("state"), "may not be transitioned to non-terminated state");
        }
    }
}

/// Whether a container runs again after it ended so: its rules, its own policy, the pod's.
fn restarts(container: &Value, spec: &Value, exit_code: i64) -> bool {
    let matches = |rule: &&Value| {
        let codes = &rule["exitCodes"];
        let listed = items(codes, "values").iter().any(|value| value.as_i64() == Some(exit_code));
        matches!((text(codes, "operator"), listed), ("In", true) | ("NotIn", false))
    };
    if items(container, "restartPolicyRules").iter().find(matches).is_some_and(|rule| text(rule, "action") == "Restart")
    {
        return true;
    }
    let own = Some(text(container, "restartPolicy")).filter(|own| !own.is_empty());
    match own.unwrap_or_else(|| text(spec, "restartPolicy")) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// For `pods/ephemeralcontainers`: everything but the list of ephemeral containers stays as it was.
pub fn prepare_ephemeral_containers(object: &mut Value, old: &Value) {
    let containers = object["spec"]["ephemeralContainers"].clone();
    reset_to_old(object, old, &ALL_METADATA);
    set(object, "status", old["status"].clone());
    if let Some(spec) = part_mut(object, "spec") {
        set(spec, "ephemeralContainers", containers);
    }
}

pub fn validate_ephemeral_containers(errors: &mut ErrorList, new: &Value, old: &Value) {
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        return errors.forbidden(&Path::new(""), "static pods do not support ephemeral containers");
    }
    pod_spec::validation::pod(errors, new);
    let path = Path::new("spec").child("ephemeralContainers");
    for before in items(&old["spec"], "ephemeralContainers") {
        let name = text(before, "name");
        match items(&new["spec"], "ephemeralContainers").iter().find(|now| text(now, "name") == name) {
            None => errors.forbidden(&path, format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(now) if !same(now, before) => {
                errors.forbidden(
                    &path,
                    format!("existing ephemeral containers {name:?} may not be changed\n{}", changed(now, before)),
                );
            }
            Some(_) => {}
        }
    }
}

/// For `pods/resize`: everything but resources and resize policies stays as it was.
pub fn prepare_resize(object: &mut Value, old: &Value) {
    let wanted = object["spec"].clone();
    for list in ["containers", "initContainers"] {
        let names = |spec: &Value| items(spec, list).iter().map(|c| text(c, "name").to_string()).collect::<Vec<_>>();
        if names(&wanted) != names(&old["spec"]) {
            return;
        }
    }
    reset_to_old(object, old, &ALL_METADATA);
    set(object, "status", old["status"].clone());
    let Some(spec) = part_mut(object, "spec") else { return };
    for list in ["containers", "initContainers"] {
        for (container, now) in items_mut(spec, list).zip(items(&wanted, list)) {
            for field in ["resources", "resizePolicy"] {
                set(container, field, now[field].clone());
            }
        }
    }
}

pub fn validate_resize(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("spec");
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        return errors.forbidden(&Path::new(""), "static pods cannot be resized");
    }
    if text(&old["spec"]["os"], "name") == "windows" {
        return errors.forbidden(&Path::new(""), "windows pods cannot be resized");
    }
    pod_spec::validation::pod(errors, new);
    let (new, old) = (&new["spec"], &old["spec"]);
    if qos_class_of_value(new) != qos_class_of_value(old) {
        errors.invalid(&path, qos_class_of_value(old).as_str(), "Pod QOS Class may not change as a result of resizing");
    }
    let limited =
        |spec: &Value| ["requests", "limits"].iter().any(|kind| entries(&spec["resources"], kind).count() > 0);
    if limited(old) || limited(new) {
        let gate = "InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled";
        let why = format!("resize of pods with pod-level resources is forbidden when {gate}");
        return errors.forbidden(&Path::new(""), why);
    }
    for list in ["containers", "initContainers"] {
        let (now, before) = (items(new, list), items(old, list));
        if now.len() != before.len() {
            return errors.forbidden(&path.child(list), format!("{list} may not be added or removed on resize"));
        }
        for (index, (now, before)) in now.iter().zip(before).enumerate() {
            let at = path.child(list).index(index);
            if text(now, "name") != text(before, "name") {
                errors.forbidden(&at.child("name"), format!("{list} may not be renamed or reordered on resize"));
                continue;
            }
            resized_container(errors, &path, &at.child("resources"), now, before, list == "initContainers");
        }
    }
    if errors.is_empty() {
        let mut rest = new.clone();
        for list in ["containers", "initContainers"] {
            set(&mut rest, list, old[list].clone());
        }
        if !same(&rest, old) {
            errors.forbidden(&path, "only cpu and memory resources are mutable");
        }
    }
}

fn resized_container(errors: &mut ErrorList, spec: &Path, path: &Path, now: &Value, before: &Value, init: bool) {
    if init && text(before, "restartPolicy") != "Always" {
        if !same(now, before) {
            errors.forbidden(spec, "resources for non-sidecar init containers are immutable");
        }
        return;
    }
    for kind in ["requests", "limits"] {
        let removed = entries(&before["resources"], kind).any(|(name, _)| now["resources"][kind].get(name).is_none());
        if removed {
            errors.forbidden(&path.child(kind), format!("resource {kind} cannot be removed"));
        }
    }
    let mut rest = now.clone();
    for kind in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            if let Some(list) = part_mut(&mut rest, "resources").and_then(|resources| part_mut(resources, kind)) {
                set(list, name, before["resources"][kind][name].clone());
            }
        }
    }
    if !same(&rest, before) {
        let which = if init { "for sidecar containers are" } else { "are" };
        errors.forbidden(spec, format!("only cpu and memory resources {which} mutable"));
    }
}

/// For `pods/binding`.
pub fn validate_binding(errors: &mut ErrorList, binding: &Value) {
    let path = Path::new("target");
    let target = &binding["target"];
    if is_set(target, "kind") && text(target, "kind") != "Node" {
        errors.not_supported_as_listed(&path.child("kind"), text(target, "kind"), &["Node", "<empty>"]);
    }
    if !is_set(target, "name") {
        errors.required(&path.child("name"), "");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{Behavior, core::pod::Pod};

    fn pod() -> Value {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "d" },
            "spec": { "containers": [{ "name": "c", "image": "a:1", "resources": { "requests": { "cpu": "1" } } }] },
        });
        Pod.default(&mut pod);
        Pod.prepare_create(&mut pod);
        pod
    }

    fn check(change: impl Fn(&mut Value), validate: fn(&mut ErrorList, &Value, &Value), expected: &[&str]) {
        let old = pod();
        let mut new = old.clone();
        change(&mut new);
        let mut errors = ErrorList::new();
        validate(&mut errors, &new, &old);
        let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn updates() {
        check(|p| p["spec"]["containers"][0]["image"] = json!("a:2"), validate, &[]);
        check(
            |p| p["spec"]["nodeName"] = json!("n"),
            validate,
            &["spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"],
        );
        check(|p| p["spec"]["tolerations"] = json!([{ "operator": "Exists" }]), validate, &[]);
        check(
            |p| p["spec"]["containers"] = json!([]),
            validate,
            &["spec.containers: Forbidden: pod updates may not add or remove containers"],
        );
        check(|p| p["spec"]["activeDeadlineSeconds"] = json!(5), validate, &[]);
    }

    #[test]
    fn containers_leave_their_end_only_where_they_are_started_again() {
        let begins = |spec: Value, exit_code: i64| {
            let mut old = pod();
            set(&mut old["spec"], "restartPolicy", spec["pod"].clone());
            for field in ["restartPolicy", "restartPolicyRules"].into_iter().filter(|field| spec.get(*field).is_some())
            {
                old["spec"]["containers"][0][field] = spec[field].clone();
            }
            let state = |state: Value| json!([{ "name": "c", "state": state }]);
            old["status"]["containerStatuses"] = state(json!({ "terminated": { "exitCode": exit_code } }));
            let mut new = old.clone();
            new["status"]["containerStatuses"] = state(json!({ "running": {} }));
            let mut errors = ErrorList::new();
            validate_status(&mut errors, &new, &old);
            let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            let refusal =
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state";
            assert!(found.is_empty() || found == [refusal], "{found:?}");
            found.is_empty()
        };
        assert!(begins(json!({ "pod": "Always" }), 0));
        assert!(begins(json!({ "pod": "OnFailure" }), 1));
        assert!(!begins(json!({ "pod": "OnFailure" }), 0));
        assert!(!begins(json!({ "pod": "Never" }), 1));
        assert!(begins(json!({ "pod": "Never", "restartPolicy": "Always" }), 0));
        assert!(!begins(json!({ "pod": "Always", "restartPolicy": "Never" }), 1));
        let rules = |operator: &str| {
            let codes = json!({ "operator": operator, "values": [42] });
            let rules = json!([{ "action": "Restart", "exitCodes": codes }]);
            json!({ "pod": "Never", "restartPolicy": "Never", "restartPolicyRules": rules })
        };
        assert!(begins(rules("In"), 42));
        assert!(!begins(rules("In"), 1));
        assert!(begins(rules("NotIn"), 1));
    }

    #[test]
    fn resizes() {
        let resources = |value: Value| move |p: &mut Value| p["spec"]["containers"][0]["resources"] = value.clone();
        check(resources(json!({ "requests": { "cpu": "2" } })), validate_resize, &[]);
        check(
            resources(json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "1" } })),
            validate_resize,
            &["spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit"],
        );
        check(
            |p| p["spec"]["containers"][0]["image"] = json!("b"),
            validate_resize,
            &["spec: Forbidden: only cpu and memory resources are mutable"],
        );
        check(
            |p| {
                let mut other = p["spec"]["containers"][0].clone();
                other["name"] = json!("d");
                p["spec"]["containers"] = json!([p["spec"]["containers"][0], other]);
            },
            validate_resize,
            &["spec.containers: Forbidden: containers may not be added or removed on resize"],
        );
        check(
            |p| {
                p["spec"]["containers"][0]["resizePolicy"] =
                    json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
            },
            validate_resize,
            &["spec: Forbidden: only cpu and memory resources are mutable"],
        );
        let whole = "resize of pods with pod-level resources is forbidden when \
            InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled";
        let resources = json!({ "requests": { "cpu": "2" } });
        check(|p| p["spec"]["resources"] = resources.clone(), validate_resize, &[&format!(": Forbidden: {whole}")]);
    }

    #[test]
    fn ephemeral_containers_are_only_added() {
        let old = pod();
        let mut new = old.clone();
        new["spec"]["nodeName"] = json!("x");
        new["spec"]["ephemeralContainers"] = json!([{
            "name": "debug", "image": "b", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
            "targetContainerName": "c",
        }]);
        prepare_ephemeral_containers(&mut new, &old);
        assert!(new["spec"].get("nodeName").is_none());
        let mut errors = ErrorList::new();
        validate_ephemeral_containers(&mut errors, &new, &old);
        assert!(errors.is_empty(), "{:?}", errors.iter().map(|e| e.to_string()).collect::<Vec<_>>());
        validate_ephemeral_containers(&mut errors, &old, &new);
        assert_eq!(errors.len(), 1);
    }
}
