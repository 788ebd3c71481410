//! Describes PersistentVolumes and claims, StorageClasses, VolumeAttributesClasses and CSINodes.
//! Neighbours: `volumes` writes sources and claims.
//! A claim is used by pods that name it and by the pod that owns it.

use api::kinds::access_modes;
use serde_json::Value;

use super::{
    Context, Related,
    fields::{format_labels, go_list, list, name, namespace, number, quantity, rfc1123, since, string, strings, text},
    is_empty,
    jobs::bool_or_unset,
    sections::{labels_and_annotations, multiline},
    volumes::{self, storage_class as class_of},
    writer::{Writer, put},
};
use crate::object_reader::Query;

fn status(object: &Value, context: &Context) -> String {
    match &object["metadata"]["deletionTimestamp"] {
        Value::Null => text(&object["status"]["phase"]),
        time => format!("Terminating (lasts {})", since(time, context.now)),
    }
}

pub fn persistent_volume(w: &mut Writer, volume: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let spec = &volume["spec"];
    put!(w, 0, "Name:\t{}\n", name(volume));
    labels_and_annotations(w, volume);
    put!(w, 0, "Finalizers:\t{}\n", go_list(&volume["metadata"]["finalizers"]));
    put!(w, 0, "StorageClass:\t{}\n", class_of(volume));
    put!(w, 0, "Status:\t{}\n", status(volume, context));
    let claim = match &spec["claimRef"] {
        Value::Null => String::new(),
        claim => format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])),
    };
    put!(w, 0, "Claim:\t{claim}\n");
    put!(w, 0, "Reclaim Policy:\t{}\n", text(&spec["persistentVolumeReclaimPolicy"]));
    put!(w, 0, "Access Modes:\t{}\n", access_modes(&spec["accessModes"]));
    if !spec["volumeMode"].is_null() {
        put!(w, 0, "VolumeMode:\t{}\n", text(&spec["volumeMode"]));
    }
    put!(w, 0, "Capacity:\t{}\n", quantity(&spec["capacity"]["storage"]));
    node_affinity(w, &spec["nodeAffinity"]["required"]);
    put!(w, 0, "Message:\t{}\n", text(&volume["status"]["message"]));
    w.write(0, "Source:\n");
    volumes::source(w, spec, true);
    Ok(())
}

fn node_affinity(w: &mut Writer, required: &Value) {
    if required.is_null() {
        w.write(0, "Node Affinity:\t<none>\n");
        return;
    }
    w.write(0, "Node Affinity:\t\n");
    let terms = list(&required["nodeSelectorTerms"]);
    if terms.is_empty() {
        w.write(1, "Required Terms:\t<none>\n");
        return;
    }
    w.write(1, "Required Terms:\t\n");
    for (i, term) in terms.iter().enumerate() {
        let line = |requirement: &Value| {
            let operator = string(&requirement["operator"]).to_lowercase();
            expression(string(&requirement["key"]), &operator, &requirement["values"])
        };
        term_lines(w, 2, i, list(&term["matchExpressions"]).iter().map(line).collect());
    }
}

fn expression(key: &str, operator: &str, values: &Value) -> String {
    match strings(values).join(", ") {
        values if values.is_empty() => format!("{key} {operator}"),
        values => format!("{key} {operator} [{values}]"),
    }
}

fn term_lines(w: &mut Writer, level: usize, term: usize, lines: Vec<String>) {
    put!(w, level, "Term {term}:\t");
    if lines.is_empty() {
        w.write(0, "<none>\n");
    }
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            w.write(level, "\t");
        }
        put!(w, 0, "{line}\n");
    }
}

pub fn pods_of_namespace(claim: &Value) -> Vec<Query> {
    vec![Query::list("v1", "pods", namespace(claim))]
}

pub fn persistent_volume_claim(
    w: &mut Writer,
    claim: &Value,
    related: &Related,
    context: &Context,
) -> Result<(), String> {
    if let Some(Err(error)) = related.answers.first() {
        return Err(error.clone());
    }
    volumes::claim(w, claim, Some(&status(claim, context)));
    let mut users: Vec<String> = users(claim, related.objects(0)).into_iter().map(str::to_string).collect();
    users.sort();
    multiline(w, "", "Used By", users);
    if !is_empty(&claim["status"]["conditions"]) {
        w.write(0, "Conditions:\n");
        w.write(1, "Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage\n");
        w.write(1, "----\t------\t-----------------\t------------------\t------\t-------\n");
        for c in list(&claim["status"]["conditions"]) {
            let time = |field: &str| rfc1123(&c[field], &context.zone);
            let (kind, status) = (text(&c["type"]), text(&c["status"]));
            let (probe, transition) = (time("lastProbeTime"), time("lastTransitionTime"));
            let (reason, message) = (text(&c["reason"]), text(&c["message"]));
            put!(w, 1, "{kind} \t{status} \t{probe} \t{transition} \t{reason} \t{message}\n");
        }
    }
    Ok(())
}

/// Names of the pods that use a claim.
fn users<'a>(claim: &Value, pods: &'a [Value]) -> Vec<&'a str> {
    let owners: Vec<&str> = list(&claim["metadata"]["ownerReferences"])
        .iter()
        .filter(|owner| string(&owner["kind"]) == "Pod")
        .map(|owner| string(&owner["uid"]))
        .collect();
    let uses = |pod: &&Value| {
        let named = list(&pod["spec"]["volumes"])
            .iter()
            .any(|volume| string(&volume["persistentVolumeClaim"]["claimName"]) == name(claim));
        named || owners.contains(&string(&pod["metadata"]["uid"]))
    };
    pods.iter().filter(uses).map(name).collect()
}

pub fn storage_class(w: &mut Writer, class: &Value, _: &Related, _: &Context) -> Result<(), String> {
    let annotations = &class["metadata"]["annotations"];
    put!(w, 0, "Name:\t{}\n", name(class));
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let is_default = marks.iter().any(|mark| annotations[*mark] == "true");
    put!(w, 0, "IsDefaultClass:\t{}\n", if is_default { "Yes" } else { "No" });
    put!(w, 0, "Annotations:\t{}\n", format_labels(annotations));
    put!(w, 0, "Provisioner:\t{}\n", text(&class["provisioner"]));
    put!(w, 0, "Parameters:\t{}\n", format_labels(&class["parameters"]));
    put!(w, 0, "AllowVolumeExpansion:\t{}\n", bool_or_unset(&class["allowVolumeExpansion"]));
    if is_empty(&class["mountOptions"]) {
        w.write(0, "MountOptions:\t<none>\n");
    } else {
        w.write(0, "MountOptions:\n");
        for option in strings(&class["mountOptions"]) {
            put!(w, 1, "{option}\n");
        }
    }
    for (title, field) in [("ReclaimPolicy", "reclaimPolicy"), ("VolumeBindingMode", "volumeBindingMode")] {
        if !class[field].is_null() {
            put!(w, 0, "{title}:\t{}\n", text(&class[field]));
        }
    }
    let topologies = &class["allowedTopologies"];
    if topologies.is_array() {
        let none = if is_empty(topologies) { "<none>" } else { "" };
        put!(w, 0, "AllowedTopologies:\t{none}\n");
        for (i, term) in list(topologies).iter().enumerate() {
            let line = |requirement: &Value| expression(string(&requirement["key"]), "in", &requirement["values"]);
            term_lines(w, 1, i, list(&term["matchLabelExpressions"]).iter().map(line).collect());
        }
    }
    Ok(())
}

pub fn volume_attributes_class(w: &mut Writer, class: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(class));
    put!(w, 0, "Annotations:\t{}\n", format_labels(&class["metadata"]["annotations"]));
    put!(w, 0, "DriverName:\t{}\n", text(&class["driverName"]));
    put!(w, 0, "Parameters:\t{}\n", format_labels(&class["parameters"]));
    Ok(())
}

pub fn csi_node(w: &mut Writer, node: &Value, _: &Related, context: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(node));
    labels_and_annotations(w, node);
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&node["metadata"]["creationTimestamp"], &context.zone));
    w.write(0, "Spec:\n");
    let drivers = &node["spec"]["drivers"];
    if drivers.is_array() {
        w.write(1, "Drivers:\n");
    }
    for driver in list(drivers) {
        put!(w, 2, "{}:\n", text(&driver["name"]));
        put!(w, 3, "Node ID:\t{}\n", text(&driver["nodeID"]));
        if !driver["allocatable"]["count"].is_null() {
            w.write(3, "Allocatables:\n");
            put!(w, 4, "Count:\t{}\n", number(&driver["allocatable"]["count"]));
        }
        if driver["topologyKeys"].is_array() {
            put!(w, 3, "Topology Keys:\t{}\n", go_list(&driver["topologyKeys"]));
        }
    }
    Ok(())
}
