//! Watches `<root>/plugins_registry`: each socket there is a plugin that wants to be known, and is for as long as the
//! socket is there. A socket made anew under the same name is a plugin that came back, perhaps at another address.
//! Feeds `mounter` with drivers and `csi_node` with what they say of the node.
//! A plugin that hangs or lies is told no and tried again later; others do not wait for it.

use std::{
    collections::HashMap,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::{Client, WorkQueue};
use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use metrics::Metrics;
use parking_lot::Mutex;

use super::{
    csi_node::{self, CsiNodeError},
    driver_client::{CsiError, DriverClient},
    messages::{PluginInfo, RegistrationStatus},
    mounter::CsiManager,
};

const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
const WORKERS: usize = 4;
/// The CSINode object's place in the queue, which has paths of sockets otherwise.
const CSI_NODE_KEY: &str = "";

#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("failed to get plugin info using RPC GetInfo at socket {socket}, err: {source}")]
    Info { socket: String, source: CsiError },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    CsiNode(#[from] CsiNodeError),
}

/// Which file a socket is: one made anew under the same name is another.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SocketFile {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl SocketFile {
    fn find(path: &Path) -> Option<Self> {
        let meta = path.symlink_metadata().ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        meta.file_type().is_socket().then(|| Self { device: meta.dev(), inode: meta.ino(), changed })
    }
}

pub struct PluginWatcher {
    pub client: Client,
    pub env: Env,
    pub metrics: Metrics,
    pub node_name: String,
    pub directory: PathBuf,
    pub csi: Arc<CsiManager>,
    /// By the path of the socket: which file it was, and the driver behind it.
    pub registered: Mutex<HashMap<String, (SocketFileOf, String)>>,
}

/// Not to be looked into.
#[derive(Debug, Clone, Copy)]
pub struct SocketFileOf(SocketFile);

impl PluginWatcher {
    /// Runs for as long as the node does.
    pub async fn run(self: Arc<Self>) {
        let queue = WorkQueue::<String>::new(self.env.clone());
        queue.add(CSI_NODE_KEY.into());
        let work = (0..WORKERS).map(|_| self.work(&queue));
        tokio::join!(self.follow(&queue), futures::future::join_all(work));
    }

    /// Adds what is there, and then what comes and goes.
    async fn follow(&self, queue: &WorkQueue<String>) {
        let mut backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            match self.watch() {
                Ok(mut events) => {
                    self.add_all(queue);
                    while let Some(event) = events.next().await {
                        match event.map(|event| event.name) {
                            Ok(Some(name)) => queue.add(self.directory.join(name).to_string_lossy().into_owned()),
                            // Events were lost.
                            Ok(None) => self.add_all(queue),
                            Err(error) => {
                                tracing::warn!(%error, "the watch of plugin sockets failed");
                                break;
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, directory = %self.directory.display(), "failed to watch for plugins")
                }
            }
            self.env.sleep(backoff.next_delay()).await;
        }
    }

    fn watch(&self) -> std::io::Result<inotify::EventStream<[u8; 4096]>> {
        crate::files::directories::create(&self.directory)?;
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::ATTRIB;
        inotify.watches().add(&self.directory, mask)?;
        inotify.into_event_stream([0; 4096])
    }

    fn add_all(&self, queue: &WorkQueue<String>) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.for_each(|entry| queue.add(entry.path().to_string_lossy().into_owned()));
        self.registered.lock().keys().for_each(|path| queue.add(path.clone()));
    }

    async fn work(&self, queue: &WorkQueue<String>) {
        while let Some(path) = queue.get().await {
            match self.look_at(&path).await {
                Ok(()) => queue.forget(&path),
                Err(error) => {
                    tracing::warn!(socket = path, %error, "plugin; will try again");
                    queue.add_rate_limited(path.clone());
                }
            }
            queue.done(&path);
        }
    }

    async fn look_at(&self, path: &str) -> Result<(), RegistrationError> {
        if path == CSI_NODE_KEY {
            return Ok(csi_node::ensure(&self.client, &self.node_name).await?);
        }
        let is_hidden = Path::new(path).file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let found = SocketFile::find(Path::new(path)).filter(|_| !is_hidden);
        let known = self.registered.lock().get(path).cloned();
        match (found, known) {
            (Some(socket), Some((known, _))) if socket == known.0 => Ok(()),
            (Some(socket), _) => self.register(path, socket).await,
            (None, Some((_, driver))) => {
                self.registered.lock().remove(path);
                // Another socket of the same driver may have come first.
                if !self.registered.lock().values().any(|(_, other)| *other == driver) {
                    self.csi.unregister(&driver);
                    csi_node::uninstall(&self.client, &self.node_name, &driver).await?;
                    tracing::info!(driver, "a CSI driver has gone");
                }
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    async fn register(&self, path: &str, socket: SocketFile) -> Result<(), RegistrationError> {
        let plugin = DriverClient::new("plugin", path, self.env.clone(), self.metrics.clone())?;
        let plugin = plugin.with_timeout(REGISTRATION_TIMEOUT);
        let info = plugin.plugin_info().await;
        let info = info.map_err(|source| RegistrationError::Info { socket: path.into(), source })?;
        let result = self.install(path, &info).await;
        let error = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        plugin.notify_registration(RegistrationStatus { plugin_registered: result.is_ok(), error }).await?;
        result?;
        self.registered.lock().insert(path.into(), (SocketFileOf(socket), info.name.clone()));
        tracing::info!(driver = info.name, "a CSI driver has registered");
        let left = self.csi.unstage_unused(&info.name).await;
        if let Err(error) = left {
            tracing::warn!(driver = info.name, %error, "failed to unstage volumes that no pod has");
        }
        Ok(())
    }

    async fn install(&self, path: &str, info: &PluginInfo) -> Result<(), RegistrationError> {
        check(info).map_err(RegistrationError::Refused)?;
        let endpoint = if info.endpoint.is_empty() { path } else { &info.endpoint };
        let driver = self.csi.register(&info.name, endpoint)?;
        let installed = async {
            let node = driver.with_timeout(REGISTRATION_TIMEOUT).node_info().await?;
            Ok(csi_node::install(&self.client, &self.node_name, &info.name, &node).await?)
        };
        let installed: Result<(), RegistrationError> = installed.await;
        if installed.is_err() {
            self.csi.unregister(&info.name);
        }
        installed
    }
}

/// Why a plugin can't be used here.
fn check(info: &PluginInfo) -> Result<(), String> {
    if info.kind != "CSIPlugin" {
        return Err(format!("no handler registered for plugin type: {}", info.kind));
    }
    let named = info.name.len() <= 63
        && !info.name.is_empty()
        && info.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        && !info.name.starts_with(['.', '-']);
    if !named {
        return Err(format!("invalid CSI driver name {:?}", info.name));
    }
    let versions = &info.supported_versions;
    let is_first = |version: &String| version.trim_start_matches('v').split('.').next() == Some("1");
    match versions.iter().any(is_first) {
        true => Ok(()),
        false => Err(format!(
            "validation failed for CSI Driver {} at endpoint {}: none of the CSI versions reported by this driver are \
             supported",
            info.name, info.endpoint
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_of_the_first_version_are_known() {
        let test = |kind: &str, name: &str, version: &str, expected: Option<&str>| {
            let info = PluginInfo {
                kind: kind.into(),
                name: name.into(),
                endpoint: "/e".into(),
                supported_versions: vec![version.into()],
            };
            match (check(&info), expected) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{why}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        };
        test("CSIPlugin", "d.example.com", "1.0.0", None);
        test("CSIPlugin", "d.example.com", "v1.2", None);
        test("CSIPlugin", "d.example.com", "0.3.0", Some("none of the CSI versions"));
        test("DevicePlugin", "d.example.com", "1.0.0", Some("no handler registered for plugin type"));
        test("CSIPlugin", "../../etc", "1.0.0", Some("invalid CSI driver name"));
        test("CSIPlugin", "", "1.0.0", Some("invalid CSI driver name"));
    }
}
