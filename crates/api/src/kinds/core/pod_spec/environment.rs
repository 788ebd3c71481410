//! Validation of environment variables and of references to fields, resources and keys.
//! Neighbours: `containers`; `volumes`, whose downward API files refer to the same things.
//! A variable has one source at most.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{is_set, items, part, text},
        checks::{complaints, no_backsteps, required_name},
    },
    names,
    quantity::Quantity,
};

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

pub const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub fn variables(errors: &mut ErrorList, path: &Path, container: &Value) {
    for (index, variable) in items(container, "env").iter().enumerate() {
        let path = path.index(index);
        required_name(errors, &path, variable, "name", names::environment_variable);
        if let Some(source) = part(variable, "valueFrom") {
            value_from(errors, &path.child("valueFrom"), variable, source);
        }
    }
}

fn value_from(errors: &mut ErrorList, path: &Path, variable: &Value, source: &Value) {
    let mut sources = 0;
    if let Some(reference) = part(source, "fieldRef") {
        sources += 1;
        field(errors, &path.child("fieldRef"), reference, &FIELDS);
    }
    if let Some(reference) = part(source, "resourceFieldRef") {
        sources += 1;
        resource(errors, &path.child("resourceFieldRef"), reference, false);
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = part(source, kind) {
            sources += 1;
            let path = path.child(kind);
            let name = text(reference, "name");
            complaints(errors, &path.child("name"), name, names::dns_subdomain(name, false));
            required_name(errors, &path, reference, "key", names::config_map_key);
        }
    }
    if let Some(reference) = part(source, "fileKeyRef") {
        sources += 1;
        let path = path.child("fileKeyRef");
        required_name(errors, &path, reference, "key", names::environment_variable);
        required_name(errors, &path, reference, "volumeName", |name| names::dns_label(name, false));
        match text(reference, "path") {
            "" => errors.required(&path.child("path"), ""),
            file => no_backsteps(errors, &path.child("path"), file),
        }
    }
    match sources {
        0 => errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        _ if is_set(variable, "value") => {
            errors.invalid(path, "", "may not be specified when `value` is not empty");
        }
        2.. => errors.invalid(path, "", "may not have more than one field specified at a time"),
        _ => {}
    }
}

pub fn field(errors: &mut ErrorList, path: &Path, reference: &Value, supported: &[&str]) {
    let version = text(reference, "apiVersion");
    let field = text(reference, "fieldPath");
    if version.is_empty() {
        return errors.required(&path.child("apiVersion"), "");
    }
    if field.is_empty() {
        return errors.required(&path.child("fieldPath"), "");
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        return errors.invalid(&path.child("fieldPath"), field, detail);
    }
    let subscript = field.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    match subscript {
        Some(("metadata.annotations", key)) => {
            complaints(errors, path, key, names::qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => complaints(errors, path, key, names::qualified_name(key)),
        Some((name, _)) => errors.invalid(
            &path.child("fieldPath"),
            field,
            format!("error converting fieldPath: field label does not support subscript: {name}"),
        ),
        None if supported.contains(&field) => {}
        None if FIELDS.contains(&field) || VOLUME_FIELDS.contains(&field) => {
            errors.not_supported(&path.child("fieldPath"), field, supported);
        }
        None => errors.invalid(
            &path.child("fieldPath"),
            field,
            format!("error converting fieldPath: field label not supported: {field}"),
        ),
    }
}

pub fn resource(errors: &mut ErrorList, path: &Path, reference: &Value, in_volume: bool) {
    let name = text(reference, "resource");
    if in_volume && text(reference, "containerName").is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if name.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&name) && !is_huge_pages(name) {
        errors.not_supported(&path.child("resource"), name, &RESOURCES);
    }
    divisor(errors, path, reference, name);
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-")
}

fn divisor(errors: &mut ErrorList, path: &Path, reference: &Value, name: &str) {
    let Some(divisor) = reference.get("divisor").and_then(Quantity::from_value).filter(|d| !d.is_zero()) else {
        return;
    };
    let divisor = divisor.canonical();
    let path = path.child("divisor");
    let sizes =
        ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"].contains(&divisor.as_str());
    let what = match name {
        "limits.cpu" | "requests.cpu" => {
            if !matches!(divisor.as_str(), "1" | "1m") {
                errors.invalid(&path, name, "only divisor's values 1m and 1 are supported with the cpu resource");
            }
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        name if is_huge_pages(name) => "hugepages",
        _ => return,
    };
    if !sizes {
        errors.invalid(
            &path,
            name,
            format!(
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
                 {what} resource"
            ),
        );
    }
}

pub fn sources(errors: &mut ErrorList, path: &Path, container: &Value) {
    for (index, source) in items(container, "envFrom").iter().enumerate() {
        let at = path.index(index);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            complaints(errors, &at.child("prefix"), prefix, names::environment_variable(prefix));
        }
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = part(source, kind) {
                count += 1;
                required_name(errors, &at.child(kind), reference, "name", |name| names::dns_subdomain(name, true));
            }
        }
        match count {
            0 => errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(path, "", "may not have more than one field specified at a time"),
        }
    }
}
