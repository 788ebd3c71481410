//! The cluster's own registry (`--registry`): what is pushed to localhost on this machine runs on every node, and
//! `minke image` moves images between nodes, registry and archives.
//! Called by `several_nodes` on its cluster.

use std::process::Command;

use e2e::{BUSYBOX, Cluster, busybox_archive, eventually, minke};

fn image(cluster: &Cluster, arguments: &[&str]) -> Result<String, String> {
    let (verb, rest) = arguments.split_first().expect("a verb");
    let output = Command::new(minke()).args(["image", verb, "--data-dir"]).arg(&cluster.data).args(rest).output();
    let output = output.expect("minke runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub fn run_on_every_node(cluster: &Cluster, port: u16) {
    let directory = tempfile::tempdir().expect("a directory");
    let archive = directory.path().join("image.tar");
    std::fs::write(&archive, busybox_archive("pushed/busybox:1")).expect("written");
    let host = format!("localhost:{port}");
    let copy = |from: String, to: String| {
        let done = Command::new("skopeo")
            .args(["copy", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false", &from, &to])
            .output()
            .expect("skopeo is missing: apt-get install skopeo");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    copy(format!("oci-archive:{}", archive.display()), format!("docker://{host}/pushed/busybox:1"));
    let kubectl = cluster.kubectl();
    kubectl.apply(&format!(
        r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: pushed}}
spec:
  selector: {{matchLabels: {{app: pushed}}}}
  template:
    metadata: {{labels: {{app: pushed}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: c, image: "{host}/pushed/busybox:1", imagePullPolicy: Always, command: [sleep, "100000"]}}
"#
    ));
    kubectl.run(&["rollout", "status", "daemonset/pushed", "--timeout=180s"]);
    kubectl.run(&["delete", "daemonset", "pushed", "--wait=true"]);

    // From a node to the registry under another name, back out of it, and as an archive.
    let second = format!("{host}/second:2");
    assert_eq!(image(cluster, &["push", BUSYBOX, &second]).expect("pushed").trim(), second);
    copy(format!("docker://{second}"), format!("oci-archive:{}/back.tar", directory.path().display()));
    image(cluster, &["pull", &second]).expect("pulled onto every node");
    let saved = directory.path().join("saved.tar");
    image(cluster, &["save", "-o", saved.to_str().expect("text"), &second]).expect("saved");
    assert!(saved.metadata().is_ok_and(|found| found.len() > 100_000));
    let first = format!("{host}/pushed/busybox:1");
    // The container that used it may still be on its way out.
    eventually("the image goes", || image(cluster, &["rm", &first]));
    eventually("it is gone", || match image(cluster, &["rm", &first]) {
        Err(refused) if refused.contains("minke image ls") => Ok(()),
        other => Err(other),
    });
    assert!(image(cluster, &["ls"]).expect("listed").contains(BUSYBOX), "the same image under another name stays");
    let status = Command::new(minke()).args(["status", "-o", "json", "--data-dir"]).arg(&cluster.data).output();
    let status: serde_json::Value = serde_json::from_slice(&status.expect("minke runs").stdout).expect("JSON");
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3), "{status}");
}
