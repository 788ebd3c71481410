//! The file system of this machine.
//! Behind `Disk`.
//! Invariant: what it makes is readable by its owner alone; what it finds otherwise is corrected (test:
//! `modes_of_older_stores_are_corrected`).

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::Arc,
};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{DirectoryLock, Disk, DiskFile, SyncPoint};

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

pub(crate) struct RealDisk;

/// Older versions left their files to the umask.
fn correct_mode(path: &Path, found: &fs::Metadata, wanted: u32) -> io::Result<()> {
    if found.permissions().mode() & 0o7777 == wanted {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(wanted))
}

impl Disk for RealDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
        correct_mode(path, &fs::metadata(path)?, DIRECTORY_MODE)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
        correct_mode(path, &file.metadata()?, FILE_MODE)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        correct_mode(path, &file.metadata()?, FILE_MODE)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, path: &Path, _: SyncPoint) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DirectoryLock>> {
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).mode(FILE_MODE).open(path)?;
        correct_mode(path, &file.metadata()?, FILE_MODE)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(FileLock(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started at this moment shares the file until it runs its program.
        let _ = self.0.unlock();
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync(&self, _: SyncPoint) -> io::Result<()> {
        self.0.sync_data()
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        // Advice: without it the read is merely served from memory.
        let _ = posix_fadvise(&self.0, offset as i64, length as i64, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}
