//! Reads the whole log back into a `Core` and tells a torn tail from damage.
//! Called by `open` (which repairs a torn tail), by `check` and backups (which change nothing) and by `salvage`.
//! Invariant: a torn group counts not at all; damage is never skipped without being told, in `Replayed::damage` (test:
//! `damage_is_refused_or_named_never_served`).

use std::{collections::VecDeque, path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    damage::Damage,
    record::{self, GROUP_FRAME_BYTES, GroupHead, KeyRecord, Kind, Scanned},
    segment::{Location, SEGMENT_HEAD_BYTES, Segment, file_name, id_of},
    unreadable,
};
use crate::{
    StoreError,
    disk::Disk,
    mvcc::{Core, index::Live},
};

/// Disks write this much at once; after a power cut some sectors of a write may be there and others empty.
const SECTOR_BYTES: usize = 512;
/// Read at once where nothing is wrong; one group may be longer.
const WINDOW_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(crate) struct Replayed {
    pub segments: VecDeque<Arc<Segment>>,
    /// End of the last intact group in the last segment.
    pub end: u64,
    pub sealed_bytes: u64,
    pub sequence: u64,
    pub records: u64,
    /// Segments that were to be removed.
    pub dead: Vec<Arc<Segment>>,
    /// Bytes after the last intact group: a write that was cut off before it was acknowledged.
    pub torn_bytes: u64,
    /// Segments that are longer than their last group, with the end of that: space that was made ahead.
    pub slack: Vec<(Arc<Segment>, u64)>,
    /// Where the newest group begins and ends: the only one of which nobody knows whether it is durable.
    pub newest_group: Option<(Arc<Segment>, u64, u64)>,
    pub damage: Vec<Damage>,
}

/// The mark of a restore that is not complete.
pub(crate) const RESTORING_FILE: &str = "RESTORING";

/// Numbers of the segments in `directory`, ascending; an error when it holds something else.
pub(crate) fn segment_ids(disk: &dyn Disk, directory: &Path) -> Result<Vec<u32>, StoreError> {
    let (mut ids, mut foreign) = (Vec::new(), None);
    for name in disk.list(directory).map_err(|e| unreadable(directory, &e))? {
        match name.as_str() {
            super::LOCK_FILE | "lost+found" => {}
            RESTORING_FILE => {
                return Err(StoreError::Corrupted(format!(
                    "a restore into {} was cut off; empty the directory and restore again",
                    directory.display()
                )));
            }
            name if id_of(name).is_some() => ids.extend(id_of(name)),
            _ => foreign = Some(name),
        }
    }
    if let (true, Some(name)) = (ids.is_empty(), foreign) {
        return Err(StoreError::Corrupted(format!(
            "{} is not a minke store: it holds {name}; use an empty directory",
            directory.display()
        )));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Every segment of `ids`; `None` if one of them has gone meanwhile.
pub(crate) fn open_segments(
    disk: &dyn Disk,
    directory: &Path,
    ids: &[u32],
) -> Result<Option<Vec<Arc<Segment>>>, StoreError> {
    let mut segments = Vec::new();
    for id in ids {
        match Segment::open(disk, directory, *id) {
            Ok(segment) => segments.push(segment),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(&directory.join(file_name(*id)), &error)),
        }
    }
    Ok(Some(segments))
}

/// What the index needs of the segments, oldest first.
pub(crate) fn replay(
    directory: &Path,
    segments: Vec<Arc<Segment>>,
    core: &mut Core<Location>,
) -> Result<Replayed, StoreError> {
    let mut replayed = Replayed::default();
    let mut segments = used(segments)?;
    let newest = newest_group(&segments)?;
    let oldest_needed = newest.map_or(0, |head| head.oldest_segment);
    let needed = segments.iter().position(|segment| segment.id >= oldest_needed).unwrap_or(segments.len());
    replayed.dead = segments.drain(..needed).collect();
    for (at, segment) in segments.iter().enumerate() {
        let before = if at == 0 { oldest_needed.max(1) - 1 } else { segments[at - 1].id };
        if segment.id != before + 1 && (at > 0 || oldest_needed > 0) {
            return Err(missing(directory, before + 1));
        }
    }
    for (at, segment) in segments.iter().enumerate() {
        let next_sequence = first_sequence(&segments[at + 1..])?;
        replayed.sealed_bytes += replayed.end;
        if let Err(reason) = segment.check_head() {
            replayed.damage.push(Damage::segment_head(segment, reason));
        }
        let length = segment.len().map_err(|e| unreadable(&segment.path, &e))?;
        let bytes = Bytes::new();
        let walk = SegmentReplay {
            segment,
            base: SEGMENT_HEAD_BYTES,
            bytes,
            length,
            next_sequence,
            core,
            replayed: &mut replayed,
        };
        replayed.end = walk.run()?;
        if length > replayed.end {
            replayed.slack.push((segment.clone(), replayed.end));
        }
        replayed.segments.push_back(segment.clone());
    }
    Ok(replayed)
}

/// Without segments at the end that were being made: nothing can be in those, and they will be made again.
fn used(mut segments: Vec<Arc<Segment>>) -> Result<Vec<Arc<Segment>>, StoreError> {
    while let Some(last) = segments.last() {
        let length = last.len().map_err(|e| unreadable(&last.path, &e))?;
        if length >= SEGMENT_HEAD_BYTES && last.check_head().is_ok() {
            break;
        }
        let bytes = last.read(0, length)?;
        if bytes.iter().skip(SEGMENT_HEAD_BYTES as usize).any(|byte| *byte != 0) || !is_cut_off_head(&bytes) {
            break;
        }
        segments.pop();
    }
    Ok(segments)
}

/// Whether a file's head, which is not whole, is one that was cut off: as long as it should be or shorter, and empty.
fn is_cut_off_head(bytes: &[u8]) -> bool {
    bytes.len() < SEGMENT_HEAD_BYTES as usize || bytes.iter().take(SEGMENT_HEAD_BYTES as usize).all(|byte| *byte == 0)
}

/// The head of the last group that is found by going from group to group in the last segment that has any.
fn newest_group(segments: &[Arc<Segment>]) -> Result<Option<GroupHead>, StoreError> {
    for segment in segments.iter().rev() {
        let length = segment.len().map_err(|e| unreadable(&segment.path, &e))?;
        let (mut at, mut newest) = (SEGMENT_HEAD_BYTES, None);
        while at + GROUP_FRAME_BYTES as u64 <= length {
            let bytes = segment.read(at, at + GROUP_FRAME_BYTES as u64)?;
            let Some(head) = record::group_at(&bytes, 0) else { break };
            at += GROUP_FRAME_BYTES as u64 + u64::from(head.length);
            if at > length {
                break;
            }
            newest = Some(head);
        }
        if newest.is_some() {
            return Ok(newest);
        }
    }
    Ok(None)
}

/// The sequence number that later segments begin with, if they hold anything.
fn first_sequence(later: &[Arc<Segment>]) -> Result<Option<u64>, StoreError> {
    for segment in later {
        let length = segment.len().map_err(|e| unreadable(&segment.path, &e))?;
        let end = length.min(SEGMENT_HEAD_BYTES + GROUP_FRAME_BYTES as u64);
        if let Some(head) = record::group_at(&segment.read(end.min(SEGMENT_HEAD_BYTES), end)?, 0)
            && SEGMENT_HEAD_BYTES + GROUP_FRAME_BYTES as u64 + u64::from(head.length) <= length
        {
            return Ok(Some(head.sequence));
        }
        let bytes = segment.read(0, length)?;
        if let Some(head) = record::find_group(&bytes, 0, 0).and_then(|at| record::group_at(&bytes, at)) {
            return Ok(Some(head.sequence));
        }
    }
    Ok(None)
}

fn missing(directory: &Path, id: u32) -> StoreError {
    StoreError::Corrupted(format!(
        "{} is missing; put it back, or restore a backup with `minke store restore`",
        directory.join(file_name(id)).display()
    ))
}

/// One segment on its way into the core.
struct SegmentReplay<'a> {
    segment: &'a Arc<Segment>,
    /// Where `bytes` begins in the segment.
    base: u64,
    bytes: Bytes,
    /// Of the file.
    length: u64,
    /// What later segments begin with. Groups from there on are remains of one that failed before they were begun.
    next_sequence: Option<u64>,
    core: &'a mut Core<Location>,
    replayed: &'a mut Replayed,
}

impl SegmentReplay<'_> {
    /// Takes in every group; where they end.
    fn run(mut self) -> Result<u64, StoreError> {
        while self.base < self.length {
            self.read_window()?;
            let end = self.intact_groups();
            if end == 0 {
                break;
            }
            self.base += end as u64;
        }
        self.bytes = self.segment.read(self.base, self.length.max(self.base))?;
        let end = self.run_to_end() as u64;
        Ok(self.base + end)
    }

    /// From `base` on, at least the whole first group if there is one.
    fn read_window(&mut self) -> Result<(), StoreError> {
        let head_end = self.length.min(self.base + GROUP_FRAME_BYTES as u64);
        let head = record::group_at(&self.segment.read(self.base, head_end)?, 0);
        let group = head.map_or(0, |head| GROUP_FRAME_BYTES as u64 + u64::from(head.length));
        let end = self.length.min(self.base + group.max(WINDOW_BYTES));
        self.bytes = self.segment.read(self.base, end)?;
        Ok(())
    }

    /// Takes in groups as long as they are intact and follow each other; where that ends.
    fn intact_groups(&mut self) -> usize {
        let mut at = 0;
        while let Some(head) = self.group(at) {
            let is_next = self.replayed.sequence == 0 || head.sequence == self.replayed.sequence + 1;
            let end = at + GROUP_FRAME_BYTES + head.length as usize;
            let records = self.scan(at + GROUP_FRAME_BYTES, end);
            if !is_next || records.iter().any(|(_, scanned)| !matches!(scanned, Scanned::Intact(_))) {
                break;
            }
            self.take_group(at, &head, records);
            at = end;
        }
        at
    }

    fn take_group(&mut self, at: usize, head: &GroupHead, records: Vec<(Location, Scanned)>) {
        self.take_in(records);
        self.replayed.sequence = head.sequence;
        self.core.reached(head.revision, head.floor);
        let from = self.base + at as u64;
        let to = from + GROUP_FRAME_BYTES as u64 + u64::from(head.length);
        self.replayed.newest_group = Some((self.segment.clone(), from, to));
    }

    /// The same where something is wrong, or at an end: all that is left is looked at.
    fn run_to_end(&mut self) -> usize {
        let content = self.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        let mut at = 0;
        while at < content {
            if let Some(head) = self.group(at) {
                let end = at + GROUP_FRAME_BYTES + head.length as usize;
                let records = self.scan(at + GROUP_FRAME_BYTES, end);
                let whole = records.iter().all(|(_, scanned)| matches!(scanned, Scanned::Intact(_)));
                if !whole && self.is_torn(at, content) {
                    break;
                }
                if self.replayed.sequence != 0 && head.sequence != self.replayed.sequence + 1 && !self.gap_is_told(at) {
                    self.replayed.damage.push(Damage::missing_group(self.segment, self.base + at as u64));
                }
                self.take_group(at, &head, records);
                at = end;
                continue;
            }
            let next = record::find_group(&self.bytes, at + 1, self.replayed.sequence);
            match next.filter(|next| self.group(*next).is_some()) {
                Some(next) => {
                    self.salvage_group(at, next);
                    at = next;
                }
                None => break,
            }
        }
        if at >= content {
            return at.min(self.bytes.len());
        }
        match self.next_sequence {
            // The remains of a group that failed; the next segment has what was written instead.
            Some(next) if next == self.replayed.sequence + 1 => {}
            None if self.is_torn(at, content) => self.replayed.torn_bytes += (content - at) as u64,
            _ => {
                self.salvage_group(at, content);
                self.replayed.sequence += 1;
                at = content;
            }
        }
        at
    }

    /// The head of a group that begins at `at`, is as long as it says and belongs here.
    fn group(&self, at: usize) -> Option<GroupHead> {
        let head = record::group_at(&self.bytes, at)?;
        let fits = at + GROUP_FRAME_BYTES + head.length as usize <= self.bytes.len();
        let is_next = head.sequence > self.replayed.sequence;
        let counts = self.next_sequence.is_none_or(|next| head.sequence < next);
        (fits && is_next && counts).then_some(head)
    }

    /// Whether the group before `at` was damaged, so that it is known why one is missing.
    fn gap_is_told(&self, at: usize) -> bool {
        self.replayed.damage.last().is_some_and(|damage| damage.ends_at(self.segment, self.base + at as u64))
    }

    fn scan(&self, mut at: usize, end: usize) -> Vec<(Location, Scanned)> {
        let mut found = Vec::new();
        while at < end {
            let (scanned, next) = record::scan(&self.bytes, at, end);
            let (offset, length) = (self.base as u32 + at as u32, (next - at) as u32);
            found.push((Location { segment: self.segment.clone(), offset, length }, scanned));
            at = next;
        }
        found
    }

    /// A group of which the head is damaged: its records may all be there.
    fn salvage_group(&mut self, at: usize, end: usize) {
        let records = self.scan(at, end);
        let intact = records.iter().filter_map(|(place, scanned)| match scanned {
            Scanned::Intact(record) => Some((record.key.clone(), record.revision, place.clone())),
            Scanned::Damaged(_) => None,
        });
        let intact = intact.collect();
        // The first thing that is no record is the head itself.
        let records = records.into_iter().enumerate();
        let others = records.filter(|(nth, (_, s))| *nth > 0 || !matches!(s, Scanned::Damaged(None)));
        let others = others.map(|(_, found)| found).collect();
        self.take_in(others);
        let (from, to) = (self.base + at as u64, self.base + end as u64);
        self.replayed.damage.push(Damage::group_head(self.segment, from, to, intact));
    }

    fn take_in(&mut self, records: Vec<(Location, Scanned)>) {
        self.replayed.records += records.len() as u64;
        for (place, scanned) in records {
            match scanned {
                Scanned::Intact(record) => self.install(place, record),
                Scanned::Damaged(Some(record)) => {
                    self.replayed.damage.push(Damage::value(&place, &record));
                    self.install(place, record);
                }
                Scanned::Damaged(None) => self.replayed.damage.push(Damage::unknown(&place)),
            }
        }
    }

    fn install(&mut self, value: Location, record: KeyRecord) {
        let live = Live { created: record.created, expires_ms: record.expires_ms, value };
        let core = &mut *self.core;
        match record.kind {
            Kind::Put => core.install(core.index.shared_key(&record.key), record.revision, Some(live)),
            Kind::Delete => core.install(core.index.shared_key(&record.key), record.revision, None),
            Kind::Moved => core.relocate(&record.key, record.revision, live),
        }
    }

    /// Whether what is at `at` is what a crash leaves of one group, and not damage: it ends before the group does, or
    /// sectors of it were never written, and no intact group follows.
    fn is_torn(&self, at: usize, content: usize) -> bool {
        if self.next_sequence.is_some() {
            return false;
        }
        let rest = self.bytes.slice(at..content);
        if record::find_group(&rest, 1, self.replayed.sequence).is_some() {
            return false;
        }
        let complete = match rest.len() < GROUP_FRAME_BYTES {
            true => false,
            false => {
                record::group_at(&rest, 0).is_none_or(|head| GROUP_FRAME_BYTES + head.length as usize <= rest.len())
            }
        };
        !complete || has_empty_sector(&rest, self.base as usize + at)
    }
}

fn has_empty_sector(rest: &[u8], offset: usize) -> bool {
    let first = SECTOR_BYTES - (offset % SECTOR_BYTES);
    let (head, aligned) = rest.split_at(first.min(rest.len()));
    std::iter::once(head).chain(aligned.chunks(SECTOR_BYTES)).any(|sector| sector.iter().all(|byte| *byte == 0))
}
