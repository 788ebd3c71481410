//! WebSocket sessions of exec, attach and port-forward, carried on to a runtime that speaks SPDY.
//! Called by `streaming` for clients that came with a `channel.k8s.io` protocol or a port-forward tunnel.
//! Stdin can be half-closed (v5); the exit status always arrives before the close.

use std::io;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::spdy::{Frame, Reader, StreamId, Writer};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// In v5: the next byte names a channel that the client will not write to any more.
const CLOSE: u8 = 255;

/// Of one message of a client: as much as upstream's servers take.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// The same where nothing is expected of it.
const IGNORED_BYTES_MAX: usize = 64 << 10;

/// The server's side of a connection after the upgrade. A message that announces more than `bytes_max` ends it, before
/// anything of it is kept.
pub async fn server_socket<C>(client: C, bytes_max: usize) -> WebSocketStream<C>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let limits = WebSocketConfig::default().max_message_size(Some(bytes_max)).max_frame_size(Some(bytes_max));
    WebSocketStream::from_raw_socket(client, Role::Server, Some(limits)).await
}

/// Which streams a session has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// How messages are written in the protocol a client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Text messages: a digit for the channel, the rest in base64.
    base64: bool,
    /// A failure is told in words and a success not at all; newer protocols send a `Status` for both.
    plain_status: bool,
}

impl Dialect {
    pub fn negotiated(protocol: &str) -> Self {
        Self { base64: protocol.contains("base64"), plain_status: !protocol.starts_with('v') }
    }

    /// Of port-forward, where no channel has a status.
    pub fn negotiated_for_ports(protocol: &str) -> Self {
        Self { plain_status: false, ..Self::negotiated(protocol) }
    }

    /// `None` when the client is not to hear of it.
    pub fn encode(self, channel: u8, bytes: &[u8]) -> Option<Message> {
        let words;
        let mut bytes = bytes;
        if channel == ERROR && self.plain_status {
            words = failure_in_words(bytes)?;
            bytes = words.as_bytes();
        }
        Some(match self.base64 {
            true => Message::text(format!("{channel}{}", BASE64_STANDARD.encode(bytes))),
            false => Message::Binary(prefixed(channel, bytes)),
        })
    }

    /// The channel and what was written to it.
    pub fn decode(self, message: &Message) -> Option<(u8, Bytes)> {
        match message {
            Message::Binary(bytes) if !self.base64 => Some((*bytes.first()?, bytes.slice(1..))),
            Message::Text(text) if self.base64 => {
                let (channel, rest) = text.split_at_checked(1)?;
                Some((channel.parse().ok()?, BASE64_STANDARD.decode(rest).ok()?.into()))
            }
            _ => None,
        }
    }
}

/// The message of a `Status`, unless it is a success.
fn failure_in_words(status: &[u8]) -> Option<String> {
    match serde_json::from_slice::<serde_json::Value>(status) {
        Ok(status) if status["status"] == "Success" => None,
        Ok(status) => Some(status["message"].as_str().unwrap_or_default().into()),
        Err(_) => Some(String::from_utf8_lossy(status).into_owned()),
    }
}

/// A runtime's streaming server after the upgrade, with what it sent already.
pub struct Backend {
    pub stream: TcpStream,
    pub buffered: BytesMut,
}

/// Relays one exec or attach session until either side ends it.
pub async fn channels<C>(client: C, backend: Backend, streams: Streams, dialect: Dialect) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (input, output) = backend.stream.into_split();
    let mut writer = Writer::new(output)?;
    let reader = Reader::new(input, backend.buffered);
    let mut channels: Vec<(u8, StreamId)> = Vec::new();
    let wanted = [
        (ERROR, "error", true),
        (STDIN, "stdin", streams.stdin),
        (STDOUT, "stdout", streams.stdout),
        (STDERR, "stderr", streams.stderr && !streams.tty),
        (RESIZE, "resize", streams.tty),
    ];
    for (channel, name, _) in wanted.into_iter().filter(|(_, _, wanted)| *wanted) {
        channels.push((channel, writer.open(&[("streamType", name)]).await?));
    }
    let mut client = server_socket(client, MESSAGE_BYTES_MAX).await;
    // The runtime ends its streams one by one; the session is over when all that it writes to have ended.
    let awaited = |channel: u8| [ERROR, STDOUT, STDERR].contains(&channel);
    relay(&mut client, reader, writer, Channels { streams: &channels, awaited, writable: |_| true }, dialect).await
}

/// The streams of a session, by the channels that the client knows them by.
pub struct Channels<'a> {
    pub streams: &'a [(u8, StreamId)],
    /// Those whose end ends the session.
    pub awaited: fn(u8) -> bool,
    /// Those that take data from the client.
    pub writable: fn(u8) -> bool,
}

/// Carries frames and messages over until every awaited stream has ended or the client goes.
pub async fn relay<C, R, W>(
    client: &mut WebSocketStream<C>,
    mut reader: Reader<R>,
    mut writer: Writer<W>,
    channels: Channels<'_>,
    dialect: Dialect,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let streams = channels.streams;
    let stream_of =
        |channel: u8| streams.iter().find(|(c, _)| *c == channel && (channels.writable)(channel)).map(|(_, id)| *id);
    let channel_of = |stream: StreamId| streams.iter().find(|(_, id)| *id == stream).map(|(c, _)| *c);
    let mut open: Vec<StreamId> = streams.iter().filter(|(c, _)| (channels.awaited)(*c)).map(|(_, id)| *id).collect();
    while !open.is_empty() {
        tokio::select! {
            frame = reader.next() => match frame? {
                Some(Frame::Data { stream, bytes, fin }) => {
                    let channel = channel_of(stream).filter(|_| !bytes.is_empty());
                    if let Some(message) = channel.and_then(|channel| dialect.encode(channel, &bytes)) {
                        client.send(message).await.map_err(io::Error::other)?;
                    }
                    if fin {
                        open.retain(|s| *s != stream);
                    }
                }
                Some(Frame::Reset { stream } | Frame::Reply { stream, fin: true }) => open.retain(|s| *s != stream),
                Some(Frame::Ping { id }) => writer.pong(id).await?,
                Some(Frame::GoAway) | None => break,
                Some(Frame::Reply { .. } | Frame::Other) => {}
            },
            message = client.next() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return writer.close().await,
                Some(Ok(message)) => match dialect.decode(&message) {
                    Some((CLOSE, rest)) => {
                        if let Some(stream) = rest.first().and_then(|c| stream_of(*c)) {
                            writer.data(stream, &[], true).await?;
                        }
                    }
                    Some((channel, rest)) => {
                        if let Some(stream) = stream_of(channel).filter(|_| !rest.is_empty()) {
                            writer.data(stream, &rest, false).await?;
                        }
                    }
                    None => {}
                },
            },
        }
    }
    // The client may be gone already, which is as good an end as any.
    let closed = client.close(Some(goodbye())).await;
    tracing::trace!(?closed, "session over");
    writer.close().await
}

/// Sends a stream of bytes as messages until it ends or the client goes.
pub async fn send_all<C>(client: C, bytes: impl Stream<Item = io::Result<Bytes>>, base64: bool) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut client = server_socket(client, IGNORED_BYTES_MAX).await;
    let mut bytes = std::pin::pin!(bytes);
    loop {
        tokio::select! {
            chunk = bytes.next() => match chunk {
                Some(chunk) => {
                    let chunk = chunk?;
                    let message = match base64 {
                        true => Message::text(BASE64_STANDARD.encode(&chunk)),
                        false => Message::Binary(chunk),
                    };
                    client.send(message).await.map_err(io::Error::other)?;
                }
                None => break,
            },
            message = client.next() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                Some(Ok(_)) => {}
            },
        }
    }
    let closed = client.close(Some(goodbye())).await;
    tracing::trace!(?closed, "stream over");
    Ok(())
}

/// Clients take any other close for a failure.
fn goodbye() -> CloseFrame {
    CloseFrame { code: CloseCode::Normal, reason: Default::default() }
}

fn prefixed(channel: u8, bytes: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(bytes.len() + 1);
    message.extend_from_slice(&[channel]);
    message.extend_from_slice(bytes);
    message.freeze()
}

/// A port-forward tunnel: the client's SPDY bytes travel inside WebSocket messages; we only unwrap them.
pub async fn tunnel<C>(client: C, mut backend: Backend) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut client = server_socket(client, MESSAGE_BYTES_MAX).await;
    if !backend.buffered.is_empty() {
        client.send(Message::Binary(backend.buffered.split().freeze())).await.map_err(io::Error::other)?;
    }
    let (mut input, mut output) = backend.stream.split();
    let mut buffer = BytesMut::with_capacity(32 << 10);
    loop {
        tokio::select! {
            read = input.read_buf(&mut buffer) => {
                if read? == 0 {
                    break;
                }
                client.send(Message::Binary(buffer.split().freeze())).await.map_err(io::Error::other)?;
                buffer.reserve(32 << 10);
            }
            message = client.next() => match message {
                Some(Ok(Message::Binary(bytes))) => output.write_all(&bytes).await?,
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
        }
    }
    let closed = client.close(Some(goodbye())).await;
    tracing::trace!(?closed, "tunnel over");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_arrives_in_messages_and_ends_with_a_close() {
        for base64 in [false, true] {
            let (ours, theirs) = tokio::io::duplex(1024);
            let lines = futures::stream::iter([Ok(Bytes::from_static(b"one\n")), Ok(Bytes::from_static(b"two\n"))]);
            let sending = env::spawn(send_all(ours, lines, base64));
            let client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
            let messages: Vec<Message> = client.filter_map(async |message| message.ok()).collect().await;
            let expected = match base64 {
                true => [Message::text("b25lCg=="), Message::text("dHdvCg==")],
                false => ["one\n", "two\n"].map(|line| Message::Binary(Bytes::from(line))),
            };
            assert_eq!(messages[..2], expected);
            assert!(matches!(messages[2], Message::Close(_)), "{messages:?}");
            sending.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_too_much_is_hung_up_on() {
        // The head of a masked message of 65,537 bytes, whole or as a part; what it announces never comes.
        for first in [0x82, 0x02] {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            let sending = env::spawn(send_all(ours, futures::stream::pending(), false));
            let head = [first, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
            theirs.write_all(&head).await.unwrap();
            let ended = env::timeout(std::time::Duration::from_secs(60), sending).await;
            ended.expect("it does not wait for the rest").unwrap().unwrap();
        }
    }

    #[test]
    fn old_protocols_speak_in_words_and_base64() {
        let success = br#"{"status": "Success"}"#;
        let failure = br#"{"status": "Failure", "message": "exit code 3"}"#;
        let check = |protocol: &str, channel: u8, bytes: &[u8], expected: Option<Message>| {
            assert_eq!(Dialect::negotiated(protocol).encode(channel, bytes), expected, "{protocol} {channel}");
        };
        let binary = |bytes: &[u8]| Some(Message::Binary(Bytes::copy_from_slice(bytes)));
        check("v4.channel.k8s.io", ERROR, success, binary(&[b"\x03", &success[..]].concat()));
        check("channel.k8s.io", STDOUT, b"hi", binary(b"\x01hi"));
        check("channel.k8s.io", ERROR, success, None);
        check("", ERROR, failure, binary(b"\x03exit code 3"));
        check("base64.channel.k8s.io", STDOUT, b"hi", Some(Message::text("1aGk=")));
        let base64 = Dialect::negotiated("v4.base64.channel.k8s.io");
        assert_eq!(base64.decode(&Message::text("0aGk=")), Some((STDIN, Bytes::from_static(b"hi"))));
        assert_eq!(base64.decode(&Message::text("")), None);
        assert_eq!(Dialect::negotiated("v5.channel.k8s.io").decode(&Message::Binary(Bytes::new())), None);
    }
}
