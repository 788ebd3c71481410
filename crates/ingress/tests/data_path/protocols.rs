//! TLS by server name, HTTP/2 on both sides with trailers, and connections that change their protocol.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use client::AnyCertificate;
use env::Env;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress::{
    Backend, BackendState, Certificates, Entry, Protocol, Proxy, ProxyConfig, RouteSettings, SharedTable,
    TableResolver, default_certificate, server_config,
};
use rustls::{ClientConfig, sign::CertifiedKey};
use rustls_pki_types::ServerName;
use serve::{Limits, serve_https};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::{Front, backend, table};

pub async fn connect(address: SocketAddr, name: &str, alpn: &str) -> TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let verifier = Arc::new(AnyCertificate(provider));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_string()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// A listener with TLS that sends everything to `to`.
async fn secure(
    to: Arc<Backend>,
    names: &[(&str, &Arc<CertifiedKey>)],
) -> (SocketAddr, SharedTable, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (env, stop, shared) = (Env::real(), CancellationToken::new(), SharedTable::default());
    store(&shared, address.port(), to, names);
    let proxy = Proxy::new(shared.clone(), ProxyConfig::default(), env.clone());
    let entry = Entry::new(proxy, address.port(), true, None);
    let resolver =
        TableResolver { table: shared.clone(), port: address.port(), default: default_certificate().unwrap() };
    let tls = server_config(resolver).unwrap();
    env::spawn(serve_https(listener, tls, entry, Limits::INGRESS, env, stop.clone()));
    (address, shared, stop)
}

fn store(shared: &SharedTable, port: u16, to: Arc<Backend>, names: &[(&str, &Arc<CertifiedKey>)]) {
    let mut certificates = Certificates::default();
    for (name, certificate) in names {
        certificates.insert(name, Arc::clone(certificate));
    }
    let mut table = table(port, &[("", "/", Some(to))], RouteSettings::default());
    table.ports.get_mut(&port).unwrap().certificates = Arc::new(certificates);
    shared.store(table);
}

#[tokio::test]
async fn a_name_has_its_certificate_and_a_renewed_one_at_once() {
    let [first, second, wildcard] = [(); 3].map(|()| default_certificate().unwrap());
    let nowhere = backend(&[]);
    let (address, shared, stop) = secure(nowhere.clone(), &[("foo.com", &first), ("*.foo.com", &wildcard)]).await;
    let shown = async |name: &str| {
        let stream = connect(address, name, "http/1.1").await;
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    assert_eq!(shown("foo.com").await, first.cert[0]);
    assert_eq!(shown("a.foo.com").await, wildcard.cert[0]);
    let default = shown("other.com").await;
    assert!(default != first.cert[0] && default != wildcard.cert[0]);
    store(&shared, address.port(), nowhere, &[("foo.com", &second)]);
    assert_eq!(shown("foo.com").await, second.cert[0]);
    stop.cancel();
}

/// A server of HTTP/2 without TLS that sends back what it gets, and trailers as gRPC does.
async fn echo_http2() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |request: Request<Incoming>| {
        assert_eq!(request.version(), Version::HTTP_2);
        let said = format!("{} {:?}", request.uri(), request.headers().get("te"));
        let received = request.into_body().collect().await.expect("a body").to_bytes();
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        let frames = [Frame::data(received), Frame::data(Bytes::from(said)), Frame::trailers(trailers)];
        Ok::<_, Infallible>(Response::new(StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Infallible>)))))
    };
    env::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            env::spawn(async move { _ = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await });
        }
    });
    address
}

#[tokio::test]
async fn grpc_passes_with_its_trailers() {
    let to = backend(&[]);
    to.set(BackendState { protocol: Protocol::Http2, endpoints: vec![echo_http2().await], problem: None });
    let (address, _, stop) = secure(to, &[]).await;
    let stream = connect(address, "foo.com", "h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    env::spawn(async move { _ = connection.await });
    for n in 0..3 {
        let body = http_body_util::Full::new(Bytes::from(format!("hello {n} ")));
        let request = Request::post("https://foo.com/pkg.Service/Method").header("te", "trailers").body(body).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let collected = answer.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        let expected = format!("hello {n} http://foo.com/pkg.Service/Method Some(\"trailers\")");
        assert_eq!(collected.to_bytes(), expected);
    }
    stop.cancel();
}

#[tokio::test]
async fn a_connection_changes_its_protocol_when_both_sides_agree() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    env::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut head, mut buffer) = (String::new(), [0; 1024]);
        while !head.contains("\r\n\r\n") {
            let length = stream.read(&mut buffer).await.unwrap();
            head.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: x\r\n\r\nwelcome";
        stream.write_all(agreed.as_bytes()).await.unwrap();
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..length].to_ascii_uppercase()).await.unwrap();
        }
    });
    let front = Front::to(backend(&[server]), RouteSettings::default()).await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    let ask = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    while !said.ends_with("welcome") {
        let length = stream.read(&mut buffer).await.unwrap();
        assert!(length > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    assert!(said.starts_with("HTTP/1.1 101 ") && said.contains("sec-websocket-accept: x"), "{said}");
    for text in ["hello", "again"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, text.to_uppercase().as_bytes());
    }
}
