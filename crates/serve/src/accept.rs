//! The one accept loop.
//! Used by `http` and by listeners with a protocol of their own.
//! Invariant: no error ends it; out of file descriptors, it waits and tries again (test:
//! `running_out_of_descriptors_does_not_end_a_listener`).

use std::{io, net::SocketAddr, time::Duration};

use env::{Backoff, Env};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::slots::{Slot, Slots};

const ACCEPT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// Of a peer that has gone without a word: asked after, and how often.
const KEEPALIVE_IDLE_SECONDS: u32 = 60;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 15;

/// Something that hands out connections.
pub trait Accept {
    type Stream;

    /// The next connection, and where it comes from, if that is an address.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<SocketAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, %peer, "failed to set options of a connection");
        }
        Ok((stream, Some(peer)))
    }
}

/// What is written goes at once, and a peer that is gone is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
    Ok(())
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<SocketAddr>)> {
        Ok((UnixListener::accept(self).await?.0, None))
    }
}

/// The next connection that there is a slot for; those there is none for are closed at once.
pub async fn accept<L: Accept>(listener: &L, slots: &Slots, env: &Env) -> (L::Stream, Option<SocketAddr>, Slot) {
    let mut backoff = ACCEPT_BACKOFF;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(slot) = slots.take(peer.map(|peer| peer.ip())) {
                    return (stream, peer, slot);
                }
                tracing::debug!(?peer, "closing a connection: too many are open");
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                env.sleep(backoff.next_delay()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Fails so often, then works.
    struct Exhausted(AtomicUsize);

    impl Accept for Exhausted {
        type Stream = ();

        async fn accept(&self) -> io::Result<((), Option<SocketAddr>)> {
            match self.0.fetch_sub(1, Ordering::Relaxed) {
                0 => Ok(((), None)),
                _ => Err(nix::errno::Errno::EMFILE.into()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn running_out_of_descriptors_does_not_end_a_listener() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let listener = Exhausted(AtomicUsize::new(20));
        let ((), _, _slot) = accept(&listener, &Slots::new(1, 1), &env).await;
        let waited = env.monotonic();
        assert!((Duration::from_secs(10)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    }
}
