//! Files that are read again when they change: certificate authorities, tokens, and the configuration of authentication,
//! authorization and encryption.
//! Used by `authn`, `authz` and `storage::encryption`.
//! A new file that can't be used changes nothing: the old one stays in force; the log, the metrics and an Event
//! (`reload_events`) say so.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use ::metrics::{Family, Metrics};
use futures::{StreamExt, future::BoxFuture};
use inotify::{EventStream, Inotify, WatchMask};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;

use env::Env;

/// Editors write in several steps.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// For file systems that tell nothing of changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// A value that others read while it is replaced.
pub struct Reloadable<T>(RwLock<Arc<T>>);

impl<T: Send + Sync + 'static> Reloadable<T> {
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(value))))
    }

    pub fn current(&self) -> Arc<T> {
        self.0.read().clone()
    }

    pub fn replace(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}

/// What is counted of the reloads of one kind of file.
pub struct ReloadFamilies {
    what: &'static str,
    reloads: &'static Family,
    timestamp: &'static Family,
    info: Option<&'static Family>,
}

macro_rules! reload_families {
    (@info $what:literal, $subsystem:literal) => {
        Some(&Family::gauge(
            concat!($subsystem, "_last_config_info"),
            &["apiserver_id_hash", "hash"],
            concat!("The ", $what, " in use, by its digest."),
        ))
    };
    (@info $what:literal, $subsystem:literal, several) => {
        None
    };
    ($name:ident, $what:literal, $subsystem:literal $(, $files:tt)?) => {
        pub static $name: ReloadFamilies = ReloadFamilies {
            what: $what,
            reloads: &Family::counter(
                concat!($subsystem, "_automatic_reloads_total"),
                &["apiserver_id_hash", "status"],
                concat!("Reloads of the ", $what, " by whether it could be used."),
            ),
            timestamp: &Family::gauge(
                concat!($subsystem, "_automatic_reload_last_timestamp_seconds"),
                &["apiserver_id_hash", "status"],
                concat!("When the ", $what, " was last reloaded, by whether it could be used."),
            ),
            info: reload_families!(@info $what, $subsystem $(, $files)?),
        };
    };
}

reload_families!(AUTHENTICATION, "authentication configuration", "apiserver_authentication_config_controller");
reload_families!(AUTHORIZATION, "authorization configuration", "apiserver_authorization_config_controller");
reload_families!(ENCRYPTION, "encryption configuration", "apiserver_encryption_config_controller");
reload_families!(IDENTITY_FILES, "file of identities", "apiserver_identity_files", several);

/// Failures that nobody has told of yet; more at a time are only logged and counted.
const FAILURES_MAX: usize = 16;

/// A file that could not be used.
#[derive(Debug, Clone)]
pub struct ReloadFailure {
    pub what: &'static str,
    pub files: String,
    pub error: String,
}

/// Where reloads are counted, and as which server.
#[derive(Clone)]
pub struct ReloadMetrics {
    pub metrics: Metrics,
    server: String,
    failures: broadcast::Sender<ReloadFailure>,
}

impl ReloadMetrics {
    /// `server` names this one among those of a cluster.
    pub fn new(server: &str) -> Self {
        let server = hash(Sha256::digest(server).as_slice());
        Self { metrics: Metrics::default(), server, failures: broadcast::Sender::new(FAILURES_MAX) }
    }

    /// Those from now on.
    pub fn failures(&self) -> broadcast::Receiver<ReloadFailure> {
        self.failures.subscribe()
    }

    /// This server's name, hashed.
    pub fn server(&self) -> &str {
        &self.server
    }

    fn count(&self, families: &ReloadFamilies, good: bool, digest: &[u8], env: &Env) {
        let status = if good { "success" } else { "failure" };
        self.metrics.count(families.reloads, &[&self.server, status]);
        let now = env.now().as_millisecond() as f64 / 1000.0;
        self.metrics.set(families.timestamp, &[&self.server, status], now);
        if good {
            self.show(families, digest);
        }
    }

    /// Shows which configuration is in use.
    fn show(&self, families: &ReloadFamilies, digest: &[u8]) {
        let Some(info) = families.info else { return };
        self.metrics.retain(info, |_| false);
        self.metrics.set(info, &[&self.server, &hash(digest)], 1.0);
    }
}

/// As upstream shows what is not to be read: `sha256:…`.
pub fn hash(digest: &[u8]) -> String {
    digest.iter().fold("sha256:".to_string(), |text, byte| format!("{text}{byte:02x}"))
}

/// Files and what was last seen in them.
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: [u8; 32],
}

impl WatchedFiles {
    /// To be made before the files are read, so that no change in between is missed.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = digest(&paths);
        Self { paths, seen }
    }

    /// The next time there is something else in them.
    async fn changed(&mut self, changes: &mut Option<EventStream<[u8; 1024]>>, env: &Env) {
        loop {
            if changes.is_none() {
                *changes = watch(&self.paths);
            }
            let paths = self.paths.clone();
            let found = env::spawn_blocking(move || digest(&paths)).await.unwrap_or(self.seen);
            if found != self.seen {
                self.seen = found;
                return;
            }
            let next = async {
                match changes.as_mut() {
                    Some(stream) => stream.next().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            if let Some(false) = env.timeout(LOOK_INTERVAL, next).await {
                *changes = None;
            }
            env.sleep(SETTLE_INTERVAL).await;
        }
    }
}

/// The folders, since files are replaced by renaming, and by links that point elsewhere.
fn watch(paths: &[PathBuf]) -> Option<EventStream<[u8; 1024]>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::CREATE;
    for path in paths {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
        inotify.watches().add(folder, mask).ok()?;
    }
    inotify.into_event_stream([0; 1024]).ok()
}

fn digest(paths: &[PathBuf]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for path in paths {
        match std::fs::read(path) {
            Ok(bytes) => digest.update(Sha256::digest(bytes)),
            Err(e) => digest.update(e.kind().to_string()),
        }
    }
    digest.finalize().into()
}

/// Puts what `load` makes of the files in the place of `target`'s value whenever they change, for as long as it lives.
pub fn follow<T, L>(
    target: &Arc<Reloadable<T>>,
    mut files: WatchedFiles,
    families: &'static ReloadFamilies,
    metrics: &ReloadMetrics,
    env: &Env,
    load: L,
) where
    T: Send + Sync + 'static,
    L: Fn() -> BoxFuture<'static, Result<T, String>> + Send + 'static,
{
    metrics.show(families, &files.seen);
    let (target, metrics, running) = (Arc::downgrade(target), metrics.clone(), env.clone());
    env.spawn(async move {
        let mut changes = None;
        loop {
            // A target that nobody holds any more is looked for at every change and once in a while.
            let changed = running.timeout(LOOK_INTERVAL * 2, files.changed(&mut changes, &running)).await;
            let Some(target) = Weak::upgrade(&target) else { return };
            if changed.is_none() {
                continue;
            }
            let names: Vec<_> = files.paths.iter().map(|path| path.display().to_string()).collect();
            let (what, names) = (families.what, names.join(","));
            match load().await {
                Ok(value) => {
                    target.replace(value);
                    tracing::info!(files = names, "reloaded the {what}");
                    metrics.count(families, true, &files.seen, &running);
                }
                Err(error) => {
                    tracing::error!(
                        files = names,
                        error = error.as_str(),
                        "failed to reload the {what}; the old one stays in use"
                    );
                    metrics.count(families, false, &files.seen, &running);
                    // Where nobody listens it is logged and counted all the same.
                    let _ = metrics.failures.send(ReloadFailure { what, files: names, error });
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_read_again_and_bad_ones_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let (env, metrics) = (Env::real(), ReloadMetrics::new("a"));
        let load = {
            let path = path.clone();
            move || std::fs::read_to_string(&path).unwrap().parse::<u64>().map_err(|e| e.to_string())
        };
        let files = WatchedFiles::new(vec![path.clone()]);
        let value = Reloadable::new(load().unwrap());
        let loader = move || -> BoxFuture<'static, Result<u64, String>> { Box::pin(std::future::ready(load())) };
        follow(&value, files, &IDENTITY_FILES, &metrics, &env, loader);
        let until = async |shown: &str| {
            while !metrics.metrics.page().contains(shown) {
                env::sleep(Duration::from_millis(5)).await;
            }
        };
        std::fs::write(&path, "two").unwrap();
        until("status=\"failure\"} 1").await;
        assert_eq!(*value.current(), 1);
        let next = folder.path().join("next");
        std::fs::write(&next, "3").unwrap();
        std::fs::rename(&next, &path).unwrap();
        until("status=\"success\"} 1").await;
        assert_eq!(*value.current(), 3);
    }
}
