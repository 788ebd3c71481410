//! Copies a whole store at one revision into a stream, and such a stream into an empty directory.
//! Works over any `Store`; `minke store backup|restore` call it.
//! Invariant: a restored store has the same keys, values and revisions, so resource versions stay valid.

use std::{
    collections::HashMap,
    io::{Read, Write},
    path::Path,
};

use bytes::{Bytes, BytesMut};

use crate::{
    Limits, Range, Revision, Store, StoreError,
    embedded::{
        lock,
        log::{Batch, Log},
        record::{self, FRAME_HEAD, Frame, GroupHead, KeyParts, Kind},
    },
    prefix_end,
};

const MAGIC: &[u8] = b"MINKE BACKUP 1\n";
const PAGE: usize = 500;
/// Restored records are made durable in batches of this many.
const RESTORE_BATCH: usize = 1000;

/// What a backup or restore covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    pub revision: Revision,
    pub keys: u64,
}

/// Writes with a running checksum.
struct Summed<'a> {
    writer: &'a mut (dyn Write + Send),
    hasher: crc32fast::Hasher,
}

impl Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        self.writer.write_all(bytes).map_err(|e| StoreError::Unavailable(format!("failed to write the backup: {e}")))
    }

    fn write_head(&mut self, sequence: u64, revision: Revision, checksum: u32) -> Result<(), StoreError> {
        let mut bytes = BytesMut::new();
        GroupHead { sequence, revision, floor: revision, oldest_segment: 0, length: checksum }.encode(&mut bytes);
        self.write(&bytes)
    }
}

/// Writes everything in `store`, as it is at one revision, to `writer`.
pub async fn backup(store: &dyn Store, writer: &mut (dyn Write + Send)) -> Result<Copied, StoreError> {
    let end = prefix_end("");
    let deadlines: HashMap<String, u64> = store.deadlines("", &end).await?.into_iter().collect();
    let mut page = store.range(Range { start: String::new(), end, limit: PAGE, revision: None }).await?;
    let revision = page.revision;
    let mut out = Summed { writer, hasher: crc32fast::Hasher::new() };
    out.write(MAGIC)?;
    out.write_head(0, revision, 0)?;
    let mut keys = 0;
    loop {
        let mut bytes = BytesMut::new();
        for record in &page.records {
            let parts = KeyParts {
                kind: Kind::Put,
                revision: record.mod_revision,
                created: record.create_revision,
                expires_ms: deadlines.get(&record.key).copied().unwrap_or(0),
                key: &record.key,
                value: &record.value,
            };
            parts.encode(&mut bytes);
        }
        keys += page.records.len() as u64;
        out.write(&bytes)?;
        let Some(last) = page.records.last().filter(|_| page.remaining > 0) else { break };
        let start = format!("{}\0", last.key);
        page = store.range(Range { start, end: prefix_end(""), limit: PAGE, revision: Some(revision) }).await?;
    }
    let checksum = out.hasher.clone().finalize();
    out.write_head(keys, revision, checksum)?;
    out.writer.flush().map_err(|e| StoreError::Unavailable(format!("failed to write the backup: {e}")))?;
    Ok(Copied { revision, keys })
}

/// Makes a store in the empty directory `path` from a backup. A backup that is not intact leaves no store.
pub fn restore(path: impl AsRef<Path>, reader: &mut dyn Read) -> Result<Copied, StoreError> {
    let path = path.as_ref();
    let failed = |e: std::io::Error| StoreError::Unavailable(format!("failed to restore into {}: {e}", path.display()));
    std::fs::create_dir_all(path).map_err(failed)?;
    if let Some(entry) = std::fs::read_dir(path).map_err(failed)?.next() {
        let name = entry.map_err(failed)?.file_name();
        return Err(StoreError::Unavailable(format!(
            "{} is not empty (it holds {}); restore into an empty directory",
            path.display(),
            name.to_string_lossy()
        )));
    }
    let lock = lock(path)?;
    let restored = write_log(path, reader);
    drop(lock);
    if restored.is_err() {
        std::fs::remove_dir_all(path).and_then(|()| std::fs::create_dir(path)).map_err(failed)?;
    }
    restored
}

fn write_log(path: &Path, reader: &mut dyn Read) -> Result<Copied, StoreError> {
    let mut source = Source { reader, hasher: crc32fast::Hasher::new() };
    if &source.read(MAGIC.len())?[..] != MAGIC {
        return Err(StoreError::Corrupted(
            "this is not a minke backup; name a file made by `minke store backup`".into(),
        ));
    }
    let Frame::Group(head) = source.frame()? else { return Err(broken()) };
    let mut log = Log::create(path, Limits::default().segment_bytes)
        .map_err(|e| StoreError::Unavailable(format!("failed to write to {}: {e}", path.display())))?;
    let (mut batch, mut batched, mut keys) = (Batch::new(), 0, 0);
    loop {
        let checksum = source.hasher.clone().finalize();
        match source.frame()? {
            Frame::Key(record) => {
                batch.push(&record.parts());
                keys += 1;
                batched += 1;
                if batched == RESTORE_BATCH {
                    log.append(std::mem::replace(&mut batch, Batch::new()), head.revision, head.revision)?;
                    batched = 0;
                }
            }
            Frame::Group(end) if end.length == checksum && end.sequence == keys && end.revision == head.revision => {
                log.append(batch, head.revision, head.revision)?;
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
        let head = self.read(FRAME_HEAD)?;
        let (length, checksum) = record::frame_head(&head).ok_or_else(broken)?;
        record::decode(checksum, &self.read(length)?).ok_or_else(broken)
    }
}

fn broken() -> StoreError {
    StoreError::Corrupted("the backup is damaged or cut off; nothing was restored, use another one".into())
}
