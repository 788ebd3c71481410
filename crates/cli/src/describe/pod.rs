//! Describes a Pod.
//! Neighbours: `containers`, `volumes` and the parts that `sections` shares.
//! Reads nothing but the pod and its events.

use serde_json::Value;

use super::{
    Context, Related,
    containers::{self, containers, resources},
    fields::{format_selector, list, number, rfc1123, since, string, text},
    is_empty,
    sections::{condition_status, controlled_by, labels, labels_and_annotations, name_and_namespace, tolerations},
    volumes::volumes,
    writer::{Writer, put},
};

pub fn describe(w: &mut Writer, pod: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    head(w, pod, context);
    if spec["resources"].is_object() {
        w.write(0, "Resources:\n");
        resources(w, &spec["resources"], 1);
    }
    if !is_empty(&spec["initContainers"]) {
        containers(
            w,
            "Init Containers",
            &spec["initContainers"],
            Some((pod, &status["initContainerStatuses"])),
            "",
            context,
        );
    }
    containers(w, "Containers", &spec["containers"], Some((pod, &status["containerStatuses"])), "", context);
    if !is_empty(&spec["ephemeralContainers"]) {
        let statuses = &status["ephemeralContainerStatuses"];
        containers(w, "Ephemeral Containers", &spec["ephemeralContainers"], Some((pod, statuses)), "", context);
    }
    if !is_empty(&spec["readinessGates"]) {
        w.write(0, "Readiness Gates:\n  Type\tStatus\n");
        for gate in list(&spec["readinessGates"]) {
            let kind = string(&gate["conditionType"]);
            put!(w, 1, "{kind} \t{} \n", condition_status(pod, kind));
        }
    }
    if !is_empty(&status["conditions"]) {
        w.write(0, "Conditions:\n  Type\tStatus\n");
        for condition in list(&status["conditions"]) {
            put!(w, 1, "{} \t{} \n", text(&condition["type"]), text(&condition["status"]));
        }
    }
    volumes(w, &spec["volumes"], "");
    let qos = match string(&status["qosClass"]) {
        "" => api::pod_resources::qos::qos_class_of_value(spec).as_str(),
        class => class,
    };
    put!(w, 0, "QoS Class:\t{qos}\n");
    labels(w, "Node-Selectors", &spec["nodeSelector"]);
    tolerations(w, "Tolerations", &spec["tolerations"]);
    topology_spread_constraints(w, &spec["topologySpreadConstraints"], "");
    workload_reference(w, &spec["workloadRef"], "");
    Ok(())
}

fn head(w: &mut Writer, pod: &Value, context: &Context) {
    let (meta, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    name_and_namespace(w, pod);
    if !spec["priority"].is_null() {
        put!(w, 0, "Priority:\t{}\n", number(&spec["priority"]));
    }
    let optional = [
        ("Priority Class Name", &spec["priorityClassName"]),
        ("Runtime Class Name", &spec["runtimeClassName"]),
        ("Service Account", &spec["serviceAccountName"]),
    ];
    for (title, value) in optional {
        if !string(value).is_empty() {
            put!(w, 0, "{title}:\t{}\n", string(value));
        }
    }
    match string(&spec["nodeName"]) {
        "" => w.write(0, "Node:\t<none>\n"),
        node => put!(w, 0, "Node:\t{node}/{}\n", text(&status["hostIP"])),
    }
    if !status["startTime"].is_null() {
        put!(w, 0, "Start Time:\t{}\n", rfc1123(&status["startTime"], &context.zone));
    }
    labels_and_annotations(w, pod);
    let phase = string(&status["phase"]);
    if !meta["deletionTimestamp"].is_null() && phase != "Failed" && phase != "Succeeded" {
        put!(w, 0, "Status:\tTerminating (lasts {})\n", since(&meta["deletionTimestamp"], context.now));
        put!(w, 0, "Termination Grace Period:\t{}s\n", number(&meta["deletionGracePeriodSeconds"]));
    } else {
        put!(w, 0, "Status:\t{phase}\n");
    }
    for (title, value) in [("Reason", &status["reason"]), ("Message", &status["message"])] {
        if !string(value).is_empty() {
            put!(w, 0, "{title}:\t{}\n", string(value));
        }
    }
    containers::seccomp_profile(w, &spec["securityContext"], 0, 0);
    put!(w, 0, "IP:\t{}\n", text(&status["podIP"]));
    if is_empty(&status["podIPs"]) {
        w.write(0, "IPs:\t<none>\n");
    } else {
        w.write(0, "IPs:\n");
        for ip in list(&status["podIPs"]) {
            put!(w, 1, "IP:\t{}\n", text(&ip["ip"]));
        }
    }
    controlled_by(w, pod);
    if !string(&status["nominatedNodeName"]).is_empty() {
        put!(w, 0, "NominatedNodeName:\t{}\n", string(&status["nominatedNodeName"]));
    }
}

fn topology_spread_constraints(w: &mut Writer, constraints: &Value, space: &str) {
    let mut sorted: Vec<&Value> = list(constraints).iter().collect();
    if sorted.is_empty() {
        return;
    }
    sorted.sort_by_key(|constraint| string(&constraint["topologyKey"]));
    put!(w, 0, "{space}Topology Spread Constraints:\t");
    for (i, constraint) in sorted.into_iter().enumerate() {
        if i > 0 {
            put!(w, 0, "{space}\t");
        }
        let (key, action) = (string(&constraint["topologyKey"]), string(&constraint["whenUnsatisfiable"]));
        put!(w, 0, "{key}:{action} when max skew {} is exceeded", number(&constraint["maxSkew"]));
        if constraint["labelSelector"].is_object() {
            put!(w, 0, " for selector {}", format_selector(&constraint["labelSelector"]));
        }
        w.write(0, "\n");
    }
}

fn workload_reference(w: &mut Writer, reference: &Value, space: &str) {
    if !reference.is_object() {
        return;
    }
    put!(w, 0, "{space}WorkloadRef:\n");
    put!(w, 1, "Name:\t{}\n", text(&reference["name"]));
    put!(w, 1, "PodGroup:\t{}\n", text(&reference["podGroup"]));
    if !string(&reference["podGroupReplicaKey"]).is_empty() {
        put!(w, 1, "PodGroupReplicaKey:\t{}\n", string(&reference["podGroupReplicaKey"]));
    }
}

/// The template of a controller.
pub fn template(w: &mut Writer, template: &Value, context: &Context) {
    w.write(0, "Pod Template:\n");
    if template.is_null() {
        w.write(1, "<unset>");
        return;
    }
    let (meta, spec) = (&template["metadata"], &template["spec"]);
    labels(w, "  Labels", &meta["labels"]);
    if meta["annotations"].as_object().is_some_and(|annotations| !annotations.is_empty()) {
        super::sections::annotations(w, "  Annotations", &meta["annotations"]);
    }
    if !string(&spec["serviceAccountName"]).is_empty() {
        put!(w, 1, "Service Account:\t{}\n", string(&spec["serviceAccountName"]));
    }
    if !is_empty(&spec["initContainers"]) {
        containers(w, "Init Containers", &spec["initContainers"], None, "  ", context);
    }
    containers(w, "Containers", &spec["containers"], None, "  ", context);
    volumes(w, &spec["volumes"], "  ");
    topology_spread_constraints(w, &spec["topologySpreadConstraints"], "  ");
    if !string(&spec["priorityClassName"]).is_empty() {
        put!(w, 1, "Priority Class Name:\t{}\n", string(&spec["priorityClassName"]));
    }
    labels(w, "  Node-Selectors", &spec["nodeSelector"]);
    tolerations(w, "  Tolerations", &spec["tolerations"]);
    workload_reference(w, &spec["workloadRef"], "  ");
}
