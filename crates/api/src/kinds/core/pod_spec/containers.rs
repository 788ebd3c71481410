//! Validation of containers: regular, init and ephemeral.
//! Neighbours: `environment`, `handlers`, `resources`, `security` for the parts of a container.
//! Names are unique over all three kinds of containers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{environment, handlers, resources, security};
use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{flag, int, is_set, items, part, text},
        checks::{PROTOCOLS, complaints, descending_path, no_backsteps, one_of, optional_one_of, required_name},
    },
    names,
};

/// What containers may refer to in the specification around them.
pub struct Pod<'a> {
    pub spec: &'a Value,
    /// The valid volumes; true when it may be used as a block device.
    pub volumes: BTreeMap<&'a str, bool>,
    pub claims: BTreeSet<&'a str>,
}

pub fn all(errors: &mut ErrorList, path: &Path, spec: &Value, pod: &Pod) {
    let mut names = BTreeSet::new();
    regular(errors, &path.child("containers"), items(spec, "containers"), pod, &mut names);
    init(errors, &path.child("initContainers"), items(spec, "initContainers"), pod, &mut names);
    ephemeral(errors, &path.child("ephemeralContainers"), items(spec, "ephemeralContainers"), pod, &mut names);
}

fn unique<'a>(errors: &mut ErrorList, path: &Path, container: &'a Value, names: &mut BTreeSet<&'a str>) {
    let name = text(container, "name");
    if !name.is_empty() && !names.insert(name) {
        errors.duplicate(&path.child("name"), name);
    }
}

fn regular<'a>(errors: &mut ErrorList, path: &Path, containers: &'a [Value], pod: &Pod, names: &mut BTreeSet<&'a str>) {
    if containers.is_empty() {
        return errors.required(path, "");
    }
    let mut ports = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        common(errors, &path, container, pod);
        unique(errors, &path, container, names);
        handlers::lifecycle_and_probes(errors, &path, container, pod.spec);
        restart_rules(errors, &path, container);
        host_ports(errors, &path, container, &mut ports);
    }
}

fn init<'a>(errors: &mut ErrorList, path: &Path, containers: &'a [Value], pod: &Pod, names: &mut BTreeSet<&'a str>) {
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        common(errors, &path, container, pod);
        unique(errors, &path, container, names);
        restart_rules(errors, &path, container);
        host_ports(errors, &path, container, &mut BTreeSet::new());
        if text(container, "restartPolicy") == "Always" {
            handlers::lifecycle_and_probes(errors, &path, container, pod.spec);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if part(container, field).is_some() {
                errors.forbidden(&path.child(field), "may not be set for init containers without restartPolicy=Always");
            }
        }
    }
}

const NOT_FOR_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn ephemeral<'a>(
    errors: &mut ErrorList,
    path: &Path,
    containers: &'a [Value],
    pod: &Pod,
    names: &mut BTreeSet<&'a str>,
) {
    let others = names.clone();
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        common(errors, &path, container, pod);
        image_whitespace(errors, &path, container);
        unique(errors, &path, container, names);
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&path.child("targetContainerName"), target);
        }
        for field in NOT_FOR_EPHEMERAL.iter().filter(|field| is_set(container, field)) {
            errors.forbidden(&path.child(field), "cannot be set for an Ephemeral Container");
        }
        for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"].iter().filter(|field| is_set(mount, field)) {
                let path = path.child("volumeMounts").index(index).child(field);
                errors.forbidden(&path, "cannot be set for an Ephemeral Container");
            }
        }
    }
}

pub fn image_whitespace(errors: &mut ErrorList, path: &Path, container: &Value) {
    let image = text(container, "image");
    if image.trim().len() != image.len() {
        errors.invalid(&path.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn common(errors: &mut ErrorList, path: &Path, container: &Value, pod: &Pod) {
    required_name(errors, path, container, "name", |name| names::dns_label(name, false));
    if text(container, "image").is_empty() {
        errors.required(&path.child("image"), "");
    }
    one_of(errors, path, container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"]);
    ports(errors, &path.child("ports"), container);
    environment::variables(errors, &path.child("env"), container);
    environment::sources(errors, &path.child("envFrom"), container);
    mounts(errors, &path.child("volumeMounts"), container, pod);
    devices(errors, &path.child("volumeDevices"), container, pod);
    one_of(errors, path, container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"]);
    resources::requirements(errors, &path.child("resources"), &container["resources"], Some(&pod.claims));
    resize_policy(errors, &path.child("resizePolicy"), container, pod.spec);
    security::container(errors, &path.child("securityContext"), container, pod.spec);
}

fn ports(errors: &mut ErrorList, path: &Path, container: &Value) {
    let mut seen = BTreeSet::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let path = path.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            let found = names::port_name(name);
            if !found.is_empty() {
                complaints(errors, &path.child("name"), name, found);
            } else if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        match int(port, "containerPort").unwrap_or(0) {
            0 => errors.required(&path.child("containerPort"), ""),
            number => crate::kinds::common::checks::port_number(errors, &path.child("containerPort"), number),
        }
        match int(port, "hostPort").unwrap_or(0) {
            0 => {}
            number => crate::kinds::common::checks::port_number(errors, &path.child("hostPort"), number),
        }
        one_of(errors, &path, port, "protocol", &PROTOCOLS);
    }
}

fn host_ports(errors: &mut ErrorList, path: &Path, container: &Value, seen: &mut BTreeSet<String>) {
    for (index, port) in items(container, "ports").iter().enumerate() {
        let number = int(port, "hostPort").unwrap_or(0);
        if number == 0 {
            continue;
        }
        let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
        if seen.contains(&key) {
            errors.duplicate(&path.child("ports").index(index).child("hostPort"), key);
        } else {
            seen.insert(key);
        }
    }
}

fn mounts(errors: &mut ErrorList, path: &Path, container: &Value, pod: &Pod) {
    let mut points = BTreeSet::new();
    let devices = items(container, "volumeDevices");
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let at = path.index(index);
        let (name, point) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !pod.volumes.contains_key(name) {
            errors.not_found(&at.child("name"), name);
        }
        if point.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !points.insert(point) {
            errors.invalid(&at.child("mountPath"), point, "must be unique");
        }
        if devices.iter().any(|device| text(device, "name") == name) {
            errors.invalid(&at.child("name"), name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|device| text(device, "devicePath") == point) {
            errors.invalid(&at.child("mountPath"), point, "must not already exist as a path in volumeDevices");
        }
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        if !sub.is_empty() {
            descending_path(errors, &path.child("subPath"), sub);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                errors.invalid(&at.child("subPathExpr"), expression, "subPathExpr and subPath are mutually exclusive");
            }
            descending_path(errors, &path.child("subPathExpr"), expression);
        }
        propagation(errors, path, container, mount);
    }
}

fn propagation(errors: &mut ErrorList, path: &Path, container: &Value, mount: &Value) {
    optional_one_of(errors, path, mount, "mountPropagation", &["Bidirectional", "HostToContainer", "None"]);
    let mode = text(mount, "mountPropagation");
    if mode == "Bidirectional" && !flag(&container["securityContext"], "privileged") {
        errors.forbidden(
            &path.child("mountPropagation"),
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
    optional_one_of(errors, path, mount, "recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"]);
    if matches!(text(mount, "recursiveReadOnly"), "Enabled" | "IfPossible") {
        let path = path.child("recursiveReadOnly");
        if !flag(mount, "readOnly") {
            errors.forbidden(&path, "may only be specified when readOnly is true");
        }
        if !matches!(mode, "" | "None") {
            errors.forbidden(&path, "may only be specified when mountPropagation is None or not specified");
        }
    }
}

fn devices(errors: &mut ErrorList, path: &Path, container: &Value, pod: &Pod) {
    let (mut seen_names, mut seen_paths) = (BTreeSet::new(), BTreeSet::new());
    let mounts = items(container, "volumeMounts");
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let path = path.index(index);
        let (name, at) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !name.is_empty() && !seen_names.insert(name) {
            errors.invalid(&path.child("name"), name, "must be unique");
        }
        match pod.volumes.get(name) {
            Some(false) => errors.invalid(
                &path.child("name"),
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            None => errors.not_found(&path.child("name"), name),
            Some(true) => {}
        }
        if at.is_empty() {
            errors.required(&path.child("devicePath"), "");
        }
        if seen_paths.contains(at) {
            errors.invalid(&path.child("devicePath"), at, "must be unique");
        }
        let mut backsteps = ErrorList::new();
        no_backsteps(&mut backsteps, &path, at);
        if backsteps.is_empty() {
            seen_paths.insert(at);
        } else {
            errors.invalid(&path.child("devicePath"), at, "can not contain backsteps ('..')");
        }
        if mounts.iter().any(|mount| text(mount, "name") == name) {
            errors.invalid(&path.child("name"), name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| text(mount, "mountPath") == at) {
            errors.invalid(&path.child("devicePath"), at, "must not already exist as a path in volumeMounts");
        }
    }
}

fn resize_policy(errors: &mut ErrorList, path: &Path, container: &Value, spec: &Value) {
    let mut seen = BTreeSet::new();
    for (index, policy) in items(container, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.duplicate(&path.index(index), resource);
        }
        for (value, supported) in [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])] {
            match value {
                "" => errors.required(path, ""),
                value if !supported.contains(&value) => errors.not_supported(path, value, &supported),
                _ => {}
            }
        }
        if text(spec, "restartPolicy") == "Never" && restart != "NotRequired" {
            errors.invalid(path, restart, "must be 'NotRequired' when `restartPolicy` is 'Never'");
        }
    }
}

fn restart_rules(errors: &mut ErrorList, path: &Path, container: &Value) {
    let rules = items(container, "restartPolicyRules");
    match container.get("restartPolicy").and_then(Value::as_str) {
        None if rules.is_empty() => return,
        None => {
            errors.required(&path.child("restartPolicy"), "must specify restartPolicy when restart rules are used");
        }
        Some(policy) => {
            let supported = ["Always", "Never", "OnFailure"];
            if !supported.contains(&policy) {
                errors.not_supported(&path.child("restartPolicy"), policy, &supported);
            }
        }
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.too_long(&path, 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        if text(rule, "action") != "Restart" {
            errors.not_supported(&path.child("action"), text(rule, "action"), &["Restart"]);
        }
        let Some(codes) = part(rule, "exitCodes") else {
            errors.required(&path.child("exitCodes"), "must be specified");
            continue;
        };
        let path = path.child("exitCodes");
        if !matches!(text(codes, "operator"), "In" | "NotIn") {
            errors.not_supported(&path.child("operator"), text(codes, "operator"), &["In", "NotIn"]);
        }
        if items(codes, "values").len() > 255 {
            errors.too_long(&path.child("values"), 255);
        }
    }
}
