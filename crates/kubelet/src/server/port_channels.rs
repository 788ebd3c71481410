//! Port-forward sessions of WebSocket clients that name their ports: two channels each, for data and for what went wrong.
//! Called by `streaming`; the runtime speaks SPDY, with two streams per port.
//! A client hears the number of a port before anything else on its channels.

use std::io;

use futures::SinkExt;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    spdy::{Reader, StreamId, Writer},
    websocket::{Backend, Channels, Dialect, MESSAGE_BYTES_MAX, relay, server_socket},
};

/// Channels are numbered by one byte, and the last number has a meaning of its own.
pub const PORTS_MAX: usize = 127;

/// Relays connections to all `ports` until they have ended or the client goes.
pub async fn forward<C>(client: C, backend: Backend, ports: &[u16], dialect: Dialect) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (input, output) = backend.stream.into_split();
    let mut writer = Writer::new(output)?;
    let reader = Reader::new(input, backend.buffered);
    let mut client = server_socket(client, MESSAGE_BYTES_MAX).await;
    let mut streams: Vec<(u8, StreamId)> = Vec::new();
    for (data, port) in (0u8..).step_by(2).zip(ports.iter().take(PORTS_MAX)) {
        let (number, request) = (port.to_string(), (data / 2).to_string());
        for (channel, kind) in [(data + 1, "error"), (data, "data")] {
            let headers = [("streamType", kind), ("port", &number), ("requestID", &request)];
            streams.push((channel, writer.open(&headers).await?));
        }
        for channel in [data, data + 1] {
            if let Some(message) = dialect.encode(channel, &port.to_le_bytes()) {
                client.send(message).await.map_err(io::Error::other)?;
            }
        }
    }
    // Nobody writes to what tells of errors.
    let channels = Channels { streams: &streams, awaited: |_| true, writable: |channel| channel % 2 == 0 };
    relay(&mut client, reader, writer, channels, dialect).await
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use futures::StreamExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{Message, protocol::Role},
    };

    use super::*;
    use crate::server::spdy::Frame;

    #[tokio::test]
    async fn each_port_has_a_channel_for_data_and_one_for_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connected, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, runtime) = (connected.unwrap(), accepted.unwrap().0);
        let (ours, theirs) = tokio::io::duplex(1024);
        let backend = Backend { stream, buffered: BytesMut::new() };
        let session =
            async { forward(ours, backend, &[80, 8080], Dialect::negotiated_for_ports("v4.channel.k8s.io")).await };
        let runtime = async {
            let (input, output) = runtime.into_split();
            let (mut reader, mut writer) = (Reader::new(input, BytesMut::new()), Writer::new(output).unwrap());
            let asked = loop {
                if let Some(Frame::Data { stream, bytes, .. }) = reader.next().await.unwrap() {
                    break (stream, bytes);
                }
            };
            // Errors of the first port, its data, errors of the second, its data.
            assert_eq!(asked, (7, Bytes::from_static(b"ping")));
            writer.data(7, b"pong", true).await.unwrap();
            writer.data(1, b"refused", true).await.unwrap();
            writer.data(3, &[], true).await.unwrap();
            writer.data(5, &[], true).await.unwrap();
            while reader.next().await.unwrap().is_some() {}
        };
        let client = async {
            let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
            client.send(Message::Binary(Bytes::from_static(b"\x02ping"))).await.unwrap();
            // What is written where errors are told goes nowhere.
            client.send(Message::Binary(Bytes::from_static(b"\x01no"))).await.unwrap();
            client.filter_map(async |message| message.ok()).collect::<Vec<Message>>().await
        };
        let (ended, (), messages) = tokio::join!(session, runtime, client);
        ended.unwrap();
        let expected = [&b"\0\x50\0"[..], b"\x01\x50\0", b"\x02\x90\x1f", b"\x03\x90\x1f", b"\x02pong", b"\x01refused"];
        let expected = expected.map(|bytes| Message::Binary(Bytes::copy_from_slice(bytes)));
        assert_eq!(messages[..6], expected);
        assert!(matches!(messages[6..], [Message::Close(_)]), "{messages:?}");
    }
}
