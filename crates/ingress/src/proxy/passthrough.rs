//! TLS that is not ended here: a connection goes to the backend of the server name in its first bytes, as it came.
//! Called by `serve` through `proxy` before a handshake; where the name is nobody's, the handshake takes place here.
//! Invariant: the bytes that were looked at are sent on or read again, all of them (test:
//! `tls_is_passed_on_by_its_server_name`).

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rustls::server::Acceptor;
use serve::ReplayedStream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{ATTEMPTS_MAX, Entry, upgrade};
use crate::{destinations::Destinations, routes::PortTable};

/// For the first message of a handshake.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger than any that clients send.
const HELLO_BYTES_MAX: usize = 32 << 10;

/// The stream itself where this port passes nothing on.
pub fn before_tls(
    entry: &Arc<Entry>,
    stream: TcpStream,
) -> Result<BoxFuture<'static, Option<ReplayedStream>>, TcpStream> {
    let table = entry.proxy.table.load();
    match table.ports.get(&entry.port) {
        Some(port) if !port.gateway.passthrough.is_empty() => {
            let entry = entry.clone();
            Ok(Box::pin(async move { entry.pass_through(stream).await }))
        }
        _ => Err(stream),
    }
}

impl Entry {
    /// None when the connection was somebody else's, or is no TLS at all.
    async fn pass_through(self: Arc<Self>, mut stream: TcpStream) -> Option<ReplayedStream> {
        let env = &self.proxy.env;
        let (hello, name) = env.timeout(HELLO_TIMEOUT, server_name(&mut stream)).await.flatten()?;
        let name = name.to_ascii_lowercase();
        let table = self.proxy.table.load();
        let port = table.ports.get(&self.port)?;
        let Some(destinations) = passed_on(port, &name) else {
            return (!port.only_passthrough).then(|| ReplayedStream::new(hello, stream));
        };
        drop(table);
        if let Some(mut backend) = self.connect(&destinations).await
            && backend.write_all(&hello).await.is_ok()
        {
            upgrade::copy(stream, backend, env).await;
        }
        None
    }

    async fn connect(&self, destinations: &Destinations) -> Option<TcpStream> {
        let backend = destinations.pick()?.backend.as_ref()?;
        let turn = backend.turn();
        for attempt in 0..ATTEMPTS_MAX {
            let state = backend.state();
            let count = Some(state.endpoints.len()).filter(|count| *count > 0)?;
            match self.proxy.pool.raw(state.endpoints[(turn + attempt) % count]).await {
                Ok(stream) => return Some(stream),
                Err(error) => tracing::debug!(%error, "failed to connect to an endpoint"),
            }
        }
        None
    }
}

/// Unless a listener that ends TLS is closer to the name.
fn passed_on(port: &PortTable, name: &str) -> Option<Arc<Destinations>> {
    let (closeness, found) = port.gateway.passthrough.closest(name)?;
    let is_ours = port.gateway.listeners.closest(name).is_some_and(|(listener, _)| listener > closeness);
    (!is_ours).then(|| found.destinations.clone())
}

/// The first bytes of a connection up to the whole of the client's first message, and the name in it.
async fn server_name(stream: &mut TcpStream) -> Option<(Vec<u8>, String)> {
    let (mut acceptor, mut seen, mut buffer) = (Acceptor::default(), Vec::new(), vec![0; 4096]);
    loop {
        let length = stream.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
        seen.extend_from_slice(&buffer[..length]);
        let mut unread = &buffer[..length];
        while !unread.is_empty() {
            acceptor.read_tls(&mut unread).ok()?;
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().unwrap_or_default().to_string();
                    return Some((seen, name));
                }
                Ok(None) if seen.len() < HELLO_BYTES_MAX => {}
                _ => return None,
            }
        }
    }
}
