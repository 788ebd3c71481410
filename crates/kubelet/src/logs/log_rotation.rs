//! Keeps container logs within their limits: renames a full one, lets the runtime reopen it, deletes the oldest and has
//! `log_compression` make the others small.
//! Run by `wiring`; looks at the files alone, and asks the runtime only about a full one.
//! Never truncates a log that is being written.

use std::{
    ffi::OsStr,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1;
use futures::StreamExt;
use nix::{
    fcntl::{AtFlags, renameat},
    libc,
    unistd::{UnlinkatFlags, linkat, unlinkat},
};

use super::log_compression;
use crate::{
    files::safe_open,
    pod::pod_workers::{PodWorkers, Shared},
};

pub async fn run(workers: Arc<PodWorkers>) {
    let shared = workers.shared.clone();
    loop {
        shared.env.sleep(shared.config.log_check_interval).await;
        let (root, limit) = (shared.config.pod_logs_dir(), shared.config.container_log_max_bytes);
        let full = env::spawn_blocking(move || full(&root, limit)).await.unwrap_or_default();
        if !full.is_empty() {
            rotate(&workers, &full).await;
        }
    }
}

/// Logs beyond the limit, in `<pod>/<container>/<n>.log`. Links are none, wherever they lead.
fn full(root: &Path, limit: u64) -> Vec<PathBuf> {
    let names = |directory: &OwnedFd| safe_open::names(directory).into_iter().flatten().flatten();
    let inner = |directory: &OwnedFd, name: &OsStr| safe_open::directory_in(directory, Path::new(name)).ok();
    let mut found = Vec::new();
    let Ok(top) = safe_open::directory(root) else { return found };
    for pod in names(&top) {
        let Some(containers) = inner(&top, &pod) else { continue };
        for container in names(&containers) {
            let Some(logs) = inner(&containers, &container) else { continue };
            for log in names(&logs).filter(|log| Path::new(log).extension().is_some_and(|e| e == "log")) {
                let is_full = |stat: libc::stat| safe_open::is_plain(&stat) && stat.st_size.max(0) as u64 > limit;
                if safe_open::stat(&logs, &log).is_ok_and(is_full) {
                    found.push(root.join(&pod).join(&container).join(log));
                }
            }
        }
    }
    found
}

async fn rotate(workers: &PodWorkers, full: &[PathBuf]) {
    let shared = &workers.shared;
    let runtime = &shared.runtime.runtime;
    let state = Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 });
    let filter = v1::ContainerFilter { state, ..Default::default() };
    let Ok(containers) = runtime.list_containers(Some(filter)).await else { return };
    let all = futures::stream::iter(containers);
    all.for_each_concurrent(shared.config.log_workers, |container| rotate_one(shared, container, full)).await;
}

async fn rotate_one(shared: &Shared, container: v1::Container, full: &[PathBuf]) {
    let runtime = &shared.runtime.runtime;
    let Ok(answer) = runtime.container_status(&container.id, false).await else { return };
    let path = PathBuf::from(answer.status.unwrap_or_default().log_path);
    if !full.contains(&path) {
        return;
    }
    let stamp = shared.env.now().strftime("%Y%m%d-%H%M%S").to_string();
    let log = path.clone();
    let Ok(Ok(renamed)) = env::spawn_blocking(move || rename(&log, &stamp)).await else { return };
    let reopened = runtime.reopen_container_log(&container.id).await;
    if let Err(error) = &reopened {
        tracing::warn!(container = container.id, %error, "failed to reopen a log");
    }
    let (failed, keep) = (reopened.is_err(), shared.config.container_log_max_files.max(1) as usize);
    let finish = move || {
        if failed {
            return put_back(&renamed, &path);
        }
        log_compression::clean(&path);
        remove_superfluous(&path, keep);
        log_compression::compress_older(&path);
    };
    let _ = env::spawn_blocking(finish).await;
}

/// The directory of a log, and its name there.
pub(super) fn place(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) => Ok((safe_open::directory(directory)?, name)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn rename(path: &Path, stamp: &str) -> io::Result<PathBuf> {
    let (directory, name) = place(path)?;
    let renamed = PathBuf::from(format!("{}.{stamp}", path.display()));
    renameat(&directory, name, &directory, renamed.file_name().unwrap_or_default())?;
    Ok(renamed)
}

/// Lets the log have its name again, unless the runtime has made a new one after all: that is being written.
fn put_back(renamed: &Path, path: &Path) {
    let (Ok((directory, old)), Some(name)) = (place(renamed), path.file_name()) else { return };
    // A link, unlike a rename, takes nobody's place.
    if linkat(&directory, old, &directory, name, AtFlags::empty()).is_ok() {
        let _ = unlinkat(&directory, old, UnlinkatFlags::NoRemoveDir);
    }
}

fn remove_superfluous(path: &Path, keep: usize) {
    let Ok((directory, _)) = place(path) else { return };
    for old in superfluous(path, keep) {
        let _ = unlinkat(&directory, old.file_name().unwrap_or_default(), UnlinkatFlags::NoRemoveDir);
    }
}

/// The files that were once this log, the oldest first.
pub fn rotated(path: &Path) -> Vec<PathBuf> {
    let Ok((directory, name)) = place(path) else { return vec![] };
    let prefix = format!("{}.", name.to_string_lossy());
    let names = safe_open::names(&directory).into_iter().flatten().flatten();
    let mut rotated: Vec<PathBuf> = names
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .map(|name| path.with_file_name(name))
        .collect();
    rotated.sort();
    rotated
}

/// Rotated logs beyond `keep` files in all, the oldest first.
fn superfluous(path: &Path, keep: usize) -> Vec<PathBuf> {
    let mut rotated = rotated(path);
    let excess = (rotated.len() + 1).saturating_sub(keep);
    rotated.truncate(excess);
    rotated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_logs_are_found_by_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let container = dir.path().join("ns_pod_uid/c");
        std::fs::create_dir_all(&container).unwrap();
        for (name, size) in [("0.log", 11), ("1.log", 10), ("0.log.20260101-000000", 99)] {
            std::fs::write(container.join(name), vec![b'x'; size]).unwrap();
        }
        // What a pod that has the log directory mounted may put there.
        std::os::unix::fs::symlink("0.log", container.join("2.log")).unwrap();
        std::os::unix::fs::symlink("c", dir.path().join("ns_pod_uid/link")).unwrap();
        assert_eq!(full(dir.path(), 10), [container.join("0.log")]);
        assert!(full(&dir.path().join("none"), 10).is_empty());
    }

    #[test]
    fn a_log_that_the_runtime_opened_after_all_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (path, renamed) = (dir.path().join("0.log"), dir.path().join("0.log.20260101-000000"));
        let check = |new: Option<&str>, expected: &str, left: usize| {
            std::fs::write(&renamed, "old").unwrap();
            let _ = std::fs::remove_file(&path);
            if let Some(new) = new {
                std::fs::write(&path, new).unwrap();
            }
            put_back(&renamed, &path);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
            assert_eq!(rotated(&path).len(), left);
        };
        check(None, "old", 0);
        check(Some("new"), "new", 1);
    }

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["0.log", "0.log.20260101-000000", "0.log.20260102-000000", "0.log.20260103-000000", "1.log"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let check = |keep, expected: &[&str]| {
            let found: Vec<String> = superfluous(&dir.path().join("0.log"), keep)
                .iter()
                .map(|path| path.extension().unwrap().to_string_lossy().into_owned())
                .collect();
            assert_eq!(found, expected);
        };
        check(5, &[]);
        check(3, &["20260101-000000"]);
        check(1, &["20260101-000000", "20260102-000000", "20260103-000000"]);
    }
}
