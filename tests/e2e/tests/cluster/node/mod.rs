//! What the node promises a pod, on real containerd: the texts of `[sig-node]` and the volumes of `[sig-storage]`.
//! Each case is a manifest and what its containers print; several texts share a pod where they can.

mod devices;
mod environment;
mod faults;
mod lifecycle;
mod probes;
mod security;
mod usage;
mod volumes;

use e2e::{Namespace, eventually};
use serde_json::Value;

/// `IMAGE` in a manifest is the test image. What begins with a brace would be taken for JSON.
fn manifest(text: &str) -> String {
    format!("---\n{}", text.replace("IMAGE", e2e::BUSYBOX))
}

fn apply(ns: &Namespace, text: &str) {
    ns.apply(&manifest(text));
}

fn pod(ns: &Namespace, name: &str) -> Value {
    ns.json(&["get", "pod", name])
}

/// Waits until the pod is as wanted; the last state is shown when that never happens.
#[track_caller]
fn until(ns: &Namespace, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("pod {name} {what}"), || {
        let pod = pod(ns, name);
        if wanted(&pod) { Ok(pod) } else { Err(pod["status"].to_string()) }
    })
}

#[track_caller]
fn phase(ns: &Namespace, name: &str, wanted: &str) -> Value {
    until(ns, name, &format!("is {wanted}"), |pod| pod["status"]["phase"] == wanted)
}

/// Runs a pod to its end and compares what its container says, line by line.
#[track_caller]
fn says(ns: &Namespace, name: &str, expected: &[&str]) {
    let ended =
        until(ns, name, "ends", |pod| pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed");
    let logs = ns.run(&["logs", name]);
    assert_eq!(logs.lines().collect::<Vec<_>>(), expected, "{}", ended["status"]);
    assert_eq!(ended["status"]["phase"], "Succeeded", "{logs}");
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let all = lists.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    all.into_iter().find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

/// Reads a file in a running container until it says what is expected.
#[track_caller]
fn reads(ns: &Namespace, pod: &str, path: &str, expected: &str) {
    eventually(&format!("{path} of {pod} is {expected:?}"), || {
        let found = ns.try_run(&["exec", pod, "--", "cat", path], "");
        if found.ok && found.stdout.trim_end() == expected { Ok(()) } else { Err(found) }
    });
}
