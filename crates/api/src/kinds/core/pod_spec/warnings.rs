//! Warnings about what is legal in a pod but likely a mistake or on its way out.
//! Used by `pod` and by every kind with a pod template.
//! Never stops a request.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::kinds::common::access::{entries, is_set, items, part, text, texts};

const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/metadata-proxy-ready", ""),
];

pub fn pod(object: &Value) -> Vec<String> {
    spec_warnings("", &object["metadata"], &object["spec"])
}

/// Of a template that stands at `path`.
pub fn template(path: &str, template: &Value) -> Vec<String> {
    spec_warnings(&format!("{path}."), &template["metadata"], &template["spec"])
}

fn spec_warnings(prefix: &str, metadata: &Value, spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (label, _) in entries(spec, "nodeSelector") {
        if let Some((_, instead)) = OLD_LABELS.iter().find(|(old, _)| *old == label) {
            warnings
                .push(format!("{prefix}spec.nodeSelector[{label}]: deprecated since v1.14; use \"{instead}\" instead"));
        }
    }
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        if part(volume, "gitRepo").is_some() {
            warnings.push(format!("{prefix}spec.volumes[{index}].gitRepo: deprecated in v1.11"));
        }
    }
    for (key, _) in entries(metadata, "annotations") {
        if key.starts_with("container.apparmor.security.beta.kubernetes.io/") {
            warnings.push(format!(
                "{prefix}metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            ));
        }
        if key == "scheduler.alpha.kubernetes.io/critical-pod" {
            warnings.push(format!(
                "{prefix}metadata.annotations[{key}]: non-functional in v1.16+; use the \"priorityClassName\" field instead"
            ));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            duplicate_variables(&mut warnings, &format!("{prefix}spec.{list}[{index}]"), container);
        }
    }
    duplicate_ports(&mut warnings, prefix, spec);
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        if !is_set(secret, "name") {
            warnings.push(format!("{prefix}spec.imagePullSecrets[{index}].name: invalid empty name {:?}", ""));
        }
    }
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        for (host_index, host) in texts(alias, "hostnames").enumerate() {
            if host.is_empty() {
                warnings.push(format!("{prefix}spec.hostAliases[{index}].hostnames[{host_index}]: empty name"));
            }
        }
    }
    warnings
}

fn duplicate_variables(warnings: &mut Vec<String>, path: &str, container: &Value) {
    let mut seen = BTreeMap::new();
    for (index, variable) in items(container, "env").iter().enumerate() {
        let name = text(variable, "name");
        if let Some(first) = seen.insert(name, index) {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
            seen.insert(name, first);
        }
    }
}

fn duplicate_ports(warnings: &mut Vec<String>, prefix: &str, spec: &Value) {
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            let ports = items(container, "ports");
            for (port_index, port) in ports.iter().enumerate() {
                let key =
                    |p: &Value| (text(p, "protocol").to_string(), p["containerPort"].as_i64(), p["hostPort"].as_i64());
                if let Some(first) = ports[..port_index].iter().position(|other| key(other) == key(port)) {
                    warnings.push(format!(
                        "{prefix}spec.{list}[{index}].ports[{port_index}]: duplicate port definition with \
                         {prefix}spec.{list}[{index}].ports[{first}]"
                    ));
                }
            }
        }
    }
}
