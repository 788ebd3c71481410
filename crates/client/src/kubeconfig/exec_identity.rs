//! An identity that a program gives: run when there is none yet, when it has expired and when the server refused it.
//! Used by `https` with every request; the program itself is called by `exec_plugin`.
//! One run at a time.

use std::sync::Arc;

use env::Env;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{ExecCredential, ExecError, ExecPlugin, Identity, certified_key};

pub struct ExecIdentity {
    plugin: ExecPlugin,
    validity: Mutex<Validity>,
    running: Semaphore,
}

#[derive(Clone, Copy)]
enum Validity {
    /// None was given, or the server does not take it.
    Absent,
    Until(Timestamp),
    /// As long as the server takes it.
    Unlimited,
}

impl ExecIdentity {
    pub fn new(plugin: ExecPlugin) -> Self {
        Self { plugin, validity: Mutex::new(Validity::Absent), running: Semaphore::new(1) }
    }

    /// Runs it for the first time. Blocks for as long as it runs.
    pub fn first(&self) -> Result<ExecCredential, ExecError> {
        let credential = self.plugin.run(false)?;
        self.given(&credential);
        Ok(credential)
    }

    fn given(&self, credential: &ExecCredential) {
        *self.validity.lock() = credential.expires.map_or(Validity::Unlimited, Validity::Until);
    }

    fn is_good(&self) -> bool {
        match *self.validity.lock() {
            Validity::Absent => false,
            Validity::Until(expires) => Env::real().now() < expires,
            Validity::Unlimited => true,
        }
    }

    /// The server took the credential for nobody's.
    pub fn refused(&self) {
        *self.validity.lock() = Validity::Absent;
    }

    /// Has the program run again if what it gave is no longer good.
    pub async fn refresh(self: &Arc<Self>, identity: &Identity) -> Result<(), ExecError> {
        if self.is_good() {
            return Ok(());
        }
        let failed = |e: &dyn std::fmt::Display| ExecError::Failed(e.to_string());
        let _turn = self.running.acquire().await.map_err(|e| failed(&e))?;
        if self.is_good() {
            return Ok(());
        }
        let plugin = self.plugin.clone();
        let credential = env::spawn_blocking(move || plugin.run(false)).await.map_err(|e| failed(&e))??;
        if let (Some(cell), Some(token)) = (&identity.bearer_token, &credential.token) {
            *cell.write() = token.clone();
        }
        if let (Some(cell), Some(chain), Some(key)) =
            (&identity.certificate, &credential.certificate_pem, &credential.key_pem)
        {
            *cell.write() = Arc::new(certified_key(chain, key).map_err(|e| failed(&e))?);
        }
        self.given(&credential);
        Ok(())
    }
}
