//! Why a pod has not started: gates, the scheduler's verdict, claims, volumes, network, images.
//! Neighbours: `containers` reads waiting reasons; `claims` explains an unbound claim.
//! What comes first on a pod's way is asked first.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Inquiry, Verdict, claims, clause, condition_line, containers, listed, namespace_flag,
    pods::{silent_node, start_warnings},
    with_reason,
};
use crate::{
    describe::fields::{condition, list, members, name, namespace, string, strings, text},
    object_reader::{ObjectReader, Query},
};

/// A pod that nobody looked at for this long has no scheduler.
const UNSEEN_SECONDS: i64 = 5;

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Verdict {
    if string(&pod["spec"]["nodeName"]).is_empty() {
        return unscheduled(inquiry, pod, events).await;
    }
    if let Some(verdict) = containers::not_running(inquiry, pod, events) {
        return verdict;
    }
    let warnings = start_warnings(events);
    if let Some(first) = warnings.first() {
        return start_failure(inquiry, pod, first).with_events(warnings.iter().copied(), inquiry.now);
    }
    if let Some(verdict) = silent_node(inquiry, pod).await {
        return verdict;
    }
    let node = text(&pod["spec"]["nodeName"]);
    let scheduled = condition(pod, "PodScheduled");
    let age = inquiry.ago(&scheduled["lastTransitionTime"]);
    if let Some(container) = containers::running_init_container(pod) {
        let started = inquiry.ago(&container["state"]["running"]["startedAt"]);
        let container = text(&container["name"]);
        return Verdict::fine(
            "Initializing",
            format!("Its init container {container} runs since {started}; the others wait for it."),
        )
        .try_command(format!("kubectl logs {}{} -c {container} -f", name(pod), namespace_flag(pod)));
    }
    Verdict::fine(
        "Starting",
        format!("It was given to node {node} {age} and is being started; nothing has failed so far."),
    )
    .with_events(with_reason(events, &["Pulling", "Pulled", "Scheduled"]), inquiry.now)
}

/// Volumes and network, by what the kubelet said last.
fn start_failure<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, event: &Value) -> Verdict {
    let (node, message) = (text(&pod["spec"]["nodeName"]), clause(string(&event["message"])));
    match string(&event["reason"]) {
        "FailedMount" | "FailedMapVolume" => {
            let missing = ["configmap", "secret", "persistentvolumeclaim"]
                .into_iter()
                .find(|kind| message.contains(&format!("{kind} \"")) && message.contains("not found"));
            let named = missing
                .and_then(|kind| message.split(&format!("{kind} \"")).nth(1)?.split('"').next().map(|n| (kind, n)));
            match named {
                Some((kind, object)) => {
                    let object = object.rsplit('/').next().unwrap_or(object);
                    Verdict::wrong(
                        "MountFailed",
                        format!("A volume needs the {kind} {object}, and there is none of that name in the namespace."),
                    )
                    .try_command(format!("kubectl get {kind}{}", namespace_flag(pod)))
                }
                None => Verdict::wrong("MountFailed", format!("A volume cannot be mounted on node {node}: {message}.")),
            }
        }
        "FailedAttachVolume" => {
            Verdict::wrong("AttachFailed", format!("A volume cannot be attached to node {node}: {message}."))
                .try_command("kubectl get volumeattachments")
        }
        "NetworkNotReady" => {
            Verdict::wrong("NetworkNotReady", format!("The network of node {node} is not ready: {message}."))
                .try_command(format!("minke why node/{node}"))
        }
        _ => {
            let age = inquiry.ago(&pod["status"]["startTime"]);
            Verdict::wrong(
                "SandboxFailed",
                format!("Node {node} cannot make the pod's sandbox (network and cgroup) since {age}: {message}."),
            )
            .try_command(format!("minke why node/{node}"))
        }
    }
}

async fn unscheduled<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Verdict {
    let gates: Vec<String> = list(&pod["spec"]["schedulingGates"]).iter().map(|gate| text(&gate["name"])).collect();
    if !gates.is_empty() {
        let noun = if gates.len() == 1 { "gate" } else { "gates" };
        let cause = format!(
            "The scheduler leaves it alone until its scheduling {noun} {} is removed by whoever set it.",
            listed(&gates)
        );
        return Verdict::wrong("SchedulingGated", cause)
            .because(format!("spec.schedulingGates: {}", gates.join(", ")))
            .try_command(format!(
                "kubectl get pod {}{} -o yaml --show-managed-fields",
                name(pod),
                namespace_flag(pod)
            ));
    }
    if let Some(verdict) = unbound_claim(inquiry, pod).await {
        return verdict;
    }
    let scheduled = condition(pod, "PodScheduled");
    let failures = with_reason(events, &["FailedScheduling"]);
    let path = format!("/debug/scheduling/{}/{}", namespace(pod), name(pod));
    if let Ok(verdict) = inquiry.reader.raw(&path).await
        && members(&verdict["nodes"]).next().is_some()
    {
        return from_verdict(inquiry, pod, &verdict);
    }
    let message = match string(&scheduled["message"]) {
        "" => failures.first().map_or("", |event| string(&event["message"])),
        message => message,
    };
    if !message.is_empty() {
        let mut verdict = Verdict::wrong("Unschedulable", unschedulable_cause(message));
        if !scheduled.is_null() {
            verdict = verdict.because(condition_line(scheduled, inquiry.now));
        }
        return with_advice(verdict, pod, message).with_events(failures.into_iter().take(1), inquiry.now);
    }
    let scheduler = match string(&pod["spec"]["schedulerName"]) {
        "" => "default-scheduler",
        scheduler => scheduler,
    };
    match inquiry.seconds_since(&pod["metadata"]["creationTimestamp"]) {
        Some(seconds) if seconds < UNSEEN_SECONDS => {
            Verdict::fine("Starting", "It was created just now; the scheduler has not decided yet.")
        }
        _ => Verdict::wrong(
            "NoScheduler",
            format!(
                "No scheduler has looked at it. It asks for the scheduler {scheduler}: is one of that name running?"
            ),
        )
        .because("the pod has no node, no condition PodScheduled and no event of a scheduler")
        .try_command("kubectl get leases -n kube-system"),
    }
}

/// The scheduler's verdict by node, as our API server publishes it.
fn from_verdict<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, verdict: &Value) -> Verdict {
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (node, refusal) in members(&verdict["nodes"]) {
        let reasons = strings(&refusal["reasons"]).join(", ");
        let reason = if reasons.is_empty() { text(&refusal["plugin"]) } else { reasons };
        by_reason.entry(reason).or_default().push(node);
    }
    let total: usize = by_reason.values().map(Vec::len).sum();
    let parts: Vec<String> =
        by_reason.iter().map(|(reason, nodes)| format!("{} {}", nodes.len(), lower(reason))).collect();
    let noun = if total == 1 { "The one node cannot" } else { "None of the nodes can" };
    let cause = match by_reason.len() {
        1 => format!("{noun} take it: {}.", lower(by_reason.keys().next().map_or("", String::as_str))),
        _ => format!("{noun} take it: of {total} nodes, {}.", parts.join(", ")),
    };
    let mut answer = Verdict::wrong("Unschedulable", cause);
    for (reason, nodes) in &by_reason {
        let plugin = text(&verdict["nodes"][nodes[0]]["plugin"]);
        answer = answer.because(format!("{plugin}: {reason}: {}", nodes.join(", ")));
    }
    let scheduled = condition(pod, "PodScheduled");
    if !scheduled.is_null() {
        answer = answer.because(condition_line(scheduled, inquiry.now));
    }
    let reasons = by_reason.into_keys().collect::<Vec<_>>().join(", ");
    with_advice(answer, pod, &reasons)
}

fn lower(reason: &str) -> String {
    let mut chars = reason.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().to_string() + chars.as_str())
}

/// The part of `0/3 nodes are available: …` that names reasons, without what preemption found.
fn unschedulable_cause(message: &str) -> String {
    let message = message.split(" preemption: ").next().unwrap_or(message);
    let Some((count, reasons)) = message.split_once(" nodes are available: ") else {
        return format!("The scheduler cannot place it: {}.", clause(message));
    };
    let total = count.rsplit('/').next().unwrap_or("0");
    format!("None of the {total} nodes can take it: {}.", clause(reasons))
}

/// The command that helps against the reason.
fn with_advice(verdict: Verdict, pod: &Value, reasons: &str) -> Verdict {
    let requests = || {
        let containers = list(&pod["spec"]["containers"]).iter();
        let of_container = |container: &Value| {
            members(&container["resources"]["requests"])
                .map(|(k, v)| format!("{k} {}", text(v)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        containers
            .map(|c| format!("container {} requests {}", text(&c["name"]), of_container(c)))
            .collect::<Vec<_>>()
            .join("; ")
    };
    if reasons.contains("Insufficient") || reasons.contains("Too many pods") {
        return verdict.because(requests()).try_command("kubectl describe nodes | grep -A 9 'Allocated resources'");
    }
    if reasons.contains("untolerated taint") {
        return verdict.try_command("kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints");
    }
    if reasons.contains("unschedulable") {
        return verdict.try_command("kubectl uncordon NODE");
    }
    if reasons.contains("node affinity") || reasons.contains("node selector") {
        let selector = crate::describe::fields::format_labels(&pod["spec"]["nodeSelector"]);
        return verdict
            .because(format!("spec.nodeSelector: {selector}"))
            .try_command("kubectl get nodes --show-labels");
    }
    if reasons.contains("free ports") {
        return verdict.try_command("kubectl get pods -A -o wide");
    }
    verdict
}

async fn unbound_claim<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Option<Verdict> {
    for volume in list(&pod["spec"]["volumes"]) {
        let claim = match string(&volume["persistentVolumeClaim"]["claimName"]) {
            "" if volume["ephemeral"].is_object() => format!("{}-{}", name(pod), text(&volume["name"])),
            "" => continue,
            claim => claim.to_string(),
        };
        let query = Query::get("v1", "persistentvolumeclaims", namespace(pod), &claim);
        let Ok(found) = inquiry.reader.read(query).await else {
            let cause =
                format!("Its volume {} needs the claim {claim}, and there is no such claim.", text(&volume["name"]));
            return Some(
                Verdict::wrong("ClaimMissing", cause).try_command(format!("kubectl get pvc{}", namespace_flag(pod))),
            );
        };
        let claim = found.first()?;
        let waits = claims::waits_for_consumer(inquiry, claim).await;
        if string(&claim["status"]["phase"]) != "Bound" && !waits {
            let mut verdict = claims::explain(inquiry, claim).await;
            verdict.cause = format!("It waits for its claim {} to be bound. {}", name(claim), verdict.cause);
            verdict.reason = "ClaimUnbound".to_string();
            verdict.wrong = true;
            return Some(verdict.try_command(format!("minke why pvc/{}{}", name(claim), namespace_flag(pod))));
        }
    }
    None
}
