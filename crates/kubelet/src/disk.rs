//! How full the disk behind a path is, and what is below one.
//! Used by `image_gc`, `eviction` and `stats`.
//! Invariant: only reads.

use std::{collections::HashSet, os::unix::fs::MetadataExt, path::Path};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// What could be used at most: blocks that the system keeps to itself count neither as used nor as free.
    pub bytes: u64,
    pub bytes_free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

impl Disk {
    pub fn of(path: &Path) -> Option<Self> {
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

/// On disk below a directory; files with several names count once, other file systems not at all.
pub fn usage_below(directory: &Path) -> Usage {
    let Ok(root) = std::fs::symlink_metadata(directory) else { return Usage::default() };
    let (mut total, mut seen) = (Usage::default(), HashSet::new());
    let mut pending = vec![directory.to_path_buf()];
    while let Some(place) = pending.pop() {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != root.dev() || (metadata.nlink() > 1 && !seen.insert(metadata.ino())) {
                continue;
            }
            total.bytes += metadata.blocks() * 512;
            total.inodes += 1;
            if metadata.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    total
}
