//! One file of the log, and the place of one record in it.
//! Made by `log` and `replay`; the index holds `Location`s and reads values through them.
//! Invariant: a record read back is checked against its checksum, its key and its revision.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};

use super::{
    damaged,
    record::{self, FRAME_HEAD, Frame, KeyRecord},
};
use crate::{Revision, StoreError, mvcc::Value};

const MAGIC: &[u8; 8] = b"MINKELOG";
const VERSION: u32 = 1;
/// Magic, format version and the segment's own number.
pub(crate) const SEGMENT_HEAD: u64 = 16;

pub(crate) struct Segment {
    pub id: u32,
    pub path: PathBuf,
    pub file: File,
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
    pub fn create(directory: &Path, id: u32) -> io::Result<Arc<Self>> {
        let path = directory.join(file_name(id));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let mut head = BytesMut::with_capacity(SEGMENT_HEAD as usize);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&id.to_le_bytes());
        let made = file.write_all_at(&head, 0).and_then(|()| file.sync_all()).and_then(|()| sync_directory(directory));
        if let Err(error) = made {
            // A half-made segment must not stand in the way of the next attempt.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Arc::new(Self { id, path, file, live: AtomicU64::new(0) }))
    }

    pub fn open(directory: &Path, id: u32) -> io::Result<Arc<Self>> {
        let path = directory.join(file_name(id));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Arc::new(Self { id, path, file, live: AtomicU64::new(0) }))
    }

    /// What is wrong with the file's head, if anything.
    pub fn check_head(&self) -> Result<(), String> {
        let mut head = [0; SEGMENT_HEAD as usize];
        self.file.read_exact_at(&mut head, 0).map_err(|e| format!("its head cannot be read: {e}"))?;
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
        Ok(self.file.metadata()?.len())
    }

    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Key records from `offset` on with their places, about `budget` bytes of them, and where to go on.
    pub fn records(
        self: &Arc<Self>,
        mut offset: u64,
        end: u64,
        budget: u64,
    ) -> Result<(Vec<(Location, KeyRecord)>, u64), StoreError> {
        let stop = end.min(offset + budget);
        let mut records = Vec::new();
        while offset < stop {
            let mut head = [0; FRAME_HEAD];
            self.file.read_exact_at(&mut head, offset).map_err(|e| damaged(&self.path, offset, &e.to_string()))?;
            let Some((length, _)) = record::frame_head(&head) else {
                return Err(damaged(&self.path, offset, "impossible length"));
            };
            let location =
                Location { segment: self.clone(), offset: offset as u32, length: (FRAME_HEAD + length) as u32 };
            if let Frame::Key(record) = location.frame()? {
                records.push((location, record));
            }
            offset += (FRAME_HEAD + length) as u64;
        }
        Ok((records, offset))
    }
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
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

    fn frame(&self) -> Result<Frame, StoreError> {
        let mut bytes = vec![0; self.length as usize];
        let at = u64::from(self.offset);
        let path = &self.segment.path;
        self.segment.file.read_exact_at(&mut bytes, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(path, at, "the file is shorter than it was"),
            _ => StoreError::Unavailable(format!("failed to read {} at byte {at}: {error}", path.display())),
        })?;
        record::decode_frame(&Bytes::from(bytes)).ok_or_else(|| damaged(path, at, "checksum does not match"))
    }
}

impl Value for Location {
    fn read(&self, key: &str, revision: Revision) -> Result<Bytes, StoreError> {
        match self.frame()? {
            Frame::Key(record) if record.key == key && record.revision == revision => Ok(record.value),
            _ => Err(damaged(&self.segment.path, u64::from(self.offset), &format!("it does not hold {key}"))),
        }
    }

    fn retained(&self) {
        self.segment.live.fetch_add(u64::from(self.length), Ordering::Relaxed);
    }

    fn released(&self) {
        self.segment.live.fetch_sub(u64::from(self.length), Ordering::Relaxed);
    }
}
