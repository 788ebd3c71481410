//! Describes Deployments, ReplicaSets, ReplicationControllers, StatefulSets and DaemonSets.
//! Neighbours: `pod::template`; `jobs` has Jobs and CronJobs.
//! Pods are counted only if the object controls them.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{
        format_labels, format_selector, list, members, name, namespace, number, quantity, rfc1123, selector_text,
        string, text,
    },
    is_empty, pod, pod_phases,
    sections::{conditions_with_reason, controlled_by, indented_labels, labels_and_annotations, name_and_namespace},
    volumes::storage_class,
    writer::{Writer, put},
};
use crate::object_reader::Query;

pub fn pods_of_selector(object: &Value) -> Vec<Query> {
    vec![Query::list("v1", "pods", namespace(object)).labels(selector_text(&object["spec"]["selector"]))]
}

pub fn pods_of_labels(controller: &Value) -> Vec<Query> {
    let selector: Vec<String> =
        members(&controller["spec"]["selector"]).map(|(key, value)| format!("{key}={}", text(value))).collect();
    vec![Query::list("v1", "pods", namespace(controller)).labels(selector.join(","))]
}

pub fn replica_sets(deployment: &Value) -> Vec<Query> {
    let selector = selector_text(&deployment["spec"]["selector"]);
    vec![Query::list("apps/v1", "replicasets", namespace(deployment)).labels(selector)]
}

fn pods_status(w: &mut Writer, object: &Value, related: &Related) -> Result<(), String> {
    w.write(0, "Pods Status:\t");
    if let Some(Err(error)) = related.answers.first() {
        if string(&object["kind"]) != "ReplicaSet" {
            return Err(error.clone());
        }
        put!(w, 0, "error in fetching pods: {error}\n");
        return Ok(());
    }
    let uid = string(&object["metadata"]["uid"]);
    let [running, waiting, succeeded, failed] = pod_phases(related.objects(0), uid);
    put!(w, 0, "{running} Running / {waiting} Waiting / {succeeded} Succeeded / {failed} Failed\n");
    Ok(())
}

fn replicas(object: &Value) -> (i64, i64) {
    (number(&object["status"]["replicas"]), object["spec"]["replicas"].as_i64().unwrap_or(1))
}

pub fn replication_controller(
    w: &mut Writer,
    controller: &Value,
    related: &Related,
    context: &Context,
) -> Result<(), String> {
    name_and_namespace(w, controller);
    put!(w, 0, "Selector:\t{}\n", format_labels(&controller["spec"]["selector"]));
    labels_and_annotations(w, controller);
    let (current, desired) = replicas(controller);
    put!(w, 0, "Replicas:\t{current} current / {desired} desired\n");
    pods_status(w, controller, related)?;
    pod::template(w, &controller["spec"]["template"], context);
    conditions_with_reason(w, controller);
    Ok(())
}

pub fn replica_set(w: &mut Writer, set: &Value, related: &Related, context: &Context) -> Result<(), String> {
    name_and_namespace(w, set);
    put!(w, 0, "Selector:\t{}\n", format_selector(&set["spec"]["selector"]));
    labels_and_annotations(w, set);
    controlled_by(w, set);
    let (current, desired) = replicas(set);
    put!(w, 0, "Replicas:\t{current} current / {desired} desired\n");
    pods_status(w, set, related)?;
    pod::template(w, &set["spec"]["template"], context);
    conditions_with_reason(w, set);
    Ok(())
}

pub fn daemon_set(w: &mut Writer, daemon: &Value, related: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&daemon["spec"], &daemon["status"]);
    name_and_namespace(w, daemon);
    put!(w, 0, "Selector:\t{}\n", selector_text(&spec["selector"]));
    put!(w, 0, "Node-Selector:\t{}\n", format_labels(&spec["template"]["spec"]["nodeSelector"]));
    labels_and_annotations(w, daemon);
    let counts = [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ];
    for (title, field) in counts {
        put!(w, 0, "{title}: {}\n", number(&status[field]));
    }
    pods_status(w, daemon, related)?;
    pod::template(w, &spec["template"], context);
    Ok(())
}

pub fn stateful_set(w: &mut Writer, set: &Value, related: &Related, context: &Context) -> Result<(), String> {
    let spec = &set["spec"];
    name_and_namespace(w, set);
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&set["metadata"]["creationTimestamp"], &context.zone));
    put!(w, 0, "Selector:\t{}\n", selector_text(&spec["selector"]));
    labels_and_annotations(w, set);
    let (total, desired) = replicas(set);
    put!(w, 0, "Replicas:\t{desired} desired | {total} total\n");
    put!(w, 0, "Update Strategy:\t{}\n", text(&spec["updateStrategy"]["type"]));
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    if !rolling["partition"].is_null() {
        put!(w, 1, "Partition:\t{}\n", number(&rolling["partition"]));
        if !rolling["maxUnavailable"].is_null() {
            put!(w, 1, "MaxUnavailable:\t{}\n", text(&rolling["maxUnavailable"]));
        }
    }
    pods_status(w, set, related)?;
    pod::template(w, &spec["template"], context);
    volume_claim_templates(w, &spec["volumeClaimTemplates"]);
    Ok(())
}

fn volume_claim_templates(w: &mut Writer, templates: &Value) {
    if is_empty(templates) {
        w.write(0, "Volume Claims:\t<none>\n");
        return;
    }
    w.write(0, "Volume Claims:\n");
    for claim in list(templates) {
        put!(w, 1, "Name:\t{}\n", name(claim));
        put!(w, 1, "StorageClass:\t{}\n", storage_class(claim));
        indented_labels(w, "  ", "Labels", &claim["metadata"]["labels"]);
        indented_labels(w, "  ", "Annotations", &claim["metadata"]["annotations"]);
        let storage = &claim["spec"]["resources"]["requests"]["storage"];
        let capacity = if storage.is_null() { "<default>".to_string() } else { quantity(storage) };
        put!(w, 1, "Capacity:\t{capacity}\n");
        put!(w, 1, "Access Modes:\t{}\n", super::fields::go_list(&claim["spec"]["accessModes"]));
    }
}

pub fn deployment(w: &mut Writer, deployment: &Value, related: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    name_and_namespace(w, deployment);
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&deployment["metadata"]["creationTimestamp"], &context.zone));
    labels_and_annotations(w, deployment);
    put!(w, 0, "Selector:\t{}\n", selector_text(&spec["selector"]));
    let (total, desired) = replicas(deployment);
    let count = |field: &str| number(&status[field]);
    put!(
        w,
        0,
        "Replicas:\t{desired} desired | {} updated | {total} total | {} available | {} unavailable\n",
        count("updatedReplicas"),
        count("availableReplicas"),
        count("unavailableReplicas")
    );
    put!(w, 0, "StrategyType:\t{}\n", text(&spec["strategy"]["type"]));
    put!(w, 0, "MinReadySeconds:\t{}\n", number(&spec["minReadySeconds"]));
    let rolling = &spec["strategy"]["rollingUpdate"];
    if rolling.is_object() {
        let (unavailable, surge) = (text(&rolling["maxUnavailable"]), text(&rolling["maxSurge"]));
        put!(w, 0, "RollingUpdateStrategy:\t{unavailable} max unavailable, {surge} max surge\n");
    }
    pod::template(w, &spec["template"], context);
    conditions_with_reason(w, deployment);
    let (old, new) = old_and_new(deployment, related.objects(0));
    if !old.is_empty() || new.is_some() {
        put!(w, 0, "OldReplicaSets:\t{}\n", replica_set_texts(&old));
        put!(w, 0, "NewReplicaSet:\t{}\n", replica_set_texts(new.as_slice()));
    }
    Ok(())
}

fn replica_set_texts(sets: &[&Value]) -> String {
    let texts: Vec<String> = sets
        .iter()
        .map(|set| {
            let (created, desired) = replicas(set);
            format!("{} ({created}/{desired} replicas created)", name(set))
        })
        .collect();
    if texts.is_empty() { "<none>".to_string() } else { texts.join(", ") }
}

/// A deployment's replica sets, oldest first: all but the one with its template, and that one.
fn old_and_new<'a>(deployment: &Value, sets: &'a [Value]) -> (Vec<&'a Value>, Option<&'a Value>) {
    let uid = string(&deployment["metadata"]["uid"]);
    let owned = |set: &&Value| super::fields::controller(set).is_some_and(|owner| string(&owner["uid"]) == uid);
    let mut owned: Vec<&Value> = sets.iter().filter(owned).collect();
    owned.sort_by_key(|set| (string(&set["metadata"]["creationTimestamp"]), name(set)));
    let wanted = comparable_template(&deployment["spec"]["template"]);
    let new = owned.iter().position(|set| comparable_template(&set["spec"]["template"]) == wanted);
    let new = new.map(|at| owned.remove(at));
    (owned, new)
}

/// A template without what the deployment controller adds to it.
fn comparable_template(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove("pod-template-hash");
    }
    if let Some(meta) = template["metadata"].as_object_mut() {
        meta.remove("creationTimestamp");
    }
    template
}
