//! How full the disk behind a path is.
//! Used by `image_gc` and `eviction`.
//! Invariant: only reads.

use std::path::Path;

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
