//! Defaults of a pod specification that its schema cannot express.
//! Used by `pod` and by every kind with a pod template.
//! Idempotent, and fills only what is unset.

use serde_json::{Value, json};

use super::image;
use crate::kinds::common::{
    access::{default_absent, default_to, default_zero_to, each, existing_mut, flag, int, is_set, part_mut, text},
    quantities,
};

/// `spec` of a pod or of a pod template.
pub fn pod_spec(spec: &mut Value) {
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_to(spec, "schedulerName", "default-scheduler");
    mirror_service_account(spec);
    each(spec, "volumes", volume);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    quantities::round_list(spec, "overhead");
    if let Some(resources) = existing_mut(spec, "resources") {
        requirements(resources);
    }
}

/// The template of a workload at `spec.template`.
pub fn template(owner_spec: &mut Value) {
    if let Some(spec) = part_mut(owner_spec, "template").and_then(|template| part_mut(template, "spec")) {
        pod_spec(spec);
    }
}

/// What only a pod gets, and no template: requests from limits, service links, host ports on the host network.
pub fn pod_only(spec: &mut Value) {
    // Less than no time is as little as there is.
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    for list in ["containers", "initContainers"] {
        each(spec, list, |container| {
            if let Some(resources) = existing_mut(container, "resources") {
                requests_from_limits(resources);
            }
        });
    }
    default_to(spec, "enableServiceLinks", true);
    if flag(spec, "hostNetwork") {
        for list in ["containers", "initContainers"] {
            each(spec, list, |container| each(container, "ports", host_port));
        }
    }
}

/// The deprecated alias is kept in step, as upstream does when it converts.
fn mirror_service_account(spec: &mut Value) {
    let (name, alias) = (text(spec, "serviceAccountName"), text(spec, "serviceAccount"));
    if !name.is_empty() && name != alias {
        spec["serviceAccount"] = json!(name);
    } else if name.is_empty() && !alias.is_empty() {
        spec["serviceAccountName"] = json!(alias);
    }
}

fn host_port(port: &mut Value) {
    if let Some(number) = int(port, "containerPort") {
        default_zero_to(port, "hostPort", number);
    }
}

fn requests_from_limits(resources: &mut Value) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let Some(requests) = part_mut(resources, "requests") else { return };
    for (name, limit) in limits {
        default_to(requests, &name, limit);
    }
}

pub fn requirements(resources: &mut Value) {
    quantities::round_list(resources, "limits");
    quantities::round_list(resources, "requests");
}

fn container(container: &mut Value) {
    let policy = image::default_pull_policy(text(container, "image"));
    default_to(container, "imagePullPolicy", policy);
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", json!({}));
    each(container, "ports", |port| default_to(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        let Some(source) = existing_mut(variable, "valueFrom") else { return };
        field_reference(source);
        if let Some(file) = existing_mut(source, "fileKeyRef") {
            default_to(file, "optional", false);
        }
        resource_reference(source);
    });
    if let Some(resources) = existing_mut(container, "resources") {
        requirements(resources);
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(found) = existing_mut(container, name) {
            probe(found);
        }
    }
    if let Some(lifecycle) = existing_mut(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = existing_mut(lifecycle, hook) {
                http_get(hook);
            }
        }
    }
}

/// In `env[].valueFrom` and in the items of downward API volumes.
fn field_reference(source: &mut Value) {
    if let Some(field) = existing_mut(source, "fieldRef") {
        default_to(field, "apiVersion", "v1");
    }
}

/// The divisor is always written out by upstream.
fn resource_reference(source: &mut Value) {
    if let Some(resource) = existing_mut(source, "resourceFieldRef") {
        default_to(resource, "divisor", "0");
        quantities::canonical(resource, "divisor");
    }
}

fn probe(probe: &mut Value) {
    default_zero_to(probe, "timeoutSeconds", 1);
    default_zero_to(probe, "periodSeconds", 10);
    default_zero_to(probe, "successThreshold", 1);
    default_zero_to(probe, "failureThreshold", 3);
    http_get(probe);
    if let Some(grpc) = existing_mut(probe, "grpc")
        && grpc.get("service").is_none_or(Value::is_null)
    {
        grpc["service"] = json!("");
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = existing_mut(handler, "httpGet") {
        default_to(get, "path", "/");
        default_to(get, "scheme", "HTTP");
    }
}

const DEFAULT_FILE_MODE: i64 = 0o644;

fn volume(volume: &mut Value) {
    let has_source =
        volume.as_object().is_some_and(|map| map.iter().any(|(key, value)| key != "name" && !value.is_null()));
    if !has_source {
        default_to(volume, "emptyDir", json!({}));
    }
    volume_source(volume);
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = existing_mut(volume, name) {
            default_to(source, "defaultMode", DEFAULT_FILE_MODE);
        }
    }
    if let Some(source) = existing_mut(volume, "emptyDir") {
        quantities::canonical(source, "sizeLimit");
    }
    if let Some(source) = existing_mut(volume, "downwardAPI") {
        each(source, "items", downward_item);
    }
    if let Some(source) = existing_mut(volume, "projected") {
        each(source, "sources", projection);
    }
    if let Some(source) = existing_mut(volume, "image") {
        let policy = image::default_pull_policy(text(source, "reference"));
        default_to(source, "pullPolicy", policy);
    }
    if let Some(claim) = existing_mut(volume, "ephemeral").and_then(|e| existing_mut(e, "volumeClaimTemplate"))
        && let Some(spec) = part_mut(claim, "spec")
    {
        claim_spec(spec);
    }
}

fn projection(source: &mut Value) {
    if let Some(downward) = existing_mut(source, "downwardAPI") {
        each(downward, "items", downward_item);
    }
    if let Some(token) = existing_mut(source, "serviceAccountToken") {
        default_to(token, "expirationSeconds", 3600);
    }
}

fn downward_item(item: &mut Value) {
    field_reference(item);
    resource_reference(item);
}

/// `spec` of a PersistentVolumeClaim, of a claim template and of an ephemeral volume.
pub fn claim_spec(spec: &mut Value) {
    default_absent(spec, "volumeMode", "Filesystem");
    default_to(spec, "resources", json!({}));
    if let Some(resources) = existing_mut(spec, "resources") {
        requirements(resources);
    }
}

/// Defaults that pod volumes and persistent volumes share.
pub fn volume_source(source: &mut Value) {
    if let Some(host_path) = existing_mut(source, "hostPath")
        && !is_set(host_path, "type")
    {
        host_path["type"] = json!("");
    }
    for (name, fields) in [
        ("iscsi", &[("iscsiInterface", "default")][..]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("fsType", "ext4"), ("kind", "Shared")]),
    ] {
        if let Some(source) = existing_mut(source, name) {
            for (field, to) in fields {
                default_to(source, field, *to);
            }
            if name == "azureDisk" {
                default_to(source, "readOnly", false);
            }
        }
    }
}
