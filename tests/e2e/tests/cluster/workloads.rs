//! Every workload kind on real containers, with stock kubectl's `rollout`, `scale` and `wait`.
//! `drain` is in `lifecycle/several_nodes`, where it disturbs nobody.

use e2e::{BUSYBOX, Kubectl, eventually};

use crate::kubectl;

/// A workload of a kind whose pods print their version and wait, or end with `end`.
fn workload(version: &str, kind: &str, name: &str, spec: &str, end: &str) -> String {
    let command = match end {
        "" => "echo version $VERSION; trap 'exit 0' TERM; sleep 100000 & wait",
        code => code,
    };
    format!(
        r#"
apiVersion: {version}
kind: {kind}
metadata: {{name: {name}}}
spec:
  {spec}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 2
      {restart}
      containers:
      - name: c
        image: {BUSYBOX}
        command: [sh, -c, "{command}"]
        env: [{{name: VERSION, value: "1"}}]
"#,
        restart = if end.is_empty() { "restartPolicy: Always" } else { "restartPolicy: Never" }
    )
}

fn pods(kubectl: &Kubectl, app: &str) -> Vec<String> {
    let listed = kubectl.run(&["get", "pods", "-l", &format!("app={app}"), "-o", "name"]);
    listed.lines().map(str::to_string).collect()
}

#[track_caller]
fn has(kubectl: &Kubectl, app: &str, count: usize) {
    eventually(&format!("{count} pods of {app}"), || {
        let found = pods(kubectl, app);
        if found.len() == count { Ok(()) } else { Err(found) }
    });
}

/// What its container said comes a moment after it runs.
#[track_caller]
fn logs(kubectl: &Kubectl, what: &str, expected: &str) {
    eventually(&format!("{what} says {expected:?}"), || {
        let said = kubectl.try_run(&["logs", what], "");
        if said.ok && said.stdout.contains(expected) { Ok(()) } else { Err(said) }
    });
}

const SELECTOR: &str = "selector: {matchLabels: {app: NAME}}";

#[test]
fn every_workload_kind_by_kubectl() {
    let ns = kubectl().namespace("kinds");
    let selector = |name: &str| SELECTOR.replace("NAME", name);

    ns.apply(&workload("v1", "ReplicationController", "rc", "replicas: 1\n  selector: {app: rc}", ""));
    ns.apply(&workload("apps/v1", "ReplicaSet", "rs", &format!("replicas: 1\n  {}", selector("rs")), ""));
    for kind in ["rc", "rs"] {
        ns.run(&["scale", &format!("{kind}/{kind}"), "--replicas=2"]);
        has(&ns, kind, 2);
        ns.run(&["wait", "--for=condition=Ready", "pod", "-l", &format!("app={kind}"), "--timeout=180s"]);
        eventually("each replica answers", || {
            let said: Vec<_> = pods(&ns, kind).iter().map(|pod| ns.try_run(&["logs", pod], "").stdout).collect();
            if said.iter().all(|s| s.contains("version 1")) { Ok(()) } else { Err(said) }
        });
        ns.run(&["delete", &format!("{kind}/{kind}"), "--cascade=foreground", "--timeout=180s"]);
        assert!(pods(&ns, kind).is_empty());
    }

    let spec = format!("replicas: 2\n  serviceName: sts\n  {}", selector("sts"));
    ns.apply(&workload("apps/v1", "StatefulSet", "sts", &spec, ""));
    ns.run(&["rollout", "status", "statefulset/sts", "--timeout=180s"]);
    assert_eq!(pods(&ns, "sts"), ["pod/sts-0", "pod/sts-1"]);
    ns.run(&["set", "env", "statefulset/sts", "VERSION=2"]);
    ns.run(&["rollout", "status", "statefulset/sts", "--timeout=180s"]);
    logs(&ns, "sts-0", "version 2");
    assert_eq!(
        ns.run(&["rollout", "history", "statefulset/sts"]).lines().filter(|l| l.starts_with(['1', '2'])).count(),
        2
    );
    ns.run(&["rollout", "undo", "statefulset/sts"]);
    ns.run(&["rollout", "status", "statefulset/sts", "--timeout=180s"]);
    logs(&ns, "sts-0", "version 1");
    ns.run(&["scale", "statefulset/sts", "--replicas=1"]);
    has(&ns, "sts", 1);

    ns.apply(&workload("apps/v1", "DaemonSet", "ds", &selector("ds"), ""));
    ns.run(&["rollout", "status", "daemonset/ds", "--timeout=180s"]);
    ns.run(&["set", "env", "daemonset/ds", "VERSION=2"]);
    ns.run(&["rollout", "status", "daemonset/ds", "--timeout=180s"]);
    has(&ns, "ds", 1);
    logs(&ns, "daemonset/ds", "version 2");
    ns.run(&["rollout", "undo", "daemonset/ds"]);
    ns.run(&["rollout", "status", "daemonset/ds", "--timeout=180s"]);
}

#[test]
fn deployments_are_paused_resumed_and_undone() {
    let ns = kubectl().namespace("undo");
    let spec = format!("replicas: 2\n  {}", SELECTOR.replace("NAME", "web"));
    ns.apply(&workload("apps/v1", "Deployment", "web", &spec, ""));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    ns.run(&["rollout", "pause", "deployment/web"]);
    ns.run(&["set", "env", "deployment/web", "VERSION=2"]);
    let sets = ns.json(&["get", "replicasets", "-l", "app=web"]);
    assert_eq!(sets["items"].as_array().map(Vec::len), Some(1), "nothing rolls while it is paused");
    ns.run(&["rollout", "resume", "deployment/web"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    ns.run(&["rollout", "undo", "deployment/web"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    has(&ns, "web", 2);
    for pod in pods(&ns, "web") {
        logs(&ns, &pod, "version 1");
    }
    let history = ns.run(&["rollout", "history", "deployment/web"]);
    assert!(history.lines().any(|l| l.starts_with('3')) && !history.lines().any(|l| l.starts_with('1')), "{history}");
}

#[test]
fn jobs_are_waited_for() {
    let ns = kubectl().namespace("jobs");
    ns.apply(&workload("batch/v1", "Job", "good", "completions: 2\n  parallelism: 2", "echo done"));
    ns.run(&["wait", "--for=condition=Complete", "job/good", "--timeout=180s"]);
    ns.apply(&workload("batch/v1", "Job", "bad", "backoffLimit: 0", "exit 3"));
    ns.run(&["wait", "--for=condition=Failed", "job/bad", "--timeout=180s"]);
    let bad = ns.json(&["get", "job", "bad"]);
    assert_eq!(bad["status"]["failed"], 1, "{bad}");
    let command = format!("{{name: c, image: {BUSYBOX}, command: [sh, -c, echo tick]}}");
    ns.apply(&format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: tick}}\nspec:\n  schedule: '* * * * *'\n  suspend: true\n  \
         jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, containers: [{command}]}}}}}}}}\n"
    ));
    ns.run(&["create", "job", "now", "--from=cronjob/tick"]);
    ns.run(&["wait", "--for=condition=Complete", "job/now", "--timeout=180s"]);
}
