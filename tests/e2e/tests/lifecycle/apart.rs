//! The halves apart: `minke server` on a real etcd, `minke agent` joins it over HTTPS with a token.

use std::process::{Command, Stdio};

use e2e::{BUSYBOX, Cluster, Kubectl, Options, Process, eventually, free_port, minke};

#[test]
fn a_server_on_etcd_and_an_agent_that_joins_over_https() {
    let directory = tempfile::tempdir().expect("a directory");
    let (client, peer) = (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
    let _etcd = Process::spawn(
        Command::new("etcd")
            .arg("--data-dir")
            .arg(directory.path().join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client, "--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("default={peer}")])
            .stderr(Stdio::null()),
    );
    let server_data = directory.path().join("server");
    let port = free_port().to_string();
    let ranges = ["--pod-cidr", "10.121.0.0/16", "--service-cidr", "10.122.0.0/16"];
    let _server = Process::spawn(
        Command::new(minke())
            .arg("server")
            .arg("--data-dir")
            .arg(&server_data)
            .args(["--port", &port, "--store", &format!("etcd={client}")])
            .args(ranges),
    );
    let kubectl = Kubectl::new(&server_data.join("admin.kubeconfig"));
    eventually("the server is ready", || {
        let ready = kubectl.try_run(&["get", "--raw", "/readyz"], "");
        if ready.ok { Ok(()) } else { Err(ready) }
    });

    // The agent's cluster object is only used for its data directory and its removal.
    let agent = Cluster::prepare(Options::default());
    let joining = Command::new(minke()).args(["node", "join-command", "--data-dir"]).arg(&server_data).output();
    let joining = String::from_utf8(joining.expect("a command to join with").stdout).expect("text");
    let joining: Vec<&str> = joining.split_whitespace().skip(1).collect();
    assert!(joining.contains(&"--ca-hash"), "{joining:?}");
    let _agent = Process::spawn(
        Command::new(minke())
            .args(joining)
            .arg("--data-dir")
            .arg(&agent.data)
            .args(["--node-name", "apart", "--kubelet-port", &free_port().to_string(), "--healthz-port", "0"])
            .args(ranges),
    );
    eventually("the node is ready", || {
        let node = kubectl.try_run(&["get", "node", "apart"], "");
        if node.stdout.contains(" Ready ") { Ok(()) } else { Err(node) }
    });
    agent.import_busybox();
    kubectl.run(&["create", "deployment", "far", "--image", BUSYBOX, "--", "sleep", "1000"]);
    kubectl.run(&["rollout", "status", "deployment/far", "--timeout=60s"]);
    let pod = kubectl.run(&["get", "pods", "-l", "app=far", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_eq!(kubectl.run(&["exec", &pod, "--", "hostname"]).trim(), pod);
}
