//! The data path over real sockets: raw clients in front, scripted backends behind.
//! `smuggling` has what must be refused, `protocols` TLS, HTTP/2 and upgrades, `gateway` what only Gateways ask for; here are
//! routes, retries and limits.

mod gateway;
mod protocols;
mod smuggling;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use env::Env;
use ingress::{
    Backend, BackendKey, BackendState, Destinations, Entry, HostTable, PathMatch, PortTable, Protocol, Proxy,
    ProxyConfig, RequestMatch, Route, RouteSettings, RouteTable, ServicePort, SharedTable,
};
use parking_lot::Mutex;
use serve::{Limits, serve_http};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// How long a busy machine may take for what must happen.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A proxy on a port of loopback, until it is dropped.
pub struct Front {
    pub address: SocketAddr,
    pub table: SharedTable,
    pub stop: CancellationToken,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Front {
    pub async fn start(config: ProxyConfig, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (env, stop, table) = (Env::real(), CancellationToken::new(), SharedTable::default());
        let proxy = Proxy::new(table.clone(), config, env.clone());
        let entry = Entry::new(proxy, address.port(), false, Some(8443));
        env::spawn(serve_http(listener, entry, limits, env, stop.clone()));
        Self { address, table, stop }
    }

    /// One that sends everything to `backend`.
    pub async fn to(backend: Arc<Backend>, settings: RouteSettings) -> Self {
        let front = Self::start(ProxyConfig::default(), Limits::INGRESS).await;
        front.set(&[("", "/", Some(backend))], settings);
        front
    }

    pub fn set(&self, rules: &[(&str, &str, Option<Arc<Backend>>)], settings: RouteSettings) {
        self.table.store(table(self.address.port(), rules, settings));
    }

    /// All bytes of the answer to the bytes of a request, until the connection is closed.
    pub async fn raw(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // Who is refused may be cut off before everything is sent.
        _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let read = async {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                answer.extend_from_slice(&buffer[..length]);
            }
        };
        env::timeout(TEST_TIMEOUT, read).await.expect("the connection is closed");
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub async fn get(&self, host: &str, path: &str) -> String {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).await
    }
}

pub fn table(port: u16, rules: &[(&str, &str, Option<Arc<Backend>>)], settings: RouteSettings) -> RouteTable {
    let (mut hosts, settings) = (HostTable::default(), Arc::new(settings));
    for (host, path, backend) in rules {
        let route = Route {
            owner: "n/test".into(),
            path: PathMatch::prefix(path),
            one_label: true,
            condition: RequestMatch::default(),
            destinations: Arc::new(Destinations::one(backend.clone())),
            filters: None,
            settings: settings.clone(),
        };
        hosts.insert(host, Arc::new(route));
    }
    let hosts = PortTable { hosts: Arc::new(hosts), ..PortTable::default() };
    RouteTable { ports: [(port, hosts)].into() }
}

pub fn backend(endpoints: &[SocketAddr]) -> Arc<Backend> {
    let key = BackendKey::new("n", "s", ServicePort::Number(80));
    Arc::new(Backend::new(key, state(endpoints)))
}

pub fn state(endpoints: &[SocketAddr]) -> BackendState {
    BackendState { protocol: Protocol::Http1, endpoints: endpoints.to_vec(), problem: None }
}

/// A server of HTTP/1.1 that answers every head with the same bytes and remembers what it was sent.
pub struct Scripted {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<String>>,
    pub connections: Arc<AtomicUsize>,
}

impl Scripted {
    pub async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
        let (all, count) = (seen.clone(), connections.clone());
        env::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                env::spawn(Self::serve(stream, answer, all.clone()));
            }
        });
        Self { address, seen, connections }
    }

    async fn serve(mut stream: TcpStream, answer: &'static str, seen: Arc<Mutex<String>>) {
        let (mut unanswered, mut buffer) = (String::new(), [0; 4096]);
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            seen.lock().push_str(&text);
            unanswered.push_str(&text);
            while let Some(end) = unanswered.find("\r\n\r\n") {
                unanswered.drain(..end + 4);
                if answer.is_empty() || stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    pub fn seen(&self) -> String {
        self.seen.lock().clone()
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\n\
                  X-Hop: 1\r\nX-Kept: 1\r\n\r\nok";

#[tokio::test]
async fn a_request_goes_to_its_route_with_what_the_backend_must_know() {
    let server = Scripted::start(OK).await;
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    let there = Some(backend(&[server.address]));
    front.set(
        &[("foo.com", "/a", there), ("foo.com", "/none", None), ("foo.com", "/empty", Some(backend(&[])))],
        RouteSettings::default(),
    );
    let answer = front.get("foo.com:80", "/a/b?c=d").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(answer.contains("x-kept: 1") && !answer.contains("x-hop") && !answer.contains("keep-alive"), "{answer}");
    let seen = server.seen();
    assert!(seen.starts_with("GET /a/b?c=d HTTP/1.1\r\n"), "{seen}");
    let port = format!("x-forwarded-port: {}", front.address.port());
    for header in
        ["host: foo.com:80", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: http", "x-real-ip: 127.0.0.1", &port]
    {
        assert!(seen.contains(&format!("\r\n{header}\r\n")), "{header} in {seen}");
    }
    assert!(!seen.contains("connection"), "{seen}");
    for (host, path, status) in
        [("foo.com", "/b", "404"), ("bar.com", "/a", "404"), ("foo.com", "/none", "503"), ("foo.com", "/empty", "503")]
    {
        let answer = front.get(host, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}{path}: {answer}");
    }
}

#[tokio::test]
async fn connections_to_endpoints_are_used_again() {
    let server = Scripted::start(OK).await;
    let front = Front::to(backend(&[server.address]), RouteSettings::default()).await;
    for _ in 0..10 {
        assert!(front.get("h", "/").await.ends_with("ok"));
    }
    let one = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(9) + "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    assert_eq!(front.raw(one.as_bytes()).await.matches("200 OK").count(), 10);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

/// An address that nobody listens on.
async fn refused() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn what_did_not_arrive_is_sent_elsewhere_and_what_may_have_is_not_repeated() {
    let server = Scripted::start(OK).await;
    let broken = Scripted::start("").await;
    let post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let unreachable = Front::to(backend(&[refused().await, server.address]), RouteSettings::default()).await;
    for _ in 0..4 {
        assert!(unreachable.get("h", "/").await.ends_with("ok"));
        assert!(unreachable.raw(post).await.ends_with("ok"));
    }
    assert_eq!(server.seen().matches("hello").count(), 4);
    let breaks_off = Front::to(backend(&[broken.address, server.address]), RouteSettings::default()).await;
    let (mut answered, mut failed) = (0, 0);
    for _ in 0..4 {
        let answer = breaks_off.raw(post).await;
        match &answer[..12] {
            "HTTP/1.1 200" => answered += 1,
            "HTTP/1.1 502" => failed += 1,
            _ => panic!("{answer}"),
        }
    }
    assert_eq!(broken.seen().matches("hello").count(), failed, "each was sent once");
    assert_eq!(server.seen().matches("hello").count(), 4 + answered, "each was sent once");
    assert!(failed > 0);
    for _ in 0..4 {
        assert!(breaks_off.get("h", "/").await.ends_with("ok"));
    }
    let nowhere = Front::to(backend(&[refused().await]), RouteSettings::default()).await;
    assert!(nowhere.get("h", "/").await.starts_with("HTTP/1.1 502 "));
}

#[tokio::test]
async fn large_bodies_silent_clients_and_hanging_backends_get_an_answer() {
    let server = Scripted::start(OK).await;
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let short = RouteSettings { response_timeout: Duration::from_millis(100), ..RouteSettings::default() };
    let front = Front::to(backend(&[hangs.local_addr().unwrap()]), short).await;
    assert!(front.get("h", "/").await.starts_with("HTTP/1.1 504 "));

    let small = RouteSettings { body_bytes_max: Some(4), ..RouteSettings::default() };
    let front = Front::to(backend(&[server.address]), small).await;
    let answer = front.raw(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let fits = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhell";
    assert!(front.raw(fits).await.starts_with("HTTP/1.1 200 "));
    // A backend that waits for the whole body before it answers.
    let front = Front::to(
        backend(&[hangs.local_addr().unwrap()]),
        RouteSettings { body_bytes_max: Some(4), ..RouteSettings::default() },
    )
    .await;
    let answer =
        front.raw(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");

    let config = ProxyConfig { request_silence_max: Duration::from_millis(100), ..ProxyConfig::default() };
    let front = Front::start(config, Limits::INGRESS).await;
    front.set(&[("", "/", Some(backend(&[hangs.local_addr().unwrap()])))], RouteSettings::default());
    let answer = front.raw(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhel").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn plain_http_is_sent_to_https_where_a_route_says_so() {
    let redirects = RouteSettings { redirect_to_https: true, ..RouteSettings::default() };
    let front = Front::to(backend(&[]), redirects).await;
    let answer = front.get("foo.com:80", "/a?b=c").await;
    assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
    assert!(answer.contains("location: https://foo.com:8443/a?b=c\r\n"), "{answer}");
}

#[tokio::test]
async fn no_request_is_lost_while_routes_and_endpoints_change() {
    let (one, two) = (Scripted::start(OK).await, Scripted::start(OK).await);
    let front = Arc::new(Front::to(backend(&[one.address]), RouteSettings::default()).await);
    let done = CancellationToken::new();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (front, done) = (front.clone(), done.clone());
            env::spawn(async move {
                let mut count = 0;
                while !done.is_cancelled() {
                    let answer = front.get("h", "/").await;
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                    count += 1;
                }
                count
            })
        })
        .collect();
    let changing = backend(&[one.address]);
    for n in 0..100 {
        match n % 4 {
            0 => front.set(&[("", "/", Some(backend(&[two.address])))], RouteSettings::default()),
            1 => front.set(&[("h", "/", Some(changing.clone()))], RouteSettings::default()),
            2 => changing.set(state(&[two.address])),
            _ => changing.set(state(&[refused().await, one.address])),
        }
        env::sleep(Duration::from_millis(2)).await;
    }
    done.cancel();
    let mut total = 0;
    for client in clients {
        total += client.await.expect("no request failed");
    }
    assert!(total > 0);
}

#[tokio::test]
async fn requests_are_logged_with_their_route() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let server = Scripted::start(OK).await;
    let log = ingress::AccessLog::open(&path).unwrap();
    let front = Front::start(ProxyConfig { access_log: Some(log), ..ProxyConfig::default() }, Limits::INGRESS).await;
    front.set(&[("", "/", Some(backend(&[server.address])))], RouteSettings::default());
    front.raw(b"GET /a?b HTTP/1.1\r\nHost: h\r\nUser-Agent: \"\r\nConnection: close\r\n\r\n").await;
    let end = env::instant_now() + TEST_TIMEOUT;
    let line = loop {
        let text = std::fs::read_to_string(&path).unwrap();
        if text.ends_with('\n') {
            break text;
        }
        assert!(env::instant_now() < end, "a line");
        env::sleep(Duration::from_millis(10)).await;
    };
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    let rest = format!("\"GET /a?b HTTP/1.1\" 200 2 \"-\" \"\\x22\" \"h\" n/test {} ", server.address);
    assert!(line.contains(&rest), "{line}");
}
