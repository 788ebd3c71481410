//! The remote command protocol over a WebSocket: one byte names the channel, the rest is its data.
//! Used by `exec`, `attach`, `cp`, `run -it` and `debug`; port-forward has its own channels.
//! Ends with the exit code that the server sends on the error channel.

use std::pin::Pin;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::{Request, header};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, error::ProtocolError, handshake::client::generate_key},
};

use crate::{
    failure::{Failure, Result},
    rest::ByteStream,
    session::Session,
};

pub type Socket = WebSocketStream<Pin<Box<dyn ByteStream>>>;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// In v5: the channel in the next byte is written to no more.
const CLOSE: u8 = 255;

/// Codes of a closed WebSocket that no peer sends: there was none, or there was no closing at all.
const NO_STATUS: u16 = 1005;
const ABNORMAL_CLOSURE: u16 = 1006;

const READ_BYTES_MAX: usize = 32 << 10;

/// Opens a WebSocket to a path of the API server; also the protocol that was chosen.
pub async fn open(session: &Session, path: &str, protocols: &str) -> Result<(Socket, String)> {
    let rest = session.rest().await?;
    let upgrade = rest.transport().connect().await?;
    let prefix = rest.server().split_once("://").map_or("", |(_, host)| host.find('/').map_or("", |at| &host[at..]));
    let mut request = Request::builder()
        .uri(format!("ws://{}{prefix}{path}", upgrade.host))
        .header(header::HOST, &upgrade.host)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::SEC_WEBSOCKET_PROTOCOL, protocols);
    for (name, value) in &upgrade.headers {
        request = request.header(name, value);
    }
    let request = request.body(()).map_err(|e| Failure::message(e.to_string()))?;
    match tokio_tungstenite::client_async(request, upgrade.stream).await {
        Ok((socket, response)) => {
            let chosen = response.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
            let chosen = chosen.and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
            Ok((socket, chosen))
        }
        Err(tungstenite::Error::Http(response)) => {
            let code = response.status().as_u16();
            let chunked = response.headers().get(header::TRANSFER_ENCODING).is_some_and(|v| v == "chunked");
            let body = response.into_body().unwrap_or_default();
            let body = if chunked { unchunked(&body) } else { body };
            let text = String::from_utf8_lossy(&body).into_owned();
            Err(match serde_json::from_str::<Value>(&text) {
                Ok(value) if value["kind"] == "Status" => Failure::from_answer(code, &body, "post", "", ""),
                _ => Failure::message(format!("unable to upgrade connection: {}", text.trim())),
            })
        }
        Err(error) => Err(Failure::message(format!("error sending request: {error}"))),
    }
}

/// The content of a chunked body, as far as it came.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(end) = body.windows(2).position(|pair| pair == b"\r\n") {
        let digits = String::from_utf8_lossy(&body[..end]).into_owned();
        let digits = digits.split(';').next().unwrap_or_default().trim();
        let Ok(length) = usize::from_str_radix(digits, 16) else { break };
        let rest = &body[end + 2..];
        content.extend_from_slice(&rest[..length.min(rest.len())]);
        if length == 0 || rest.len() < length + 2 {
            break;
        }
        body = &rest[length + 2..];
    }
    content
}

/// Where the streams of a session go.
pub struct Streams<'a> {
    pub stdin: Option<Pin<Box<dyn AsyncRead + 'a>>>,
    /// Nothing more is read while it takes nothing.
    pub stdout: &'a mut (dyn AsyncWrite + Unpin),
    pub stderr: &'a mut dyn FnMut(&[u8]),
    /// The size of the terminal, now and whenever it changes.
    pub sizes: Option<tokio::sync::mpsc::Receiver<(u16, u16)>>,
}

fn framed(channel: u8, data: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.put_u8(channel);
    bytes.extend_from_slice(data);
    Message::Binary(bytes.freeze())
}

/// Carries the streams until the other side ends; the exit code of the command.
pub async fn carry(mut socket: Socket, protocol: &str, streams: Streams<'_>) -> Result<u8> {
    let Streams { mut stdin, stdout, stderr, mut sizes } = streams;
    let mut buffer = vec![0; READ_BYTES_MAX];
    let failed = |e: tungstenite::Error| Failure::message(format!("error reading from error stream: {e}"));
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Binary(data))) => {
                    let Some((channel, data)) = data.split_first() else { continue };
                    match *channel {
                        STDOUT => stdout.write_all(data).await?,
                        STDERR => stderr(data),
                        ERROR => {
                            let code = exit_code(data)?;
                            let _ = socket.close(None).await;
                            return Ok(code);
                        }
                        _ => {}
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    let frame = frame.map(|frame| (u16::from(frame.code), frame.reason.to_string()));
                    return closed(frame.unwrap_or((NO_STATUS, String::new())));
                }
                Some(Ok(_)) => {}
                None
                | Some(Err(
                    tungstenite::Error::ConnectionClosed
                    | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                )) => return closed((ABNORMAL_CLOSURE, "unexpected EOF".into())),
                Some(Err(error)) => return Err(failed(error)),
            },
            read = read(&mut stdin, &mut buffer) => match read {
                Some(0) | None => {
                    stdin = None;
                    if protocol.starts_with("v5") {
                        socket.send(Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))).await.map_err(failed)?;
                    }
                }
                Some(count) => socket.send(framed(STDIN, &buffer[..count])).await.map_err(failed)?,
            },
            size = next_size(&mut sizes) => {
                let (width, height) = size;
                let text = format!("{{\"Width\":{width},\"Height\":{height}}}");
                socket.send(framed(RESIZE, text.as_bytes())).await.map_err(failed)?;
            }
        }
    }
}

/// What it means that the socket was closed before the error channel told how the command ended.
fn closed((code, reason): (u16, String)) -> Result<u8> {
    let name = match code {
        1000 => return Ok(0),
        1001 => " (going away)",
        1002 => " (protocol error)",
        1003 => " (unsupported data)",
        NO_STATUS => " (no status)",
        ABNORMAL_CLOSURE => " (abnormal closure)",
        1007 => " (invalid payload data)",
        1008 => " (policy violation)",
        1009 => " (message too big)",
        1010 => " (mandatory extension missing)",
        1011 => " (internal server error)",
        1015 => " (TLS handshake error)",
        _ => "",
    };
    let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
    let text = format!("error reading from error stream: next reader: websocket: close {code}{name}{reason}");
    Err(Failure::message(text))
}

/// `None` is an error, and the end too.
async fn read(stdin: &mut Option<Pin<Box<dyn AsyncRead + '_>>>, buffer: &mut [u8]) -> Option<usize> {
    match stdin {
        Some(stdin) => stdin.read(buffer).await.ok(),
        None => std::future::pending().await,
    }
}

async fn next_size(sizes: &mut Option<tokio::sync::mpsc::Receiver<(u16, u16)>>) -> (u16, u16) {
    if let Some(receiver) = sizes
        && let Some(size) = receiver.recv().await
    {
        return size;
    }
    *sizes = None;
    std::future::pending().await
}

fn exit_code(data: &[u8]) -> Result<u8> {
    let status: Value = serde_json::from_slice(data).unwrap_or_default();
    if status["status"] == "Success" {
        return Ok(0);
    }
    if status["reason"] == "NonZeroExitCode" {
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let code = causes.filter(|c| c["reason"] == "ExitCode").find_map(|c| c["message"].as_str()?.parse::<u8>().ok());
        if let Some(code) = code {
            return Ok(code);
        }
    }
    let text = status["message"].as_str().map_or_else(|| String::from_utf8_lossy(data).into_owned(), str::to_string);
    Err(match status["reason"].as_str() {
        Some("InternalError") => Failure::message(format!(
            "Internal error occurred: {}",
            text.trim_start_matches("Internal error occurred: ")
        )),
        _ => Failure::message(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_channel_tells_the_exit_code() {
        let check = |text: &str, wanted: std::result::Result<u8, &str>| {
            let found = exit_code(text.as_bytes()).map_err(|e| e.text());
            assert_eq!(found, wanted.map_err(str::to_string), "{text}");
        };
        check(r#"{"status":"Success"}"#, Ok(0));
        check(
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
            Ok(7),
        );
        check(r#"{"status":"Failure","message":"no such file"}"#, Err("no such file"));
        check("plain words", Err("plain words"));
    }

    #[test]
    fn a_refusal_may_come_in_chunks() {
        let check = |body: &str, wanted: &str| {
            assert_eq!(String::from_utf8_lossy(&unchunked(body.as_bytes())), wanted, "{body:?}");
        };
        check("3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "abcde");
        check("A\r\n0123456789\r\n", "0123456789");
        check("5\r\nab", "ab");
        check("nonsense", "");
    }

    #[test]
    fn a_socket_that_breaks_is_no_success() {
        let check = |code: u16, reason: &str, wanted: std::result::Result<u8, &str>| {
            let found = closed((code, reason.into())).map_err(|e| e.text());
            let wanted = wanted.map_err(|w| format!("error reading from error stream: next reader: websocket: {w}"));
            assert_eq!(found, wanted, "{code}");
        };
        check(1000, "", Ok(0));
        check(NO_STATUS, "", Err("close 1005 (no status)"));
        check(ABNORMAL_CLOSURE, "unexpected EOF", Err("close 1006 (abnormal closure): unexpected EOF"));
        check(1011, "the node has gone", Err("close 1011 (internal server error): the node has gone"));
        check(4000, "", Err("close 4000"));
    }
}
