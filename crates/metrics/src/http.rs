//! The few bytes of HTTP that health checks and metrics need.
//! Used by the proxy's and the DNS server's own ports.
//! Invariant: a client that is slow or talks too much is dropped; nothing it sends is kept (test:
//! `a_client_that_sends_half_a_request_is_closed`).

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use env::{Backoff, Env};
use serve::{Limits, Slots};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{CONTENT_TYPE, Metrics};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 8192;

/// Between two attempts to take a port.
const BIND_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Where to listen for `address`: `0.0.0.0` stands for all of the machine's addresses, as in upstream's flags, and so for
/// both families where one socket can have them.
pub fn everywhere(address: SocketAddr) -> SocketAddr {
    let both = || std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|only| only.trim() == "0");
    match address.ip() == Ipv4Addr::UNSPECIFIED && both() {
        true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()),
        false => address,
    }
}

/// Takes the port, however long somebody else has it. `refused` is called once.
pub async fn listen(env: &Env, address: SocketAddr, refused: impl FnOnce(&std::io::Error)) -> TcpListener {
    let (mut refused, mut backoff) = (Some(refused), BIND_BACKOFF);
    loop {
        match TcpListener::bind(everywhere(address)).await {
            Ok(listener) => return listener,
            Err(error) => {
                if let Some(refused) = refused.take() {
                    refused(&error);
                }
                env.sleep(backoff.next_delay()).await;
            }
        }
    }
}

/// Answers every request with what `answer` says for its path; 404 for what it does not know.
pub async fn serve(env: &Env, listener: TcpListener, answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let slots = Slots::with_limits(&Limits::COMPONENT);
    loop {
        let (stream, _, slot) = serve::accept(&listener, &slots, env).await;
        let (answer, limit) = (answer.clone(), env.clone());
        env.spawn(async move {
            limit.timeout(REQUEST_TIMEOUT, respond(stream, &*answer)).await;
            drop(slot);
        });
    }
}

async fn respond(mut stream: TcpStream, answer: &(impl Fn(&str) -> Option<String> + Sync)) {
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let text = String::from_utf8_lossy(&head);
    let target = text.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let missing = || "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    // The client may leave before it has read the answer.
    let _ = stream.write_all(answer(path).unwrap_or_else(missing).as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Shows what a component counts at `/metrics`, and fixed texts at other paths. `refused` is called once when somebody
/// else has the port; it is taken when it is free.
pub async fn serve_metrics(
    env: &Env,
    address: SocketAddr,
    metrics: Metrics,
    texts: &'static [(&'static str, &'static str)],
    refused: impl FnOnce(&std::io::Error),
) {
    let listener = listen(env, address, refused).await;
    let answer = move |path: &str| {
        if path != "/metrics" {
            return texts.iter().find(|(known, _)| *known == path).map(|(_, body)| text(body));
        }
        Some(text(&metrics.page()))
    };
    serve(env, listener, answer).await;
}

/// An answer in plain text, as metrics are.
fn text(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// An answer in JSON: 200 when `good`, else 503.
pub fn response(good: bool, headers: &[(&str, String)], body: &str) -> String {
    let status = if good { "200 OK" } else { "503 Service Unavailable" };
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n{more}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_is_taken_once_it_is_free() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap();
        let mut told = 0;
        let taking = listen(&env, address, |_| told += 1);
        let leaving = async {
            env.sleep(Duration::from_secs(20)).await;
            drop(other);
        };
        let (listener, ()) = tokio::join!(taking, leaving);
        assert_eq!((listener.local_addr().unwrap(), told), (address, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_half_a_request_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = env::spawn(async move { serve(&Env::real(), listener, |_| Some(text("ok"))).await });
        for begun in ["", "GET /metrics HTTP/1.1\r\n"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            let ended = env::timeout(Duration::from_secs(24 * 3600), client.read(&mut [0])).await;
            assert_eq!(ended.expect("the server closes it").unwrap_or(0), 0, "{begun}");
        }
        assert!(!serving.is_finished());
    }

    #[tokio::test]
    async fn everywhere_is_both_families() {
        for own in ["127.0.0.1:80", "[::1]:80", "[::]:80"] {
            assert_eq!(everywhere(own.parse().unwrap()), own.parse().unwrap());
        }
        let listener = listen(&Env::real(), "0.0.0.0:0".parse().unwrap(), |error| panic!("{error}")).await;
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        if TcpListener::bind("[::1]:0").await.is_ok() {
            TcpStream::connect(("::1", port)).await.unwrap();
        }
    }
}
