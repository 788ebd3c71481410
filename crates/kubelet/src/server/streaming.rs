//! exec, attach and port-forward: finds the runtime's streaming server for a session and joins the two connections.
//! SPDY clients are piped through as they are; WebSocket clients go through `websocket`.
//! The runtime's address never reaches the client.

use std::{io, time::Duration};

use api::ApiError;
use bytes::{Buf, Bytes, BytesMut};
use futures::Stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{
    Body, empty, port_channels,
    websocket::{self, Backend, Dialect, Streams},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;
const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// What we can speak to a client, best first. Those without a version are the oldest and tell a failure in words.
const CHANNEL_PROTOCOLS: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];

/// How a client wants to stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Any SPDY: the runtime negotiates the rest.
    Spdy,
    Channels(&'static str),
    Tunnel,
}

/// Reads the upgrade headers. `Err` is the refusal that clients understand (kubectl then tries SPDY).
pub fn protocol(headers: &HeaderMap) -> Result<Protocol, ApiError> {
    // A protocol that cannot be read is one that nobody speaks.
    let text = |name: header::HeaderName| {
        headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()
    };
    let upgrade = text(header::UPGRADE).to_ascii_lowercase();
    if upgrade.contains("spdy/3.1") {
        return Ok(Protocol::Spdy);
    }
    if upgrade != "websocket" {
        return Err(ApiError::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr and an upgrade to SPDY/3.1 or websocket",
        ));
    }
    let offered = text(header::SEC_WEBSOCKET_PROTOCOL);
    let offered: Vec<&str> = offered.split(',').map(str::trim).collect();
    if offered.contains(&TUNNEL_PROTOCOL) {
        return Ok(Protocol::Tunnel);
    }
    if offered == [""] {
        // A client that names none means the oldest.
        return Ok(Protocol::Channels(""));
    }
    let known = CHANNEL_PROTOCOLS.into_iter().find(|known| offered.contains(known));
    known
        .map(Protocol::Channels)
        .ok_or_else(|| ApiError::bad_request(format!("unable to negotiate a protocol from {offered:?}")))
}

/// Answers the client's upgrade and relays the session in a task of its own.
/// `url` is what the runtime gave out for it.
pub async fn relay<B>(mut request: Request<B>, url: &str, streams: Streams) -> Result<Response<Body>, ApiError> {
    let protocol = protocol(request.headers())?;
    let failed = |e: io::Error| ApiError::internal(format!("error dialing the runtime's streaming server: {e}"));
    match protocol {
        Protocol::Spdy => {
            let (backend, head) = connect(url, request.headers()).await.map_err(failed)?;
            let client = hyper::upgrade::on(&mut request);
            env::spawn(async move { log(pipe(client, backend).await) });
            Ok(spdy_answer(&head))
        }
        Protocol::Channels(name) => {
            let (backend, _) = connect(url, &spdy_request(&["v4.channel.k8s.io"])).await.map_err(failed)?;
            let client = hyper::upgrade::on(&mut request);
            let answer = websocket_answer(request.headers(), name)?;
            env::spawn(async move { log(channels(client, backend, streams, Dialect::negotiated(name)).await) });
            Ok(answer)
        }
        Protocol::Tunnel => {
            let (backend, _) = connect(url, &spdy_request(&["portforward.k8s.io"])).await.map_err(failed)?;
            let client = hyper::upgrade::on(&mut request);
            let answer = websocket_answer(request.headers(), TUNNEL_PROTOCOL)?;
            env::spawn(async move { log(tunnel(client, backend).await) });
            Ok(answer)
        }
    }
}

/// As `relay`, for port-forward: clients with channels have two for each of `ports`.
pub async fn relay_ports<B>(mut request: Request<B>, url: &str, ports: Vec<u16>) -> Result<Response<Body>, ApiError> {
    let Protocol::Channels(name) = protocol(request.headers())? else {
        return relay(request, url, Streams::default()).await;
    };
    let failed = |e: io::Error| ApiError::internal(format!("error dialing the runtime's streaming server: {e}"));
    let (backend, _) = connect(url, &spdy_request(&["portforward.k8s.io"])).await.map_err(failed)?;
    let client = hyper::upgrade::on(&mut request);
    let answer = websocket_answer(request.headers(), name)?;
    env::spawn(async move {
        let forwarded = async {
            let client = client.await.map_err(io::Error::other)?;
            port_channels::forward(TokioIo::new(client), backend, &ports, Dialect::negotiated_for_ports(name)).await
        };
        log(forwarded.await);
    });
    Ok(answer)
}

pub fn wants_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
}

/// Protocols for a stream that only we write to; without a name it is the first.
const STREAM_PROTOCOLS: [&str; 3] = ["binary.k8s.io", "base64.binary.k8s.io", ""];

/// Answers the client's upgrade and sends everything in messages, in a task of its own.
pub fn send_over_websocket<B>(
    mut request: Request<B>,
    bytes: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    let offered = request.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
    let offered = offered.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default();
    let offered: Vec<&str> = offered.split(',').map(str::trim).collect();
    let protocol = STREAM_PROTOCOLS.into_iter().find(|known| offered.contains(known));
    let protocol =
        protocol.ok_or_else(|| ApiError::bad_request(format!("unable to negotiate a protocol from {offered:?}")))?;
    let client = hyper::upgrade::on(&mut request);
    let answer = websocket_answer(request.headers(), protocol)?;
    let base64 = protocol.starts_with("base64");
    env::spawn(async move {
        let sent = async {
            let client = client.await.map_err(io::Error::other)?;
            websocket::send_all(TokioIo::new(client), bytes, base64).await
        };
        log(sent.await);
    });
    Ok(answer)
}

fn log(ended: io::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a streaming session broke off");
    }
}

async fn channels(client: OnUpgrade, backend: Backend, streams: Streams, dialect: Dialect) -> io::Result<()> {
    let client = client.await.map_err(io::Error::other)?;
    websocket::channels(TokioIo::new(client), backend, streams, dialect).await
}

async fn tunnel(client: OnUpgrade, backend: Backend) -> io::Result<()> {
    let client = client.await.map_err(io::Error::other)?;
    websocket::tunnel(TokioIo::new(client), backend).await
}

async fn pipe(client: OnUpgrade, mut backend: Backend) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    client.write_all(&backend.buffered).await?;
    tokio::io::copy_bidirectional(&mut client, &mut backend.stream).await.map(drop)
}

fn spdy_request(protocols: &[&'static str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    for protocol in protocols {
        headers.append("x-stream-protocol-version", HeaderValue::from_static(protocol));
    }
    headers
}

/// The runtime's own answer, as far as the client needs it.
fn spdy_answer(head: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for name in ["connection", "upgrade", "x-stream-protocol-version", "x-accepted-stream-protocol-versions"] {
        for value in head.get_all(name) {
            response.headers_mut().append(name, value.clone());
        }
    }
    response
}

fn websocket_answer(headers: &HeaderMap, protocol: &'static str) -> Result<Response<Body>, ApiError> {
    let key =
        headers.get(header::SEC_WEBSOCKET_KEY).ok_or_else(|| ApiError::bad_request("Sec-WebSocket-Key is missing"))?;
    let accept = derive_accept_key(key.as_bytes());
    let mut response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept);
    if !protocol.is_empty() {
        response = response.header(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    response.body(empty()).map_err(|e| ApiError::internal(e.to_string()))
}

/// Connects to the runtime's streaming server and performs the upgrade with these headers.
async fn connect(url: &str, headers: &HeaderMap) -> io::Result<(Backend, HeaderMap)> {
    let uri: http::Uri = url.parse().map_err(io::Error::other)?;
    let authority =
        uri.authority().ok_or_else(|| io::Error::other(format!("{url} names no host")))?.as_str().to_string();
    let address = if uri.port().is_some() { authority.clone() } else { format!("{authority}:80") };
    let connecting = env::timeout(CONNECT_TIMEOUT, TcpStream::connect(&address));
    let mut stream = connecting.await.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\n");
    for name in ["connection", "upgrade", "x-stream-protocol-version"] {
        for value in headers.get_all(name) {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().map_err(io::Error::other)?));
        }
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut buffered = BytesMut::new();
    let end = loop {
        if let Some(at) = buffered.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if buffered.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the answer's head is too large"));
        }
        if stream.read_buf(&mut buffered).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&buffered[..end]).into_owned();
    buffered.advance(end);
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().to_string();
    if !status.contains(" 101 ") {
        return Err(io::Error::other(format!("it answered {status}: {}", String::from_utf8_lossy(&buffered))));
    }
    let mut answer = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if let (Ok(name), Ok(value)) = (name.parse::<header::HeaderName>(), HeaderValue::from_str(value.trim())) {
            answer.append(name, value);
        }
    }
    Ok((Backend { stream, buffered }, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_best_protocol_they_offer() {
        let check = |upgrade: &'static str, offered: &'static str, expected: Option<Protocol>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered));
            assert_eq!(protocol(&headers).ok(), expected, "{upgrade} {offered}");
        };
        check("SPDY/3.1", "", Some(Protocol::Spdy));
        check("websocket", "v5.channel.k8s.io, v4.channel.k8s.io", Some(Protocol::Channels("v5.channel.k8s.io")));
        check("websocket", "v4.channel.k8s.io", Some(Protocol::Channels("v4.channel.k8s.io")));
        check("websocket", TUNNEL_PROTOCOL, Some(Protocol::Tunnel));
        check("websocket", "base64.channel.k8s.io", Some(Protocol::Channels("base64.channel.k8s.io")));
        check("websocket", "channel.k8s.io", Some(Protocol::Channels("channel.k8s.io")));
        check("websocket", "", Some(Protocol::Channels("")));
        check("websocket", "v9.channel.k8s.io", None);
        check("h2c", "", None);
    }
}
