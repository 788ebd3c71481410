//! Nodes: defaults, strategy, columns, validation.
//! Neighbours: the kubelet, which writes their status.
//! podCIDR and providerID, once set, stay.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::status_without_generation,
        common::{
            access::{entries, existing_mut, flag, is_set, items, part_mut, set, text, texts},
            checks::complaints,
            columns::{age, age_of, condition, name, name_of, or, string, wide},
            quantities,
        },
        core::pod_spec::{placement, resources},
    },
    names,
};

#[derive(Default)]
pub struct Node;

impl Behavior for Node {
    fn default(&self, object: &mut Value) {
        if let Some(status) = existing_mut(object, "status") {
            quantities::round_list(status, "capacity");
            quantities::round_list(status, "allocatable");
            if status.get("allocatable").is_none_or(Value::is_null) && is_set(status, "capacity") {
                status["allocatable"] = status["capacity"].clone();
            }
        }
        if let Some(spec) = part_mut(object, "spec") {
            mirror_pod_cidr(spec);
        }
    }

    // A node registers itself with its status, so that is kept on create.
    fn prepare_create(&self, _object: &mut Value) {}

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        // Upstream reports taints under the metadata.
        placement::taints(errors, &Path::new("metadata").child("taints"), &object["spec"]);
        validate_resources(errors, object);
        let path = Path::new("spec").child("podCIDRs");
        let ranges: Vec<&str> = texts(&object["spec"], "podCIDRs").collect();
        for (index, range) in ranges.iter().enumerate() {
            complaints(errors, &path.index(index), range, names::cidr(range));
        }
        let is_v6 = |range: &&str| names::parse_cidr(range).map(|(address, _)| address.is_ipv6());
        if ranges.len() > 2 || (ranges.len() == 2 && is_v6(&ranges[0]) == is_v6(&ranges[1])) {
            errors.invalid(
                &path,
                object["spec"]["podCIDRs"].clone(),
                "may specify no more than one CIDR for each IP family",
            );
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_resources(errors, object);
        let (path, new, old) = (Path::new("spec"), &object["spec"], &old["spec"]);
        if is_set(old, "podCIDRs") && new["podCIDRs"] != old["podCIDRs"] {
            errors.forbidden(&path.child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid");
        }
        if is_set(old, "providerID") && text(new, "providerID") != text(old, "providerID") {
            errors.forbidden(
                &path.child("providerID"),
                "node updates may not change providerID except from \"\" to valid",
            );
        }
        placement::taints(errors, &Path::new("metadata").child("taints"), new);
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        validate_resources(errors, object);
        let addresses = items(&object["status"], "addresses");
        for (index, address) in addresses.iter().enumerate() {
            if addresses[..index].contains(address) {
                errors.duplicate(&Path::new("status").child("addresses").index(index), address.clone());
            }
        }
    }

    status_without_generation!();

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 10] = [
            name(),
            string("Status", "Whether it takes pods."),
            string("Roles", "From its labels."),
            age(),
            string("Version", "Of its kubelet."),
            wide("Internal-IP", "Address inside the cluster."),
            wide("External-IP", "Address outside the cluster."),
            wide("OS-Image", "Operating system."),
            wide("Kernel-Version", "Kernel."),
            wide("Container-Runtime", "Container runtime."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let info = &object["status"]["nodeInfo"];
        let fact = |field: &str| json!(or(text(info, field), "<unknown>"));
        vec![
            name_of(object),
            json!(readiness(object)),
            json!(roles(object)),
            age_of(object, now),
            json!(text(info, "kubeletVersion")),
            json!(address(object, "InternalIP")),
            json!(address(object, "ExternalIP")),
            fact("osImage"),
            fact("kernelVersion"),
            fact("containerRuntimeVersion"),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("spec.unschedulable".into(), flag(&object["spec"], "unschedulable").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.unschedulable".into()]
    }
}

/// `podCIDR` is the first of `podCIDRs`; where they differ, the former counts, as clients that know only it mean it.
fn mirror_pod_cidr(spec: &mut Value) {
    let single = text(spec, "podCIDR").to_string();
    let first = texts(spec, "podCIDRs").next().unwrap_or("").to_string();
    if !single.is_empty() && first != single {
        spec["podCIDRs"] = json!([single]);
    } else if single.is_empty() && !first.is_empty() {
        set(spec, "podCIDR", json!(first));
    }
}

fn readiness(node: &Value) -> String {
    let ready = match condition(node, "Ready").map(|c| text(c, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if flag(&node["spec"], "unschedulable") { format!("{ready},SchedulingDisabled") } else { ready.to_string() }
}

fn roles(node: &Value) -> String {
    let mut roles: Vec<&str> = entries(&node["metadata"], "labels")
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_string() } else { roles.join(",") }
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let addresses = items(&node["status"], "addresses");
    addresses.iter().find(|a| text(a, "type") == kind).map_or("<none>", |a| text(a, "address"))
}

fn validate_resources(errors: &mut ErrorList, node: &Value) {
    for list in ["capacity", "allocatable"] {
        let path = Path::new("status").child(list);
        for (name, value) in entries(&node["status"], list) {
            resources::quantity(errors, &path.child(name), name, value);
        }
    }
}
