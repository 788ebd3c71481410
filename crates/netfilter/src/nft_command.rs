//! Runs `nft`: one process per transaction, all or nothing.
//! Used by `proxy` and `network_policy`, whose text it is.
//! A process id is on record before its transaction starts, so that `nft_monitor` does not take ours for a stranger's.

use std::{
    collections::VecDeque,
    process::{Output, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt, process::Command};

#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("failed to run nft (apt-get install -y nftables): {0}")]
    Start(#[from] std::io::Error),
    #[error("failed to apply nftables rules: {0}")]
    Refused(String),
}

/// The last processes of ours; events of older ones have long been read.
const REMEMBERED_PROCESSES_MAX: usize = 64;

#[derive(Clone, Default)]
pub struct Nft {
    processes: Arc<Mutex<VecDeque<u32>>>,
    /// Through which this process itself changes tables.
    socket: Option<u32>,
}

impl Nft {
    /// Beside a socket of ours with this port id.
    pub fn with_port_id(port_id: u32) -> Self {
        Self { socket: Some(port_id), ..Self::default() }
    }

    /// One transaction, from all the pieces of its text.
    pub async fn apply(&self, text: impl IntoIterator<Item = String>) -> Result<(), NftError> {
        self.run(&["-f", "-"], text).await.map(drop)
    }

    pub async fn run(&self, arguments: &[&str], input: impl IntoIterator<Item = String>) -> Result<String, NftError> {
        let mut child = Command::new("nft")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(id) = child.id() {
            let mut processes = self.processes.lock();
            processes.push_back(id);
            if processes.len() > REMEMBERED_PROCESSES_MAX {
                processes.pop_front();
            }
        }
        let stdin = child.stdin.take();
        let write = async move {
            let Some(mut stdin) = stdin else { return };
            for piece in input {
                // A child that gave up early says why on stderr.
                if stdin.write_all(piece.as_bytes()).await.is_err() {
                    return;
                }
            }
        };
        let ((), output) = tokio::join!(write, child.wait_with_output());
        let Output { status, stdout, stderr } = output?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&stderr);
        // The first complaint is the cause; a refused transaction of thousands of lines repeats it for each.
        Err(NftError::Refused(said.lines().take(6).collect::<Vec<_>>().join("; ")))
    }

    /// Whose notifications carry this port id; that of `nft` is its process id.
    pub fn is_ours(&self, port_id: u32) -> bool {
        self.socket == Some(port_id) || self.processes.lock().contains(&port_id)
    }
}
