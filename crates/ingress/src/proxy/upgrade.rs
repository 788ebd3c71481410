//! Connections that go on in another protocol (WebSocket): bytes in both directions until one side ends.
//! Called by `proxy` when a backend has agreed.
//! A connection on which nothing moves ends after `SILENCE_MAX`.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use env::Env;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use super::upstream::Http1Connection;

const SILENCE_MAX: Duration = Duration::from_secs(3600);
const BUFFER_BYTES: usize = 16 << 10;

/// Joins both sides once both have changed over.
pub async fn join(client: OnUpgrade, backend: OnUpgrade, connection: Http1Connection, env: Env) {
    let changed = async { tokio::try_join!(client, backend) };
    let (joined, ()) = tokio::join!(changed, connection.hand_over());
    match joined {
        Ok((client, backend)) => copy(TokioIo::new(client), TokioIo::new(backend), &env).await,
        Err(error) => tracing::debug!(%error, "a connection did not change its protocol"),
    }
}

pub async fn copy(client: impl AsyncRead + AsyncWrite, backend: impl AsyncRead + AsyncWrite, env: &Env) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_backend, mut to_backend) = split(backend);
    let moved = AtomicU64::new(0);
    let both = async {
        tokio::join!(
            one_way(&mut from_client, &mut to_backend, &moved),
            one_way(&mut from_backend, &mut to_client, &moved)
        )
    };
    let silent = async {
        let mut before = 0;
        loop {
            env.sleep(SILENCE_MAX).await;
            let now = moved.load(Relaxed);
            if now == before {
                return;
            }
            before = now;
        }
    };
    tokio::select! {
        _ = both => {}
        () = silent => tracing::debug!("closing an upgraded connection on which nothing moves"),
    }
}

async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        moved.fetch_add(read as u64, Relaxed);
    }
}
