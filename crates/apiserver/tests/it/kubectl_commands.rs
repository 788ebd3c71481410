//! Commands of kubectl that need the API alone: what it asks of a server, `diff`, `--dry-run=server` and `proxy`.
//! Those that need running pods are in the end-to-end tests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::kubectl::{Kubectl, with_every_kubectl};

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: \"first:1\"}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_learns_about_the_server() {
    with_every_kubectl(|kubectl| {
        let versions = kubectl.ok("api-versions", "", "apps/v1");
        assert!(versions.lines().any(|line| line == "v1"), "{versions}");
        let info = kubectl.ok("cluster-info", "", "is running at");
        assert!(info.contains("Kubernetes control plane") && info.contains(&kubectl.server.url()), "{info}");
        let short = kubectl.ok("version", "", "Client Version: v1.");
        assert!(short.contains("Server Version: v1.35."), "{short}");
        let (ok, text) = kubectl.command(&["version", "-o", "json"], "", None);
        // Older ones warn after it.
        let end = text.rfind('}').map_or(0, |at| at + 1);
        let both: Value = serde_json::from_str(&text[..end]).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(ok, "{text}");
        for side in ["clientVersion", "serverVersion"] {
            let text = |field: &str| both[side][field].as_str().unwrap_or_default();
            for field in ["major", "minor"] {
                let number = text(field).trim_end_matches('+');
                assert!(number.parse::<u32>().is_ok(), "{side} {field}: {both}");
            }
            for field in ["gitVersion", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"] {
                assert!(!text(field).is_empty(), "{side} {field}: {both}");
            }
            assert!(text("gitCommit").bytes().all(|b| b.is_ascii_hexdigit()) && both[side]["gitCommit"].is_string());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_diffs_and_tries_without_writing() {
    with_every_kubectl(|kubectl| {
        kubectl.ok("apply -f -", DEPLOYMENT, "created");
        kubectl.ok("diff -f -", DEPLOYMENT, "");
        let (ok, text) = kubectl.command(&["diff", "-f", "-"], &DEPLOYMENT.replace("first:1", "second:2"), None);
        let line = |mark: char, image: &str| text.lines().any(|l| l.starts_with(mark) && l.contains(image));
        assert!(!ok && line('-', "image: first:1") && line('+', "image: second:2"), "{text}");
        kubectl.ok("get deployment web -o jsonpath={..image}", "", "first:1");

        kubectl.ok("run trial --image=first:1 --labels=run=trial", "", "created");
        let patch = r#"{"spec":{"containers":[{"name":"trial","image":"second:2"}]}}"#;
        let (ok, text) = kubectl.command(&["patch", "pod", "trial", "-p", patch, "--dry-run=server"], "", None);
        assert!(ok && text.contains("patched"), "{text}");
        kubectl.ok("get pod trial -o jsonpath={.spec.containers[*].image}", "", "first:1");
        let (ok, text) = kubectl.command(&["patch", "pod", "trial", "-p", patch], "", None);
        assert!(ok, "{text}");
        kubectl.ok("get pod trial -o jsonpath={.spec.containers[*].image}", "", "second:2");
    })
    .await;
}

/// A `kubectl proxy` that ends with the test; where it says it serves.
struct Proxy(Child);

impl Proxy {
    fn start(kubectl: &Kubectl, flag: &str) -> (Self, String) {
        let mut command = kubectl.prepare(&["proxy", flag], None);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("kubectl starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).expect("kubectl says where it serves");
        let place = line.trim().strip_prefix("Starting to serve on ").unwrap_or_else(|| panic!("{line}")).to_string();
        (Self(child), place)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The versions that `/api/` has, asked over a connection to the proxy.
fn versions(mut stream: impl Read + Write) -> Vec<String> {
    stream.write_all(b"GET /api/ HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 OK"), "{answer}");
    let value: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
    value["versions"].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_proxies_at_any_port_or_socket() {
    with_every_kubectl(|kubectl| {
        let (_proxy, address) = Proxy::start(kubectl, "--port=0");
        assert!(!address.ends_with(":0"), "{address}");
        assert_eq!(versions(TcpStream::connect(&address).unwrap()), ["v1"]);
        let socket = kubectl.server.path("proxy.sock");
        let (_proxy, place) = Proxy::start(kubectl, &format!("--unix-socket={}", socket.display()));
        assert_eq!(place, socket.display().to_string());
        assert_eq!(versions(UnixStream::connect(&socket).unwrap()), ["v1"]);
    })
    .await;
}
