//! Environment, commands, names: where they come from and how they are put together.

use super::{apply, pod, says};
use crate::kubectl;

#[test]
fn variables_from_everywhere() {
    let ns = kubectl().namespace("env");
    ns.run(&["create", "service", "clusterip", "my-web", "--tcp=80:8080"]);
    apply(
        &ns,
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {one: map-1, two: map-2}
---
apiVersion: v1
kind: Secret
metadata: {name: hush}
stringData: {one: hush-1}
---
apiVersion: v1
kind: Pod
metadata: {name: env}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: IMAGE
    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 500m, memory: 32Mi}}
    envFrom:
    - {configMapRef: {name: map}}
    - {configMapRef: {name: map}, prefix: p-}
    - {secretRef: {name: hush}, prefix: s_}
    - {configMapRef: {name: nowhere, optional: true}}
    env:
    - {name: PLAIN, value: a}
    - {name: COMPOSED, value: '$(PLAIN);;$(two)'}
    - {name: ESCAPED, value: '$$(PLAIN) $(UNKNOWN)'}
    - {name: FROM_MAP, valueFrom: {configMapKeyRef: {name: map, key: two}}}
    - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: hush, key: one}}}
    - {name: MISSING, valueFrom: {secretKeyRef: {name: hush, key: none, optional: true}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    - {name: CPU_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: CPU_REQUEST, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
    - {name: MEMORY_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: MEMORY_REQUEST, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
    command: [sh, -c]
    args:
    - |
      echo $one $two $COMPOSED; echo \"$ESCAPED\"; cat /proc/1/environ | tr '\\0' '\\n' | grep ^p-one; echo $s_one $FROM_MAP $FROM_SECRET ${MISSING-unset}
      echo $POD_NAME $NODE_NAME; test -n \"$POD_UID\" && echo $POD_IP | grep -c '^10\\.18\\.'; test \"$HOST_IP\" = \"$HOST_IPS\" && echo host
      echo $CPU_LIMIT $CPU_REQUEST $MEMORY_LIMIT $MEMORY_REQUEST
      echo $MY_WEB_SERVICE_PORT ${KUBERNETES_SERVICE_HOST:+kubernetes} ${MY_WEB_PORT_80_TCP_PROTO}
      echo $(PLAIN)
",
    );
    let expected = [
        "map-1 map-2 a;;map-2",
        "$(PLAIN) $(UNKNOWN)",
        "p-one=map-1",
        "hush-1 map-2 hush-1 unset",
        "env e2e",
        "1",
        "host",
        "1 100 33554432 16",
        "80 kubernetes tcp",
        "a",
    ];
    says(&ns, "env", &expected);
}

#[test]
fn limits_default_to_what_the_node_has() {
    let ns = kubectl().namespace("limits");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: limits}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: IMAGE
    env:
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    command: [sh, -c, 'echo $CPU; echo $MEMORY']
",
    );
    super::phase(&ns, "limits", "Succeeded");
    let node = ns.json(&["get", "node", "e2e"]);
    let memory = node["status"]["allocatable"]["memory"].as_str().unwrap_or_default().to_string();
    let kilobytes: i64 = memory.trim_end_matches("Ki").parse().expect("memory in Ki");
    let capacity = node["status"]["capacity"]["memory"].as_str().unwrap_or_default().trim_end_matches("Ki").to_string();
    let capacity: i64 = capacity.parse().expect("memory in Ki");
    assert_eq!(capacity - kilobytes, 100 * 1024, "what must stay free is not for pods");
    let logs = ns.run(&["logs", "limits"]);
    let lines: Vec<&str> = logs.lines().collect();
    assert_eq!(lines[0], node["status"]["allocatable"]["cpu"].as_str().unwrap_or_default());
    assert_eq!(lines[1].parse::<i64>().ok().map(|bytes| bytes / 1024), Some(kilobytes));
}

#[test]
fn commands_override_the_image() {
    let ns = kubectl().namespace("command");
    // The image's own command is a shell, which ends at once without input.
    for (name, more) in [
        ("defaults", ""),
        ("arguments", "args: [sh, -c, 'echo arguments']"),
        ("command", "command: [echo, command]"),
        ("both", "command: [echo], args: [both, '$(HOSTNAME)']"),
    ] {
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        apply(
            &ns,
            &format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, \
                 containers: [{{name: c, image: IMAGE{more}}}]}}}}"
            ),
        );
    }
    says(&ns, "defaults", &[]);
    says(&ns, "arguments", &["arguments"]);
    says(&ns, "command", &["command"]);
    says(&ns, "both", &["both $(HOSTNAME)"]);
}

#[test]
fn names_of_hosts() {
    let ns = kubectl().namespace("hosts");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: hosts}
spec:
  restartPolicy: Never
  hostname: own
  subdomain: sub
  setHostnameAsFQDN: false
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias.example, other.example]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [a.example], options: [{name: ndots, value: '3'}, {name: edns0}]}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'hostname; grep -c Kubernetes-managed /etc/hosts; grep 192.0.2.7 /etc/hosts | tr \"\\t\" \" \"; grep -c own.sub /etc/hosts; cat /etc/resolv.conf']
",
    );
    let expected = [
        "own",
        "1",
        "192.0.2.7 alias.example other.example",
        "1",
        "search a.example",
        "nameserver 192.0.2.53",
        "options ndots:3 edns0",
    ];
    says(&ns, "hosts", &expected);
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: cluster}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'grep -c ^nameserver /etc/resolv.conf; grep ^search /etc/resolv.conf; grep ^options /etc/resolv.conf']}
",
    );
    super::phase(&ns, "cluster", "Succeeded");
    let logs = ns.run(&["logs", "cluster"]);
    assert!(logs.contains(&format!("search {}.svc.cluster.local svc.cluster.local cluster.local", ns.name)), "{logs}");
    assert!(logs.contains("ndots:5"), "{logs}");
    assert_eq!(pod(&ns, "cluster")["status"]["qosClass"], "BestEffort");
}

#[test]
fn hosts_files_are_the_nodes_unless_the_pod_has_its_own() {
    let ns = kubectl().namespace("etc-hosts");
    apply(
        &ns,
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: own}
data: {hosts: '192.0.2.1 own.example'}
---
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  restartPolicy: Never
  volumes: [{name: own, configMap: {name: own}}]
  containers:
  - {name: managed, image: IMAGE, command: [grep, -c, Kubernetes-managed, /etc/hosts]}
  - {name: own, image: IMAGE, command: [cat, /etc/hosts], volumeMounts: [{name: own, mountPath: /etc/hosts, subPath: hosts}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - {name: c, image: IMAGE, command: [grep, -c, 'Kubernetes-managed hosts file (host network)', /etc/hosts]}
",
    );
    super::phase(&ns, "pod", "Succeeded");
    assert_eq!(ns.run(&["logs", "pod", "-c", "managed"]), "1\n");
    assert_eq!(ns.run(&["logs", "pod", "-c", "own"]).trim(), "192.0.2.1 own.example");
    says(&ns, "host", &["1"]);
}
