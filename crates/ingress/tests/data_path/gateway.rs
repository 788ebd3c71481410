//! What routes of Gateways ask of the data path: filters, weights, mirrors, TLS passed through and to backends, HTTP/2
//! without TLS.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use env::Env;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress::{
    Backend, BackendKey, Destination, Destinations, Entry, Filters, GatewayPort, HeaderChanges, HostTable, Mirror,
    PathChange, PathMatch, PortTable, Proxy, ProxyConfig, Redirect, RequestMatch, Rewrite, Route, RouteSettings,
    RouteTable, ServicePort, SharedTable, TableResolver, TlsPassthrough, TrustedRoots, UpstreamTls,
    UpstreamTlsSettings, default_certificate, server_config,
};
use rustls::ServerConfig;
use serve::{Limits, serve_https};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{Front, OK, Scripted, TEST_TIMEOUT, backend, protocols::connect, state};

fn route(path: &str, list: Vec<Destination>, filters: Filters, settings: RouteSettings) -> Arc<Route> {
    Arc::new(Route {
        owner: "n/route".into(),
        path: PathMatch::prefix(path),
        one_label: false,
        condition: RequestMatch::default(),
        destinations: Arc::new(Destinations::new(list)),
        filters: Some(Arc::new(filters)),
        settings: Arc::new(settings),
    })
}

fn to(backend: Arc<Backend>, filters: Option<Filters>) -> Destination {
    Destination { weight: 1, backend: Some(backend), filters: filters.map(Arc::new) }
}

fn store(table: &SharedTable, port: u16, routes: Vec<Arc<Route>>) {
    let mut gateway = GatewayPort::default();
    let hosts = gateway.listeners.entry("", HostTable::default);
    for route in routes {
        hosts.insert("", route);
    }
    let port_table = PortTable { gateway: Arc::new(gateway), ..PortTable::default() };
    table.store(RouteTable { ports: [(port, port_table)].into() });
}

fn header(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

#[tokio::test]
async fn filters_change_requests_and_answers() {
    let server = Scripted::start(OK).await;
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    let changes = Filters {
        request_headers: HeaderChanges { set: vec![header("x-set", "1")], ..HeaderChanges::default() },
        response_headers: HeaderChanges {
            add: vec![header("x-added", "2")],
            remove: vec![HeaderName::from_static("x-kept")],
            ..HeaderChanges::default()
        },
        rewrite: Some(Rewrite {
            hostname: Some(HeaderValue::from_static("inside.example")),
            path: Some(PathChange::Prefix("/new".into())),
        }),
        ..Filters::default()
    };
    let of_backend = Filters {
        request_headers: HeaderChanges { set: vec![header("x-backend", "3")], ..HeaderChanges::default() },
        ..Filters::default()
    };
    let redirect = Filters {
        redirect: Some(Redirect {
            scheme: Some("https".into()),
            hostname: Some("other.example".into()),
            path: None,
            port: None,
            status: StatusCode::MOVED_PERMANENTLY,
        }),
        ..Filters::default()
    };
    let list = || vec![to(backend(&[server.address]), None)];
    let settings = RouteSettings { unresolved_status: StatusCode::INTERNAL_SERVER_ERROR, ..RouteSettings::default() };
    store(
        &front.table,
        front.address.port(),
        vec![
            route("/old", vec![to(backend(&[server.address]), Some(of_backend))], changes, RouteSettings::default()),
            route("/moved", list(), redirect, RouteSettings::default()),
            route("/none", Vec::new(), Filters::default(), settings),
        ],
    );
    let answer = front.get("outside.example", "/old/a?b=c").await;
    assert!(answer.contains("x-added: 2\r\n") && !answer.contains("x-kept"), "{answer}");
    let seen = server.seen();
    assert!(seen.starts_with("GET /new/a?b=c HTTP/1.1\r\n"), "{seen}");
    for expected in ["host: inside.example", "x-set: 1", "x-backend: 3", "x-forwarded-host: outside.example"] {
        assert!(seen.contains(&format!("\r\n{expected}\r\n")), "{expected} in {seen}");
    }
    let answer = front.get("outside.example", "/moved/a?b=c").await;
    assert!(answer.starts_with("HTTP/1.1 301 "), "{answer}");
    assert!(answer.contains("location: https://other.example/moved/a?b=c\r\n"), "{answer}");
    assert!(front.get("h", "/none").await.starts_with("HTTP/1.1 500 "));
}

#[tokio::test]
async fn a_mirror_gets_the_same_request_and_its_answer_goes_nowhere() {
    let server = Scripted::start(OK).await;
    let copies = Scripted::start("HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n").await;
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    let mirror =
        Mirror { backend: backend(&[copies.address]), numerator: 1, denominator: 1, share: Default::default() };
    let filters = Filters { mirrors: vec![mirror], ..Filters::default() };
    let list = vec![to(backend(&[server.address]), None)];
    store(&front.table, front.address.port(), vec![route("/", list, filters, RouteSettings::default())]);
    let request = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    assert!(front.raw(request).await.starts_with("HTTP/1.1 200 "));
    let end = env::instant_now() + TEST_TIMEOUT;
    while !copies.seen().ends_with("hello") {
        assert!(env::instant_now() < end, "a copy: {}", copies.seen());
        env::sleep(Duration::from_millis(10)).await;
    }
    assert!(copies.seen().starts_with("POST /a HTTP/1.1\r\n"), "{}", copies.seen());
}

#[tokio::test]
async fn a_request_has_as_long_as_its_route_says() {
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    let settings = RouteSettings { request_timeout: Some(Duration::from_millis(100)), ..RouteSettings::default() };
    let list = vec![to(backend(&[hangs.local_addr().unwrap()]), None)];
    store(&front.table, front.address.port(), vec![route("/", list, Filters::default(), settings)]);
    assert!(front.get("h", "/").await.starts_with("HTTP/1.1 504 "));
}

#[tokio::test]
async fn a_client_may_begin_in_http2_without_tls() {
    let server = Scripted::start(OK).await;
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    let list = vec![to(backend(&[server.address]), None)];
    store(&front.table, front.address.port(), vec![route("/", list, Filters::default(), RouteSettings::default())]);
    let stream = TokioIo::new(TcpStream::connect(front.address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    env::spawn(connection);
    let request = http::Request::get("http://foo.com/a").body(Empty::<bytes::Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    assert!(server.seen().starts_with("GET /a HTTP/1.1\r\n"), "{}", server.seen());
}

/// A server with TLS that answers every connection with one text, and the PEM of its certificate.
async fn tls_server(name: &str, answer: &'static str) -> (SocketAddr, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![name.to_string()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let der = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], der).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    env::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            env::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = [0; 4096];
                if let Ok(1..) = stream.read(&mut buffer).await {
                    _ = stream.write_all(answer.as_bytes()).await;
                    _ = stream.shutdown().await;
                }
            });
        }
    });
    (address, certificate.pem())
}

#[tokio::test]
async fn backends_are_asked_in_tls_for_the_name_that_they_shall_have() {
    let (address, pem) = tls_server("abc.example.com", OK).await;
    let (_, foreign) = tls_server("abc.example.com", OK).await;
    let front = Front::start(ProxyConfig::default(), Limits::INGRESS).await;
    for (hostname, roots, expected) in [
        ("abc.example.com", TrustedRoots::Pem(pem.clone().into()), "200"),
        ("other.example.com", TrustedRoots::Pem(pem.clone().into()), "502"),
        ("abc.example.com", TrustedRoots::Pem(foreign.into()), "502"),
        ("other.example.com", TrustedRoots::Anybody, "200"),
    ] {
        let settings = UpstreamTlsSettings { hostname: hostname.into(), subject_alt_names: Vec::new(), roots };
        let tls = Some(Arc::new(UpstreamTls::new(&settings).unwrap()));
        let key = BackendKey { tls, ..BackendKey::new("n", "s", ServicePort::Number(443)) };
        let backend = Arc::new(Backend::new(key, state(&[address])));
        let list = vec![to(backend, None)];
        store(&front.table, front.address.port(), vec![route("/", list, Filters::default(), RouteSettings::default())]);
        let answer = front.get("h", "/").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{settings:?}: {answer}");
    }
}

#[tokio::test]
async fn tls_is_passed_on_by_its_server_name() {
    let (address, _) = tls_server("abc.example.com", "passed on").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = listener.local_addr().unwrap();
    let (env, stop, table) = (Env::real(), CancellationToken::new(), SharedTable::default());
    let _stop = stop.clone().drop_guard();
    let server = Scripted::start(OK).await;
    let mut gateway = GatewayPort::default();
    let destinations = Arc::new(Destinations::one(Some(backend(&[address]))));
    gateway.passthrough.entry("*.example.com", || TlsPassthrough { owner: "n/tls".into(), destinations });
    let ended = gateway.listeners.entry("ended.example.com", HostTable::default);
    let list = vec![to(backend(&[server.address]), None)];
    ended.insert("", route("/", list, Filters::default(), RouteSettings::default()));
    let port = PortTable { gateway: Arc::new(gateway), ..PortTable::default() };
    table.store(RouteTable { ports: [(front.port(), port)].into() });
    let proxy = Proxy::new(table.clone(), ProxyConfig::default(), env.clone());
    let entry = Entry::new(proxy, front.port(), true, None);
    let resolver = TableResolver { table, port: front.port(), default: default_certificate().unwrap() };
    env::spawn(serve_https(listener, server_config(resolver).unwrap(), entry, Limits::INGRESS, env, stop));
    for (name, expected) in [("abc.example.com", "passed on"), ("ended.example.com", "HTTP/1.1 200 OK")] {
        let mut stream = connect(front, name, "http/1.1").await;
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        _ = env::timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("an end");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(expected), "{name}: {answer}");
    }
}
