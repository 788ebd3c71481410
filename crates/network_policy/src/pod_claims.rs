//! The network plugin's word about a pod's addresses, heard before the pod starts: it waits here until the rules cover
//! them, so no packet of a pod goes out unjudged.
//! Asked by `cni` over a socket in the run directory, which keeps others out; answered by `run`.
//! Invariant: who is not covered gets no answer but an error (test: `a_claim_waits_for_its_answer`).

use std::{net::IpAddr, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use env::Env;
use serde::{Deserialize, Serialize};
use serve::Slots;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
};

const CLAIM_BYTES_MAX: u64 = 4096;
/// Pods that start at the same time.
const CLAIMS_MAX: usize = 1024;
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// What the plugin says, as one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    #[serde(default)]
    pub uid: String,
    pub ips: Vec<IpAddr>,
}

impl Claim {
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Answered by being sent to; dropped, nobody waits any longer.
pub type Covered = oneshot::Sender<()>;

/// Hears claims; `run` takes them.
pub struct PodClaims {
    sender: mpsc::Sender<(Claim, Covered)>,
    pub(crate) receiver: mpsc::Receiver<(Claim, Covered)>,
}

impl Default for PodClaims {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(CLAIMS_MAX);
        Self { sender, receiver }
    }
}

impl PodClaims {
    /// Hears claims at `path` for as long as the future lives.
    pub fn serve(&self, path: &Path, env: Env) -> impl Future<Output = std::io::Result<()>> + use<> {
        let (path, sender) = (path.to_owned(), self.sender.clone());
        async move {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            // What an agent before us left behind.
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            let slots = Slots::new(CLAIMS_MAX, CLAIMS_MAX);
            loop {
                let (stream, _, slot) = serve::accept(&listener, &slots, &env).await;
                let (sender, limit) = (sender.clone(), env.clone());
                env.spawn(async move {
                    if let Err(error) = answer(stream, &sender, &limit).await {
                        tracing::debug!(%error, "a claim of a pod's addresses ended badly");
                    }
                    drop(slot);
                });
            }
        }
    }
}

async fn answer(stream: UnixStream, sender: &mpsc::Sender<(Claim, Covered)>, env: &Env) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read).take(CLAIM_BYTES_MAX);
    let mut line = String::new();
    env.timeout(CLAIM_TIMEOUT, read.read_line(&mut line)).await.ok_or(std::io::ErrorKind::TimedOut)??;
    let claim: Claim = match serde_json::from_str(&line) {
        Ok(claim) => claim,
        Err(error) => return write.write_all(format!("can't read the claim: {error}\n").as_bytes()).await,
    };
    let (covered, waits) = oneshot::channel();
    sender.send((claim, covered)).await.map_err(|_| std::io::ErrorKind::BrokenPipe)?;
    let mut more = [0; 1];
    tokio::select! {
        Ok(()) = waits => write.write_all(b"covered\n").await,
        // Nobody waits any longer.
        _ = read.read(&mut more) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claim_waits_for_its_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.sock");
        let mut claims = PodClaims::default();
        let serving = env::spawn(claims.serve(&path, Env::real()));
        let connect = async || loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => break stream,
                Err(_) => env::sleep(Duration::from_millis(5)).await,
            }
        };
        let mut stream = connect().await;
        stream.write_all(b"{\"namespace\":\"d\",\"name\":\"web\",\"ips\":[\"10.0.0.1\",\"fd00::1\"]}\n").await.unwrap();
        let (claim, covered) = claims.receiver.recv().await.unwrap();
        assert_eq!((claim.key().as_str(), claim.ips.len(), claim.uid.as_str()), ("d/web", 2, ""));
        assert!(env::timeout(Duration::from_millis(50), stream.readable()).await.is_none(), "not covered yet");
        covered.send(()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "covered\n");

        let mut broken = connect().await;
        broken.write_all(b"{}\n").await.unwrap();
        said.clear();
        broken.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("can't read the claim"), "{said}");
        serving.abort();
    }
}
