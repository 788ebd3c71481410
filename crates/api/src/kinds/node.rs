//! Nodes: defaults, strategy, columns, validation.
//! Neighbours: the kubelet, which writes their status.
//! Invariant: podCIDR and providerID, once set, stay.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{entries, existing_mut, flag, is_set, items, part_mut, set, text, texts},
    amount,
    columns::{age, age_of, condition, name, name_of, or, string, wide},
};

#[derive(Default)]
pub struct Node;

impl Behavior for Node {
    fn default(&self, object: &mut Value) {
        if let Some(status) = existing_mut(object, "status") {
            amount::round_list(status, "capacity");
            amount::round_list(status, "allocatable");
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

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

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

/// `podCIDR` is the first of `podCIDRs`.
fn mirror_pod_cidr(spec: &mut Value) {
    let single = text(spec, "podCIDR").to_string();
    let first = texts(spec, "podCIDRs").next().unwrap_or("").to_string();
    if !single.is_empty() && first.is_empty() {
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
