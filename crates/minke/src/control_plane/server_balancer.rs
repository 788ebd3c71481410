//! One port for several API servers: connections go to one that can be reached, so that kubeconfigs with one address
//! outlive every server. Run by `up --servers` on the machine of the servers.
//! Passes bytes on; certificates are shown and checked by those at both ends.

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
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECTIONS_MAX: usize = 4096;
/// A server whose cable is pulled says nothing: it is asked whether it is there.
const KEEP_ALIVE_SECONDS: u32 = 1;
const KEEP_ALIVE_PROBES: u32 = 2;
const UNACKNOWLEDGED_MILLISECONDS_MAX: u32 = 2500;
/// After an accept that failed, for want of descriptors perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Servers {
    addresses: Vec<SocketAddr>,
    /// The one that was reached last.
    current: AtomicUsize,
}

/// Runs until shutdown.
pub async fn run(
    listener: std::net::TcpListener,
    addresses: Vec<SocketAddr>,
    env: Env,
    shutdown: CancellationToken,
) -> Result<()> {
    let listener = TcpListener::from_std(listener).context("failed to listen for clients of the API servers")?;
    let servers = Arc::new(Servers { addresses, current: AtomicUsize::new(0) });
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let serving = async {
        loop {
            let room = connections.clone().acquire_owned().await.context("no more connections")?;
            let client = match listener.accept().await {
                Ok((client, _)) => client,
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a client of the API servers");
                    env.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (servers, env, until) = (servers.clone(), env.clone(), shutdown.clone());
            env.clone().spawn(async move {
                // What ends early is closed on the other side too: who was cut off sees that and tries again.
                until.run_until_cancelled(pass_on(client, &servers, &env)).await;
                drop(room);
            });
        }
    };
    shutdown.run_until_cancelled(serving).await.unwrap_or(Ok(()))
}

async fn pass_on(mut client: TcpStream, servers: &Servers, env: &Env) {
    let Some(mut server) = servers.connect(env).await else { return };
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "a connection to an API server broke off");
    }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
}
