//! Clients that connect and then say nothing, at each port of the node.

use std::time::Duration;

use client::{HttpsConfig, HttpsTransport, Identity};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;

/// Of simulated time; what is not over by then never is.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

struct Nothing;

#[async_trait]
impl View for Nothing {
    fn pods(&self) -> Vec<Arc<Pod>> {
        Vec::new()
    }

    async fn container(&self, _: &Pod, _: &str, _: bool) -> Result<ContainerView, ApiError> {
        Err(ApiError::internal("nothing"))
    }

    fn exit(&self, _: &str) -> ContainerExit {
        unreachable!("no container")
    }

    async fn is_running(&self, _: &str) -> bool {
        false
    }

    async fn sandbox(&self, _: &Pod) -> Result<String, ApiError> {
        Err(ApiError::internal("nothing"))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, ApiError> {
        Ok(Vec::new())
    }

    async fn stats_summary(&self, only_cpu_and_memory: bool) -> Result<Value, ApiError> {
        Ok(Value::Bool(only_cpu_and_memory))
    }

    async fn machine(&self) -> Result<Value, ApiError> {
        Ok(Value::Null)
    }

    async fn metrics(&self, _: &str) -> Result<String, ApiError> {
        Ok(String::new())
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn observe_health(&self, _: &str, _: bool) {}
}

#[derive(Debug)]
struct One(Arc<rustls::sign::CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }
}

async fn closes(address: SocketAddr, begun: &str) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(begun.as_bytes()).await.unwrap();
    let ended = env::timeout(FOR_EVER, stream.read(&mut [0])).await;
    assert_eq!(ended.expect("the node closes it").unwrap_or(0), 0, "{begun}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shakes_no_hands_is_closed() {
    let made = rcgen::generate_simple_self_signed(["node".to_string()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let key = client::certified_key(certificate.as_bytes(), key.as_bytes()).unwrap();
    let nowhere = HttpsConfig {
        server: "https://127.0.0.1:1".into(),
        ca: Vec::new(),
        identity: Identity::default(),
        user_agent: "test".into(),
        ..HttpsConfig::default()
    };
    let env = Env::real();
    let server = Server {
        view: Arc::new(Nothing),
        runtime: Arc::new(cri::fake::FakeRuntime::default()),
        client: Client::new(HttpsTransport::new(nowhere).unwrap()),
        env,
        config: Arc::new(Config::default()),
        serving_certificate: Arc::new(One(Arc::new(key))),
        client_ca_pem: Vec::new(),
        endpoint_drain: None,
        metrics: Metrics::default(),
        connections: serve::Limits::KUBELET,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = env::spawn(server.serve(listener, CancellationToken::new()));
    closes(address, "").await;
    closes(address, "\u{16}\u{3}\u{1}").await;
    assert!(!serving.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_half_a_request_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Plain(|_| std::future::ready(text("ok".into())));
    let stop = CancellationToken::new();
    let serving = env::spawn(serve_plain_at(listener, Env::real(), stop, answer));
    for begun in ["", "GET /healthz HTTP/1.1\r\nX: "] {
        closes(address, begun).await;
    }
    assert!(!serving.is_finished());
}

#[tokio::test]
async fn the_read_only_port_shows_and_changes_nothing() {
    let (env, metrics) = (Env::real(), Metrics::default());
    let check = async |method: Method, path: &str, expected: Result<&str, u16>| {
        let request = Request::builder().method(&method).uri(path).body(()).unwrap();
        match (answer_read_only(&Nothing, &request, &env, &metrics).await, expected) {
            (Ok(response), Ok(body)) => {
                let found = response.into_body().collect().await.unwrap().to_bytes();
                assert!(String::from_utf8_lossy(&found).starts_with(body), "{path}: {found:?}");
            }
            (Err(error), Err(code)) => assert_eq!(error.code, code, "{path}"),
            (found, _) => panic!("{method} {path}: {:?}", found.map(|response| response.status())),
        }
    };
    for (path, body) in [
        ("/healthz", "ok"),
        ("/pods", "{\"apiVersion\":\"v1\""),
        ("/spec", "null"),
        ("/stats/summary", "false"),
        ("/stats/summary?only_cpu_and_memory=true", "true"),
        ("/stats/summary?only_cpu_and_memory=yes", "false"),
        ("/metrics", ""),
        ("/metrics/cadvisor", ""),
        ("/metrics/resource", ""),
        ("/metrics/probes", ""),
    ] {
        check(Method::GET, path, Ok(body)).await;
        check(Method::POST, path, Err(405)).await;
    }
    for path in ["/exec/n/p/c", "/containerLogs/n/p/c", "/logs/", "/run/n/p/c", "/configz", "/runningpods", "/none"] {
        check(Method::GET, path, Err(404)).await;
    }
}
