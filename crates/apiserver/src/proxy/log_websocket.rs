//! A pod's log to a WebSocket: the kubelet answers plain HTTP, and the bytes become messages here.
//! Used by `streaming` where a client asks for a log with an upgrade; kubelets know nothing of it.
//! What the client sends is read and dropped.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use api::{ApiError, Reason};

use crate::request::{body::Body, call::Call};

/// What a client can ask for: the name, and whether messages are text in base64.
const PROTOCOLS: [(&str, bool); 3] = [("", false), ("binary.k8s.io", false), ("base64.binary.k8s.io", true)];
/// No message is larger, as upstream's.
const MESSAGE_BYTES_MAX: usize = 2048;
/// Of a client's messages, which say nothing.
const IGNORED_BYTES_MAX: usize = 64 << 10;

pub fn is_asked_for(call: &Call) -> bool {
    call.wants_upgrade() && call.header(header::UPGRADE).eq_ignore_ascii_case("websocket")
}

/// The first of the client's protocols that there is.
fn protocol(offered: &str) -> Option<(&'static str, bool)> {
    let mut names = offered.split(',').map(str::trim);
    names.find_map(|name| PROTOCOLS.iter().find(|(known, _)| *known == name)).copied()
}

pub fn answer(call: &Call, log: Response<Incoming>) -> Result<Response<Body>, ApiError> {
    let offered = call.header(header::SEC_WEBSOCKET_PROTOCOL);
    let Some((protocol, is_text)) = protocol(offered) else {
        let known = PROTOCOLS.map(|(name, _)| name).join(" ");
        let why = format!("requested protocol(s) are not supported: [{offered}]; supports [{}]", known.trim());
        return Err(ApiError::new(Reason::Forbidden, why));
    };
    let key = call.header(header::SEC_WEBSOCKET_KEY);
    let client = call.upgrade.lock().take().filter(|_| !key.is_empty());
    let Some(client) = client else { return Err(ApiError::bad_request("Upgrade request required")) };
    let mut response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()));
    if !protocol.is_empty() {
        response = response.header(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    env::spawn(async move {
        match client.await {
            Ok(client) => copy(TokioIo::new(client), log.into_body().into_data_stream(), is_text).await,
            Err(error) => tracing::debug!(%error, "an upgrade failed"),
        }
    });
    response.body(crate::request::body::empty()).map_err(|e| ApiError::internal(e.to_string()))
}

async fn copy<E>(
    client: impl AsyncRead + AsyncWrite + Unpin + Send,
    mut log: impl futures::Stream<Item = Result<Bytes, E>> + Unpin,
    is_text: bool,
) {
    let limits = WebSocketConfig::default().max_message_size(Some(IGNORED_BYTES_MAX));
    let limits = limits.max_frame_size(Some(IGNORED_BYTES_MAX));
    let socket = WebSocketStream::from_raw_socket(client, Role::Server, Some(limits)).await;
    let (mut messages, mut received) = socket.split();
    let sending = async {
        // Says that the log begins, though there may be nothing in it yet.
        messages.send(message(&[], is_text)).await?;
        while let Some(Ok(bytes)) = log.next().await {
            for part in bytes.chunks(MESSAGE_BYTES_MAX) {
                messages.send(message(part, is_text)).await?;
            }
        }
        messages.close().await
    };
    let listening = async { while let Some(Ok(_)) = received.next().await {} };
    let ended: Result<(), Error> = tokio::select! {
        sent = sending => sent,
        () = listening => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a log's WebSocket ended");
    }
}

fn message(bytes: &[u8], is_text: bool) -> Message {
    match is_text {
        true => Message::text(BASE64_STANDARD.encode(bytes)),
        false => Message::binary(Bytes::copy_from_slice(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_comes_in_messages_after_an_empty_one() {
        let check = async |is_text: bool, expected: &[Message]| {
            let (client, server) = tokio::io::duplex(1 << 16);
            let lines = [Ok::<_, std::io::Error>(Bytes::from_static(b"one\n")), Ok(Bytes::from(vec![b'x'; 3000]))];
            env::spawn(copy(server, futures::stream::iter(lines), is_text));
            let socket = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            let messages: Vec<Message> = socket.filter_map(|m| async { m.ok() }).collect().await;
            assert_eq!(messages[..expected.len()], *expected);
            assert_eq!(messages.len(), 5, "{messages:?}");
            assert!(messages[4].is_close());
        };
        check(false, &[message(b"", false), message(b"one\n", false), message(&[b'x'; 2048], false)]).await;
        check(true, &[Message::text(""), Message::text("b25lCg==")]).await;
        // A client that announces a message of a gigabyte is hung up on.
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let copying = env::spawn(copy(server, futures::stream::pending::<Result<Bytes, std::io::Error>>(), false));
        let head = [0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 2, 3, 4];
        tokio::io::AsyncWriteExt::write_all(&mut client, &head).await.unwrap();
        env::timeout(std::time::Duration::from_secs(60), copying).await.expect("it ends").unwrap();
        assert_eq!(protocol("v4.channel.k8s.io, base64.binary.k8s.io"), Some(("base64.binary.k8s.io", true)));
        assert_eq!((protocol(""), protocol("v4.channel.k8s.io")), (Some(("", false)), None));
    }
}
