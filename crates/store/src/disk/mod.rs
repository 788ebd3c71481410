//! What the embedded store asks of a file system: few enough things that `simulated` can do all of them badly.
//! `real` is this machine's; tests put a disk under the store that loses, tears, refuses and lies.
//! Invariant: nothing in `embedded` and `backup` touches a file but through here (tidy: `store_writes_through_disk`).

mod real;
#[cfg(test)]
pub(crate) mod simulated;

pub(crate) use real::RealDisk;

use std::{io, path::Path, sync::Arc};

/// Why something is synced. Tests take each one out and must see a power cut lose something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncPoint {
    /// A group of writes, before they are acknowledged.
    Group,
    /// A log without the remains of a write that failed, before another goes in their place.
    CutBack,
    /// The head of a new segment, before anything follows it.
    SegmentHead,
    /// The name of a new segment, before anything in it is acknowledged.
    SegmentName,
    /// What a start found in the log, before anybody may read it, and the log without a torn tail.
    RecoveredLog,
    /// The names of the segments that a start found.
    RecoveredNames,
    /// The name of the store's directory.
    StoreName,
    /// A backup, before it takes its name.
    BackupFile,
    /// The name of a backup, before it is reported.
    BackupName,
    /// That a failed restore's files are gone, before its mark goes.
    RestoreUndone,
    /// That the mark is gone, before the restore is reported.
    RestoreDone,
}

/// Held as long as the right to use a directory is.
pub(crate) type DirectoryLock = Box<dyn Send + Sync>;

pub(crate) trait Disk: Send + Sync + 'static {
    /// Makes the directory, for nobody but us, if it is missing.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// An empty file, for nobody but us, in the place of whatever has this name.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path, point: SyncPoint) -> io::Result<()>;
    /// `None` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<DirectoryLock>>;
}

pub(crate) trait DiskFile: Send + Sync {
    /// Fills the buffer, or fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of it; after an error any part of it may be there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, length: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Makes contents and length durable. After an error what was written since the last success may be gone, and
    /// another success says nothing about it.
    fn sync(&self, point: SyncPoint) -> io::Result<()>;
    /// The next read of these bytes comes from the disk, if that can be arranged.
    fn forget_cached(&self, offset: u64, length: u64);
}
