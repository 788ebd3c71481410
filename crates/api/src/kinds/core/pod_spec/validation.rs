//! Validation of a whole pod specification.
//! Calls its neighbours for containers, volumes, placement and security.
//! Expects defaults to be in place.

use serde_json::Value;

use super::{
    containers,
    operating_system::{each_container, operating_system},
    placement, resources, security, volumes,
};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        common::{
            access::{entries, flag, int, is_set, items, part, text, texts},
            checks::{complaints, labels, optional_name, optional_one_of},
            metadata,
        },
        core::pod::app_armor,
    },
    names,
};

const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What the specification belongs to.
#[derive(Clone, Copy)]
pub enum SpecOwner<'a> {
    /// A pod, with its metadata.
    Pod(&'a Value),
    Template,
}

/// `path` is that of the specification itself.
pub fn pod_spec(errors: &mut ErrorList, path: &Path, spec: &Value, owner: SpecOwner) {
    if int(spec, "terminationGracePeriodSeconds").is_none() {
        errors.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let volumes = volumes::volumes(errors, &path.child("volumes"), spec, owner);
    let claims = resources::pod_claims(errors, &path.child("resourceClaims"), spec);
    containers::all(errors, path, spec, &containers::Pod { spec, volumes, claims });
    resources::pod_level(errors, path, spec);
    host_network_ports(errors, path, spec, owner);
    required_one_of(errors, path, spec, "restartPolicy", &["Always", "OnFailure", "Never"]);
    required_one_of(errors, path, spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    labels(errors, path, spec, "nodeSelector");
    security::pod(errors, path, spec);
    placement::affinity(errors, &path.child("affinity"), &spec["affinity"]);
    dns_config(errors, &path.child("dnsConfig"), spec);
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        let path = path.child("readinessGates").index(index).child("conditionType");
        complaints(errors, &path, name, names::qualified_name(name));
    }
    placement::scheduling_gates(errors, &path.child("schedulingGates"), spec);
    placement::topology_spread(errors, &path.child("topologySpreadConstraints"), spec);
    host_name(errors, path, spec);
    let subdomain = |name: &str| names::dns_subdomain(name, false);
    let label = |name: &str| names::dns_label(name, false);
    optional_name(errors, path, spec, "serviceAccountName", subdomain);
    optional_name(errors, path, spec, "nodeName", subdomain);
    if let Some(seconds) = int(spec, "activeDeadlineSeconds") {
        for complaint in names::in_range(seconds, 1, i64::from(i32::MAX)) {
            errors.invalid(&path.child("activeDeadlineSeconds"), seconds, complaint);
        }
    }
    optional_name(errors, path, spec, "hostname", label);
    optional_name(errors, path, spec, "subdomain", label);
    placement::tolerations(errors, &path.child("tolerations"), spec);
    host_aliases(errors, &path.child("hostAliases"), spec);
    optional_name(errors, path, spec, "priorityClassName", subdomain);
    if let Some(name) = spec.get("runtimeClassName").and_then(Value::as_str) {
        complaints(errors, &path.child("runtimeClassName"), name, subdomain(name));
    }
    optional_one_of(errors, path, spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"]);
    if spec.get("overhead").is_some_and(Value::is_object) {
        resources::list(errors, &path.child("overhead").child("limits"), &spec["overhead"], true);
    }
    operating_system(errors, path, spec);
    files_of_variables(errors, path, spec);
}

/// Files that variables are read from are on an emptyDir of the pod.
fn files_of_variables(errors: &mut ErrorList, path: &Path, spec: &Value) {
    for (path, container) in each_container(path, spec) {
        for (index, variable) in items(container, "env").iter().enumerate() {
            let Some(file) = part(&variable["valueFrom"], "fileKeyRef") else { continue };
            let name = text(file, "volumeName");
            let path = path.child("env").index(index).child("valueFrom").child("fileKeyRef").child("volumeName");
            match items(spec, "volumes").iter().find(|volume| text(volume, "name") == name) {
                None => errors.not_found(&path, name),
                Some(volume) if part(volume, "emptyDir").is_none() => {
                    errors.invalid(&path, name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}

/// A template's labels, annotations and specification. `path` is that of the template.
pub fn template_metadata(errors: &mut ErrorList, path: &Path, template: &Value) {
    labels(errors, path, &template["metadata"], "labels");
    metadata::validate_annotations(path, &template["metadata"], errors);
    annotations(errors, path, &template["metadata"], &template["spec"]);
}

pub fn template(errors: &mut ErrorList, path: &Path, template: &Value) {
    template_metadata(errors, path, template);
    pod_spec(errors, &path.child("spec"), &template["spec"], SpecOwner::Template);
    app_armor::validate_match(errors, &path.child("spec"), &template["metadata"], &template["spec"]);
    if is_set(&template["spec"], "ephemeralContainers") {
        errors.forbidden(
            &path.child("spec").child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// A whole pod, apart from what `metadata` checks of every object.
pub fn pod(errors: &mut ErrorList, pod: &Value) {
    let path = Path::new("spec");
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    annotations(errors, &Path::new("metadata"), metadata, spec);
    pod_spec(errors, &path, spec, SpecOwner::Pod(metadata));
    if text(spec, "serviceAccountName").is_empty() {
        for (index, volume) in items(spec, "volumes").iter().enumerate() {
            for (source_index, source) in items(&volume["projected"], "sources").iter().enumerate() {
                if part(source, "serviceAccountToken").is_some() {
                    let path = path.child("volumes").index(index).child("projected").child("sources");
                    errors.forbidden(
                        &path.index(source_index).child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            containers::image_whitespace(errors, &path.child(list).index(index), container);
        }
    }
}

/// Annotations that mean something for pods.
fn annotations(errors: &mut ErrorList, path: &Path, metadata: &Value, spec: &Value) {
    let path = path.child("annotations");
    app_armor::validate_annotations(errors, &path, metadata, spec);
    for (key, value) in entries(metadata, "annotations") {
        let value = value.as_str().unwrap_or("");
        if key == MIRROR_ANNOTATION && text(spec, "nodeName").is_empty() {
            errors.invalid(&path.key(key), value, "must set spec.nodeName if mirror pod annotation is set");
        }
        if key == "controller.kubernetes.io/pod-deletion-cost" && !is_deletion_cost(value) {
            errors.invalid(&path.key(key), value, "must be a 32bit integer");
        }
    }
}

/// A plain 32-bit integer: no plus sign, no leading zeros.
fn is_deletion_cost(value: &str) -> bool {
    value.parse::<i32>().is_ok_and(|number| number.to_string() == value)
}

fn required_one_of(errors: &mut ErrorList, path: &Path, spec: &Value, field: &str, supported: &[&str]) {
    match text(spec, field) {
        "" => errors.required(&path.child(field), ""),
        value if supported.contains(&value) => {}
        value => errors.not_supported_as_listed(&path.child(field), value, supported),
    }
}

fn host_network_ports(errors: &mut ErrorList, path: &Path, spec: &Value, owner: SpecOwner) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (port_index, port) in items(container, "ports").iter().enumerate() {
            let host = int(port, "hostPort").unwrap_or(0);
            let must_match = matches!(owner, SpecOwner::Pod(_)) || host != 0;
            if must_match && host != int(port, "containerPort").unwrap_or(0) {
                let path = path.child("containers").index(index).child("ports").index(port_index);
                errors.invalid(&path.child("hostPort"), host, "must match `containerPort` when `hostNetwork` is true");
            }
        }
    }
}

const NAMESERVERS_MAX: usize = 3;
const SEARCH_PATHS_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;

fn dns_config(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let config = part(spec, "dnsConfig");
    if text(spec, "dnsPolicy") == "None" {
        match config {
            None => return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(config) if !is_set(config, "nameservers") => {
                return errors.required(
                    &path.child("nameservers"),
                    "must provide at least one DNS nameserver when `dnsPolicy` is None",
                );
            }
            Some(_) => {}
        }
    }
    let Some(config) = config else { return };
    if items(config, "nameservers").len() > NAMESERVERS_MAX {
        errors.invalid(
            &path.child("nameservers"),
            config["nameservers"].clone(),
            format!("must not have more than {NAMESERVERS_MAX} nameservers"),
        );
    }
    for (index, server) in texts(config, "nameservers").enumerate() {
        complaints(errors, &path.child("nameservers").index(index), server, names::ip(server));
    }
    let searches: Vec<&str> = texts(config, "searches").collect();
    if searches.len() > SEARCH_PATHS_MAX {
        errors.invalid(
            &path.child("searches"),
            config["searches"].clone(),
            format!("must not have more than {SEARCH_PATHS_MAX} search paths"),
        );
    }
    if searches.join(" ").len() > SEARCH_CHARACTERS_MAX {
        errors.invalid(
            &path.child("searches"),
            config["searches"].clone(),
            format!("must not have more than {SEARCH_CHARACTERS_MAX} characters (including spaces) in the search list"),
        );
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| **search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        complaints(errors, &path.child("searches").index(index), search, names::subdomain_with_underscore(search));
    }
    for (index, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.required(&path.child("options").index(index), "must not be empty");
        }
    }
}

fn host_name(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else { return };
    let path = path.child("hostnameOverride");
    if flag(spec, "setHostnameAsFQDN") {
        errors.forbidden(&path, "may not be specified when setHostnameAsFQDN is true");
    }
    if flag(spec, "hostNetwork") {
        errors.forbidden(&path, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        errors.too_long(&path, 64);
    }
    complaints(errors, &path, name, names::dns_subdomain(name, false));
}

fn host_aliases(errors: &mut ErrorList, path: &Path, spec: &Value) {
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let path = path.index(index);
        complaints(errors, &path.child("ip"), text(alias, "ip"), names::ip(text(alias, "ip")));
        for (index, host) in texts(alias, "hostnames").enumerate() {
            let path = path.child("hostnames").index(index);
            complaints(errors, &path, host, names::dns_subdomain(host, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{Behavior, core::pod::Pod};

    fn check(change: impl Fn(&mut Value), expected: &[&str]) {
        let mut pod = json!({
            "metadata": { "name": "web-0", "namespace": "default", "labels": { "app": "web" } },
            "spec": {
                "serviceAccountName": "robot",
                "nodeSelector": { "kubernetes.io/os": "linux" },
                "initContainers": [{ "name": "init", "image": "busybox:1", "command": ["true"] }],
                "containers": [{
                    "name": "web",
                    "image": "registry.example:5000/web:v1@sha256:00",
                    "ports": [{ "name": "http", "containerPort": 8080 }],
                    "env": [
                        { "name": "A-b.c", "value": "1" },
                        { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                        { "name": "L", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
                        { "name": "C", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1m" } } },
                        { "name": "S", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                    ],
                    "envFrom": [{ "configMapRef": { "name": "c" } }],
                    "resources": { "limits": { "cpu": "1", "memory": "1Gi", "example.com/gpu": 1 } },
                    "livenessProbe": { "httpGet": { "port": "http", "path": "/healthz" } },
                    "readinessProbe": { "exec": { "command": ["true"] } },
                    "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
                    "volumeMounts": [
                        { "name": "data", "mountPath": "/data", "subPath": "a/b" },
                        { "name": "token", "mountPath": "/var/run/secrets", "readOnly": true },
                    ],
                    "securityContext": {
                        "runAsUser": 1000, "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                }],
                "volumes": [
                    { "name": "data", "emptyDir": { "sizeLimit": "1Gi" } },
                    { "name": "token", "projected": { "sources": [
                        { "serviceAccountToken": { "path": "token" } },
                        { "configMap": { "name": "ca", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                        { "downwardAPI": { "items": [{ "path": "ns", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
                    ] } },
                ],
                "tolerations": [
                    { "operator": "Exists" },
                    { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                ],
                "affinity": {
                    "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
                    }] },
                    "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                        "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }],
                    }] } },
                },
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": { "matchLabels": { "app": "web" } }, "matchLabelKeys": ["pod-template-hash"],
                }],
                "hostAliases": [{ "ip": "10.0.0.1", "hostnames": ["a.b"] }],
                "dnsConfig": { "nameservers": ["10.0.0.10"], "searches": ["a_b.c."], "options": [{ "name": "ndots", "value": "5" }] },
                "securityContext": { "fsGroup": 1, "sysctls": [{ "name": "net.core.somaxconn", "value": "1024" }] },
            },
        });
        change(&mut pod);
        Pod.default(&mut pod);
        let mut errors = ErrorList::new();
        Pod.validate_create(&pod, &mut errors);
        let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn a_rich_pod_is_valid() {
        check(|_| (), &[]);
    }

    #[test]
    fn variables_are_read_from_files_of_empty_dirs_only() {
        let from = |volume: &str, expected: &[&str]| {
            let file = json!({ "volumeName": volume, "path": "a.env", "key": "A" });
            let variable = json!([{ "name": "A", "valueFrom": { "fileKeyRef": file } }]);
            check(|pod| pod["spec"]["initContainers"][0]["env"] = variable.clone(), expected);
        };
        let path = "spec.initContainers[0].env[0].valueFrom.fileKeyRef.volumeName";
        from("data", &[]);
        from("none", &[&format!("{path}: Not found: \"none\"")]);
        from("token", &[&format!("{path}: Invalid value: \"token\": referenced volume must be of type emptyDir")]);
    }

    #[test]
    fn a_pod_says_nothing_that_its_operating_system_has_not() {
        let windows = json!({ "windowsOptions": { "runAsUserName": "a" } });
        let on = |name: &'static str, expected: &[&str]| {
            let change = |pod: &mut Value| {
                pod["spec"]["os"] = json!({ "name": name });
                pod["spec"]["initContainers"][0]["securityContext"] = windows.clone();
                pod["spec"]["hostPID"] = json!(true);
                pod["spec"]["shareProcessNamespace"] = json!(false);
            };
            check(change, expected);
        };
        on(
            "linux",
            &[
                "spec.initContainers[0].securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ],
        );
        let forbidden = |field: &str| format!("spec.{field}: Forbidden: cannot be set for a windows pod");
        let all = [
            "hostPID",
            "shareProcessNamespace",
            "securityContext.fsGroup",
            "securityContext.sysctls",
            "containers[0].securityContext.seccompProfile",
            "containers[0].securityContext.capabilities",
            "containers[0].securityContext.allowPrivilegeEscalation",
            "containers[0].securityContext.runAsUser",
        ]
        .map(forbidden);
        on("windows", &all.each_ref().map(String::as_str));
        check(|pod| pod["spec"]["os"] = json!({ "name": "plan9" }), &["spec.os.name: Unsupported value: \"plan9\""]);
    }

    #[test]
    fn container_errors() {
        let container = |field: &'static str, value: Value| {
            move |pod: &mut Value| pod["spec"]["containers"][0][field] = value.clone()
        };
        check(|pod| pod["spec"]["containers"] = json!([]), &["spec.containers: Required value"]);
        check(
            container("name", json!("Web")),
            &["spec.containers[0].name: Invalid value: \"Web\": a lowercase RFC 1123 label must consist of"],
        );
        check(container("name", json!("init")), &["spec.initContainers[0].name: Duplicate value: \"init\""]);
        check(container("image", json!("")), &["spec.containers[0].image: Required value"]);
        check(
            container("image", json!(" a")),
            &["spec.containers[0].image: Invalid value: \" a\": must not have leading or trailing whitespace"],
        );
        check(
            container("ports", json!([{ "name": "http", "containerPort": 70000, "protocol": "X" }])),
            &[
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[0].ports[0].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ],
        );
        check(
            container("volumeMounts", json!([{ "name": "nope", "mountPath": "/x" }])),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"nope\""],
        );
        check(
            container("livenessProbe", json!({})),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        );
        check(
            container("env", json!([{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.x" } } }])),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x\": error converting \
                 fieldPath: field label not supported: spec.x"],
        );
        check(
            container("resources", json!({ "requests": { "cpu": "2", "disk": "1" }, "limits": { "cpu": "1" } })),
            &[
                "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must be a standard resource type or \
                 fully qualified",
                "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must be a standard resource for \
                 containers",
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        );
    }

    #[test]
    fn pod_errors() {
        let spec = |field: &'static str, value: Value| move |pod: &mut Value| pod["spec"][field] = value.clone();
        check(
            spec("restartPolicy", json!("Sometimes")),
            &[
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        );
        check(
            spec("volumes", json!([{ "name": "data", "emptyDir": {}, "hostPath": { "path": "/" } }])),
            &[
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
                "spec.containers[0].volumeMounts[0].name: Not found: \"data\"",
                "spec.containers[0].volumeMounts[1].name: Not found: \"token\"",
            ],
        );
        check(
            spec("tolerations", json!([{ "value": "x" }])),
            &["spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty"],
        );
        check(
            spec("activeDeadlineSeconds", json!(0)),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between"],
        );
        check(spec("dnsPolicy", json!("None")), &[]);
        check(
            spec("schedulingGates", json!([{ "name": "a" }, { "name": "a" }])),
            &["spec.schedulingGates[1]: Duplicate value: \"a\""],
        );
        check(spec("ephemeralContainers", json!([])), &[]);
    }
}
