//! Entries for `crates/fuzz` into what reads bytes of clients and runtimes; nothing else calls them.

use bytes::BytesMut;
use futures::{FutureExt, StreamExt};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

use super::{
    spdy::{Reader, Writer},
    websocket::{Channels, Dialect, relay},
};

/// Frames of a runtime, in one piece and cut in two: both ways read the same.
pub fn spdy(bytes: &[u8]) {
    let read = |buffered: &[u8], rest: &[u8]| {
        let mut reader = Reader::new(rest, BytesMut::from(buffered));
        let mut frames = Vec::new();
        let ended = loop {
            match reader.next().now_or_never().expect("bytes in memory are there at once") {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        (frames, ended)
    };
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    assert_eq!(read(&[], bytes), read(head, tail));
}

const PROTOCOLS: [&str; 4] =
    ["v5.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];

/// What a client sends (after a zero byte: what the runtime sends) in a session of every protocol.
pub fn websocket(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (client, runtime) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    for protocol in PROTOCOLS {
        let dialect = Dialect::negotiated(protocol);
        let session = async {
            let socket =
                |input| WebSocketStream::from_raw_socket(tokio::io::join(input, tokio::io::sink()), Role::Server, None);
            let mut messages = socket(bytes).await;
            while let Some(Ok(message)) = messages.next().await {
                if let Some((channel, content)) = dialect.decode(&message)
                    && let Some(again) = dialect.encode(channel, &content)
                    && protocol.starts_with('v')
                {
                    assert_eq!(dialect.decode(&again), Some((channel, content)));
                }
            }
            let mut writer = Writer::new(tokio::io::sink()).expect("a compressor");
            let streams = [(3, writer.open(&[("streamType", "error")]).await.expect("a sink takes everything"))];
            let channels = Channels { streams: &streams, awaited: |_| true, writable: |_| true };
            let mut client = socket(client).await;
            let _ = relay(&mut client, Reader::new(runtime, BytesMut::new()), writer, channels, dialect).await;
        };
        let _ = session.now_or_never();
    }
}
