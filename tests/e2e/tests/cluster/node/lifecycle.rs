//! The order of things in a pod's life: init containers, sidecars, hooks, messages, deadlines, resizes.

use super::{apply, container, eventually, phase, pod, until};
use crate::kubectl;

#[test]
fn init_containers_come_first_and_sidecars_stay() {
    let ns = kubectl().namespace("init");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  volumes: [{name: w, emptyDir: {}}]
  initContainers:
  - {name: one, image: IMAGE, command: [sh, -c, 'echo one >> /w/order'], volumeMounts: [{name: w, mountPath: /w}]}
  - name: side
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, 'trap \"exit 0\" TERM; echo side >> /w/order; touch /w/ready; while true; do sleep 0.1; done']
    startupProbe: {exec: {command: [test, -e, /w/ready]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 180}
    volumeMounts: [{name: w, mountPath: /w}]
  - {name: two, image: IMAGE, command: [sh, -c, 'echo two >> /w/order'], volumeMounts: [{name: w, mountPath: /w}]}
  containers:
  - {name: app, image: IMAGE, command: [cat, /w/order], volumeMounts: [{name: w, mountPath: /w}]}
---
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  restartPolicy: Never
  initContainers:
  - {name: bad, image: IMAGE, command: ['false']}
  - {name: next, image: IMAGE, command: ['true']}
  containers: [{name: app, image: IMAGE, command: ['true']}]
---
apiVersion: v1
kind: Pod
metadata: {name: always}
spec:
  terminationGracePeriodSeconds: 0
  initContainers: [{name: bad, image: IMAGE, command: ['false']}]
  containers: [{name: app, image: IMAGE, command: [sleep, '1000']}]
",
    );
    let done = phase(&ns, "ordered", "Succeeded");
    assert_eq!(ns.run(&["logs", "ordered", "-c", "app"]), "one\nside\ntwo\n");
    assert_eq!(container(&done, "side")["state"]["terminated"]["exitCode"], 0, "{}", done["status"]);
    let failed = phase(&ns, "never", "Failed");
    assert_eq!(container(&failed, "next")["state"]["waiting"]["reason"], "PodInitializing", "{}", failed["status"]);
    assert!(container(&failed, "app")["state"]["waiting"].is_object(), "{}", failed["status"]);
    let retried = until(&ns, "always", "tries its init container again", |pod| {
        container(pod, "bad")["restartCount"].as_u64().unwrap_or(0) >= 1
    });
    assert_eq!(retried["status"]["phase"], "Pending");
    let initialized = retried["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let initialized = initialized.iter().find(|c| c["type"] == "Initialized").cloned().unwrap_or_default();
    assert_eq!((&initialized["status"], &initialized["reason"]), (&"False".into(), &"ContainersNotInitialized".into()));
}

#[test]
fn containers_leave_a_message() {
    let ns = kubectl().namespace("messages");
    let case = |name: &str, command: &str, more: &str| {
        apply(
            &ns,
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, containers: \
                 [{{name: c, image: IMAGE, command: [sh, -c, '{command}']{more}}}]}}}}"
            ),
        );
    };
    let fallback = ", terminationMessagePolicy: FallbackToLogsOnError";
    case("empty", "echo log", fallback);
    case("file", "echo -n OK > /dev/termination-log", fallback);
    case("log", "echo -n DONE; exit 1", fallback);
    let own = ", terminationMessagePath: /dev/own-log, securityContext: {runAsUser: 1000}";
    case("own", "echo -n OWN > /dev/own-log", own);
    for (name, message, code) in [("empty", "", 0), ("file", "OK", 0), ("log", "DONE", 1), ("own", "OWN", 0)] {
        let ended = until(&ns, name, "ends", |pod| container(pod, "c")["state"]["terminated"].is_object());
        let state = &container(&ended, "c")["state"]["terminated"];
        assert_eq!(state["message"].as_str().unwrap_or_default(), message, "{name}: {state}");
        assert_eq!(state["exitCode"], code, "{name}");
        assert_eq!(state["reason"], if code == 0 { "Completed" } else { "Error" }, "{name}");
    }
}

#[test]
fn hooks_run_when_they_should() {
    let ns = kubectl().namespace("hooks");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: listener}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'mkdir /www; echo ok > /www/started; echo ok > /www/stopped; echo ok > /www/by-command; httpd -f -vv -p 8080 -h /www']
    ports: [{containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
",
    );
    let listener = until(&ns, "listener", "is ready", |pod| container(pod, "c")["ready"] == true);
    let address = listener["status"]["podIP"].as_str().expect("an address").to_string();
    apply(
        &ns,
        &format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: hooked}}
spec:
  terminationGracePeriodSeconds: 60
  containers:
  - name: by-request
    image: IMAGE
    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']
    lifecycle:
      postStart: {{httpGet: {{host: {address}, port: 8080, path: /started}}}}
      preStop: {{httpGet: {{host: {address}, port: 8080, path: /stopped}}}}
  - name: by-command
    image: IMAGE
    command: [sh, -c, 'while ! test -e /stopped; do sleep 0.1; done']
    lifecycle:
      postStart: {{exec: {{command: [sh, -c, 'touch /tmp/started']}}}}
      preStop: {{exec: {{command: [sh, -c, 'wget -q -O /dev/null http://{address}:8080/by-command; touch /stopped']}}}}
  - name: by-sleep
    image: IMAGE
    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']
    lifecycle: {{preStop: {{sleep: {{seconds: 1}}}}}}
"
        ),
    );
    until(&ns, "hooked", "is ready", |pod| {
        ["by-request", "by-command", "by-sleep"].iter().all(|name| container(pod, name)["ready"] == true)
    });
    ns.run(&["exec", "hooked", "-c", "by-command", "--", "test", "-e", "/tmp/started"]);
    ns.run(&["delete", "pod", "hooked", "--timeout=180s"]);
    e2e::eventually("every path was asked for", || {
        let logs = ns.run(&["logs", "listener"]);
        if ["/started", "/stopped", "by-command"].iter().all(|path| logs.contains(path)) { Ok(()) } else { Err(logs) }
    });
    apply(
        &ns,
        "{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: IMAGE, \
         command: [sleep, '1000'], lifecycle: {postStart: {exec: {command: ['false']}}}}]}}",
    );
    super::faults::event(&ns, "bad", "FailedPostStartHook", "");
}

#[test]
fn deadlines_restarts_and_debugging() {
    let ns = kubectl().namespace("deadline");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'read life < /proc/sys/kernel/random/uuid; echo $life; echo $life > /dev/termination-log; exit 3']
---
apiVersion: v1
kind: Pod
metadata: {name: ruled}
spec:
  restartPolicy: Never
  volumes: [{name: w, emptyDir: {}}]
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'test -e /w/second && exit 7; touch /w/second; exit 42']
    volumeMounts: [{name: w, mountPath: /w}]
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: watched}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: IMAGE, command: [sleep, '4321']}]
",
    );
    phase(&ns, "late", "Running");
    ns.run(&["patch", "pod", "late", "-p", r#"{"spec":{"activeDeadlineSeconds":1}}"#]);
    let late = phase(&ns, "late", "Failed");
    assert_eq!(late["status"]["reason"], "DeadlineExceeded");
    let ruled = phase(&ns, "ruled", "Failed");
    let status = container(&ruled, "c");
    assert_eq!(
        (&status["restartCount"], &status["state"]["terminated"]["exitCode"]),
        (&1.into(), &7.into()),
        "{status}"
    );
    let again = until(&ns, "again", "waits before its third life", |pod| {
        let status = container(pod, "c");
        status["state"]["waiting"]["reason"] == "CrashLoopBackOff" && status["restartCount"].as_u64() >= Some(1)
    });
    assert_eq!(container(&again, "c")["lastState"]["terminated"]["exitCode"], 3);
    // Every life says something else; another one may begin between two questions.
    let (last, said) = eventually("the same life is the last before and after its log is read", || {
        let status = || container(&pod(&ns, "again"), "c").clone();
        let (before, said, after) = (status(), ns.run(&["logs", "again", "--previous"]), status());
        let waits = before["state"]["waiting"]["reason"] == "CrashLoopBackOff";
        if waits && before == after { Ok((before["lastState"].clone(), said)) } else { Err(after) }
    });
    assert_eq!(last["terminated"]["message"], said);
    phase(&ns, "watched", "Running");
    let debug = ["debug", "watched", "--image", e2e::BUSYBOX, "--target", "main", "-c", "look", "--", "ps"];
    ns.run(&debug);
    until(&ns, "watched", "was looked into", |pod| container(pod, "look")["state"]["terminated"]["exitCode"] == 0);
    assert!(ns.run(&["logs", "watched", "-c", "look"]).contains("sleep 4321"));
}

#[test]
fn classes_of_runtime_and_service() {
    let ns = kubectl().namespace("classes");
    let class = format!("{}-runc", ns.name);
    apply(
        &ns,
        &format!(
            "
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {{name: {class}}}
handler: runc
overhead: {{podFixed: {{cpu: 10m, memory: 8Mi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: classy}}
spec:
  restartPolicy: Never
  runtimeClassName: {class}
  containers:
  - {{name: c, image: IMAGE, command: [echo, ran], resources: {{limits: {{cpu: 100m, memory: 32Mi}}}}}}
"
        ),
    );
    let done = phase(&ns, "classy", "Succeeded");
    assert_eq!(done["spec"]["overhead"]["memory"], "8Mi");
    assert_eq!(done["status"]["qosClass"], "Guaranteed");
    let with = |class: &str, name: &str| {
        super::manifest(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{runtimeClassName: '{class}', restartPolicy: Never, \
             containers: [{{name: c, image: IMAGE, command: ['true']}}]}}}}"
        ))
    };
    ns.run(&["patch", "runtimeclass", &class, "--type=merge", "-p", r#"{"overhead":null}"#]);
    ns.apply(&with(&class, "light"));
    assert!(phase(&ns, "light", "Succeeded")["spec"]["overhead"].is_null());
    ns.run(&["delete", "runtimeclass", &class]);
    // One that never was and one that is no more.
    for class in ["nowhere", &class] {
        let refusal = ns.refused(&["apply", "-f", "-"], &with(class, "none"));
        assert!(refusal.contains(&format!("RuntimeClass {class:?} not found")), "{refusal}");
    }
}

#[test]
fn resources_change_in_place() {
    let ns = kubectl().namespace("resize");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: sized, generation: 100}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sleep, '1000']
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: NotRequired}]
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}
",
    );
    let before = phase(&ns, "sized", "Running");
    assert_eq!(before["metadata"]["generation"], 1);
    let patch = r#"{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"cpu":"200m","memory":"128Mi"}}}]}}"#;
    ns.run(&["patch", "pod", "sized", "--subresource=resize", "-p", patch]);
    let after = until(&ns, "sized", "has more", |pod| {
        let resources = &container(pod, "c")["resources"];
        resources["limits"]["cpu"] == "200m" && resources["limits"]["memory"] == "128Mi"
    });
    assert_eq!(container(&after, "c")["restartCount"], 0, "{}", after["status"]);
    assert_eq!(container(&after, "c")["containerID"], container(&before, "c")["containerID"]);
    until(&ns, "sized", "has been seen by the node", |pod| {
        pod["metadata"]["generation"] == 2 && pod["status"]["observedGeneration"] == 2
    });
    // Both versions of control groups.
    let limit = ns.run(&[
        "exec",
        "sized",
        "--",
        "sh",
        "-c",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max",
    ]);
    assert_eq!(limit.trim(), (128 << 20).to_string());
    // The same by replacing the whole.
    e2e::eventually("it is replaced", || {
        // The node may tell something between the two.
        let mut whole = pod(&ns, "sized");
        whole["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "150m".into();
        let replaced = ns.try_run(&["replace", "--subresource=resize", "-f", "-"], &whole.to_string());
        if replaced.ok { Ok(()) } else { Err(replaced) }
    });
    until(&ns, "sized", "has less", |pod| container(pod, "c")["resources"]["limits"]["cpu"] == "150m");
    let far = r#"{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"900"},"limits":{"cpu":"900"}}}]}}"#;
    ns.run(&["patch", "pod", "sized", "--subresource=resize", "-p", far]);
    until(&ns, "sized", "says that it can't have that", |pod| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "PodResizePending" && c["reason"] == "Infeasible")
    });
    assert_eq!(container(&pod(&ns, "sized"), "c")["resources"]["limits"]["cpu"], "150m");
}

fn resize(ns: &e2e::Kubectl, name: &str, memory: &str) {
    let resources = format!(r#"{{"requests":{{"memory":"{memory}"}},"limits":{{"memory":"{memory}"}}}}"#);
    let patch = format!(r#"{{"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#);
    ns.run(&["patch", "pod", name, "--subresource=resize", "-p", &patch]);
}

#[test]
fn resizes_wait_for_memory_in_use_and_restart_where_they_must() {
    let ns = kubectl().namespace("resize-hard");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sleep, '1000']
    resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  restartPolicy: OnFailure
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'trap \"exit 0\" TERM; while true; do sleep 0.1; done']
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}
",
    );
    phase(&ns, "busy", "Running");
    phase(&ns, "again", "Running");
    resize(&ns, "busy", "10Ki");
    resize(&ns, "again", "48Mi");
    let resizing = |pod: &serde_json::Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"].as_str().unwrap_or_default().starts_with("PodResize"))
    };
    let why = "cannot decrease memory limits: [attempting to set pod memory limit (10240) below current usage (";
    let stuck = until(&ns, "busy", "says that its memory is in use", |pod| {
        resizing(pod).is_some_and(|c| {
            let message = c["message"].as_str().unwrap_or_default();
            c["type"] == "PodResizeInProgress" && c["reason"] == "Error" && message.starts_with(why)
        })
    });
    assert_eq!(container(&stuck, "c")["resources"]["limits"]["memory"], "64Mi");
    eventually("there is an Event", || {
        let selector = "--field-selector=reason=ResizeError,involvedObject.name=busy";
        let found = ns.run(&["get", "events", selector, "-o", "jsonpath={.items[*].message}"]);
        let fits = found.starts_with("Pod resize error: {\"containers\":[{\"name\":\"c\",") && found.contains("10Ki");
        if fits { Ok(()) } else { Err(found) }
    });
    resize(&ns, "busy", "96Mi");
    let after = until(&ns, "busy", "has more", |pod| {
        container(pod, "c")["resources"]["limits"]["memory"] == "96Mi" && resizing(pod).is_none()
    });
    assert_eq!(container(&after, "c")["restartCount"], 0);
    until(&ns, "again", "was restarted", |pod| {
        let c = container(pod, "c");
        c["restartCount"] == 1
            && c["ready"] == true
            && c["resources"]["limits"]["memory"] == "48Mi"
            && resizing(pod).is_none()
    });
}
