//! `--lock-file`: one kubelet runs at a time, and gives way to the next one with `--exit-on-lock-contention`.
//! Used by `wiring` before anything else is done.
//! The lock is the kernel's: it ends with the process, however that ends.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;

/// Whom the node waits for before it begins, and gives way to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    pub path: PathBuf,
    pub exit_on_contention: bool,
}

/// Waits for the lock. What it returns holds it; `stop` is called off once somebody else wants it.
pub async fn acquire(lock: &LockFile, env: &Env, stop: &CancellationToken) -> io::Result<Flock<File>> {
    tracing::info!(path = %lock.path.display(), "waiting for the lock file");
    let path = lock.path.clone();
    let held = env::spawn_blocking(move || open(&path)).await.map_err(io::Error::other)??;
    if lock.exit_on_contention {
        let inotify = Inotify::init()?;
        // Whoever wants the lock opens the file first.
        inotify.watches().add(&lock.path, WatchMask::OPEN | WatchMask::DELETE_SELF)?;
        let mut events = inotify.into_event_stream([0; 1024])?;
        let stop = stop.clone();
        env.spawn(async move {
            tokio::select! {
                _ = events.next() => tracing::info!("another process wants the lock file: this kubelet ends"),
                () = stop.cancelled() => {}
            }
            stop.cancel();
        });
    }
    Ok(held)
}

fn open(path: &Path) -> io::Result<Flock<File>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_kubelet_takes_over() {
        let directory = tempfile::tempdir().unwrap();
        let lock = LockFile { path: directory.path().join("lock"), exit_on_contention: true };
        let (env, first, second) = (Env::real(), CancellationToken::new(), CancellationToken::new());
        let held = acquire(&lock, &env, &first).await.unwrap();
        assert!(!first.is_cancelled());
        let (env_of_next, lock_of_next, stop_of_next) = (env.clone(), lock.clone(), second.clone());
        let next = env::spawn(async move { acquire(&lock_of_next, &env_of_next, &stop_of_next).await });
        first.cancelled().await;
        assert!(!next.is_finished(), "the lock is still held");
        drop(held);
        let _held = next.await.unwrap().unwrap();
        assert!(!second.is_cancelled(), "nobody else wants it");
        second.cancel();
        let missing = LockFile { path: directory.path().join("none/lock"), exit_on_contention: false };
        assert!(acquire(&missing, &env, &second).await.is_err());
    }
}
