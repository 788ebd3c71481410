//! A small image registry in a directory: what `docker push`, `skopeo copy` and containerd speak (OCI distribution 1.1).
//! Served by `minke` with `--registry`; `routes` says what is asked, `storage` keeps it, `uploads` takes blobs in,
//! `garbage` removes what nothing names.
//! Invariant: what is stored is what its digest says (test: `blobs_come_back_as_they_were_pushed`).

mod answers;
mod digest;
mod garbage;
mod handler;
mod routes;
mod storage;
mod uploads;

use std::{io, net::IpAddr, path::Path, sync::Arc};

use env::Env;
use rustls::ServerConfig;
use serve::{Limits, Peer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{handler::RegistryHandler, storage::Storage};

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Refused,
    Pull,
    Push,
}

/// Says what the one at the other end may do.
pub type Authorizer = Arc<dyn Fn(&Peer) -> Access + Send + Sync>;

/// A directory of images. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    storage: Arc<Storage>,
    env: Env,
}

impl Registry {
    /// Makes the directory if it is not there, and removes what pushes have left that were cut off.
    pub fn open(directory: &Path, env: Env) -> io::Result<Self> {
        let storage = Storage::open(directory)?;
        storage.forget_old_uploads(&env)?;
        Ok(Self { storage: Arc::new(storage), env })
    }

    /// For programs on this machine, who need no more than to be here. Names of other machines are refused: a page in a
    /// browser could have its own name lead here.
    pub async fn serve_loopback(&self, listener: TcpListener, stop: CancellationToken) {
        let authorizer: Authorizer = Arc::new(|peer| {
            let is_local = |address: IpAddr| address.to_canonical().is_loopback();
            if peer.address.is_none_or(|address| is_local(address.ip())) { Access::Push } else { Access::Refused }
        });
        let handler = RegistryHandler::new(self.storage.clone(), self.env.clone(), authorizer, true);
        serve::serve_http(listener, Arc::new(handler), Limits::KUBELET, self.env.clone(), stop).await;
    }

    /// For other machines, over TLS.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        tls: ServerConfig,
        authorizer: Authorizer,
        stop: CancellationToken,
    ) {
        let handler = RegistryHandler::new(self.storage.clone(), self.env.clone(), authorizer, false);
        serve::serve_https(listener, tls, Arc::new(handler), Limits::KUBELET, self.env.clone(), stop).await;
    }
}
