//! Why a Deployment, ReplicaSet, StatefulSet, DaemonSet or Job does not have what it wants.
//! Neighbours: `pods` explains the first pod that is not ready.
//! A controller's own refusal (quota, admission) comes before what its pods say.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, condition_line, namespace_flag, pods, with_reason};
use crate::{
    describe::fields::{condition, controller, list, name, namespace, number, selector_text, string, text, truth},
    object_reader::{ObjectReader, Query},
};

/// Refusal to make a pod, in words: quota, limit ranges, admission.
fn refusal(message: &str) -> String {
    let message = clause(message);
    let said = message.split_once("forbidden: ").map_or(message, |(_, said)| said);
    if message.contains("exceeded quota") {
        let quota = said.split_once("exceeded quota: ").map_or(said, |(_, quota)| quota);
        return format!("Its pods are not created because a quota is used up: {quota}.");
    }
    if message.contains("admission webhook") {
        return format!("Its pods are not created because an admission webhook refuses them: {message}.");
    }
    if message.contains("violates PodSecurity") {
        return format!("Its pods are not created because the namespace's Pod Security level refuses them: {said}.");
    }
    if message.contains("serviceaccount") && message.contains("not found") {
        return format!("Its pods are not created because their service account does not exist: {said}.");
    }
    format!("Its pods are not created: {said}.")
}

/// Pods that may not be made, with what helps against it.
fn refused_pods(owner: &Value, message: &str) -> Verdict {
    let verdict = Verdict::wrong("ReplicaFailure", refusal(message));
    let place = namespace_flag(owner);
    if message.contains("exceeded quota") || message.contains("failed quota") {
        return verdict.try_command(format!("kubectl describe quota{place}"));
    }
    let account = message.split_once("serviceaccount \"").and_then(|(_, rest)| rest.split('"').next());
    if let Some(account) = account.filter(|_| message.contains("not found")) {
        return verdict
            .try_command(format!("kubectl create serviceaccount {account}{place}"))
            .try_command(format!("kubectl get serviceaccounts{place}"));
    }
    if message.contains("violates PodSecurity") {
        return verdict.try_command(format!("kubectl get namespace {} --show-labels", namespace(owner)));
    }
    if message.contains("admission webhook") {
        return verdict.try_command("kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations");
    }
    let kind = string(&owner["kind"]).to_lowercase();
    verdict.try_command(format!("kubectl describe {kind} {}{place}", name(owner)))
}

fn unseen(object: &Value) -> Option<Verdict> {
    let (wanted, seen) = (number(&object["metadata"]["generation"]), number(&object["status"]["observedGeneration"]));
    (wanted > seen && !object["status"]["observedGeneration"].is_null()
        || object["status"].as_object().is_none_or(|s| s.is_empty()) && wanted > 0)
        .then(|| {
            Verdict::wrong(
                "NotObserved",
                "Its controller has not seen the last change; is the controller manager running?",
            )
            .because(format!("metadata.generation is {wanted}, status.observedGeneration is {seen}"))
            .try_command("kubectl get leases -n kube-system")
        })
}

pub async fn deployment<R: ObjectReader>(inquiry: &Inquiry<'_, R>, deployment: &Value) -> Verdict {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    if let Some(verdict) = unseen(deployment) {
        return verdict;
    }
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (updated, available) = (number(&status["updatedReplicas"]), number(&status["availableReplicas"]));
    let total = number(&status["replicas"]);
    if updated >= wanted && available >= wanted && total <= updated {
        return Verdict::fine(
            "Available",
            match wanted {
                1 => "Nothing is wrong: its replica is up to date and available.".to_string(),
                wanted => format!("Nothing is wrong: all {wanted} replicas are up to date and available."),
            },
        );
    }
    let progressing = condition(deployment, "Progressing");
    let failure = condition(deployment, "ReplicaFailure");
    let late = string(&progressing["reason"]) == "ProgressDeadlineExceeded";
    let mut verdict = if string(&failure["status"]) == "True" {
        refused_pods(deployment, string(&failure["message"])).because(condition_line(failure, inquiry.now))
    } else if truth(&spec["paused"]) {
        Verdict::wrong(
            "Paused",
            format!("It is paused, so its change is not rolled out: {updated} of {wanted} replicas are up to date."),
        )
        .try_command(format!(
            "kubectl rollout resume deployment/{}{}",
            name(deployment),
            namespace_flag(deployment)
        ))
    } else {
        from_pods(inquiry, deployment, wanted, available).await
    };
    let counts = format!("{wanted} wanted, {updated} up to date, {available} available, {total} in total");
    verdict = verdict.because(format!("replicas: {counts}"));
    if late {
        let seconds = text(&spec["progressDeadlineSeconds"]);
        verdict.cause.push_str(&format!(" It made no progress for longer than {seconds}s."));
        verdict = verdict.because(condition_line(progressing, inquiry.now)).try_command(format!(
            "kubectl rollout undo deployment/{}{}",
            name(deployment),
            namespace_flag(deployment)
        ));
    }
    verdict
}

/// The first pod of the newest replica set that is not available.
async fn from_pods<R: ObjectReader>(inquiry: &Inquiry<'_, R>, owner: &Value, wanted: i64, available: i64) -> Verdict {
    let selector = selector_text(&owner["spec"]["selector"]);
    let query = Query::list("v1", "pods", namespace(owner)).labels(selector);
    let mut pods = inquiry.reader.read(query).await.unwrap_or_default();
    pods.sort_by_key(|pod| std::cmp::Reverse(text(&pod["metadata"]["creationTimestamp"])));
    let not_ready = |pod: &&Value| {
        string(&condition(pod, "Ready")["status"]) != "True" && pod["metadata"]["deletionTimestamp"].is_null()
    };
    if let Some(pod) = pods.iter().find(not_ready) {
        let inner = Box::pin(pods::explain(inquiry, pod)).await;
        let behind = format!("{available} of {wanted} replicas are available. Pod {}: {}", name(pod), inner.cause);
        let reason = if inner.wrong { inner.reason } else { "Progressing".to_string() };
        let mut verdict = Verdict::wrong(&reason, behind);
        verdict.evidence = inner.evidence;
        verdict.commands = inner.commands;
        return verdict.try_command(format!("minke why pod/{}{}", name(pod), namespace_flag(owner)));
    }
    let leaving = pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).count();
    let cause = match (pods.is_empty(), leaving) {
        (true, _) => "It has no pods, and nothing says why none were made.".to_string(),
        (false, 0) => format!(
            "{available} of {wanted} replicas are available; the others are ready but not for minReadySeconds yet."
        ),
        (false, leaving) => {
            format!("{available} of {wanted} replicas are available; {leaving} old pods are still ending.")
        }
    };
    let events = inquiry.events(owner).await;
    Verdict::wrong("Progressing", cause).with_events(events.iter(), inquiry.now)
}

pub async fn pod_controller<R: ObjectReader>(inquiry: &Inquiry<'_, R>, owner: &Value) -> Verdict {
    let (spec, status) = (&owner["spec"], &owner["status"]);
    let (wanted, available) = match string(&owner["kind"]) {
        "DaemonSet" => (number(&status["desiredNumberScheduled"]), number(&status["numberAvailable"])),
        _ => (spec["replicas"].as_i64().unwrap_or(1), number(&status["availableReplicas"])),
    };
    if let Some(verdict) = unseen(owner) {
        return verdict;
    }
    if string(&owner["kind"]) == "DaemonSet" && wanted == 0 {
        let selector = crate::describe::fields::format_labels(&spec["template"]["spec"]["nodeSelector"]);
        return Verdict::fine("NoNodes", "No node fits it, so it wants no pods.")
            .because(format!("node selector of its template: {selector}"))
            .try_command("kubectl get nodes --show-labels");
    }
    if available >= wanted {
        return Verdict::fine(
            "Available",
            match wanted {
                1 => "Nothing is wrong: its pod is available.".to_string(),
                wanted => format!("Nothing is wrong: all {wanted} pods are available."),
            },
        );
    }
    let events = inquiry.events(owner).await;
    let refused = with_reason(&events, &["FailedCreate"]);
    let failure = condition(owner, "ReplicaFailure");
    let message = match (string(&failure["status"]), refused.first()) {
        ("True", _) => string(&failure["message"]),
        (_, Some(event)) if number(&status["replicas"]) < wanted => string(&event["message"]),
        _ => "",
    };
    if !message.is_empty() {
        return refused_pods(owner, message).with_events(refused, inquiry.now);
    }
    from_pods(inquiry, owner, wanted, available).await
}

pub async fn job<R: ObjectReader>(inquiry: &Inquiry<'_, R>, job: &Value) -> Verdict {
    let (spec, status) = (&job["spec"], &job["status"]);
    if string(&condition(job, "Complete")["status"]) == "True" {
        return Verdict::fine("Complete", "Nothing is wrong: it has completed.");
    }
    let events = inquiry.events(job).await;
    let failed = condition(job, "Failed");
    let selector = selector_text(&spec["selector"]);
    let query = Query::list("v1", "pods", namespace(job)).labels(selector);
    let pods = inquiry.reader.read(query).await.unwrap_or_default();
    let owned: Vec<&Value> =
        pods.iter().filter(|pod| controller(pod).is_some_and(|own| own["uid"] == job["metadata"]["uid"])).collect();
    let broken = owned.iter().find(|pod| string(&pod["status"]["phase"]) == "Failed");
    if string(&failed["status"]) == "True" {
        let mut verdict = Verdict::wrong("Failed", format!("It failed: {}.", clause(string(&failed["message"]))))
            .because(condition_line(failed, inquiry.now));
        if let Some(pod) = broken {
            let inner = Box::pin(pods::explain(inquiry, pod)).await;
            verdict.cause.push_str(&format!(" Pod {}: {}", name(pod), inner.cause));
            verdict.evidence.extend(inner.evidence);
            verdict.commands.extend(inner.commands);
        }
        return verdict;
    }
    if truth(&spec["suspend"]) {
        return Verdict::fine("Suspended", "It is suspended and makes no pods until it is resumed.").try_command(
            format!("kubectl patch job {}{} -p '{{\"spec\":{{\"suspend\":false}}}}'", name(job), namespace_flag(job)),
        );
    }
    let refused = with_reason(&events, &["FailedCreate"]);
    if let (Some(event), true) = (refused.first(), owned.is_empty()) {
        return refused_pods(job, string(&event["message"])).with_events(refused, inquiry.now);
    }
    let not_ready = owned.iter().find(|pod| string(&pod["status"]["phase"]) == "Pending").or(broken);
    if let Some(pod) = not_ready {
        let mut verdict = Box::pin(pods::explain(inquiry, pod)).await;
        verdict.cause = format!("Pod {}: {}", name(pod), verdict.cause);
        return verdict;
    }
    let (done, wanted) = (number(&status["succeeded"]), spec["completions"].as_i64().unwrap_or(1));
    Verdict::fine(
        "Running",
        format!("It runs: {done} of {wanted} completions are reached, {} pods are active.", list_count(&owned)),
    )
}

fn list_count(pods: &[&Value]) -> usize {
    pods.iter()
        .filter(|pod| list(&pod["status"]["containerStatuses"]).iter().any(|c| c["state"]["running"].is_object()))
        .count()
}
