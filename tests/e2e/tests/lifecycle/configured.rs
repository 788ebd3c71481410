//! A node with a KubeletConfiguration file: its fields take effect, wrong ones are refused, and a runtime that stops
//! answering is told of.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
};

use e2e::{BUSYBOX, Cluster, Options, eventually, free_port};
use serde_json::Value;

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
    let lease = kubectl.json(&["get", "lease", "-n", "kube-node-lease", "node-1"]);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 20);

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
    assert_eq!(kubectl.run(&["logs", "fixed-node-1"]), "10000\n");
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
    kubectl.run(&["wait", "--for=condition=Ready", "pod/steady", "--timeout=60s"]);
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
