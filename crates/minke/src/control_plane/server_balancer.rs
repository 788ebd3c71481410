//! One port for several API servers: connections go to one that can be reached, so that kubeconfigs with one address
//! outlive every server. Run by `up --servers` on the machine of the servers.
//! Passes bytes on; certificates are shown and checked by those at both ends. A connection that one of them has ended is
//! soon nobody's any more: no client keeps a place by never hanging up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use env::Env;
use nix::sys::socket::{setsockopt, sockopt};
use serve::Slots;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECTIONS_MAX: usize = 4096;
const CONNECTIONS_PER_PEER_MAX: usize = 1024;
/// For what is still under way to one side when the other has ended.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// A server whose cable is pulled says nothing: it is asked whether it is there.
const KEEP_ALIVE_SECONDS: u32 = 1;
const KEEP_ALIVE_PROBES: u32 = 2;
const UNACKNOWLEDGED_MILLISECONDS_MAX: u32 = 2500;

struct Servers {
    addresses: Vec<SocketAddr>,
    /// The one that was reached last.
    current: AtomicUsize,
    linger_timeout: Duration,
}

/// Runs until shutdown.
pub async fn run(
    listener: std::net::TcpListener,
    addresses: Vec<SocketAddr>,
    env: Env,
    shutdown: CancellationToken,
) -> Result<()> {
    let listener = TcpListener::from_std(listener).context("failed to listen for clients of the API servers")?;
    let servers = Servers { addresses, current: AtomicUsize::new(0), linger_timeout: LINGER_TIMEOUT };
    let slots = Slots::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX);
    serve_until(listener, servers, slots, env, shutdown).await;
    Ok(())
}

async fn serve_until(listener: TcpListener, servers: Servers, slots: Slots, env: Env, shutdown: CancellationToken) {
    let servers = Arc::new(servers);
    loop {
        let accepted = shutdown.run_until_cancelled(serve::accept(&listener, &slots, &env)).await;
        let Some((client, _, slot)) = accepted else { return };
        let (servers, limits, until) = (servers.clone(), env.clone(), shutdown.clone());
        env.spawn(async move {
            // What ends early is closed on the other side too: who was cut off sees that and tries again.
            until.run_until_cancelled(pass_on(client, &servers, &limits)).await;
            drop(slot);
        });
    }
}

async fn pass_on(mut client: TcpStream, servers: &Servers, env: &Env) {
    let Some(mut server) = servers.connect(env).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    let mut up = std::pin::pin!(one_way(from_client, to_server));
    let mut down = std::pin::pin!(one_way(from_server, to_client));
    let rest = tokio::select! {
        () = &mut up => env.timeout(servers.linger_timeout, down).await,
        () = &mut down => env.timeout(servers.linger_timeout, up).await,
    };
    if rest.is_none() {
        tracing::debug!("closing a connection to an API server that one side has ended");
    }
}

async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    if let Err(error) = tokio::io::copy(&mut from, &mut to).await {
        tracing::debug!(%error, "a connection to an API server broke off");
    }
    // It may be gone already.
    let _ = to.shutdown().await;
}

impl Servers {
    /// The one of last time, or the next that answers.
    async fn connect(&self, env: &Env) -> Option<TcpStream> {
        let first = self.current.load(Ordering::Relaxed);
        for offset in 0..self.addresses.len() {
            let place = (first + offset) % self.addresses.len();
            let address = self.addresses[place];
            let connected = env.timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
            let error = match connected {
                Some(Ok(stream)) => match watch(&stream) {
                    Ok(()) => {
                        self.current.store(place, Ordering::Relaxed);
                        return Some(stream);
                    }
                    Err(error) => error.into(),
                },
                Some(Err(error)) => error,
                None => std::io::ErrorKind::TimedOut.into(),
            };
            tracing::warn!(%error, %address, "an API server can't be reached; trying the next");
        }
        None
    }
}

/// Has the kernel end the connection soon after the other side is gone.
fn watch(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEP_ALIVE_PROBES)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MILLISECONDS_MAX)?;
    setsockopt(stream, sockopt::TcpNoDelay, &true)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Answers every connection with its name.
    async fn serve(name: &'static str) -> (SocketAddr, tokio_util::task::AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = env::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(name.as_bytes()).await.unwrap();
            }
        });
        (address, tokio_util::task::AbortOnDropHandle::new(serving))
    }

    #[tokio::test]
    async fn connections_go_to_a_server_that_is_there() {
        let ((one, first), (two, _second)) = (serve("one").await, serve("two").await);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (own, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let balancer = env::spawn(run(listener, vec![one, two], Env::real(), shutdown.clone()));
        let ask = async || {
            let mut answer = String::new();
            TcpStream::connect(own).await.unwrap().read_to_string(&mut answer).await.unwrap();
            answer
        };
        assert_eq!(ask().await, "one");
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled(), "its listener is closed");
        assert_eq!(ask().await, "two");
        assert_eq!(ask().await, "two", "it stays there");
        shutdown.cancel();
        balancer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_never_hangs_up_keeps_no_place() {
        let (address, _server) = serve("refused").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (own, shutdown, slots) = (listener.local_addr().unwrap(), CancellationToken::new(), Slots::new(3, 3));
        let linger_timeout = Duration::from_millis(10);
        let servers = Servers { addresses: vec![address], current: AtomicUsize::new(0), linger_timeout };
        env::spawn(serve_until(listener, servers, slots.clone(), Env::real(), shutdown.clone()));
        let mut idle = Vec::new();
        for _ in 0..3 {
            let (mut client, mut answer) = (TcpStream::connect(own).await.unwrap(), String::new());
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "refused", "the server has ended it");
            idle.push(client);
        }
        let all_free = async {
            while slots.in_use() > 0 {
                env::sleep(Duration::from_millis(5)).await;
            }
        };
        env::timeout(Duration::from_secs(60), all_free).await.expect("places are given back");
        let mut answer = String::new();
        TcpStream::connect(own).await.unwrap().read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "refused", "somebody else is served");
        shutdown.cancel();
        drop(idle);
    }
}
