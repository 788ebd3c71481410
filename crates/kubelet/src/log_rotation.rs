//! Keeps container logs within their limits: renames a full one, lets the runtime reopen it, deletes the oldest.
//! Run by `lib`; looks at the files alone, and asks the runtime only about a full one.
//! Invariant: never truncates a log that is being written.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1;

use crate::pod_workers::PodWorkers;

pub async fn run(workers: Arc<PodWorkers>) {
    let shared = workers.shared.clone();
    loop {
        shared.env.sleep(shared.config.log_check_interval).await;
        let full = full(&shared.config.pod_logs_dir(), shared.config.container_log_max_bytes);
        if !full.is_empty() {
            rotate(&workers, &full).await;
        }
    }
}

/// Logs beyond the limit, in `<pod>/<container>/<n>.log`.
fn full(root: &Path, limit: u64) -> Vec<PathBuf> {
    let entries = |place: &Path| std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let containers = entries(root).flat_map(|pod| entries(&pod).collect::<Vec<_>>());
    let files = containers.flat_map(|container| entries(&container).collect::<Vec<_>>());
    files
        .filter(|file| file.extension().is_some_and(|e| e == "log"))
        .filter(|file| std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() > limit))
        .collect()
}

async fn rotate(workers: &PodWorkers, full: &[PathBuf]) {
    let shared = &workers.shared;
    let runtime = &shared.runtime.runtime;
    let state = Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 });
    let filter = v1::ContainerFilter { state, ..Default::default() };
    let Ok(containers) = runtime.list_containers(Some(filter)).await else { return };
    for container in containers {
        let Ok(answer) = runtime.container_status(&container.id, false).await else { continue };
        let path = PathBuf::from(answer.status.unwrap_or_default().log_path);
        if !full.contains(&path) {
            continue;
        }
        let stamp = shared.env.now().strftime("%Y%m%d-%H%M%S").to_string();
        let renamed = PathBuf::from(format!("{}.{stamp}", path.display()));
        if std::fs::rename(&path, &renamed).is_err() {
            continue;
        }
        if let Err(error) = runtime.reopen_container_log(&container.id).await {
            tracing::warn!(container = container.id, %error, "failed to reopen a log");
            put_back(&renamed, &path);
            continue;
        }
        for old in superfluous(&path, shared.config.container_log_max_files.max(1) as usize) {
            let _ = std::fs::remove_file(old);
        }
    }
}

/// Lets the log have its name again, unless the runtime has made a new one after all: that is being written.
fn put_back(renamed: &Path, path: &Path) {
    // A link, unlike a rename, takes nobody's place.
    if std::fs::hard_link(renamed, path).is_ok() {
        let _ = std::fs::remove_file(renamed);
    }
}

/// The files that were once this log, the oldest first.
pub fn rotated(path: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().map(|n| n.to_string_lossy().into_owned()))
    else {
        return vec![];
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!("{name}.");
    let mut rotated: Vec<PathBuf> =
        entries.filter(|file| file.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix))).collect();
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
