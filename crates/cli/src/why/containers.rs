//! What the status of a pod's containers says: waiting, ended, not ready, restarted.
//! Used by `pods` and `pending`.
//! Init containers come before the others, as they run.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, namespace_flag, with_reason};
use crate::{
    describe::fields::{controller, list, name, number, string, text, truth},
    object_reader::ObjectReader,
};

/// A container that ended no longer ago is not taken for well.
const RECENT_SECONDS: i64 = 120;

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let status = &pod["status"];
    list(&status["initContainerStatuses"]).iter().chain(list(&status["containerStatuses"]))
}

fn spec_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let spec = &pod["spec"];
    let mut all = list(&spec["initContainers"]).iter().chain(list(&spec["containers"]));
    all.find(|own| string(&own["name"]) == container).unwrap_or(&Value::Null)
}

pub fn running_init_container(pod: &Value) -> Option<&Value> {
    let sidecar = |status: &Value| string(&spec_of(pod, string(&status["name"]))["restartPolicy"]) == "Always";
    let mut running = list(&pod["status"]["initContainerStatuses"]).iter();
    running.find(|status| status["state"]["running"].is_object() && !sidecar(status))
}

fn logs(pod: &Value, container: &str, previous: bool) -> String {
    let several = list(&pod["spec"]["containers"]).len() + list(&pod["spec"]["initContainers"]).len() > 1;
    let container = if several { format!(" -c {container}") } else { String::new() };
    let previous = if previous { " --previous" } else { "" };
    format!("kubectl logs {}{}{container}{previous}", name(pod), namespace_flag(pod))
}

/// How a container ended, in words.
fn ending(terminated: &Value) -> String {
    let code = number(&terminated["exitCode"]);
    let reason = string(&terminated["reason"]);
    if let Some(words) = unstarted(terminated) {
        return words;
    }
    let words = match (reason, code) {
        ("OOMKilled", _) => "it was killed because it used more memory than its limit".to_string(),
        (_, 137) => "it was killed (exit code 137)".to_string(),
        (_, 143) => "it was ended by SIGTERM (exit code 143)".to_string(),
        (_, 139) => "it crashed with a segmentation fault (exit code 139)".to_string(),
        (_, 127) => "its command was not found (exit code 127)".to_string(),
        (_, 126) => "its command could not be executed (exit code 126)".to_string(),
        (_, 0) => "it exited with 0".to_string(),
        (_, code) => format!("it exited with {code}"),
    };
    match clause(string(&terminated["message"])) {
        "" => words,
        message => format!("{words}: {}", message.lines().last().unwrap_or_default()),
    }
}

fn state_line<R: ObjectReader>(inquiry: &Inquiry<'_, R>, status: &Value) -> String {
    let container = text(&status["name"]);
    let mut line = match &status["state"] {
        state if state["waiting"].is_object() => {
            let waiting = &state["waiting"];
            let message = match clause(string(&waiting["message"])) {
                "" => String::new(),
                message => format!(": {message}"),
            };
            format!("container {container} waits ({}){message}", text(&waiting["reason"]))
        }
        state if state["running"].is_object() => {
            format!("container {container} runs since {}", inquiry.ago(&state["running"]["startedAt"]))
        }
        state if state["terminated"].is_object() => {
            format!("container {container} ended {}", inquiry.ago(&state["terminated"]["finishedAt"]))
        }
        _ => format!("container {container} has no state yet"),
    };
    let last = &status["lastState"]["terminated"];
    if last.is_object() {
        let when = inquiry.ago(&last["finishedAt"]);
        line.push_str(&format!("; last ended {when} with exit code {}", number(&last["exitCode"])));
        if !string(&last["reason"]).is_empty() {
            line.push_str(&format!(" ({})", string(&last["reason"])));
        }
    }
    match number(&status["restartCount"]) {
        0 => line,
        1 => format!("{line}; restarted once"),
        count => format!("{line}; restarted {count} times"),
    }
}

/// A container that cannot be created or that keeps ending.
pub fn not_running<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Option<Verdict> {
    for status in statuses(pod) {
        let waiting = &status["state"]["waiting"];
        let container = string(&status["name"]);
        let spec = spec_of(pod, container);
        let message = clause(string(&waiting["message"]));
        let verdict = match string(&waiting["reason"]) {
            reason @ ("ImagePullBackOff"
            | "ErrImagePull"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable") => image_pull(pod, spec, reason, message, events),
            "CrashLoopBackOff" => crash_loop(pod, status, events),
            "CreateContainerConfigError" => Verdict::wrong(
                "ContainerConfig",
                format!("Container {container} cannot be made from its configuration: {message}."),
            )
            .try_command(format!("kubectl get configmaps,secrets{}", namespace_flag(pod))),
            "CreateContainerError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PreStartHookError"
            | "PostStartHookError" => Verdict::wrong(
                "ContainerStart",
                match no_command(message) {
                    Some(words) => format!("Container {container} cannot be started: {words}."),
                    None => format!("The container runtime cannot start container {container}: {message}."),
                },
            ),
            _ => match ended(pod, status) {
                Some(verdict) => verdict,
                None => continue,
            },
        };
        let pulls = with_reason(events, &["Failed", "BackOff", "InspectFailed", "ErrImageNeverPull"]);
        let events = if verdict.reason == "ImagePull" { pulls } else { Vec::new() };
        return Some(verdict.because(state_line(inquiry, status)).with_events(events, inquiry.now));
    }
    None
}

/// Whose template the pod is made from: where its image can be changed.
fn template_owner(pod: &Value) -> String {
    let owner = controller(pod);
    let (kind, owner_name) = owner.map_or(("", ""), |owner| (string(&owner["kind"]), string(&owner["name"])));
    let hash = string(&pod["metadata"]["labels"]["pod-template-hash"]);
    match (kind, owner_name.strip_suffix(hash).and_then(|rest| rest.strip_suffix('-'))) {
        ("ReplicaSet", Some(deployment)) if !hash.is_empty() => format!("deployment/{deployment}"),
        ("ReplicaSet" | "StatefulSet" | "DaemonSet" | "ReplicationController", _) => {
            format!("{}/{owner_name}", kind.to_lowercase())
        }
        _ => format!("pod/{}", name(pod)),
    }
}

fn image_pull(pod: &Value, spec: &Value, reason: &str, message: &str, events: &[Value]) -> Verdict {
    let image = text(&spec["image"]);
    // The back-off hides what went wrong; the event of the pull has it.
    let failed = with_reason(events, &["Failed"]).into_iter().map(|event| string(&event["message"]));
    let said =
        failed.chain([message]).find(|said| said.contains("pull") && !said.starts_with("Error: ")).unwrap_or(message);
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let cause = if reason == "InvalidImageName" {
        format!("{image} is not a valid image name.")
    } else if reason == "ErrImageNeverPull" {
        format!("Image {image} is not on the node, and its pull policy is Never.")
    } else if has(&["not found", "manifest unknown", "name unknown", "does not exist"]) {
        format!("Image {image} does not exist in its registry, or this cluster may not see it.")
    } else if has(&[
        "unauthorized",
        "authorization failed",
        "denied",
        "forbidden",
        "authentication required",
        "401",
        "403",
    ]) {
        format!("The registry of image {image} refuses the pull: credentials are missing or wrong.")
    } else if has(&[
        "no such host",
        "timeout",
        "refused",
        "unreachable",
        "i/o",
        "deadline exceeded",
        "tls",
        "x509",
        "dial tcp",
        "temporary failure",
    ]) {
        format!("The node cannot reach the registry of image {image}.")
    } else if has(&["no space left", "disk"]) {
        format!("Image {image} does not fit on the node's disk.")
    } else {
        format!("Image {image} cannot be pulled: {}.", clause(said))
    };
    let verdict = Verdict::wrong("ImagePull", cause);
    if lower.contains("unauthorized") || lower.contains("denied") || lower.contains("authorization failed") {
        return verdict.try_command(format!("kubectl create secret docker-registry NAME{}", namespace_flag(pod)));
    }
    verdict.try_command(format!(
        "kubectl set image {}{} {}=IMAGE",
        template_owner(pod),
        namespace_flag(pod),
        text(&spec["name"])
    ))
}

fn crash_loop(pod: &Value, status: &Value, events: &[Value]) -> Verdict {
    let container = string(&status["name"]);
    let last = &status["lastState"]["terminated"];
    let how = killed_by_probe(container, last, events).unwrap_or_else(|| ending(last));
    let cause = format!("Container {container} keeps ending and is restarted with growing pauses; last time {how}.");
    let verdict =
        Verdict::wrong(if string(&last["reason"]) == "OOMKilled" { "OutOfMemory" } else { "CrashLoop" }, cause);
    let verdict = memory_limit(verdict, pod, container, last);
    // What never began has written no log.
    verdict.try_command(match unstarted(last) {
        Some(_) => format!(
            "kubectl get pod {}{} -o jsonpath='{{.spec.containers[?(@.name==\"{container}\")].command}}'",
            name(pod),
            namespace_flag(pod)
        ),
        None => logs(pod, container, true),
    })
}

/// That the kubelet killed it because of a probe, with what the probe met.
fn killed_by_probe(container: &str, terminated: &Value, events: &[Value]) -> Option<String> {
    // What ended by itself was not killed.
    if ![137, 143].contains(&number(&terminated["exitCode"])) || string(&terminated["reason"]) == "OOMKilled" {
        return None;
    }
    let probe = ["liveness", "startup"].into_iter().find(|probe| {
        let killing = format!("Container {container} failed {probe} probe");
        with_reason(events, &["Killing"]).iter().any(|event| string(&event["message"]).starts_with(&killing))
    })?;
    let failures = with_reason(events, &["Unhealthy"]);
    let mut messages = failures.iter().map(|event| string(&event["message"]));
    let met = messages.find(|message| message.to_lowercase().starts_with(probe));
    Some(match met.and_then(|message| message.split_once("failed: ")).map(|(_, met)| clause(met)) {
        Some(met) if !met.is_empty() => format!("the kubelet killed it because its {probe} probe failed: {met}"),
        _ => format!("the kubelet killed it because its {probe} probe failed"),
    })
}

/// The command that could not be begun, and why.
fn unstarted(terminated: &Value) -> Option<String> {
    if !["StartError", "ContainerCannotRun"].contains(&string(&terminated["reason"])) {
        return None;
    }
    no_command(string(&terminated["message"]))
}

/// The runtime's words in plain ones, where it says that a command can't be run.
fn no_command(message: &str) -> Option<String> {
    let (_, said) = message.split_once("exec: \"")?;
    let (command, why) = said.split_once('"')?;
    match why {
        why if why.contains("no such file or directory") || why.contains("executable file not found") => {
            Some(format!("its command {command} is not in the image"))
        }
        why if why.contains("permission denied") => Some(format!("its command {command} may not be executed")),
        _ => None,
    }
}

/// The container whose end is the trouble, and whether that was its run before this one.
pub fn ended_container(pod: &Value) -> Option<(&str, bool)> {
    let waits = |status: &&Value| string(&status["state"]["waiting"]["reason"]) == "CrashLoopBackOff";
    let ended = |status: &&Value| number(&status["state"]["terminated"]["exitCode"]) != 0;
    match statuses(pod).find(waits) {
        Some(status) => Some((string(&status["name"]), true)),
        None => statuses(pod).find(ended).map(|status| (string(&status["name"]), false)),
    }
}

fn memory_limit(verdict: Verdict, pod: &Value, container: &str, terminated: &Value) -> Verdict {
    if string(&terminated["reason"]) != "OOMKilled" {
        return verdict;
    }
    let limit = match text(&spec_of(pod, container)["resources"]["limits"]["memory"]) {
        limit if limit.is_empty() => "no memory limit of its own: the node or the pod ran out".to_string(),
        limit => format!("a memory limit of {limit}"),
    };
    verdict.because(format!("container {container} has {limit}"))
}

/// A container that ended and is not started again, or that is about to be.
fn ended(pod: &Value, status: &Value) -> Option<Verdict> {
    let (container, terminated) = (string(&status["name"]), &status["state"]["terminated"]);
    let is_init = list(&pod["status"]["initContainerStatuses"]).iter().any(|own| own["name"] == status["name"]);
    if !terminated.is_object() || (number(&terminated["exitCode"]) == 0 && (is_init || truth(&status["ready"]))) {
        return None;
    }
    let all_done = number(&terminated["exitCode"]) == 0 && string(&pod["spec"]["restartPolicy"]) != "Always";
    if all_done {
        return None;
    }
    let kind = if is_init { "Init container" } else { "Container" };
    let verdict = Verdict::wrong("ContainerEnded", format!("{kind} {container} has ended: {}.", ending(terminated)));
    Some(memory_limit(verdict, pod, container, terminated).try_command(logs(pod, container, false)))
}

/// What ended a pod whose phase is Failed.
pub fn failed<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value) -> Option<Verdict> {
    let culprit = statuses(pod).find(|status| number(&status["state"]["terminated"]["exitCode"]) != 0)?;
    let (container, terminated) = (string(&culprit["name"]), &culprit["state"]["terminated"]);
    let policy = text(&pod["spec"]["restartPolicy"]);
    let cause =
        format!("Container {container} ended and is not restarted (restartPolicy {policy}): {}.", ending(terminated));
    let verdict = Verdict::wrong("ContainerFailed", cause).because(state_line(inquiry, culprit));
    Some(memory_limit(verdict, pod, container, terminated).try_command(logs(pod, container, false)))
}

/// A container that runs but is not ready.
pub fn not_ready<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Option<Verdict> {
    let status = list(&pod["status"]["containerStatuses"]).iter().find(|status| !truth(&status["ready"]))?;
    let container = string(&status["name"]);
    let spec = spec_of(pod, container);
    let unhealthy = with_reason(events, &["Unhealthy", "ProbeWarning"]);
    let startup = spec["startupProbe"].is_object() && status["started"] != true;
    let (probe, field) = if startup { ("startup", "startupProbe") } else { ("readiness", "readinessProbe") };
    let of_probe = |event: &&&Value| string(&event["message"]).to_lowercase().starts_with(probe);
    let failures: Vec<&Value> = unhealthy.iter().filter(of_probe).copied().collect();
    let cause = match failures.first() {
        Some(event) => {
            let message = string(&event["message"]);
            let said = message.split_once("failed: ").map_or(message, |(_, said)| said);
            format!("Container {container} runs, but its {probe} probe fails: {}.", clause(said))
        }
        None if spec[field].is_object() => {
            format!("Container {container} runs, but its {probe} probe has not succeeded yet.")
        }
        None => format!("Container {container} is not ready."),
    };
    let mut verdict = Verdict::wrong("NotReady", cause).because(state_line(inquiry, status));
    if spec[field].is_object() {
        verdict = verdict.because(format!("spec.{field}: {}", crate::template::go_format::json(&spec[field])));
    }
    Some(verdict.with_events(failures, inquiry.now).try_command(logs(pod, container, false)))
}

/// A pod that is ready: whether it restarted, and why.
pub fn restarted<R: ObjectReader>(inquiry: &Inquiry<'_, R>, pod: &Value, events: &[Value]) -> Verdict {
    let Some(status) = statuses(pod)
        .filter(|status| number(&status["restartCount"]) > 0)
        .max_by_key(|status| number(&status["restartCount"]))
    else {
        return Verdict::fine("Ready", "Nothing is wrong: it runs and is ready.");
    };
    let (container, last) = (string(&status["name"]), &status["lastState"]["terminated"]);
    let count = number(&status["restartCount"]);
    let cause = match last {
        Value::Null => format!("It runs and is ready; container {container} was restarted {count} times before."),
        last => format!(
            "It runs and is ready now, but container {container} was restarted {}; last time {}.",
            if count == 1 { "once".to_string() } else { format!("{count} times") },
            killed_by_probe(container, last, events).unwrap_or_else(|| ending(last))
        ),
    };
    // What ended again and again until just now will do so again.
    let lately = inquiry.seconds_since(&last["finishedAt"]).is_some_and(|seconds| seconds < RECENT_SECONDS);
    let verdict = match count > 1 && lately {
        true => Verdict::wrong("Restarting", cause),
        false => Verdict::fine("Restarted", cause),
    };
    memory_limit(verdict, pod, container, last)
        .because(state_line(inquiry, status))
        .try_command(logs(pod, container, true))
}
