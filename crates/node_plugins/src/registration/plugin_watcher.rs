//! Watches `<root>/plugins_registry`: each socket there is a plugin that wants to be known, and is for as long as the
//! socket is there. A socket made anew under the same name is a plugin that came back, perhaps at another address.
//! Hands each to the handler of its type.
//! A plugin that hangs or lies is told no and tried again later; others do not wait for it.

use std::{
    collections::HashMap,
    fs::DirBuilder,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::WorkQueue;
use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use parking_lot::Mutex;

use super::{
    PluginHandler,
    messages::{
        GET_INFO, InfoRequest, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    },
};
use crate::grpc::{PluginChannel, RpcError};

pub const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
const WORKERS: usize = 4;
const DIRECTORY_MODE: u32 = 0o750;

#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("failed to get plugin info using RPC GetInfo at socket {socket}, err: {source}")]
    Info { socket: String, source: RpcError },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Plugin(#[from] RpcError),
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

#[derive(Debug, Clone)]
struct Registered {
    socket: SocketFile,
    kind: String,
    name: String,
    endpoint: String,
}

/// One row per type of plugin.
pub type PluginHandlers = HashMap<&'static str, Arc<dyn PluginHandler>>;

pub struct PluginWatcher {
    env: Env,
    directory: PathBuf,
    handlers: PluginHandlers,
    /// By the path of the socket.
    registered: Mutex<HashMap<String, Registered>>,
}

impl PluginWatcher {
    pub fn new(env: Env, directory: PathBuf, handlers: PluginHandlers) -> Self {
        Self { env, directory, handlers, registered: Mutex::default() }
    }

    /// Runs for as long as the node does.
    pub async fn run(self: Arc<Self>) {
        let queue = WorkQueue::<String>::new(self.env.clone());
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
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.directory)?;
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
        let is_hidden = Path::new(path).file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let found = SocketFile::find(Path::new(path)).filter(|_| !is_hidden);
        let known = self.registered.lock().get(path).cloned();
        match (found, known) {
            (Some(socket), Some(known)) if socket == known.socket => Ok(()),
            (Some(socket), _) => self.register(path, socket).await,
            (None, Some(known)) => self.deregister(path, known).await,
            (None, None) => Ok(()),
        }
    }

    async fn register(&self, path: &str, socket: SocketFile) -> Result<(), RegistrationError> {
        let plugin = PluginChannel::new("plugin", path, self.env.clone())?;
        let info: Result<PluginInfo, RpcError> = plugin.call(GET_INFO, InfoRequest {}, REGISTRATION_TIMEOUT).await;
        let info = info.map_err(|source| RegistrationError::Info { socket: path.into(), source })?;
        let endpoint = if info.endpoint.is_empty() { path } else { &info.endpoint };
        let result = match self.handlers.get(info.kind.as_str()) {
            None => Err(format!("no handler registered for plugin type: {} at socket {path}", info.kind)),
            Some(handler) => match handler.validate(&info) {
                Ok(()) => handler.register(&info, endpoint).await.map(|()| handler.clone()),
                Err(why) => Err(why),
            },
        };
        let error = result.as_ref().err().cloned().unwrap_or_default();
        let status = RegistrationStatus { plugin_registered: result.is_ok(), error };
        let told = plugin.call(NOTIFY_REGISTRATION_STATUS, status, REGISTRATION_TIMEOUT).await;
        let handler = result.map_err(RegistrationError::Refused)?;
        told.map(|_: RegistrationStatusResponse| ())?;
        let (kind, name, endpoint) = (info.kind.clone(), info.name.clone(), endpoint.to_string());
        let now = Registered { socket, kind, name, endpoint };
        let before = self.registered.lock().insert(path.into(), now.clone());
        // The socket is now that of another plugin, or of the same at another address.
        let is_other =
            |old: &Registered| (&old.kind, &old.name, &old.endpoint) != (&now.kind, &now.name, &now.endpoint);
        if let Some(old) = before.filter(is_other) {
            self.deregister_old(&old).await?;
        }
        tracing::info!(name = info.name, kind = info.kind, "a plugin has registered");
        handler.registered(&info.name).await;
        Ok(())
    }

    async fn deregister(&self, path: &str, known: Registered) -> Result<(), RegistrationError> {
        self.registered.lock().remove(path);
        if let Err(error) = self.deregister_old(&known).await {
            self.registered.lock().entry(path.into()).or_insert(known);
            return Err(error);
        }
        tracing::info!(name = known.name, kind = known.kind, "a plugin has gone");
        Ok(())
    }

    async fn deregister_old(&self, old: &Registered) -> Result<(), RegistrationError> {
        let Some(handler) = self.handlers.get(old.kind.as_str()) else { return Ok(()) };
        // Another socket of the same plugin may have come first.
        let is_same = |found: &Registered| found.kind == old.kind && found.name == old.name;
        let is_last = !self.registered.lock().values().any(is_same);
        let gone = handler.deregister(&old.name, &old.endpoint, is_last).await;
        gone.map_err(RegistrationError::Refused)
    }
}
