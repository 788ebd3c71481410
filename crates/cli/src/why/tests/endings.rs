//! How containers end: by a probe, without their command, with last words in their log; and whose image is changed.

use serde_json::{Value, json};

use super::{Expected, check, check_with, event, pod, waiting};
use crate::object_reader::MapReader;

fn ended(reason: &str, code: i64, message: &str, state: Value) -> Value {
    let last = json!({ "terminated": { "exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-01T00:59:50Z" } });
    let ready = state["running"].is_object();
    pod(
        json!({ "nodeName": "n1", "containers": [{ "name": "app", "image": "i" }] }),
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }], "containerStatuses": [
            { "name": "app", "ready": ready, "restartCount": 4, "state": state, "lastState": last }] }),
    )
}

fn looping() -> Value {
    json!({ "waiting": { "reason": "CrashLoopBackOff" } })
}

#[test]
fn a_probe_that_kills_is_named() {
    let events = || {
        vec![
            event("Pod", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500"),
            event("Pod", "Killing", "Container app failed liveness probe, will be restarted"),
        ]
    };
    let how = "the kubelet killed it because its liveness probe failed: HTTP probe failed with statuscode: 500.";
    check(
        &ended("Error", 137, "", looping()),
        events(),
        Expected {
            wrong: true,
            reason: "CrashLoop",
            cause: &format!("Container app keeps ending and is restarted with growing pauses; last time {how}"),
            evidence: "container app waits (CrashLoopBackOff)",
            command: "kubectl logs web -n shop --previous",
        },
    );
    check(
        &ended("Error", 143, "", json!({ "running": {} })),
        events(),
        Expected {
            wrong: true,
            reason: "Restarting",
            cause: &format!("It runs and is ready now, but container app was restarted 4 times; last time {how}"),
            evidence: "restarted 4 times",
            command: "kubectl logs web -n shop --previous",
        },
    );
    // What ended by itself was not killed.
    check(
        &ended("Error", 3, "", json!({ "running": {} })),
        events(),
        Expected {
            wrong: true,
            reason: "Restarting",
            cause: "It runs and is ready now, but container app was restarted 4 times; last time it exited with 3.",
            evidence: "",
            command: "",
        },
    );
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let said = |message: &str, words: &str| {
        check(
            &ended("StartError", 128, message, looping()),
            vec![],
            Expected {
                wrong: true,
                reason: "CrashLoop",
                cause: &format!("Container app keeps ending and is restarted with growing pauses; last time {words}."),
                evidence: "StartError",
                command: "kubectl get pod web -n shop -o jsonpath=",
            },
        );
    };
    said(
        "runc create failed: unable to start container process: exec: \"/no\": stat /no: no such file or directory: unknown",
        "its command /no is not in the image",
    );
    said("exec: \"serve\": executable file not found in $PATH: unknown", "its command serve is not in the image");
    said("exec: \"/etc\": permission denied: unknown", "its command /etc may not be executed");
}

#[test]
fn the_last_words_of_a_log_are_shown() {
    let log = "/api/v1/namespaces/shop/pods/web/log?container=app&previous=true&tailLines=3";
    let reader = || MapReader { texts: vec![(log.to_string(), "starting\nno database\n\n")], ..MapReader::default() };
    check_with(
        &ended("Error", 1, "", looping()),
        reader(),
        Expected {
            wrong: true,
            reason: "CrashLoop",
            cause: "Container app keeps ending and is restarted with growing pauses; last time it exited with 1.",
            evidence: "the log of container app ended with: starting / no database",
            command: "--previous",
        },
    );
}

#[test]
fn an_image_is_changed_where_the_template_is() {
    let said = |owner: &str, owner_name: &str, command: &str| {
        let mut pod = waiting("InvalidImageName", "");
        pod["metadata"]["labels"]["pod-template-hash"] = json!("5d8");
        pod["metadata"]["ownerReferences"] = json!([{ "kind": owner, "name": owner_name, "controller": true }]);
        check(
            &pod,
            vec![],
            Expected {
                wrong: true,
                reason: "ImagePull",
                cause: "shop/web:2 is not a valid image name.",
                evidence: "",
                command,
            },
        );
    };
    said("ReplicaSet", "web-5d8", "kubectl set image deployment/web -n shop app=IMAGE");
    said("ReplicaSet", "web", "kubectl set image replicaset/web -n shop app=IMAGE");
    said("StatefulSet", "web", "kubectl set image statefulset/web -n shop app=IMAGE");
    said("Job", "web", "kubectl set image pod/web -n shop app=IMAGE");
}
