//! Bad input on a real runtime: the pod says what is wrong, and can be deleted.

use e2e::{Namespace, eventually};

use super::{apply, container, until};
use crate::kubectl;

/// Waits for an Event of the pod.
#[track_caller]
pub fn event(ns: &Namespace, pod: &str, reason: &str, part: &str) {
    eventually(&format!("an event {reason} of {pod} with {part:?}"), || {
        let events = ns.json(&["get", "events", "--field-selector", &format!("involvedObject.name={pod}")]);
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let fits =
            |e: &&serde_json::Value| e["reason"] == reason && e["message"].as_str().unwrap_or_default().contains(part);
        match items.iter().any(|e| fits(&e)) {
            true => Ok(()),
            false => Err(items.iter().map(|e| format!("{} {}", e["reason"], e["message"])).collect::<Vec<_>>()),
        }
    });
}

#[test]
fn broken_pods_say_why_and_go() {
    let ns = kubectl().namespace("broken");
    let broken = |name: &str, container: &str| {
        apply(
            &ns,
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, \
                 containers: [{{name: c, {container}}}]}}}}"
            ),
        );
    };
    broken("refused", "image: '127.0.0.1:9/none:1'");
    broken("never", "image: 'minke.local/none:1', imagePullPolicy: Never");
    broken("command", "image: IMAGE, command: [/no/such/program]");
    broken("directory", "image: IMAGE, workingDir: /bin/busybox");
    broken(
        "hook",
        "image: IMAGE, command: [sleep, '1000'], lifecycle: {postStart: {exec: {command: [sleep, '1000']}}}",
    );
    let waits = |pod: &serde_json::Value, reasons: &[&str]| {
        let state = &container(pod, "c")["state"];
        let reason = state["waiting"]["reason"].as_str().or(state["terminated"]["reason"].as_str()).unwrap_or_default();
        reasons.contains(&reason)
    };
    until(&ns, "refused", "can't be pulled", |pod| waits(pod, &["ErrImagePull", "ImagePullBackOff"]));
    event(&ns, "refused", "Failed", "connection refused");
    until(&ns, "never", "is not pulled", |pod| waits(pod, &["ErrImageNeverPull"]));
    let started = ["RunContainerError", "CrashLoopBackOff", "StartError"];
    until(&ns, "command", "can't be run", |pod| waits(pod, &started));
    event(&ns, "command", "Failed", "no such file or directory");
    until(&ns, "directory", "can't be run", |pod| waits(pod, &started));
    until(&ns, "hook", "waits for its hook", |pod| pod["spec"]["nodeName"].is_string());
    // None of them keeps another from running, nor itself from being deleted.
    broken("fine", "image: IMAGE, command: [sleep, '1000']");
    super::phase(&ns, "fine", "Running");
    ns.run(&["delete", "pods", "--all", "--timeout=180s"]);
}

#[test]
fn logs_may_be_large_and_anything() {
    // They end only when all was seen: what is still on its way to the log at the end, a runtime's shim gives two seconds.
    let ns = kubectl().namespace("junk");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: loud}
spec:
  restartPolicy: Never
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - {name: large, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, 'yes 0123456789012345678901234567890 | head -c 30000000; echo; echo last; until test -e /v/seen; do sleep 0.1; done']}
  - {name: junk, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, 'head -c 300000 /dev/urandom; echo; echo last; until test -e /v/seen; do sleep 0.1; done']}
  - {name: long, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, 'head -c 2000000 /dev/zero | tr \"\\\\0\" x; echo; echo last; until test -e /v/seen; do sleep 0.1; done']}
",
    );
    super::phase(&ns, "loud", "Running");
    let names = ["large", "junk", "long"];
    let last = |name: &str| ns.run(&["logs", "loud", "-c", name, "--tail=1"]);
    for name in names {
        e2e::eventually("the last line is in the log", || {
            let seen = last(name);
            if seen == "last\n" { Ok(()) } else { Err((name, seen)) }
        });
    }
    ns.run(&["exec", "loud", "-c", "large", "--", "touch", "/v/seen"]);
    super::phase(&ns, "loud", "Succeeded");
    for name in names {
        assert_eq!(last(name), "last\n", "{name}");
    }
    let long = ns.run(&["logs", "loud", "-c", "long"]);
    assert_eq!(long.lines().next().map(str::len), Some(2_000_000), "lines are put together again");
    assert_eq!(ns.run(&["logs", "loud", "-c", "large", "--limit-bytes=5"]), "01234");
}

/// Whether a process on this machine was started with this word.
fn runs(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes()))
}

#[test]
fn a_forced_deletion_kills_what_ignores_its_stop_signal() {
    let ns = kubectl().namespace("forced");
    let word = |name: &str| format!("forced-{name}-{}", std::process::id());
    for (name, more) in [("plain", ""), ("hook", ", lifecycle: {preStop: {exec: {command: [sleep, '600']}}}")] {
        let command = format!("[sh, -c, 'trap : TERM; while true; do sleep 1; done', {}]", word(name));
        let spec = format!(
            "{{terminationGracePeriodSeconds: 600, containers: [{{name: c, image: IMAGE, command: {command}{more}}}]}}"
        );
        apply(&ns, &format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {spec}}}"));
    }
    for name in ["plain", "hook"] {
        super::phase(&ns, name, "Running");
        assert!(runs(&word(name)), "{name}");
        ns.run(&["delete", "pod", name, "--wait=false"]);
        until(&ns, name, "is ending", |pod| pod["metadata"]["deletionTimestamp"].is_string());
        event(&ns, name, "Killing", "Stopping container c");
        assert!(runs(&word(name)), "{name} has its time");
        ns.run(&["delete", "pod", name, "--force", "--grace-period=0"]);
        eventually(&format!("{name} is killed"), || if runs(&word(name)) { Err("it runs") } else { Ok(()) });
    }
}

#[test]
fn a_pipe_in_place_of_a_termination_message_freezes_nothing() {
    let ns = kubectl().namespace("pipes");
    // More than there are workers.
    for number in 0..4 {
        apply(
            &ns,
            &format!(
                "
apiVersion: v1
kind: Pod
metadata: {{name: pipe-{number}}}
spec:
  restartPolicy: Never
  volumes: [{{name: w, emptyDir: {{}}}}]
  initContainers:
  - {{name: make, image: IMAGE, command: [/bin/busybox, mkfifo, /w/pipe], volumeMounts: [{{name: w, mountPath: /w}}]}}
  containers:
  - name: c
    image: IMAGE
    command: ['true']
    terminationMessagePath: /message
    volumeMounts: [{{name: w, mountPath: /message, subPath: pipe}}]
"
            ),
        );
    }
    for number in 0..4 {
        super::phase(&ns, &format!("pipe-{number}"), "Succeeded");
    }
    ns.run(&["delete", "pods", "--all", "--timeout=180s"]);
}
