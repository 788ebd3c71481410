//! A connection to a plugin that says when it has ended.
//! Used by `dra::drivers`, which must know whether a driver lives while nothing is asked of it.

use std::{
    io,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use env::Env;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, transport::Endpoint};

use super::{PluginChannel, RpcError, socket, socket_path};

/// The connection's end is told when this is dropped.
struct WatchedStream {
    stream: UnixStream,
    _ended: DropGuard,
}

impl PluginChannel {
    /// Connects at once. The token is cancelled when the connection has ended.
    pub async fn connect_watched(
        name: &str,
        endpoint: &str,
        env: Env,
        timeout: Duration,
    ) -> Result<(Self, CancellationToken), RpcError> {
        let ended = CancellationToken::new();
        let (path, token) = (socket_path(endpoint).to_string(), ended.clone());
        let connector = tower::service_fn(move |_| {
            let (path, token) = (path.clone(), token.clone());
            async move {
                let stream = socket::connect(Path::new(&path)).await?;
                Ok::<_, io::Error>(TokioIo::new(WatchedStream { stream, _ended: token.drop_guard() }))
            }
        });
        let unavailable = |message: String| RpcError { code: Code::Unavailable, message };
        let endpoint = Endpoint::from_static("http://localhost");
        let connecting = endpoint.connect_with_connector(connector);
        let channel = match env.timeout(timeout, connecting).await {
            Some(connected) => connected.map_err(|error| unavailable(error.to_string()))?,
            None => return Err(unavailable(format!("{name} can't be reached within {} s", timeout.as_secs()))),
        };
        Ok((Self { name: name.into(), channel, env }, ended))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
