//! Slow and silent clients at every stage of a connection, in simulated time over pipes in memory; caps over real sockets.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::TcpStream,
};

use super::*;

const PIPE_BYTES: usize = 4096;
/// Of simulated time; what is not over by then never is.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// Of real time, on a machine that is busy with other things.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

type TestBody = UnsyncBoxBody<Bytes, Infallible>;

/// `/` says ok, `/large` and `/pieces` more than a pipe holds, `/slow` ok after ten minutes, `/watch` a line every minute for ever,
/// `/upgrade` becomes an echo.
#[derive(Default)]
struct Pages {
    failed_handshakes: AtomicUsize,
}

impl Handler for Pages {
    type Body = TestBody;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, _: &Arc<Peer>) -> BoxFuture<'static, Response<TestBody>> {
        Box::pin(page(request))
    }

    fn handshake_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }
}

async fn page(request: Request<Incoming>) -> Response<TestBody> {
    let full = |bytes: Vec<u8>| Response::new(Full::from(bytes).boxed_unsync());
    match request.uri().path() {
        "/large" => full(vec![b'x'; 1 << 20]),
        "/pieces" => {
            let pieces = (0..256).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; 4096]))));
            let mut response = Response::new(StreamBody::new(futures::stream::iter(pieces)).boxed_unsync());
            response.extensions_mut().insert(Finite);
            response
        }
        "/slow" => {
            env::sleep(Duration::from_secs(600)).await;
            full(b"ok".into())
        }
        "/watch" => {
            let lines = futures::stream::unfold((), |()| async {
                env::sleep(Duration::from_secs(60)).await;
                Some((Ok(Frame::data(Bytes::from("event\n"))), ()))
            });
            Response::new(StreamBody::new(lines).boxed_unsync())
        }
        "/upgrade" => {
            env::spawn(async move {
                let upgraded = hyper::upgrade::on(request).await.unwrap();
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
                tokio::io::copy(&mut read, &mut write).await
            });
            let mut response = Response::new(Empty::new().boxed_unsync());
            *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
        _ => full(b"ok".into()),
    }
}

struct Fixture {
    env: Env,
    slots: Slots,
    pages: Arc<Pages>,
    server: Arc<Server<Pages>>,
}

fn tls_config() -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into()).unwrap()
}

fn fixture(tls: bool) -> Fixture {
    let (env, pages) = (Env::real(), Arc::<Pages>::default());
    let tls = tls.then(|| TlsAcceptor::from(Arc::new(tls_config())));
    let server =
        Server { tls, handler: pages.clone(), limits: Limits::COMPONENT, env: env.clone(), stop: Default::default() };
    Fixture { env, slots: Slots::new(10, 10), pages, server: Arc::new(server) }
}

impl Fixture {
    fn connect(&self) -> DuplexStream {
        let (client, stream) = tokio::io::duplex(PIPE_BYTES);
        env::spawn(self.server.clone().connection(stream, None, self.slots.take(None).unwrap()));
        client
    }

    /// Until `stopped`, after which nothing passes in either direction.
    async fn connect_http2(
        &self,
        stopped: CancellationToken,
    ) -> (hyper::client::conn::http2::SendRequest<Empty<Bytes>>, BoxFuture<'static, ()>) {
        let (client, mut near) = tokio::io::duplex(PIPE_BYTES);
        let (mut far, stream) = tokio::io::duplex(PIPE_BYTES);
        env::spawn(async move {
            let passing = tokio::io::copy_bidirectional(&mut near, &mut far);
            if stopped.run_until_cancelled(passing).await.is_none() {
                env::sleep(2 * FOR_EVER).await;
            }
        });
        let (server, slot) = (self.server.clone(), self.slots.take(None).unwrap());
        let peer = Peer { address: None, certificates: None };
        env::spawn(async move { server.http(stream, slot, peer, true).await });
        let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await;
        let (sender, connection) = made.unwrap();
        (sender, Box::pin(async { drop(connection.await) }))
    }

    /// Seconds until the server has closed the connection; its slot is free then.
    async fn closed_after(&self, client: &mut DuplexStream) -> u64 {
        let (began, mut rest) = (self.env.monotonic(), Vec::new());
        let read = env::timeout(FOR_EVER, client.read_to_end(&mut rest)).await;
        let _ = read.expect("the server closes the connection");
        let seconds = (self.env.monotonic() - began).as_secs();
        while self.slots.in_use() > 0 {
            tokio::task::yield_now().await;
        }
        seconds
    }
}

async fn ask(client: &mut DuplexStream, path: &str) {
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
}

async fn read_until(client: &mut DuplexStream, end: &str) {
    let mut seen = Vec::new();
    while !seen.ends_with(end.as_bytes()) {
        let mut byte = [0];
        let read = env::timeout(FOR_EVER, client.read(&mut byte)).await.expect("an answer").unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_ends_at_the_handshake() {
    let f = fixture(true);
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00"] {
        let mut client = f.connect();
        client.write_all(begun).await.unwrap();
        assert_eq!(f.closed_after(&mut client).await, 10, "{begun:?}");
    }
    assert_eq!(f.pages.failed_handshakes.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_ends_at_every_stage_of_a_request() {
    let f = fixture(false);
    for begun in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: 1\r\n"] {
        let mut client = f.connect();
        client.write_all(begun.as_bytes()).await.unwrap();
        assert_eq!(f.closed_after(&mut client).await, 32, "{begun}");
    }
    // After a request it may be silent for longer, but not within the next head.
    let mut client = f.connect();
    ask(&mut client, "/").await;
    read_until(&mut client, "ok").await;
    assert_eq!(f.closed_after(&mut client).await, 90);
    let mut client = f.connect();
    ask(&mut client, "/").await;
    read_until(&mut client, "ok").await;
    client.write_all(b"GET /").await.unwrap();
    let seconds = f.closed_after(&mut client).await;
    assert!((32..=64).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_ends_as_well() {
    let f = fixture(false);
    let mut client = f.connect();
    client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let began = f.env.monotonic();
    let trickle = async {
        while client.write_all(b"X: 1\r\n").await.is_ok() {
            env::sleep(Duration::from_secs(5)).await;
        }
    };
    env::timeout(FOR_EVER, trickle).await.expect("the server closes the connection");
    assert!((f.env.monotonic() - began).as_secs() < 40);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_its_answer_ends() {
    let f = fixture(false);
    for path in ["/large", "/pieces"] {
        let mut client = f.connect();
        ask(&mut client, path).await;
        let began = f.env.monotonic();
        let freed = async {
            while f.slots.in_use() > 0 {
                env::sleep(Duration::from_secs(1)).await;
            }
        };
        env::timeout(FOR_EVER, freed).await.expect("the server closes the connection");
        let seconds = (f.env.monotonic() - began).as_secs();
        assert!((60..300).contains(&seconds), "{path}: {seconds}");
    }
    // Slowly is fine.
    let mut client = f.connect();
    ask(&mut client, "/large").await;
    let mut left = 1 << 20;
    while left > 0 {
        let mut bytes = [0; 4096];
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "closed with {left} bytes to go");
        left -= bytes[..read].iter().filter(|byte| **byte == b'x').count();
        env::sleep(Duration::from_secs(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn long_running_requests_are_not_cut() {
    let f = fixture(false);
    let mut slow = f.connect();
    ask(&mut slow, "/slow").await;
    read_until(&mut slow, "ok").await;
    let mut watch = f.connect();
    ask(&mut watch, "/watch").await;
    for _ in 0..120 {
        read_until(&mut watch, "event\n").await;
    }
    // One that is not read for hours is the client's own affair, as with `kubectl logs -f | less`.
    env::sleep(FOR_EVER / 4).await;
    read_until(&mut watch, "event\n").await;
    let mut upgraded = f.connect();
    let request = "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    upgraded.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut upgraded, "\r\n\r\n").await;
    env::sleep(FOR_EVER / 4).await;
    upgraded.write_all(b"hello").await.unwrap();
    read_until(&mut upgraded, "hello").await;
    assert_eq!(f.slots.in_use(), 2, "the first is closed; an upgraded connection keeps its slot");
    drop(upgraded);
    while f.slots.in_use() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn http2_connections_end_when_idle_or_dead_and_not_while_they_watch() {
    let f = fixture(false);
    let get = |path: &str| Request::get(format!("http://x{path}")).body(Empty::<Bytes>::new()).unwrap();
    // Not a request.
    let (_sender, connection) = f.connect_http2(CancellationToken::new()).await;
    let began = f.env.monotonic();
    env::timeout(FOR_EVER, connection).await.expect("the server closes the connection");
    assert_eq!((f.env.monotonic() - began).as_secs(), 32);
    // One, and then none.
    let (mut sender, connection) = f.connect_http2(CancellationToken::new()).await;
    let connection = env::spawn(connection);
    assert_eq!(sender.send_request(get("/")).await.unwrap().into_body().collect().await.unwrap().to_bytes(), "ok");
    let began = f.env.monotonic();
    env::timeout(FOR_EVER, connection).await.expect("the server closes the connection").unwrap();
    let seconds = (f.env.monotonic() - began).as_secs();
    assert!((90..=120).contains(&seconds), "{seconds}");
    // A watch, for hours; then the client's machine stops without a word.
    let stopped = CancellationToken::new();
    let (mut sender, connection) = f.connect_http2(stopped.clone()).await;
    let connection = env::spawn(connection);
    let mut watch = sender.send_request(get("/watch")).await.unwrap().into_body();
    for _ in 0..120 {
        watch.frame().await.unwrap().unwrap();
    }
    stopped.cancel();
    let began = f.env.monotonic();
    let freed = async {
        while f.slots.in_use() > 0 {
            env::sleep(Duration::from_secs(1)).await;
        }
    };
    env::timeout(FOR_EVER / 2, freed).await.expect("pings find that it is gone");
    let seconds = (f.env.monotonic() - began).as_secs();
    assert!(seconds <= 80, "{seconds}");
    connection.abort();
}

#[tokio::test]
async fn a_peer_has_so_many_connections_and_others_go_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { connections: 10, connections_per_peer: 3, ..Limits::COMPONENT };
    let stop = CancellationToken::new();
    let serving = env::spawn(serve_http(listener, Arc::<Pages>::default(), limits, Env::real(), stop.clone()));
    let get = async || {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.ends_with("ok") { Ok(stream) } else { Err(std::io::Error::other("closed")) }
    };
    let until = async |good: bool| {
        let tried = async { while get().await.is_ok() != good {} };
        env::timeout(WAIT_TIMEOUT, tried).await.unwrap_or_else(|| panic!("never {good}"));
    };
    until(true).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    until(false).await;
    // What is beyond the cap is closed, not kept waiting.
    let mut beyond = TcpStream::connect(address).await.unwrap();
    let ended = env::timeout(WAIT_TIMEOUT, beyond.read(&mut [0])).await.expect("closed at once");
    assert_eq!(ended.unwrap_or(0), 0);
    drop(idle);
    until(true).await;
    stop.cancel();
    env::timeout(WAIT_TIMEOUT, serving).await.expect("it stops").unwrap();
}
