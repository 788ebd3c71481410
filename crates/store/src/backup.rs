//! Copies a whole store at one revision into a stream, and such a stream into an empty directory.
//! `files` puts the stream into a file and calls this for `minke store backup|restore`.
//! Invariant: a restored store has the same keys, values and versions of objects, and a revision that the old one never
//! reached: whoever watched the old one is told that its place is gone, instead of waiting for the future (test:
//! `a_backup_restores_the_same_objects_at_a_revision_never_reached`).

use std::{
    io::{Read, Write},
    path::Path,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};

use crate::{
    Limits, Range, Revision, Store, StoreError,
    disk::{Disk, RealDisk, SyncPoint},
    embedded::{
        self, lock,
        log::{Batch, Log},
        record::{self, FRAME_HEAD_BYTES, Frame, GroupHead, KeyParts, Kind},
        replay::RESTORING_FILE,
        segment::Location,
    },
    mvcc::{Core, Value},
    prefix_end,
};

const MAGIC: &[u8] = b"MINKE BACKUP 2\n";
/// Of versions whose records had no checksum of their heads; those are read as well.
const OLD_MAGIC: &[u8] = b"MINKE BACKUP 1\n";
const PAGE_KEYS: usize = 500;
/// Records are made durable in batches of this many; of few in tests, so that a power cut comes between two.
pub(crate) const BATCH_RECORDS: usize = if cfg!(test) { 4 } else { 1000 };
/// How often a store is read that seems damaged, while it may be in use.
const BACKUP_ATTEMPTS_MAX: u32 = 5;
/// More than any cluster writes between a backup and its end; what etcd's documentation tells to raise it by.
const REVISION_BUMP: Revision = 1_000_000_000;
/// More than any cluster writes in a millisecond, and still exact in a double in the year 2200.
const REVISIONS_PER_MILLISECOND: Revision = 1000;

/// Where a store goes on that is restored at `wall_ms` and was at `revision`. It follows the clock, so that the same backup
/// restored twice does not give out the revisions of the first time again.
pub(crate) fn restored_revision(revision: Revision, wall_ms: u64) -> Revision {
    revision.saturating_add(REVISION_BUMP).max(wall_ms.saturating_mul(REVISIONS_PER_MILLISECOND))
}

/// What a backup or restore covered. `revision` is the backup's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    pub revision: Revision,
    pub keys: u64,
}

/// Writes a backup with a running checksum.
struct BackupWriter<'a> {
    writer: &'a mut (dyn Write + Send),
    hasher: crc32fast::Hasher,
    copied: Copied,
}

impl<'a> BackupWriter<'a> {
    fn begin(writer: &'a mut (dyn Write + Send), revision: Revision) -> Result<Self, StoreError> {
        let mut new = Self { writer, hasher: crc32fast::Hasher::new(), copied: Copied { revision, keys: 0 } };
        new.write(MAGIC)?;
        new.head(0, 0)?;
        Ok(new)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        self.writer.write_all(bytes).map_err(|e| not_written(&e))
    }

    fn head(&mut self, sequence: u64, checksum: u32) -> Result<(), StoreError> {
        let mut bytes = BytesMut::new();
        let revision = self.copied.revision;
        GroupHead { sequence, revision, floor: revision, oldest_segment: 0, length: checksum }.encode(&mut bytes);
        self.write(&bytes)
    }

    fn record(&mut self, parts: &KeyParts<'_>) -> Result<(), StoreError> {
        let mut bytes = BytesMut::new();
        parts.encode(&mut bytes);
        self.copied.keys += 1;
        self.write(&bytes)
    }

    fn finish(mut self) -> Result<Copied, StoreError> {
        let checksum = self.hasher.clone().finalize();
        self.head(self.copied.keys, checksum)?;
        self.writer.flush().map_err(|e| not_written(&e))?;
        Ok(self.copied)
    }
}

fn not_written(error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("failed to write the backup: {error}"))
}

/// Writes everything in `store`, as it is at one revision, to `writer`.
pub async fn backup(store: &dyn Store, writer: &mut (dyn Write + Send)) -> Result<Copied, StoreError> {
    let end = prefix_end("");
    let deadlines: std::collections::HashMap<String, u64> = store.deadlines("", &end).await?.into_iter().collect();
    let mut page = store.range(Range { start: String::new(), end, limit: PAGE_KEYS, revision: None }).await?;
    let revision = page.revision;
    let mut out = BackupWriter::begin(writer, revision)?;
    loop {
        for record in &page.records {
            out.record(&KeyParts {
                kind: Kind::Put,
                revision: record.mod_revision,
                created: record.create_revision,
                expires_ms: deadlines.get(&record.key).copied().unwrap_or(0),
                key: &record.key,
                value: &record.value,
            })?;
        }
        let Some(last) = page.records.last().filter(|_| page.remaining > 0) else { return out.finish() };
        let start = format!("{}\0", last.key);
        page = store.range(Range { start, end: prefix_end(""), limit: PAGE_KEYS, revision: Some(revision) }).await?;
    }
}

/// As `backup`, of the embedded store in `directory`, whether it is in use or not.
pub(crate) fn backup_directory(
    disk: &dyn Disk,
    directory: &Path,
    writer: &mut (dyn Write + Send),
) -> Result<Copied, StoreError> {
    let core = read_sound(disk, directory)?;
    let mut out = BackupWriter::begin(writer, core.revision())?;
    let (mut start, mut more) = (String::new(), true);
    while more {
        let (found, rest) = core.index.first(&start, PAGE_KEYS);
        more = rest;
        for found in found {
            out.record(&KeyParts {
                kind: Kind::Put,
                revision: found.revision,
                created: found.live.created,
                expires_ms: found.live.expires_ms,
                key: &found.key,
                value: &found.live.value.read(&found.key, found.revision)?,
            })?;
            start = format!("{}\0", found.key);
        }
    }
    out.finish()
}

/// Everything in a store, none of it damaged. What is being written at this moment may look so, but not again and again.
fn read_sound(disk: &dyn Disk, directory: &Path) -> Result<Core<Location>, StoreError> {
    let read = || {
        let (core, replayed) = embedded::read_all(disk, directory)?;
        embedded::refuse_damage(&replayed, &core).map(|()| core)
    };
    let mut last = read();
    for _ in 1..BACKUP_ATTEMPTS_MAX {
        if !matches!(last, Err(StoreError::Corrupted(_))) {
            break;
        }
        last = read();
    }
    last
}

/// Makes a store in the empty directory `path` from a backup, at a revision that follows the clock `wall_ms`. A backup that
/// is not intact leaves no store.
pub fn restore(path: impl AsRef<Path>, reader: &mut dyn Read, wall_ms: u64) -> Result<Copied, StoreError> {
    restore_on(Arc::new(RealDisk), path.as_ref(), reader, wall_ms)
}

pub(crate) fn restore_on(
    disk: Arc<dyn Disk>,
    path: &Path,
    reader: &mut dyn Read,
    wall_ms: u64,
) -> Result<Copied, StoreError> {
    let failed = |e: std::io::Error| StoreError::Unavailable(format!("failed to restore into {}: {e}", path.display()));
    disk.create_directory(path).map_err(failed)?;
    if let Some(name) = disk.list(path).map_err(failed)?.first() {
        return Err(StoreError::Unavailable(format!(
            "{} is not empty (it holds {name}); restore into an empty directory",
            path.display(),
        )));
    }
    let lock = lock(&*disk, path)?;
    // What is cut off in the middle must not be taken for a store. The mark is durable when the name of the first segment
    // is, before anything can be in that.
    let mark = path.join(RESTORING_FILE);
    let begun = disk.create(&mark).and_then(|_| match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => disk.sync_directory(parent, SyncPoint::StoreName),
        None => Ok(()),
    });
    let restored = begun.map_err(failed).and_then(|()| write_log(&disk, path, reader, wall_ms));
    drop(lock);
    match restored {
        Ok(copied) => {
            disk.remove(&mark).map_err(failed)?;
            disk.sync_directory(path, SyncPoint::RestoreDone).map_err(failed)?;
            Ok(copied)
        }
        Err(error) => {
            undo(&*disk, path).map_err(failed)?;
            Err(error)
        }
    }
}

/// Leaves an empty directory; the mark goes last.
fn undo(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    for name in disk.list(path)?.iter().filter(|name| *name != RESTORING_FILE) {
        disk.remove(&path.join(name))?;
    }
    disk.sync_directory(path, SyncPoint::RestoreUndone)?;
    disk.remove(&path.join(RESTORING_FILE))
}

fn write_log(disk: &Arc<dyn Disk>, path: &Path, reader: &mut dyn Read, wall_ms: u64) -> Result<Copied, StoreError> {
    let mut log = Log::create(disk.clone(), path, Limits::default().segment_bytes)
        .map_err(|e| StoreError::Unavailable(format!("failed to write to {}: {e}", path.display())))?;
    let (mut batch, mut batched) = (Batch::new(), 0);
    let copied = read_backup(reader, |revision, record| {
        batch.push(&record.parts());
        batched += 1;
        if batched == BATCH_RECORDS {
            batched = 0;
            let revision = restored_revision(revision, wall_ms);
            log.append(std::mem::replace(&mut batch, Batch::new()), revision, revision)?;
        }
        Ok(())
    })?;
    let revision = restored_revision(copied.revision, wall_ms);
    log.append(batch, revision, revision)?;
    log.close();
    Ok(copied)
}

/// Reads a backup to its end and verifies it; `each` sees its revision and every record.
pub(crate) fn read_backup(
    reader: &mut dyn Read,
    mut each: impl FnMut(Revision, &record::KeyRecord) -> Result<(), StoreError>,
) -> Result<Copied, StoreError> {
    let mut source = Source { reader, hasher: crc32fast::Hasher::new() };
    let magic = source.read(MAGIC.len())?;
    if magic != MAGIC && magic != OLD_MAGIC {
        return Err(StoreError::Corrupted(
            "this is not a minke backup; name a file made by `minke store backup`".into(),
        ));
    }
    let Frame::Group(head) = source.frame()? else { return Err(broken()) };
    let mut keys = 0;
    loop {
        let checksum = source.hasher.clone().finalize();
        match source.frame()? {
            Frame::Key(record) => {
                each(head.revision, &record)?;
                keys += 1;
            }
            Frame::Group(end) if end.length == checksum && end.sequence == keys && end.revision == head.revision => {
                return Ok(Copied { revision: head.revision, keys });
            }
            Frame::Group(_) => return Err(broken()),
        }
    }
}

struct Source<'a> {
    reader: &'a mut dyn Read,
    hasher: crc32fast::Hasher,
}

impl Source<'_> {
    fn read(&mut self, length: usize) -> Result<Bytes, StoreError> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => broken(),
            _ => StoreError::Unavailable(format!("failed to read the backup: {error}")),
        })?;
        self.hasher.update(&bytes);
        Ok(bytes.into())
    }

    fn frame(&mut self) -> Result<Frame, StoreError> {
        let head = self.read(FRAME_HEAD_BYTES)?;
        let (length, checksum) = record::frame_head(&head).ok_or_else(broken)?;
        record::decode(checksum, &self.read(length)?).ok_or_else(broken)
    }
}

fn broken() -> StoreError {
    StoreError::Corrupted("the backup is damaged or cut off; nothing was restored, use another one".into())
}
