//! The directories of the node itself and of its pods: made with the modes that keep others on the machine out.
//! Called by `wiring` at the start, and wherever something of a pod is first put on disk.
//! What pods may write to (0777) is only below directories that nobody but root and its group may enter.

use std::{
    fs::{DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{
    config::{Config, Resolved},
    files::safe_open,
};

/// Of directories that hold pods' volumes and logs.
const CLOSED_MODE: u32 = 0o750;
/// Of the directory of links that log collectors read.
const OPEN_MODE: u32 = 0o755;

/// Makes the node's directories, closes what an older version left open, and resolves links on the way to them: every
/// path that is made from them later is without any.
pub fn prepare(config: &mut Config) -> Result<(), (PathBuf, io::Error)> {
    let (pods, pod_logs, container_logs) = (config.pods_dir(), config.pod_logs_dir(), config.container_logs_dir());
    let closed =
        |path: &Path| create(path).and_then(|()| path.canonicalize()).and_then(|real| close(&real).map(|()| real));
    let named = |path: &Path, real: io::Result<PathBuf>| real.map_err(|error| (path.to_path_buf(), error));
    config.root_dir = named(&config.root_dir, closed(&config.root_dir))?;
    if config.local_storage {
        let volumes = config.local_storage_dir();
        closed(&volumes).map_err(|error| (volumes, error))?;
    }
    // The machine's own, whose mode is not ours to choose.
    config.log_dir = named(&config.log_dir, open_to_all(&config.log_dir))?;
    let resolved = Resolved {
        pods: named(&pods, closed(&pods))?,
        pod_logs: named(&pod_logs, closed(&pod_logs))?,
        container_logs: named(&container_logs, open_to_all(&container_logs))?,
    };
    close_pods(&resolved.pods).map_err(|error| (pods, error))?;
    config.resolved = Some(resolved);
    Ok(())
}

/// One that is there already stays as it is.
fn open_to_all(path: &Path) -> io::Result<PathBuf> {
    if !path.is_dir() {
        std::fs::create_dir_all(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(OPEN_MODE))?;
    }
    path.canonicalize()
}

/// A directory that others may not enter, and those on the way to it that are missing.
pub fn create(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(CLOSED_MODE).create(path)
}

/// Takes from others what they may do with a directory, and gives its owner what is needed.
fn close(path: &Path) -> io::Result<()> {
    let mode = path.symlink_metadata()?.mode() & 0o7777;
    let wanted = (mode & CLOSED_MODE) | 0o700;
    if mode == wanted { Ok(()) } else { std::fs::set_permissions(path, Permissions::from_mode(wanted)) }
}

/// The pods' own directories, of which an older version let everyone in.
fn close_pods(pods: &Path) -> io::Result<()> {
    let open = safe_open::directory(pods)?;
    for name in safe_open::names(&open)? {
        let name = name?;
        // One that is removed meanwhile, or is something else, has nothing to close.
        if let Ok(pod) = safe_open::directory_in(&open, Path::new(&name)) {
            let mode = safe_open::metadata(&pod)?.mode() & 0o7777;
            std::fs::File::from(pod).set_permissions(Permissions::from_mode((mode & CLOSED_MODE) | 0o700))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn directories_of_older_installations_are_closed_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("kubelet");
        let volume = root.join("pods/u1/volumes/kubernetes.io~empty-dir/v");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::create_dir_all(directory.path().join("log/pods")).unwrap();
        for path in [&root, &root.join("pods"), &root.join("pods/u1"), &directory.path().join("log/pods")] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(&volume, Permissions::from_mode(0o777)).unwrap();
        let log_dir = directory.path().join("log");
        let mut config = Config { root_dir: root.clone(), log_dir: log_dir.clone(), ..Config::default() };
        prepare(&mut config).unwrap();
        for path in [&root, &root.join("pods"), &root.join("pods/u1"), &log_dir.join("pods")] {
            assert_eq!(mode(path), 0o750, "{}", path.display());
        }
        assert_eq!(mode(&volume), 0o777, "its pod may have any user");
        assert_eq!(mode(&config.container_logs_dir()), 0o755);
    }

    #[test]
    fn directories_behind_links_are_resolved_once() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap().join("disk");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, directory.path().join("data")).unwrap();
        let data = directory.path().join("data");
        let mut config = Config { root_dir: data.join("kubelet"), log_dir: data.join("log"), ..Config::default() };
        prepare(&mut config).unwrap();
        assert_eq!((&config.root_dir, &config.log_dir), (&real.join("kubelet"), &real.join("log")));
        assert_eq!((config.pods_dir(), config.pod_logs_dir()), (real.join("kubelet/pods"), real.join("log/pods")));
        assert_eq!(mode(&real.join("kubelet")), 0o750);
    }
}
