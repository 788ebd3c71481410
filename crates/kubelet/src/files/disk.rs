//! How full the disk behind a path is, and what is below one.
//! Used by `image_gc`, `eviction` and `stats`.
//! Only reads.

use std::{
    collections::HashSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::files::safe_open;

/// Files and directories below one that are counted.
const ENTRIES_MAX: u64 = 20_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// What could be used at most: blocks that the system keeps to itself count neither as used nor as free.
    pub bytes: u64,
    pub bytes_free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

impl Disk {
    pub fn measure(path: &Path) -> Option<Self> {
        let fs = nix::sys::statvfs::statvfs(path).ok()?;
        let used = fs.blocks().saturating_sub(fs.blocks_free());
        Some(Self {
            bytes: (used + fs.blocks_available()) * fs.fragment_size(),
            bytes_free: fs.blocks_available() * fs.fragment_size(),
            inodes: fs.files(),
            inodes_free: fs.files_free(),
        })
    }
}

/// What is below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// On disk below a directory; files with several names count once, what is mounted there not at all. Pods may be writing
/// to it: what they put there beyond any measure, in number or in depth, is not looked at.
pub fn usage_below(directory: &Path) -> Usage {
    let Ok(root) = safe_open::directory(directory) else { return Usage::default() };
    let Ok(device) = safe_open::metadata(&root).map(|meta| meta.dev()) else { return Usage::default() };
    let (mut total, mut seen) = (Usage::default(), HashSet::new());
    let mut pending = vec![PathBuf::from(".")];
    while let Some(path) = pending.pop() {
        let Ok(place) = safe_open::directory_in(&root, &path) else { continue };
        for name in safe_open::names(&place).into_iter().flatten().flatten() {
            let Ok(stat) = safe_open::stat(&place, &name) else { continue };
            let is_directory = safe_open::is_directory(&stat);
            if stat.st_dev != device || (stat.st_nlink > 1 && !is_directory && !seen.insert(stat.st_ino)) {
                continue;
            }
            total.bytes += stat.st_blocks as u64 * 512;
            total.inodes += 1;
            if total.inodes >= ENTRIES_MAX {
                return total;
            }
            if is_directory {
                pending.push(path.join(name));
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_links_lead_to_is_not_counted() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("volume/d")).unwrap();
        std::fs::create_dir(root.join("host")).unwrap();
        for path in ["volume/d/a", "host/b", "host/c"] {
            std::fs::write(root.join(path), vec![1; 8192]).unwrap();
        }
        std::os::unix::fs::symlink("../host", root.join("volume/out")).unwrap();
        std::os::unix::fs::symlink("volume", root.join("link")).unwrap();
        assert_eq!(usage_below(&root.join("volume")).inodes, 3);
        assert_eq!(usage_below(&root.join("link")), Usage::default());
    }
}
