//! Users, capabilities, namespaces, profiles, kernel settings.

use super::{apply, container, phase, says, until};
use crate::kubectl;

#[test]
fn containers_run_as_they_are_told() {
    let ns = kubectl().namespace("security");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 1001, runAsGroup: 2002, sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}
  containers:
  - name: c
    image: IMAGE
    securityContext:
      runAsUser: 65534
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
    command:
    - sh
    - -c
    - |
      id -u; id -g; touch /x 2>/dev/null || echo read-only
      grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status | tr -d '\\t'
      cat /proc/sys/kernel/shm_rmid_forced; ip link add br9 type bridge 2>/dev/null || echo refused
---
apiVersion: v1
kind: Pod
metadata: {name: pod-user}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 1001, runAsGroup: 2002, sysctls: [{name: kernel/shm_rmid_forced, value: '1'}]}
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'id -u; id -g; touch /tmp/x && echo writable; cat /proc/sys/kernel/shm_rmid_forced; ip link add br9 type bridge 2>/dev/null || echo refused']}
---
apiVersion: v1
kind: Pod
metadata: {name: privileged}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: IMAGE, securityContext: {privileged: true}, command: [sh, -c, 'ip link add br9 type bridge && echo allowed']}
",
    );
    let user = ["65534", "2002", "read-only", "CapEff:0000000000000000", "NoNewPrivs:1", "Seccomp:2", "1", "refused"];
    says(&ns, "user", &user);
    says(&ns, "pod-user", &["1001", "2002", "writable", "1", "refused"]);
    says(&ns, "privileged", &["allowed"]);
}

#[test]
fn namespaces_are_shared_as_asked() {
    let ns = kubectl().namespace("sharing");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 0
  containers:
  - {name: a, image: IMAGE, command: [sleep, '12345']}
  - {name: b, image: IMAGE, command: [sleep, '1000']}
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  restartPolicy: Never
  hostNetwork: true
  hostPID: true
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'set -- /proc/[0-9]*; test $# -gt 20 && echo processes; hostname > /dev/null && echo name']}
",
    );
    says(&ns, "host", &["processes", "name"]);
    phase(&ns, "shared", "Running");
    e2e::eventually("b sees a's process", || {
        let seen = ns.try_run(&["exec", "shared", "-c", "b", "--", "ps"], "");
        if seen.stdout.contains("sleep 12345") { Ok(()) } else { Err(seen) }
    });
    let host = super::pod(&ns, "host");
    assert_eq!(host["status"]["podIP"], host["status"]["hostIP"]);
}

#[test]
fn what_a_node_does_not_allow_is_refused() {
    let ns = kubectl().namespace("refused");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: sysctl}
spec:
  securityContext: {sysctls: [{name: kernel.msgmax, value: '10000'}]}
  containers: [{name: c, image: IMAGE}]
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true}
  containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]
",
    );
    let refused = phase(&ns, "sysctl", "Failed");
    assert_eq!(refused["status"]["reason"], "SysctlForbidden", "{}", refused["status"]);
    until(&ns, "root", "is not started as root", |pod| {
        let waiting = &container(pod, "c")["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"].as_str().unwrap_or_default().contains("image will run as root")
    });
    let invalid = "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {securityContext: {sysctls: [{name: foo-, value: bar}]}, \
        containers: [{name: c, image: IMAGE}]}}";
    let refusal = ns.refused(&["apply", "-f", "-"], &super::manifest(invalid));
    assert!(refusal.contains("spec.securityContext.sysctls[0].name: Invalid value: \"foo-\""), "{refusal}");
}
