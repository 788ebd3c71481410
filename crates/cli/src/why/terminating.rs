//! Why an object that was deleted is still there.
//! Neighbours: `namespaces` has namespaces; the graceful end of a pod is here.
//! A finalizer is named with whoever set it, as managed fields tell.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, event_line, listed, namespace_flag, pods::silent_node, with_reason};
use crate::{
    describe::{
        fields::{list, name, namespace, number, string, strings, text, timestamp},
        sections::event_time,
    },
    object_reader::{ObjectReader, Query},
};

/// Finalizers of Kubernetes itself and what takes them away.
const KNOWN: &[(&str, &str)] = &[
    ("kubernetes.io/pvc-protection", "a pod still uses the claim"),
    ("kubernetes.io/pv-protection", "a claim is still bound to the volume"),
    ("foregroundDeletion", "its dependents are deleted first"),
    ("orphan", "the garbage collector first releases its dependents"),
    ("batch.kubernetes.io/job-tracking", "the Job controller has not counted the pod yet"),
    ("service.kubernetes.io/load-balancer-cleanup", "the cloud's load balancer is not removed yet"),
    ("customresourcecleanup.apiextensions.k8s.io", "its custom resources are deleted first"),
];

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, object: &Value) -> Verdict {
    if string(&object["kind"]) == "Pod"
        && let Some(verdict) = pod(inquiry, object).await
    {
        return verdict;
    }
    let finalizers = strings(&object["metadata"]["finalizers"]);
    let asked = inquiry.ago(&object["metadata"]["deletionTimestamp"]);
    if finalizers.is_empty() {
        return Verdict::fine(
            "Terminating",
            format!("It was deleted {asked} and is about to go: no finalizer holds it."),
        );
    }
    let users = claim_users(inquiry, object).await;
    finalizers_verdict(inquiry, object, &finalizers, users)
}

fn finalizers_verdict<R: ObjectReader>(
    inquiry: &Inquiry<'_, R>,
    object: &Value,
    finalizers: &[&str],
    users: Vec<String>,
) -> Verdict {
    let asked = inquiry.ago(&object["metadata"]["deletionTimestamp"]);
    let described: Vec<String> = finalizers
        .iter()
        .map(|finalizer| match KNOWN.iter().find(|(own, _)| own == finalizer) {
            Some((_, meaning)) => format!("{finalizer} ({meaning})"),
            None => finalizer.to_string(),
        })
        .collect();
    let noun = if finalizers.len() == 1 { "the finalizer" } else { "the finalizers" };
    let mut cause = format!("It was deleted {asked} and waits for {noun} {}.", listed(&described));
    if !users.is_empty() {
        cause.push_str(&format!(" It is used by {}.", listed(&users)));
    }
    let mut verdict = Verdict::wrong("Finalizers", cause);
    for finalizer in finalizers {
        verdict = verdict.because(match setter(object, finalizer) {
            Some((manager, time)) => format!("finalizer {finalizer} was set by {manager}, {}", inquiry.ago(&time)),
            None => format!("finalizer {finalizer}: managed fields do not say who set it"),
        });
    }
    let kind = string(&object["kind"]).to_lowercase();
    verdict = verdict.try_command(format!(
        "kubectl get {kind} {}{} -o yaml --show-managed-fields",
        name(object),
        namespace_flag(object)
    ));
    let unknown = finalizers.iter().all(|finalizer| KNOWN.iter().all(|(own, _)| own != finalizer));
    if unknown {
        // For when whoever set it is gone for good.
        verdict = verdict.try_command(format!(
            "kubectl patch {kind} {}{} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'",
            name(object),
            namespace_flag(object)
        ));
    }
    for user in users {
        verdict = verdict.try_command(format!("kubectl describe {user}{}", namespace_flag(object)));
    }
    verdict
}

/// The manager whose fields hold the finalizer, and when it wrote last.
fn setter(object: &Value, finalizer: &str) -> Option<(String, Value)> {
    let key = format!("v:\"{finalizer}\"");
    let entry = list(&object["metadata"]["managedFields"])
        .iter()
        .find(|entry| entry["fieldsV1"]["f:metadata"]["f:finalizers"].get(&key).is_some())?;
    Some((text(&entry["manager"]), entry["time"].clone()))
}

async fn claim_users<R: ObjectReader>(inquiry: &Inquiry<'_, R>, object: &Value) -> Vec<String> {
    if string(&object["kind"]) != "PersistentVolumeClaim" {
        return Vec::new();
    }
    let pods = inquiry.reader.read(Query::list("v1", "pods", namespace(object))).await.unwrap_or_default();
    let uses = |pod: &&Value| {
        let ended = ["Succeeded", "Failed"].contains(&string(&pod["status"]["phase"]));
        let named = |volume: &Value| string(&volume["persistentVolumeClaim"]["claimName"]) == name(object);
        !ended && list(&pod["spec"]["volumes"]).iter().any(named)
    };
    pods.iter().filter(uses).map(|pod| format!("pod/{}", name(pod))).collect()
}

/// A pod within its grace period, or one that is held beyond it.
async fn pod<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Option<Verdict> {
    let meta = &pod["metadata"];
    let grace = number(&meta["deletionGracePeriodSeconds"]);
    // The timestamp is the moment at which the grace period ends.
    let left = timestamp(&meta["deletionTimestamp"])?.as_second() - inquiry.now.as_second();
    if let Some(mut verdict) = silent_node(inquiry, pod).await {
        let node = text(&pod["spec"]["nodeName"]);
        verdict.cause = format!(
            "It is deleted, but its node {node} does not report, so nobody confirms that its containers have ended."
        );
        verdict = verdict.because(format!("spec.nodeName: {node}"));
        return Some(verdict.try_command(format!(
            "kubectl delete pod {}{} --force --grace-period=0",
            name(pod),
            namespace_flag(pod)
        )));
    }
    let running: Vec<String> = list(&pod["status"]["containerStatuses"])
        .iter()
        .filter(|status| status["state"]["running"].is_object())
        .map(|status| text(&status["name"]))
        .collect();
    let events = inquiry.events(pod).await;
    if running.is_empty() {
        return volume_in_use(pod, &events, inquiry);
    }
    let hooks: Vec<String> = list(&pod["spec"]["containers"])
        .iter()
        .filter(|container| container["lifecycle"]["preStop"].is_object())
        .map(|container| text(&container["name"]))
        .collect();
    let noun = if running.len() == 1 { "container" } else { "containers" };
    let hook =
        if hooks.is_empty() { String::new() } else { format!(" (preStop hook of {} runs first)", listed(&hooks)) };
    let mut verdict = if left >= 0 {
        let cause = format!(
            "It is ending: {noun} {} may take {left}s more of the grace period of {grace}s{hook}.",
            listed(&running)
        );
        Verdict::fine("GracePeriod", cause)
    } else {
        let late = api::printing::human_duration(-left);
        let cause = format!(
            "Its grace period of {grace}s ended {late} ago, and {noun} {} still runs: the node could not end it.",
            listed(&running)
        );
        Verdict::wrong("GracePeriodOver", cause)
    };
    let killing = with_reason(
        &events,
        &["Killing", "FailedKillPod", "FailedPreStopHook", "ExceededGracePeriod", "FailedUnmount"],
    );
    let killing = killing.into_iter().filter(|event| event_time(event).is_some());
    verdict.evidence.extend(killing.take(3).map(|event| event_line(event, inquiry.now)));
    Some(verdict.try_command(format!("kubectl logs {}{}", name(pod), namespace_flag(pod))))
}

/// The containers have ended; a node unmounts a pod's volumes before it lets go of the pod.
fn volume_in_use<R: ObjectReader>(pod: &Value, events: &[Value], inquiry: &Inquiry<'_, R>) -> Option<Verdict> {
    let failed = with_reason(events, &["FailedUnmount", "FailedUnMount", "FailedUnmapDevice"]);
    let why = clause(string(&failed.first()?["message"]));
    let cause = format!("Its containers have ended, but its node cannot unmount a volume of it: {why}.");
    let node = text(&pod["spec"]["nodeName"]);
    Some(
        Verdict::wrong("VolumeInUse", cause)
            .with_events(failed, inquiry.now)
            .try_command(format!("minke why node/{node}")),
    )
}
