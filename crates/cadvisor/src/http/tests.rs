//! Questions over groups that are plain files, and one client that says nothing.

use std::{collections::HashMap, path::Path};

use jiff::Timestamp;
use serde_json::Value;
use tokio::{io::AsyncReadExt, net::TcpStream};

use super::*;
use crate::{Cgroups, GroupKind, Identity, Naming, Versions};

/// A pod whose names would be markup, were they not escaped.
const ODD: &str = "<img src=x onerror=alert(1)>";

struct Pods;

impl Naming for Pods {
    fn identities(&self) -> HashMap<String, Identity> {
        let pod = Identity { kind: GroupKind::Pod, pod: ODD.into(), namespace: "n".into(), ..Identity::default() };
        let aliases = vec!["abc".to_string()];
        let container = Identity { kind: GroupKind::Container, container: "main".into(), aliases, ..pod.clone() };
        HashMap::from([("/kubepods/podu".to_string(), pod), ("/kubepods/podu/c d".to_string(), container)])
    }

    fn roots(&self) -> Vec<String> {
        vec!["/kubepods".into()]
    }
}

fn monitor(root: &Path) -> Arc<Monitor> {
    for group in ["", "kubepods/podu", "kubepods/podu/c d"] {
        std::fs::create_dir_all(root.join(group)).unwrap();
        std::fs::write(root.join(group).join("cpu.stat"), "usage_usec 7\n").unwrap();
    }
    let versions = Versions { kernel: "k".into(), system: "s".into(), own: "v9".into() };
    let env = Env::simulated(Timestamp::UNIX_EPOCH, 1);
    Arc::new(Monitor::new(Cgroups::Unified { root: root.into() }, Arc::new(Pods), versions, env))
}

async fn ask(monitor: &Monitor, path: &str, host: &str) -> (u16, Response<Body>) {
    let request = Request::get(path).header(header::HOST, host).body(()).unwrap();
    let response = answer(monitor, &Question::of(&request));
    (response.status().as_u16(), response)
}

async fn body(response: Response<Body>) -> String {
    use http_body_util::BodyExt;
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn cadvisors_json() {
    let dir = tempfile::tempdir().unwrap();
    let monitor = monitor(dir.path());
    let check = async |path: &str, pointer: &str, expected: Value| {
        let (code, response) = ask(&monitor, path, "localhost:4194").await;
        let text = body(response).await;
        assert_eq!(code, 200, "{path}: {text}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found.pointer(pointer), Some(&expected), "{path} {pointer}\n{found:#}");
    };
    let container = "/api/v1.3/containers/kubepods/podu/c%20d";
    check(container, "/name", "/kubepods/podu/c d".into()).await;
    check(container, "/id", "abc".into()).await;
    check(container, "/stats/0/cpu/usage/total", 7000.into()).await;
    check(container, "/stats/0/network/rx_bytes", 0.into()).await;
    check(container, "/spec/labels/io.kubernetes.container.name", "main".into()).await;
    check("/api/v1.3/containers/", "/subcontainers/0/name", "/kubepods".into()).await;
    check("/api/v1.3/subcontainers/kubepods", "/1/name", "/kubepods/podu".into()).await;
    check("/api/v2.1/stats/kubepods/podu?count=1", "/~1kubepods~1podu/stats/0/load_stats/nr_running", 0.into()).await;
    check("/api/v2.0/stats/kubepods/podu?recursive=true", "/~1kubepods~1podu~1c d/0/cpu/usage/total", 7000.into())
        .await;
    check("/api/v2.0/spec/kubepods/podu", "/~1kubepods~1podu/has_cpu", true.into()).await;
    check("/api/v2.0/version", "", "v9".into()).await;
    check("/api/v2.0/attributes", "/kernel_version", "k".into()).await;
    check("/api/v2.0/ps/kubepods/podu", "", Value::Array(vec![])).await;
    check("/ui/list?name=%2F", "/0/pod", ODD.into()).await;
    let (code, _) = ask(&monitor, "/api/v1.3/machine", "127.0.0.1").await;
    assert_eq!(code, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let monitor = monitor(dir.path());
    for (path, host, code) in [
        ("/api/v1.3/containers/none", "localhost", 404),
        ("/api/v1.3/containers/..%2f..%2fetc", "localhost", 404),
        ("/api/v1.3/containers/?num_stats=x", "localhost", 400),
        ("/api/v2.0/stats/?type=docker", "localhost", 400),
        ("/api/v9/machine", "localhost", 404),
        ("/none", "localhost", 404),
        ("/containers/", "evil.example", 403),
        ("/containers/", "localhost.evil.example:4194", 403),
        ("/containers/", "", 403),
        ("/containers/", "[::1]:4194", 200),
        ("/", "localhost", 307),
    ] {
        assert_eq!(ask(&monitor, path, host).await.0, code, "{path} {host}");
    }
    let request = Request::post("/api/v1.3/machine").header(header::HOST, "localhost").body(()).unwrap();
    assert_eq!(answer(&monitor, &Question::of(&request)).status(), 405);
}

#[tokio::test(start_paused = true)]
async fn the_page_loads_nothing_from_elsewhere_and_holds_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let monitor = monitor(dir.path());
    for path in ["/containers/", "/static/page.js", "/static/page.css"] {
        let (code, response) = ask(&monitor, path, "localhost").await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_string();
        assert!(code == 200 && policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = body(response).await;
        let elsewhere = text.lines().find(|line| line.contains("://") && !line.contains("http://www.w3.org/2000/svg"));
        assert_eq!(elsewhere, None, "{path}");
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "style=", "onclick="] {
            assert!(!text.contains(markup), "{path}: {markup}");
        }
    }
    let (_, response) = ask(&monitor, "/containers/%3Cscript%3E", "localhost").await;
    assert!(!body(response).await.contains("<script>alert"));
    let (_, response) = ask(&monitor, "/metrics", "localhost").await;
    assert!(body(response).await.contains(&format!("pod=\"{ODD}\"")), "metrics hold it as a label");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let env = Env::simulated(Timestamp::UNIX_EPOCH, 1);
    env::spawn(serve(listener, monitor(dir.path()), env, CancellationToken::new()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let ended = env::timeout(std::time::Duration::from_secs(24 * 3600), stream.read(&mut [0])).await;
    assert_eq!(ended.expect("it is closed").unwrap_or(0), 0);
}
