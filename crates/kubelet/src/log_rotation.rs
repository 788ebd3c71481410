//! Keeps container logs within their limits: renames a full one, lets the runtime reopen it, deletes the oldest.
//! Run by `housekeeping`.
//! Invariant: never truncates a log that is being written.

use std::path::{Path, PathBuf};

use cri::v1;

use crate::pod_workers::PodWorkers;

pub async fn rotate(workers: &PodWorkers) {
    let shared = &workers.shared;
    let runtime = &shared.runtime.runtime;
    let state = Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 });
    let filter = v1::ContainerFilter { state, ..Default::default() };
    let Ok(containers) = runtime.list_containers(Some(filter)).await else { return };
    for container in containers {
        let Ok(answer) = runtime.container_status(&container.id, false).await else { continue };
        let path = PathBuf::from(answer.status.unwrap_or_default().log_path);
        let full = std::fs::metadata(&path).is_ok_and(|meta| meta.len() > shared.config.container_log_max_bytes);
        if !full {
            continue;
        }
        let stamp = shared.env.now().strftime("%Y%m%d-%H%M%S").to_string();
        let renamed = PathBuf::from(format!("{}.{stamp}", path.display()));
        if std::fs::rename(&path, &renamed).is_err() {
            continue;
        }
        if let Err(error) = runtime.reopen_container_log(&container.id).await {
            tracing::warn!(container = container.id, %error, "failed to reopen a log");
            let _ = std::fs::rename(&renamed, &path);
            continue;
        }
        for old in superfluous(&path, shared.config.container_log_max_files.max(1) as usize) {
            let _ = std::fs::remove_file(old);
        }
    }
}

/// Rotated logs beyond `keep` files in all, the oldest first.
fn superfluous(path: &Path, keep: usize) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().map(|n| n.to_string_lossy().into_owned()))
    else {
        return vec![];
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!("{name}.");
    let mut rotated: Vec<PathBuf> =
        entries.filter(|file| file.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix))).collect();
    rotated.sort();
    let excess = (rotated.len() + 1).saturating_sub(keep);
    rotated.truncate(excess);
    rotated
}

#[cfg(test)]
mod tests {
    use super::*;

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
