//! What a container needs on disk before it is made: its hosts file, its message file, its log directory, its subPaths.
//! Part of `runtime_manager`.
//! Runs on a thread that may hang; what an earlier incarnation still holds is never waited for.

use std::{
    fs::{OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::libc;

use crate::{files::directories, runtime::container_config::mounts::SubPathMount};

pub struct ContainerFiles {
    /// With what it says.
    pub hosts: Option<(PathBuf, String)>,
    pub message: PathBuf,
    pub logs: PathBuf,
    pub sub_paths: Vec<SubPathMount>,
}

#[derive(Debug, thiserror::Error)]
pub enum ContainerFilesError {
    #[error("failed to {attempt} {}: {error}", .path.display())]
    File { attempt: &'static str, path: PathBuf, error: io::Error },
    #[error("{0}")]
    SubPath(String),
}

impl ContainerFiles {
    /// Makes them. The number of the newest incarnation that has left a log.
    pub fn make(&self) -> Result<Option<u32>, ContainerFilesError> {
        let failed = |attempt, path: &Path, error| ContainerFilesError::File { attempt, path: path.into(), error };
        if let Some((path, text)) = &self.hosts {
            write_hosts(path, text).map_err(|error| failed("write", path, error))?;
        }
        make_message(&self.message).map_err(|error| failed("create", &self.message, error))?;
        std::fs::create_dir_all(&self.logs).map_err(|error| failed("create", &self.logs, error))?;
        let mounted = self.sub_paths.iter().try_for_each(SubPathMount::mount);
        mounted.map_err(|error| ContainerFilesError::SubPath(error.to_string()))?;
        Ok(newest_log(&self.logs))
    }
}

/// In place: the pod's other containers have it mounted, and one of them may hold a lease on it.
fn write_hosts(path: &Path, text: &str) -> io::Result<()> {
    make_parent(path)?;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(0o644))
}

fn make_message(path: &Path) -> io::Result<()> {
    make_parent(path)?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    // Whatever user the container runs as must be able to write it.
    file.set_permissions(Permissions::from_mode(0o666))
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), directories::create)
}

fn newest_log(directory: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().split('.').next()?.parse::<u32>().ok();
    entries.filter_map(number).max()
}
