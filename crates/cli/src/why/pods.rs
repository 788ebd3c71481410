//! Why a pod is not running, not ready, restarting, failed or evicted.
//! Neighbours: `pending` for pods that have not started, `containers` for what a container's status says.
//! The first thing that holds a pod up is named, in the order in which a pod passes them.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, condition_line, containers, namespace_flag, pending, with_reason};
use crate::{
    describe::fields::{condition, list, name, namespace, string, text},
    object_reader::{ObjectReader, Query},
};

/// How much of a log is shown.
const LOG_LINES: usize = 3;
const LOG_CHARACTERS_MAX: usize = 500;

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Verdict {
    let events = inquiry.events(pod).await;
    let mut verdict = match string(&pod["status"]["phase"]) {
        "Failed" => failed(inquiry, pod),
        "Succeeded" => Verdict::fine("Succeeded", "It ran to its end; all containers exited with 0."),
        "Running" => running(inquiry, pod, &events).await,
        _ => pending::explain(inquiry, pod, &events).await,
    };
    if ["CrashLoop", "OutOfMemory", "ContainerFailed", "ContainerEnded"].contains(&verdict.reason.as_str())
        && let Some(line) = last_words(inquiry, pod).await
    {
        verdict = verdict.because(line);
    }
    if verdict.wrong && !verdict.commands.iter().any(|command| command.starts_with("kubectl describe")) {
        return verdict.try_command(format!("kubectl describe pod {}{}", name(pod), namespace_flag(pod)));
    }
    verdict
}

/// The end of the log of a container that ended, if it can be read.
async fn last_words<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Option<String> {
    let (container, previous) = containers::ended_container(pod)?;
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/log?container={container}&previous={previous}&tailLines={LOG_LINES}",
        namespace(pod),
        name(pod)
    );
    let text = inquiry.reader.text(&path).await.ok()?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return None;
    }
    let shown: String = lines.join(" / ").chars().take(LOG_CHARACTERS_MAX).collect();
    Some(format!("the log of container {container} ended with: {shown}"))
}

fn failed<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Verdict {
    let status = &pod["status"];
    let (reason, message) = (string(&status["reason"]), clause(string(&status["message"])));
    let node = text(&pod["spec"]["nodeName"]);
    match reason {
        "Evicted" => Verdict::wrong("Evicted", format!("The kubelet of node {node} evicted it: {message}."))
            .because(format!("status.reason is Evicted: {message}"))
            .try_command(format!("kubectl describe node {node}"))
            .try_command(format!("kubectl delete pod {}{}", name(pod), namespace_flag(pod))),
        "DeadlineExceeded" => {
            let seconds = text(&pod["spec"]["activeDeadlineSeconds"]);
            Verdict::wrong(
                "DeadlineExceeded",
                format!("It ran longer than its activeDeadlineSeconds of {seconds} and was ended."),
            )
            .because(format!("status.reason is {reason}: {message}"))
        }
        "Preempting" | "Preempted" => {
            Verdict::wrong("Preempted", format!("It made room for a pod of higher priority: {message}."))
        }
        "" => match containers::failed(inquiry, pod) {
            Some(verdict) => verdict,
            None => Verdict::wrong("Failed", "It failed, and neither the pod nor its containers say why."),
        },
        reason => Verdict::wrong(reason, format!("The kubelet of node {node} ended it ({reason}): {message}."))
            .because(format!("status.reason is {reason}: {message}")),
    }
}

async fn running<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Verdict {
    if let Some(verdict) = silent_node(inquiry, pod).await {
        return verdict;
    }
    if let Some(verdict) = containers::not_running(inquiry, pod, events) {
        return verdict;
    }
    if let Some(verdict) = containers::not_ready(inquiry, pod, events) {
        return verdict;
    }
    for gate in list(&pod["spec"]["readinessGates"]) {
        let kind = string(&gate["conditionType"]);
        let found = condition(pod, kind);
        if string(&found["status"]) != "True" {
            let cause = format!(
                "Its containers are ready, but the readiness gate {kind} is not: whoever sets that condition has not set it to True."
            );
            let evidence = match found {
                Value::Null => format!("the pod has no condition {kind}"),
                found => condition_line(found, inquiry.now),
            };
            return Verdict::wrong("ReadinessGate", cause).because(evidence);
        }
    }
    let ready = condition(pod, "Ready");
    if string(&ready["status"]) != "True" && !ready.is_null() {
        return Verdict::wrong("NotReady", "It runs but is not ready.").because(condition_line(ready, inquiry.now));
    }
    containers::restarted(inquiry, pod, events)
}

/// A node that no longer reports says nothing about its pods.
pub async fn silent_node<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Option<Verdict> {
    let node_name = string(&pod["spec"]["nodeName"]);
    if node_name.is_empty() {
        return None;
    }
    let Ok(nodes) = inquiry.reader.read(Query::get("v1", "nodes", "", node_name)).await else {
        return None;
    };
    let ready = condition(nodes.first()?, "Ready");
    (string(&ready["status"]) == "Unknown").then(|| {
        let since = inquiry.ago(&ready["lastTransitionTime"]);
        Verdict::wrong(
            "NodeSilent",
            format!("Its node {node_name} stopped reporting {since}, so what the pod does is not known."),
        )
        .because(condition_line(ready, inquiry.now))
        .try_command(format!("minke why node/{node_name}"))
    })
}

/// Warnings that keep a pod from starting, newest first.
pub fn start_warnings(events: &[Value]) -> Vec<&Value> {
    with_reason(
        events,
        &["FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "NetworkNotReady"],
    )
}
