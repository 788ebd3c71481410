//! Reads the whole log back into a `Core` and tells a torn tail from damage.
//! Called by `open` (which repairs a torn tail) and by `check` (which changes nothing).
//! Invariant: a group counts completely or not at all; damage before intact groups is an error, never skipped.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;

use super::{
    damaged,
    record::{self, FRAME_HEAD, Frame, GROUP_FRAME, GroupHead, KeyRecord, Kind},
    segment::{Location, SEGMENT_HEAD, Segment, file_name, id_of},
    unreadable,
};
use crate::{
    StoreError,
    mvcc::{Core, index::Live},
};

const READ_BUFFER: usize = 256 << 10;
/// Disks write this much at once; after a power cut some sectors of a write may be there and others empty.
const SECTOR: usize = 512;

pub(crate) struct Replayed {
    pub segments: VecDeque<Arc<Segment>>,
    /// End of the last intact group in the last segment.
    pub end: u64,
    pub sealed_bytes: u64,
    pub sequence: u64,
    pub records: u64,
    /// Segments before this one were to be removed.
    pub oldest_needed: u32,
    /// Bytes after the last intact group: a write that was cut off before it was acknowledged.
    pub torn_bytes: u64,
    /// Segments that are longer than their last group, with the end of that: space that was made ahead.
    pub slack: Vec<(Arc<Segment>, u64)>,
}

/// Numbers of the segments in `directory`, ascending; an error when it holds something else.
pub(crate) fn segment_ids(directory: &Path) -> Result<Vec<u32>, StoreError> {
    let entries = std::fs::read_dir(directory).map_err(|e| unreadable(directory, &e))?;
    let (mut ids, mut foreign) = (Vec::new(), None);
    for entry in entries {
        let name = entry.map_err(|e| unreadable(directory, &e))?.file_name();
        match name.to_str() {
            Some(super::LOCK_FILE | "lost+found") => {}
            Some(name) if id_of(name).is_some() => ids.extend(id_of(name)),
            _ => foreign = Some(name),
        }
    }
    if let (true, Some(name)) = (ids.is_empty(), foreign) {
        return Err(StoreError::Corrupted(format!(
            "{} is not a minke store: it holds {}; use an empty directory",
            directory.display(),
            name.to_string_lossy()
        )));
    }
    ids.sort_unstable();
    Ok(ids)
}

pub(crate) fn replay(directory: &Path, ids: &[u32], core: &mut Core<Location>) -> Result<Replayed, StoreError> {
    let mut replayed = Replayed {
        segments: VecDeque::new(),
        end: 0,
        sealed_bytes: 0,
        sequence: 0,
        records: 0,
        oldest_needed: 0,
        torn_bytes: 0,
        slack: Vec::new(),
    };
    for (at, id) in ids.iter().enumerate() {
        if at > 0 && ids[at - 1] + 1 != *id {
            return Err(missing(directory, ids[at - 1] + 1));
        }
        let segment = Segment::open(directory, *id).map_err(|e| unreadable(directory, &e))?;
        let last = at + 1 == ids.len();
        let length = segment.len().map_err(|e| unreadable(&segment.path, &e))?;
        if last && at > 0 && length < SEGMENT_HEAD {
            // Cut off while it was being made; nothing can be in it, and it will be made again.
            break;
        }
        segment.check_head().map_err(|reason| damaged(&segment.path, 0, &reason))?;
        replayed.sealed_bytes += replayed.end;
        replayed.end = read_segment(&segment, length, core, &mut replayed)?;
        if length > replayed.end {
            let rest = without_zeroes(tail(&segment, replayed.end, length)?);
            if !rest.is_empty() && (!last || !is_torn(&rest, replayed.end, replayed.sequence)) {
                return Err(damaged(&segment.path, replayed.end, "checksum does not match"));
            }
            replayed.torn_bytes += rest.len() as u64;
            replayed.slack.push((segment.clone(), replayed.end));
        }
        replayed.segments.push_back(segment);
    }
    if let Some(first) = ids.first()
        && (1..*first).contains(&replayed.oldest_needed)
    {
        return Err(missing(directory, replayed.oldest_needed));
    }
    Ok(replayed)
}

/// Zeroes after the last write are space made ahead, or what a power cut left of a write.
fn without_zeroes(rest: Bytes) -> Bytes {
    let end = rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    rest.slice(..end)
}

/// Whether `rest`, at `offset` of the last segment, is what a crash leaves of one group, and not damage: it ends before
/// the group does, or sectors of it were never written, and no intact group follows.
fn is_torn(rest: &Bytes, offset: u64, sequence: u64) -> bool {
    if record::finds_group(rest, sequence + 1) {
        return false;
    }
    let complete = match rest.get(..GROUP_FRAME).map(|head| record::decode_frame(&rest.slice_ref(head))) {
        None => false,
        Some(Some(Frame::Group(head))) => GROUP_FRAME + head.length as usize <= rest.len(),
        Some(_) => true,
    };
    !complete || has_empty_sector(rest, offset)
}

fn has_empty_sector(rest: &[u8], offset: u64) -> bool {
    let first = SECTOR - (offset as usize % SECTOR);
    let (head, aligned) = rest.split_at(first.min(rest.len()));
    std::iter::once(head).chain(aligned.chunks(SECTOR)).any(|sector| sector.iter().all(|byte| *byte == 0))
}

fn missing(directory: &Path, id: u32) -> StoreError {
    StoreError::Corrupted(format!(
        "{} is missing; put it back, or restore a backup with `minke store restore`",
        directory.join(file_name(id)).display()
    ))
}

fn tail(segment: &Segment, from: u64, to: u64) -> Result<Bytes, StoreError> {
    let mut rest = vec![0; (to - from) as usize];
    segment.file.read_exact_at(&mut rest, from).map_err(|e| unreadable(&segment.path, &e))?;
    Ok(rest.into())
}

/// Takes in every intact group; where the first one that is not begins, or the end.
fn read_segment(
    segment: &Arc<Segment>,
    length: u64,
    core: &mut Core<Location>,
    replayed: &mut Replayed,
) -> Result<u64, StoreError> {
    let file = File::open(&segment.path).map_err(|e| unreadable(&segment.path, &e))?;
    let mut reader = BufReader::with_capacity(READ_BUFFER, file);
    io::copy(&mut reader.by_ref().take(SEGMENT_HEAD), &mut io::sink()).map_err(|e| unreadable(&segment.path, &e))?;
    let mut offset = SEGMENT_HEAD;
    while offset < length {
        let Some((head, records)) = read_group(&mut reader, segment, offset, length)? else { return Ok(offset) };
        if replayed.sequence != 0 && head.sequence != replayed.sequence + 1 {
            return Err(damaged(&segment.path, offset, "a group is missing before it"));
        }
        replayed.sequence = head.sequence;
        replayed.records += records.len() as u64;
        replayed.oldest_needed = head.oldest_segment;
        for (location, record) in records {
            take_in(core, location, record);
        }
        core.reached(head.revision, head.floor);
        offset += GROUP_FRAME as u64 + u64::from(head.length);
    }
    Ok(offset)
}

fn take_in(core: &mut Core<Location>, value: Location, record: KeyRecord) {
    let live = Live { created: record.created, expires_ms: record.expires_ms, value };
    match record.kind {
        Kind::Put => core.install(core.index.shared_key(&record.key), record.revision, Some(live)),
        Kind::Delete => core.install(core.index.shared_key(&record.key), record.revision, None),
        Kind::Moved => core.relocate(&record.key, record.revision, live),
    }
}

type Group = (GroupHead, Vec<(Location, KeyRecord)>);

/// `None` when the group at `offset` is not intact.
fn read_group(
    reader: &mut impl Read,
    segment: &Arc<Segment>,
    offset: u64,
    length: u64,
) -> Result<Option<Group>, StoreError> {
    let Some((Frame::Group(head), _)) = read_frame(reader, segment, length - offset)? else { return Ok(None) };
    let mut at = offset + GROUP_FRAME as u64;
    let end = at + u64::from(head.length);
    if end > length {
        return Ok(None);
    }
    let mut records = Vec::new();
    while at < end {
        let Some((Frame::Key(mut record), size)) = read_frame(reader, segment, end - at)? else { return Ok(None) };
        // Only the place is kept; the value stays on disk.
        record.value = Bytes::new();
        records.push((Location { segment: segment.clone(), offset: at as u32, length: size as u32 }, record));
        at += size as u64;
    }
    Ok(Some((head, records)))
}

/// A frame and its size, or `None` when what is there is not one.
fn read_frame(reader: &mut impl Read, segment: &Segment, room: u64) -> Result<Option<(Frame, usize)>, StoreError> {
    let mut head = [0; FRAME_HEAD];
    if !filled(reader.read_exact(&mut head), segment)? {
        return Ok(None);
    }
    let Some((length, checksum)) = record::frame_head(&head) else { return Ok(None) };
    if (FRAME_HEAD + length) as u64 > room {
        return Ok(None);
    }
    let mut body = vec![0; length];
    if !filled(reader.read_exact(&mut body), segment)? {
        return Ok(None);
    }
    Ok(record::decode(checksum, &body.into()).map(|frame| (frame, FRAME_HEAD + length)))
}

fn filled(read: io::Result<()>, segment: &Segment) -> Result<bool, StoreError> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(unreadable(&segment.path, &error)),
    }
}
