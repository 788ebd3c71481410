//! One file of the log, and the place of one record in it.
//! Made by `log` and `replay`; the index holds `Location`s and reads values through them.
//! Invariant: a record read back is checked against its checksum, its key and its revision (test:
//! `damage_is_refused_or_named_never_served`).

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};

use super::{
    damaged,
    record::{self, Frame},
};
use crate::{
    Revision, StoreError,
    disk::{Disk, DiskFile, SyncPoint},
    mvcc::Value,
};

const MAGIC: &[u8; 8] = b"MINKELOG";
const VERSION: u32 = 1;
/// Magic, format version and the segment's own number.
pub(crate) const SEGMENT_HEAD_BYTES: u64 = 16;

pub(crate) struct Segment {
    pub id: u32,
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    /// Bytes of records the index still needs.
    live: AtomicU64,
}

pub(crate) fn file_name(id: u32) -> String {
    format!("{id:08}.log")
}

/// The number in a segment's file name.
pub(crate) fn id_of(name: &str) -> Option<u32> {
    name.strip_suffix(".log").filter(|digits| digits.len() == 8)?.parse().ok()
}

impl Segment {
    /// Its head is durable before anything follows it: an empty one is then of a segment that was never used.
    pub fn create(disk: &dyn Disk, directory: &Path, id: u32) -> io::Result<Arc<Self>> {
        let path = directory.join(file_name(id));
        let file = disk.create(&path)?;
        let mut head = BytesMut::with_capacity(SEGMENT_HEAD_BYTES as usize);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&id.to_le_bytes());
        let made = file.write_at(&head, 0).and_then(|()| file.sync(SyncPoint::SegmentHead));
        if let Err(error) = made.and_then(|()| disk.sync_directory(directory, SyncPoint::SegmentName)) {
            // A half-made segment must not stand in the way of the next attempt.
            let _ = disk.remove(&path);
            return Err(error);
        }
        Ok(Arc::new(Self { id, path, file, live: AtomicU64::new(0) }))
    }

    pub fn open(disk: &dyn Disk, directory: &Path, id: u32) -> io::Result<Arc<Self>> {
        let path = directory.join(file_name(id));
        let file = disk.open(&path)?;
        Ok(Arc::new(Self { id, path, file, live: AtomicU64::new(0) }))
    }

    /// What is wrong with the file's head, if anything.
    pub fn check_head(&self) -> Result<(), String> {
        let mut head = [0; SEGMENT_HEAD_BYTES as usize];
        self.file.read_at(&mut head, 0).map_err(|e| format!("its head cannot be read: {e}"))?;
        if &head[..8] != MAGIC {
            return Err("it is not a log file of a minke store".into());
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return Err("it was written by another version of minke".into());
        }
        if head[12..16] != self.id.to_le_bytes() {
            return Err("it is another segment under this name".into());
        }
        Ok(())
    }

    pub fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// The bytes from `from` to `to`.
    pub fn read(&self, from: u64, to: u64) -> Result<Bytes, StoreError> {
        let mut bytes = vec![0; to.saturating_sub(from) as usize];
        self.fill(&mut bytes, from)?;
        Ok(bytes.into())
    }

    fn fill(&self, bytes: &mut [u8], from: u64) -> Result<(), StoreError> {
        self.file.read_at(bytes, from).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(&self.path, from, "the file is shorter than it was"),
            _ => StoreError::Unavailable(format!("failed to read {} at byte {from}: {error}", self.path.display())),
        })
    }
}

/// Where a record is. Keeps the file open, so a value stays readable after its segment was removed.
#[derive(Clone)]
pub(crate) struct Location {
    pub segment: Arc<Segment>,
    pub offset: u32,
    pub length: u32,
}

impl Location {
    pub fn is_at(&self, other: &Self) -> bool {
        self.segment.id == other.segment.id && self.offset == other.offset
    }

    /// The record's bytes, whatever they are.
    pub fn bytes(&self) -> Result<Bytes, StoreError> {
        self.segment.read(u64::from(self.offset), u64::from(self.offset) + u64::from(self.length))
    }

    /// Reads past what the system remembers of the file, as far as it lets itself be told.
    pub fn forget_cached(&self) {
        self.segment.file.forget_cached(u64::from(self.offset), u64::from(self.length));
    }
}

impl Value for Location {
    fn read(&self, key: &str, revision: Revision) -> Result<Bytes, StoreError> {
        let wrong = |why: &str| {
            let reason = format!("{key} at revision {revision}: {why}");
            damaged(&self.segment.path, u64::from(self.offset), &reason)
        };
        match record::decode_frame(&self.bytes()?) {
            Some(Frame::Key(record)) if record.key == key && record.revision == revision => Ok(record.value),
            Some(_) => Err(wrong("another record is in its place")),
            None => Err(wrong("checksum does not match")),
        }
    }

    fn retained(&self) {
        self.segment.live.fetch_add(u64::from(self.length), Ordering::Relaxed);
    }

    fn released(&self) {
        self.segment.live.fetch_sub(u64::from(self.length), Ordering::Relaxed);
    }
}
