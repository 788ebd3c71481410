//! The halves apart: `minke server` on a real etcd, `minke agent` joins it over HTTPS with a token; and the node's halves,
//! `minke kubelet` and `minke proxy`, as processes of their own.

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    BUSYBOX, Cluster, JoinCommand, KEEP, Kubectl, Options, Process, eventually, free_port, minke, update_under_load,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};

use crate::foreign::Bridge;

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
            .args(["--port", &port, "--etcd-servers", &client, "--etcd-prefix", "/minke-e2e"])
            .args(ranges),
    );
    let kubectl = Kubectl::new(&server_data.join("admin.kubeconfig"));
    eventually("the server is ready", || {
        let ready = kubectl.try_run(&["get", "--raw", "/readyz"], "");
        if ready.ok { Ok(()) } else { Err(ready) }
    });

    // The agent's cluster object is only used for its data directory and its removal.
    let agent = Cluster::prepare(Options::default());
    let joining = JoinCommand::of(&server_data);
    assert_eq!(joining.after("--pod-cidr"), ranges[1]);
    strangers_stay_out(&kubectl, &joining);
    let _agent = Process::spawn(
        Command::new(minke())
            .args(joining.from_file(directory.path()))
            .arg("--data-dir")
            .arg(&agent.data)
            .args(["--node-name", "apart", "--kubelet-port", &free_port().to_string(), "--healthz-port", "0"])
            .args(KEEP),
    );
    eventually("the node is ready", || {
        let node = kubectl.try_run(&["get", "node", "apart"], "");
        if node.stdout.contains(" Ready ") { Ok(()) } else { Err(node) }
    });
    agent.import_busybox();
    kubectl.run(&["create", "deployment", "far", "--image", BUSYBOX, "--", "sleep", "1000"]);
    kubectl.run(&["rollout", "status", "deployment/far", "--timeout=180s"]);
    let pod = kubectl.run(&["get", "pods", "-l", "app=far", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_eq!(kubectl.run(&["exec", &pod, "--", "hostname"]).trim(), pod);
}

/// Of all clusters on this machine.
fn run_directories() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/run").expect("a directory").flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with("mk")).collect()
}

/// Who has no good token, or does not know whom to believe, is told so at once.
fn strangers_stay_out(kubectl: &Kubectl, joining: &JoinCommand) {
    kubectl.apply(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: bootstrap-token-abcdef, namespace: kube-system}\n\
         type: bootstrap.kubernetes.io/token\nstringData: {token-id: abcdef, token-secret: 0123456789abcdef, \
         usage-bootstrap-authentication: 'true', expiration: '2020-01-01T00:00:00Z'}\n",
    );
    let before = run_directories();
    let unknown = format!("sha256:{}", "0".repeat(64));
    let other = Cluster::shared().data.join("pki/ca.crt").display().to_string();
    for (token, instead, value, expected) in [
        ("abcdef.0123456789abcdef", "--ca-hash", joining.after("--ca-hash"), "does not accept our token"),
        (
            "zzzzzz.0123456789abcdef",
            "--ca-hash",
            joining.after("--ca-hash"),
            "`minke node join-command` on the server shows one that is good",
        ),
        (joining.token.as_str(), "--ca-hash", unknown.as_str(), "check --server and --ca-hash"),
        (joining.token.as_str(), "--ca-file", other.as_str(), "is not signed for by the authority that we were given"),
    ] {
        let data = tempfile::tempdir().expect("a directory");
        let arguments = joining.with("--ca-hash", instead, value);
        let mut command = Command::new(minke());
        command.args(arguments).args(["--node-name", "stranger", "--data-dir"]).arg(data.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("minke runs");
        // One that refuses the rest does not read it.
        let _ = child.stdin.take().expect("a pipe").write_all(format!("{token}\n").as_bytes());
        let output = child.wait_with_output().expect("minke ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{token} {instead} {value}: {said}");
    }
    assert!(!kubectl.try_run(&["get", "node", "stranger"], "").ok);
    assert_eq!(run_directories(), before, "who is not let in leaves nothing");
}

/// A node's own credentials, as whoever sets up kubelets by hand makes them.
fn node_kubeconfig(server: &Path, admin: &Path, name: &str) -> PathBuf {
    let read = |file: &str| std::fs::read_to_string(server.join("pki").join(file)).expect("a file of the server's");
    let (authority, key) = (read("ca.crt"), KeyPair::from_pem(&read("ca.key")).expect("a key"));
    let issuer = Issuer::from_ca_cert_pem(&authority, key).expect("an authority");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{name}"));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
    let address = client::from_kubeconfig(admin, "e2e").expect("the admin's kubeconfig").server;
    let text = client::kubeconfig_yaml(&address, &authority, name, &certificate, &key.serialize_pem());
    let path = server.join(format!("{name}.kubeconfig"));
    std::fs::write(&path, text).expect("a file");
    path
}

/// The proxy tells the kubelet at a socket when an endpoint has left the rules, so a server that ends at once on its
/// stop signal still answers every request.
#[test]
fn a_kubelet_and_a_proxy_as_two_processes_drop_nothing() {
    // Both objects are only used for their data directories and their removal.
    let (server, node) = (Cluster::prepare(Options::default()), Cluster::prepare(Options::default()));
    let ranges = ["--pod-cidr", "10.125.0.0/16", "--service-cidr", "10.126.0.0/16"];
    let _server = Process::spawn(
        Command::new(minke())
            .args(["server", "--port", &free_port().to_string(), "--data-dir"])
            .arg(&server.data)
            .args(ranges),
    );
    let kubeconfig = server.data.join("admin.kubeconfig");
    let kubectl = Kubectl::new(&kubeconfig);
    eventually("the server is ready", || {
        let ready = kubectl.try_run(&["get", "--raw", "/readyz"], "");
        if ready.ok { Ok(()) } else { Err(ready) }
    });
    // A kubelet alone leaves pod networks to others.
    let bridge = Bridge::new("mka");
    bridge.configure(&node.data, "10.125.0.0/24");
    let node_kubeconfig = node_kubeconfig(&server.data, &kubeconfig, "apart");
    let _kubelet = Process::spawn(
        Command::new(minke())
            .args(["kubelet", "--hostname-override", "apart", "--healthz-port=0", "--port", &free_port().to_string()])
            .args(KEEP)
            .arg("--data-dir")
            .arg(&node.data)
            .arg("--kubeconfig")
            .arg(&node_kubeconfig),
    );
    let _proxy = Process::spawn(
        Command::new(minke())
            .args(["proxy", "--node-name", "apart", "--proxy-healthz-port=0", "--proxy-metrics-port=0", "--data-dir"])
            .arg(&node.data)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(ranges),
    );
    eventually("the node is ready", || {
        let node = kubectl.try_run(&["get", "node", "apart"], "");
        if node.stdout.contains(" Ready ") { Ok(()) } else { Err(node) }
    });
    node.import_busybox();
    kubectl.apply(&format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 4
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: net
        image: {BUSYBOX}
        command: [net, serve, '8080']
        readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
"#
    ));
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    // Over a connection to the kubelet, whose certificate the server verifies.
    let pod = kubectl.run(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"]);
    eventually("the kubelet shows a certificate that the server believes", || {
        let said = kubectl.try_run(&["exec", &pod, "--", "hostname"], "");
        if said.stdout.trim() == pod { Ok(()) } else { Err(said) }
    });
    kubectl.run(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    update_under_load(&kubectl, 4);
    kubectl.run(&["delete", "deployment", "web", "--timeout=180s"]);
}
