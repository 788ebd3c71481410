//! A connection whose first bytes have been read already, and are read again.
//! Used by `http` to tell HTTP/2 from HTTP/1.1, and by handlers that look at a TLS handshake before it begins.
//! Invariant: what was read comes first and once (test: `what_was_looked_at_is_read_again`).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    net::TcpStream,
};

/// What every client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub struct ReplayedStream {
    head: Vec<u8>,
    /// How much of the head has been read again.
    at: usize,
    stream: TcpStream,
}

impl ReplayedStream {
    pub fn new(head: Vec<u8>, stream: TcpStream) -> Self {
        Self { head, at: 0, stream }
    }
}

/// Reads until it is clear whether the client speaks HTTP/2. `None` if it ends before.
pub async fn http2_preface(mut stream: TcpStream) -> Option<(ReplayedStream, bool)> {
    let mut head = vec![0; PREFACE.len()];
    let mut length = 0;
    while length < head.len() {
        let read = stream.read(&mut head[length..]).await.ok().filter(|read| *read > 0)?;
        length += read;
        if head[..length] != PREFACE[..length] {
            head.truncate(length);
            return Some((ReplayedStream::new(head, stream), false));
        }
    }
    Some((ReplayedStream::new(head, stream), true))
}

impl AsyncRead for ReplayedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = &this.head[this.at..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        this.at += length;
        if this.at == this.head.len() {
            (this.head, this.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

crate::forward_write::forward_write!(impl AsyncWrite for ReplayedStream);

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn what_was_looked_at_is_read_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let preface = std::str::from_utf8(PREFACE).unwrap();
        for (sent, expected) in [
            ("GET / HTTP/1.1\r\n", Some(false)),
            (&format!("{preface}rest"), Some(true)),
            ("PRI * HTTP/1.1\r\n", Some(false)),
            ("PRI", None),
        ] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let found = http2_preface(stream).await;
            assert_eq!(found.as_ref().map(|(_, http2)| *http2), expected, "{sent:?}");
            if let Some((mut stream, _)) = found {
                let mut read = String::new();
                stream.read_to_string(&mut read).await.unwrap();
                assert_eq!(read, sent);
            }
        }
    }
}
