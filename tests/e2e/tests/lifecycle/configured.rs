//! A node with a KubeletConfiguration file: its fields take effect, wrong ones are refused, and a runtime that stops
//! answering is told of.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
};

use e2e::{BUSYBOX, Cluster, JoinCommand, Kubectl, Options, Process, eventually, free_port, minke};
use serde_json::Value;

use crate::foreign::Bridge;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn with(file: &Path, text: &str) -> Options {
    std::fs::write(file, format!("{HEAD}{text}")).expect("written");
    Options { extra: vec!["--kubelet-config".into(), file.display().to_string()] }
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("kubelet.yaml");
    for (text, expected) in [
        ("maxPodz: 5\n", "strict decoding error: unknown field \"maxPodz\""),
        ("maxPods: many\n", "maxPods: expected a whole number"),
        ("cpuManagerPolicy: magic\n", "cpuManagerPolicy: magic is not supported"),
    ] {
        let cluster = Cluster::prepare(with(&file, text));
        let output = cluster.up();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{text}: {said}");
        assert!(!cluster.data.join("minke.pid").exists(), "nothing was started");
    }
}

#[test]
fn fields_take_effect() {
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = directory.path().join("manifests");
    std::fs::create_dir(&manifests).expect("a directory");
    let (file, port) = (directory.path().join("kubelet.yaml"), free_port());
    let text = format!(
        "maxPods: 7\nstaticPodPath: {}\nreadOnlyPort: {port}\nsystemReserved: {{cpu: 100m, memory: 64Mi}}\n\
         evictionHard: {{memory.available: 200Mi}}\nregisterWithTaints: [{{key: careful, value: 'yes', effect: PreferNoSchedule}}]\n\
         podPidsLimit: 64\nallowedUnsafeSysctls: ['kernel.msg*']\nnodeLeaseDurationSeconds: 20\n\
         crashLoopBackOff: {{maxContainerRestartPeriod: 1s}}\nproviderID: example://one\n",
        manifests.display()
    );
    let cluster = Cluster::start(with(&file, &text));
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let node = kubectl.json(&["get", "node", "node-1"]);
    let status = &node["status"];
    assert_eq!((&status["capacity"]["pods"], &status["allocatable"]["pods"]), (&"7".into(), &"7".into()));
    let kilobytes =
        |value: &Value| value.as_str().and_then(|t| t.trim_end_matches("Ki").parse::<i64>().ok()).unwrap_or(0);
    let kept = kilobytes(&status["capacity"]["memory"]) - kilobytes(&status["allocatable"]["memory"]);
    assert_eq!(kept, (64 + 200) * 1024, "reserved and kept free");
    assert_eq!(node["spec"]["providerID"], "example://one");
    assert_eq!(node["spec"]["taints"][0]["key"], "careful", "{}", node["spec"]);
    let lease = ["get", "lease", "-n", "kube-node-lease", "node-1", "-o", "jsonpath={.spec.leaseDurationSeconds}"];
    eventually("the node holds its lease", || {
        let found = kubectl.try_run(&lease, "");
        if found.stdout == "20" { Ok(()) } else { Err(found) }
    });

    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: fixed}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         securityContext: {{sysctls: [{{name: kernel.msgmax, value: '10000'}}]}}\n  containers:\n  - {{name: c, image: '{BUSYBOX}', \
         command: [sh, -c, 'cat /proc/sys/kernel/msgmax; sleep 1000']}}\n"
    );
    std::fs::write(manifests.join("fixed.yaml"), manifest).expect("written");
    eventually("the static pod runs", || {
        let pod = kubectl.try_run(&["get", "pod", "fixed-node-1"], "");
        if pod.stdout.contains("Running") { Ok(()) } else { Err(pod) }
    });
    eventually("it has what it asked for", || {
        let logs = kubectl.try_run(&["logs", "fixed-node-1"], "");
        if logs.stdout == "10000\n" { Ok(()) } else { Err(logs) }
    });
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the read-only port");
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("fixed-node-1"), "{answer}");

    kubectl.run(&[
        "run",
        "forks",
        "--image",
        BUSYBOX,
        "--restart=Never",
        "--",
        "sh",
        "-c",
        "for i in $(busybox seq 200); do sleep 20 & done 2>&1 | grep -c fork || true; sleep 1",
    ]);
    eventually("more processes than allowed are refused", || {
        let logs = kubectl.try_run(&["logs", "forks"], "");
        let status = kubectl.run(&["get", "pod", "forks", "-o", "jsonpath={.status.phase}"]);
        let refused = logs.stdout.contains("fork") || logs.stdout.trim().parse::<u32>().is_ok_and(|n| n > 0);
        if refused || status == "Failed" { Ok(()) } else { Err((logs, status)) }
    });
    std::fs::remove_file(manifests.join("fixed.yaml")).expect("removed");
    eventually("the static pod is gone", || {
        let pod = kubectl.try_run(&["get", "pod", "fixed-node-1"], "");
        if pod.stderr.contains("not found") { Ok(()) } else { Err(pod) }
    });
}

#[test]
fn a_runtime_that_stops_answering_is_told_of() {
    let cluster = Cluster::start(Options::default());
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    kubectl.run(&["run", "steady", "--image", BUSYBOX, "--restart=Never", "--", "sleep", "1000"]);
    kubectl.run(&["wait", "--for=condition=Ready", "pod/steady", "--timeout=180s"]);
    let containerd = std::fs::read_dir("/proc").expect("proc").flatten().find_map(|entry| {
        let words = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let ours = words.contains(&cluster.data.join("containerd").display().to_string());
        (ours && words.contains("containerd ") && words.contains("--config")).then(|| entry.file_name())
    });
    let containerd: String = containerd.expect("our containerd").to_string_lossy().into_owned();
    let signal = |name: &str| {
        let done = std::process::Command::new("kill").args([name, &containerd]).status().expect("kill runs");
        assert!(done.success());
    };
    let ready = || {
        let node = kubectl.json(&["get", "node", "node-1"]);
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default()
    };
    signal("-STOP");
    eventually("the node is not ready", || {
        let condition = ready();
        let said = condition["message"].as_str().unwrap_or_default().contains("container runtime is down");
        if condition["status"] == "False" && said { Ok(()) } else { Err(condition) }
    });
    signal("-CONT");
    eventually("the node is ready again", || {
        let condition = ready();
        if condition["status"] == "True" { Ok(()) } else { Err(condition) }
    });
    let pod = kubectl.json(&["get", "pod", "steady"]);
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

#[test]
fn the_kubelet_alone_takes_upstreams_flags() {
    // Both objects are only used for their data directories and their removal.
    let (server, node) = (Cluster::prepare(Options::default()), Cluster::prepare(Options::default()));
    let ranges = ["--pod-cidr", "10.123.0.0/16", "--service-cidr", "10.124.0.0/16"];
    let _server = Process::spawn(
        Command::new(minke())
            .args(["server", "--port", &free_port().to_string(), "--data-dir"])
            .arg(&server.data)
            .args(ranges),
    );
    let kubectl = Kubectl::new(&server.data.join("admin.kubeconfig"));
    eventually("the server is ready", || {
        let ready = kubectl.try_run(&["get", "--raw", "/readyz"], "");
        if ready.ok { Ok(()) } else { Err(ready) }
    });
    let joining = JoinCommand::of(&server.data);
    let bootstrap = node.data.join("bootstrap.kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{}', certificate-authority: {}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\nusers: [{{name: u, user: {{token: {}}}}}]\n",
        joining.after("--server"),
        server.data.join("pki/ca.crt").display(),
        joining.token,
    );
    std::fs::write(&bootstrap, text).expect("written");
    let config = node.data.join("kubelet.yaml");
    std::fs::write(&config, format!("{HEAD}maxPods: 5\npodsPerCore: 100\n")).expect("written");
    // Another cluster's pods have the range that would be the default: none of this kubelet's business.
    let other = Bridge::new("mko");
    other.hold("10.244.255.1/32");
    let _kubelet = Process::spawn(
        Command::new(minke())
            .args(["kubelet", "--data-dir"])
            .arg(&node.data)
            .arg("--bootstrap-kubeconfig")
            .arg(&bootstrap)
            .arg("--kubeconfig")
            .arg(node.data.join("none"))
            .arg("--config")
            .arg(&config)
            .args(["--hostname-override", "alone", "--node-labels", "tier=front", "--max-pods=9", "--healthz-port=0"])
            .args(["--register-with-taints", "a=b:NoSchedule", "--rotate-certificates", "--port"])
            .arg(free_port().to_string()),
    );
    let found = eventually("the node registers", || {
        let found = kubectl.try_run(&["get", "node", "alone", "-o", "json"], "");
        if found.ok { Ok(found.stdout) } else { Err(found) }
    });
    let found: Value = serde_json::from_str(&found).expect("a document");
    assert_eq!(found["metadata"]["labels"]["tier"], "front");
    assert_eq!(
        (&found["spec"]["taints"][0]["key"], &found["spec"]["taints"][0]["effect"]),
        (&"a".into(), &"NoSchedule".into())
    );
    assert_eq!(found["status"]["capacity"]["pods"], "9", "the flag wins over the file");
    let requests = kubectl.run(&["get", "csr"]);
    assert!(requests.contains("kubernetes.io/kube-apiserver-client-kubelet"), "{requests}");
}
