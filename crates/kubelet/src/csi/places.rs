//! Where volumes of drivers are on disk, and how what is left of them goes.
//! Used by `mounter`.
//! Removes only empty mount points and our own notes, never what is in a volume.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::volume_data::{self, directories_in};
use crate::{files::directories, volumes::file_system};

/// Where a volume of a pod is on disk.
#[derive(Debug)]
pub struct Places {
    pub target: PathBuf,
    pub data_dir: PathBuf,
    /// In the pod's directory, to a device.
    pub link: Option<PathBuf>,
}

impl Places {
    pub fn forget(&self) -> io::Result<()> {
        if let Some(link) = &self.link {
            absent(fs::remove_file(&self.target).or_else(|_| fs::remove_dir(&self.target)))?;
            absent(fs::remove_file(link))?;
            // Other pods may have the device.
            let others = directories_in(self.target.parent().unwrap_or(&self.data_dir))?;
            if others.is_empty() {
                absent(fs::remove_file(self.data_dir.join(volume_data::FILE)))?;
            }
            return Ok(());
        }
        forget(&self.target, &self.data_dir)
    }
}

pub fn link_to(target: &Path, link: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        directories::create(parent)?;
    }
    match std::os::unix::fs::symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes an empty mount point, what is remembered of it, and the directory of both. Never what is in a volume.
pub fn forget(mount_point: &Path, data_dir: &Path) -> io::Result<()> {
    absent(fs::remove_dir(mount_point))?;
    absent(fs::remove_file(data_dir.join(volume_data::FILE)))?;
    match fs::remove_dir(data_dir) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => absent(other),
    }
}

fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub fn is_mounted(path: &Path) -> io::Result<bool> {
    Ok(file_system::mounts_below(path)?.iter().any(|place| place == path))
}
