//! Warnings about what is legal in a pod but likely a mistake or on its way out.
//! Used by `pod` and by every kind with a pod template; `overlapping_paths` looks at volumes.
//! Never stops a request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::overlapping_paths;
use crate::kinds::{
    common::{
        access::{entries, int, items, part, text},
        warnings::{claim_spec, fractional_bytes, generation_changed, node_selector_term, old_label, pod_owner_name},
    },
    core::pod::app_armor::ANNOTATION_PREFIX,
};

const OLD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub fn pod(object: &Value) -> Vec<String> {
    spec_warnings("", &object["metadata"], &object["spec"])
}

/// Of a template that stands at `path`.
pub fn template(path: &str, template: &Value) -> Vec<String> {
    spec_warnings(&format!("{path}."), &template["metadata"], &template["spec"])
}

/// Of a kind whose pods are named after it, with its template at `path`: told when it is made, and of its template
/// whenever it asks for something else.
pub fn pod_owner(path: &str, object: &Value, of_template: &Value, old: Option<&Value>) -> Vec<String> {
    match old {
        Some(old) if !generation_changed(object, old) => Vec::new(),
        Some(_) => template(path, of_template),
        None => pod_owner_name(object).into_iter().chain(template(path, of_template)).collect(),
    }
}

fn spec_warnings(prefix: &str, metadata: &Value, spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    placement(&mut warnings, prefix, spec);
    for (key, message) in OLD_ANNOTATIONS {
        if metadata["annotations"].get(key).is_some() {
            warnings.push(format!("{prefix}metadata.annotations[{key}]: {message}"));
        }
    }
    volumes(&mut warnings, prefix, spec);
    warnings.extend(overlapping_paths::warnings(spec));
    repeated(&mut warnings, &format!("{prefix}spec.hostAliases"), items(spec, "hostAliases"), "ip");
    let secrets = items(spec, "imagePullSecrets");
    repeated(&mut warnings, &format!("{prefix}spec.imagePullSecrets"), secrets, "name");
    for (index, _) in secrets.iter().enumerate().filter(|(_, secret)| text(secret, "name").is_empty()) {
        warnings.push(format!("{prefix}spec.imagePullSecrets[{index}].name: invalid empty name \"\""));
    }
    for resource in ["memory", "ephemeral-storage"] {
        let path = format!("{prefix}spec.overhead[{resource}]");
        warnings.extend(fractional_bytes(&path, &spec["overhead"][resource]));
    }
    if spec["securityContext"]["seccompProfile"].is_null() && metadata["annotations"].get(SECCOMP_POD).is_some() {
        warnings.push(seccomp(prefix, SECCOMP_POD));
    }
    for (path, container) in containers(prefix, spec) {
        container_warnings(&mut warnings, prefix, &path, container, metadata, spec);
    }
    ports(&mut warnings, prefix, spec);
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        let path = format!("{prefix}spec.terminationGracePeriodSeconds");
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    pod_affinity(&mut warnings, prefix, spec);
    warnings
}

/// Of all kinds, each with its path.
fn containers<'s>(prefix: &str, spec: &'s Value) -> Vec<(String, &'s Value)> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].into_iter();
    let of = |list: &'static str| items(spec, list).iter().enumerate().map(move |(i, c)| (list, i, c));
    lists.flat_map(of).map(|(list, index, c)| (format!("{prefix}spec.{list}[{index}]"), c)).collect()
}

fn placement(warnings: &mut Vec<String>, prefix: &str, spec: &Value) {
    for (label, _) in entries(spec, "nodeSelector") {
        if let Some(message) = old_label(label) {
            warnings.push(format!("{prefix}spec.nodeSelector[{label}]: {message}"));
        }
    }
    let affinity = &spec["affinity"]["nodeAffinity"];
    let (required, preferred) =
        ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
    for (index, term) in items(&affinity[required], "nodeSelectorTerms").iter().enumerate() {
        let path = format!("{prefix}spec.affinity.nodeAffinity.{required}.nodeSelectorTerms[{index}]");
        warnings.extend(node_selector_term(&path, term, false));
    }
    for (index, term) in items(affinity, preferred).iter().enumerate() {
        let path = format!("{prefix}spec.affinity.nodeAffinity.{preferred}[{index}].preference");
        warnings.extend(node_selector_term(&path, &term["preference"], true));
    }
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{prefix}spec.topologySpreadConstraints[{index}]");
        let key = text(constraint, "topologyKey");
        if let Some(message) = old_label(key) {
            warnings.push(format!("{path}.topologyKey: {key} is {message}"));
        }
        null_selector(warnings, &path, constraint);
    }
}

fn null_selector(warnings: &mut Vec<String>, path: &str, owner: &Value) {
    if part(owner, "labelSelector").is_none() {
        warnings.push(format!("{path}.labelSelector: a null labelSelector results in matching no pod"));
    }
}

fn pod_affinity(warnings: &mut Vec<String>, prefix: &str, spec: &Value) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = &spec["affinity"][kind];
        let path = format!("{prefix}spec.affinity.{kind}");
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, required).iter().enumerate() {
            null_selector(warnings, &format!("{path}.{required}[{index}]"), term);
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, preferred).iter().enumerate() {
            null_selector(warnings, &format!("{path}.{preferred}[{index}].podAffinityTerm"), &term["podAffinityTerm"]);
        }
    }
}

fn volumes(warnings: &mut Vec<String>, prefix: &str, spec: &Value) {
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        for (kind, message) in OLD_VOLUMES {
            if part(volume, kind).is_some() {
                let shown = if kind == "storageos" { "storageOS" } else { kind };
                warnings.push(format!("{prefix}spec.volumes[{index}].{shown}: {message}"));
            }
        }
        if let Some(claim) = part(&volume["ephemeral"], "volumeClaimTemplate") {
            let path = format!("{prefix}spec.volumes[{index}].ephemeral.volumeClaimTemplate.spec");
            warnings.extend(claim_spec(&path, &claim["spec"]));
        }
    }
}

fn repeated(warnings: &mut Vec<String>, path: &str, list: &[Value], field: &str) {
    let mut seen = BTreeSet::new();
    for (index, item) in list.iter().enumerate() {
        if !seen.insert(text(item, field)) {
            warnings.push(format!("{path}[{index}].{field}: duplicate {field} {:?}", text(item, field)));
        }
    }
}

fn seccomp(prefix: &str, key: &str) -> String {
    format!("{prefix}metadata.annotations[{key}]: non-functional in v1.27+; use the \"seccompProfile\" field instead")
}

fn container_warnings(
    warnings: &mut Vec<String>,
    prefix: &str,
    path: &str,
    container: &Value,
    metadata: &Value,
    spec: &Value,
) {
    let (security, annotations) = (&container["securityContext"], &metadata["annotations"]);
    let key = format!("{SECCOMP_CONTAINER}{}", text(container, "name"));
    if security["seccompProfile"].is_null() && annotations.get(&key).is_some() {
        warnings.push(seccomp(prefix, &key));
    }
    let key = format!("{ANNOTATION_PREFIX}{}", text(container, "name"));
    if !prefix.is_empty() && security["appArmorProfile"].is_null() {
        let pods = &spec["securityContext"]["appArmorProfile"];
        if annotations[&key].as_str().is_some_and(|annotation| !same_profile(pods, annotation)) {
            let message = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            warnings.push(format!("{prefix}metadata.annotations[{key}]: {message}"));
        }
    }
    for resource in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            let path = format!("{path}.resources.{list}[{resource}]");
            warnings.extend(fractional_bytes(&path, &container["resources"][list][resource]));
        }
    }
    repeated_variables(warnings, path, container);
}

/// Whether the annotation says what the pod's own field says.
fn same_profile(field: &Value, annotation: &str) -> bool {
    match text(field, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => annotation.strip_prefix("localhost/") == Some(text(field, "localhostProfile")),
        _ => false,
    }
}

fn repeated_variables(warnings: &mut Vec<String>, path: &str, container: &Value) {
    let mut seen = BTreeSet::new();
    for (index, variable) in items(container, "env").iter().enumerate() {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        if seen.insert(name) {
            continue;
        }
        // It may add to what was there.
        let reference = format!("$({name})");
        if part(variable, "valueFrom").is_some() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

fn ports(warnings: &mut Vec<String>, prefix: &str, spec: &Value) {
    let mut known: Vec<(String, &Value)> = Vec::new();
    let all: Vec<(String, &Value)> = containers(prefix, spec)
        .into_iter()
        .flat_map(|(path, container)| {
            let ports = items(container, "ports").iter().enumerate();
            ports.map(move |(index, port)| (format!("{path}.ports[{index}]"), port)).collect::<Vec<_>>()
        })
        .collect();
    let key = |port: &Value| (port["containerPort"].as_i64(), text(port, "protocol").to_string());
    for (path, port) in &all {
        let (address, number) = (text(port, "hostIP"), int(port, "hostPort").unwrap_or(0));
        for (other_path, other) in known.iter().filter(|(_, other)| key(other) == key(port)) {
            let (other_address, other_number) = (text(other, "hostIP"), int(other, "hostPort").unwrap_or(0));
            let how = if (address, number) == (other_address, other_number) {
                "duplicate"
            } else if number == 0 || other_number == 0 {
                "overlapping"
            } else if number == other_number && address.is_empty() != other_address.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {how} port definition with {other_path}"));
        }
        known.push((path.clone(), port));
    }
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, port) in &all {
        let name = text(port, "name");
        match names.get(name) {
            _ if name.is_empty() => {}
            Some(first) => warnings.push(format!(
                "{path}: duplicate port name {name:?} with {first}, services and probes that select ports by name \
                 will use {first}"
            )),
            None => {
                names.insert(name, path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn warnings_are_upstreams() {
        let check = |spec: Value, expected: &[&str]| {
            assert_eq!(template("spec.template", &json!({ "spec": spec })), expected);
        };
        check(json!({ "containers": [{ "name": "a", "image": "b" }] }), &[]);
        check(
            json!({ "nodeSelector": { "beta.kubernetes.io/os": "linux" } }),
            &["spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \
               \"kubernetes.io/os\" instead"],
        );
        check(
            json!({ "containers": [
                { "ports": [{ "containerPort": 80, "protocol": "TCP", "name": "a" }],
                  "env": [{ "name": "X" }, { "name": "X", "value": "$(X)1" }, { "name": "X", "value": "2" }] },
                { "ports": [{ "containerPort": 80, "protocol": "TCP", "name": "a" }],
                  "resources": { "limits": { "memory": "100m" } } },
            ] }),
            &[
                "spec.template.spec.containers[0].env[2]: hides previous definition of \"X\", which may be dropped \
                 when using apply",
                "spec.template.spec.containers[1].resources.limits[memory]: fractional byte value \"100m\" is \
                 invalid, must be an integer",
                "spec.template.spec.containers[1].ports[0]: duplicate port definition with \
                 spec.template.spec.containers[0].ports[0]",
                "spec.template.spec.containers[1].ports[0]: duplicate port name \"a\" with \
                 spec.template.spec.containers[0].ports[0], services and probes that select ports by name will use \
                 spec.template.spec.containers[0].ports[0]",
            ],
        );
        check(
            json!({ "volumes": [{ "name": "v", "configMap": { "name": "c", "items": [
                { "key": "a", "path": "x" }, { "key": "b", "path": "x/y" },
            ] } }] }),
            &["volume \"v\" (ConfigMap \"c\"): overlapping paths: \"x/y\" with \"x\""],
        );
    }
}
