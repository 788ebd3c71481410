//! The append-only log: groups of records made durable by one sync, in segments of bounded size.
//! Written by `sequencer` and `reclaim`, read back by `replay`.
//! Space ahead of the end is filled with zeroes beforehand: a sync of bytes that are already part of the file waits for
//! the disk alone, and not for everything else that changes the file system at that moment.
//! A write that failed is cut off again. A sync that failed is never tried again: the system may have dropped the pages and
//! report success the next time. What the file held before was synced before; the next group goes to another file, and
//! `replay` takes nothing from the old one that the new one has instead.
//! Invariant: nothing half-written is ever followed by data in the same segment (test:
//! `acknowledged_writes_survive_a_disk_that_lies`).

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::BytesMut;

use super::{
    record::{GROUP_FRAME_BYTES, GroupHead, KeyParts},
    segment::{Location, SEGMENT_HEAD_BYTES, Segment},
};
use crate::{
    Revision, StoreError,
    disk::{Disk, SyncPoint},
};

pub(crate) struct Log {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
    /// Oldest first; the last is written to.
    pub segments: VecDeque<Arc<Segment>>,
    /// Where the next group goes in the last segment. Everything before is durable.
    end: u64,
    /// The length of the last segment's file: zeroes from `end` to here.
    reserved: u64,
    /// Bytes in all segments but the last.
    sealed_bytes: u64,
    sequence: u64,
    tail: LogTail,
    segment_bytes: u64,
    /// The memory of the last batch, for the next one.
    spare: BytesMut,
}

/// What follows the end of the last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogTail {
    Zeroes,
    /// Remains of a write that failed.
    Dirty,
    /// A sync failed: nobody knows, and nobody can ask.
    Unknown,
}

/// Larger batches give their memory back.
const SPARE_BYTES: usize = 1 << 20;
/// How far ahead space is made.
const RESERVE_BYTES: u64 = 1 << 20;
/// With small segments, not further ahead than so many of them.
const RESERVE_SEGMENTS: u64 = 16;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Records on their way into the log.
pub(crate) struct Batch {
    bytes: BytesMut,
    /// Offset and length of every record, from the start of the group.
    places: Vec<(usize, usize)>,
}

impl Batch {
    pub fn new() -> Self {
        Self::within(BytesMut::with_capacity(4096))
    }

    fn within(mut bytes: BytesMut) -> Self {
        bytes.clear();
        bytes.resize(GROUP_FRAME_BYTES, 0);
        Self { bytes, places: Vec::new() }
    }

    pub fn push(&mut self, record: &KeyParts<'_>) {
        let start = self.bytes.len();
        record.encode(&mut self.bytes);
        self.places.push((start, self.bytes.len() - start));
    }
}

impl Log {
    pub fn create(disk: Arc<dyn Disk>, directory: &Path, segment_bytes: u64) -> io::Result<Self> {
        let segments = VecDeque::from([Segment::create(&*disk, directory, 1)?]);
        Ok(Self::resume(disk, directory, segments, SEGMENT_HEAD_BYTES, 0, 0, segment_bytes))
    }

    /// `end` of the last group, which is that of the file.
    pub fn resume(
        disk: Arc<dyn Disk>,
        directory: &Path,
        segments: VecDeque<Arc<Segment>>,
        end: u64,
        sealed_bytes: u64,
        sequence: u64,
        segment_bytes: u64,
    ) -> Self {
        let directory = directory.to_path_buf();
        let (reserved, tail, spare) = (end, LogTail::Zeroes, BytesMut::new());
        Self { disk, directory, segments, end, reserved, sealed_bytes, sequence, tail, segment_bytes, spare }
    }

    /// An empty batch, in the memory of the last one.
    pub fn batch(&mut self) -> Batch {
        Batch::within(std::mem::take(&mut self.spare))
    }

    /// Makes the batch durable and says where its records are. On an error it is not in the log, unless the process
    /// ends before the next append: then it may be, as a whole.
    pub fn append(
        &mut self,
        mut batch: Batch,
        revision: Revision,
        floor: Revision,
    ) -> Result<Vec<Location>, StoreError> {
        let active = self.writable().map_err(|error| self.failed(&error))?;
        let head = GroupHead {
            sequence: self.sequence + 1,
            revision,
            floor,
            oldest_segment: self.segments.front().map_or(active.id, |oldest| oldest.id),
            length: (batch.bytes.len() - GROUP_FRAME_BYTES) as u32,
        };
        let mut encoded = BytesMut::with_capacity(GROUP_FRAME_BYTES);
        head.encode(&mut encoded);
        batch.bytes[..GROUP_FRAME_BYTES].copy_from_slice(&encoded);

        let written = active.file.write_at(&batch.bytes, self.end);
        let written = written.and_then(|()| self.reserve(&active, self.end + batch.bytes.len() as u64));
        if let Err(error) = written {
            self.tail = LogTail::Dirty;
            // Best effort now; `writable` insists before the next group.
            let _ = self.cut_back(&active);
            return Err(self.failed(&error));
        }
        if let Err(error) = active.file.sync(SyncPoint::Group) {
            self.tail = LogTail::Unknown;
            return Err(self.failed(&error));
        }
        let start = self.end;
        self.end += batch.bytes.len() as u64;
        self.sequence += 1;
        let place = |(offset, length): (usize, usize)| Location {
            segment: active.clone(),
            offset: (start + offset as u64) as u32,
            length: length as u32,
        };
        let places = batch.places.into_iter().map(place).collect();
        if batch.bytes.capacity() <= SPARE_BYTES {
            self.spare = batch.bytes;
        }
        Ok(places)
    }

    /// The last segment, fit to be written to.
    fn writable(&mut self) -> io::Result<Arc<Segment>> {
        let Some(active) = self.segments.back().cloned() else { unreachable!("a log has a segment") };
        if self.tail == LogTail::Dirty {
            self.cut_back(&active)?;
        }
        match self.tail {
            LogTail::Unknown if self.end == SEGMENT_HEAD_BYTES => self.replace_empty(&active),
            LogTail::Zeroes if self.end < self.segment_bytes => Ok(active),
            _ => self.begin_segment(),
        }
    }

    /// Closes the last segment and goes on in a new one.
    pub fn begin_segment(&mut self) -> io::Result<Arc<Segment>> {
        let Some(active) = self.segments.back().cloned() else { unreachable!("a log has a segment") };
        // What is ahead is not needed; if it stays, `replay` knows it for what it is.
        let _ = active.file.set_len(self.end);
        let next = Segment::create(&*self.disk, &self.directory, active.id + 1)?;
        self.sealed_bytes += self.end;
        (self.end, self.reserved, self.tail) = (SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES, LogTail::Zeroes);
        self.segments.push_back(next.clone());
        Ok(next)
    }

    /// A segment that holds nothing yet and can't be trusted makes place for another file of the same name, so that a
    /// disk that fails for long does not fill up with them.
    fn replace_empty(&mut self, active: &Segment) -> io::Result<Arc<Segment>> {
        match self.disk.remove(&active.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let next = Segment::create(&*self.disk, &self.directory, active.id)?;
        (self.end, self.reserved, self.tail) = (SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES, LogTail::Zeroes);
        self.segments.pop_back();
        self.segments.push_back(next.clone());
        Ok(next)
    }

    /// Makes space after `from`, if there is none left and the disk has some.
    fn reserve(&mut self, active: &Segment, from: u64) -> io::Result<()> {
        if from <= self.reserved {
            return Ok(());
        }
        let until = from + RESERVE_BYTES.min(RESERVE_SEGMENTS * self.segment_bytes);
        let mut at = from;
        while at < until {
            let piece = &ZEROES[..ZEROES.len().min((until - at) as usize)];
            if active.file.write_at(piece, at).is_err() {
                // A full disk may still have room for what is really to be written.
                active.file.set_len(from)?;
                self.reserved = from;
                return Ok(());
            }
            at += piece.len() as u64;
        }
        self.reserved = until;
        Ok(())
    }

    /// Gives the space ahead back. Not needed for anything but tidiness.
    pub fn close(&mut self) {
        if let Some(active) = self.segments.back().cloned()
            && let Err(error) = active.file.set_len(self.end)
        {
            tracing::warn!(%error, "failed to tidy up the store");
        }
    }

    fn cut_back(&mut self, active: &Segment) -> io::Result<()> {
        active.file.set_len(self.end)?;
        self.reserved = self.end;
        let synced = active.file.sync(SyncPoint::CutBack);
        self.tail = if synced.is_ok() { LogTail::Zeroes } else { LogTail::Unknown };
        synced
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space, writes then work again",
            _ => "",
        };
        StoreError::Unavailable(format!("failed to write to {}: {error}{advice}", self.directory.display()))
    }

    /// Removes the oldest segment, of which nothing is needed any more.
    pub fn remove_oldest(&mut self, revision: Revision, floor: Revision) -> Result<(), StoreError> {
        if self.segments.len() < 2 {
            return Ok(());
        }
        let Some(oldest) = self.segments.pop_front() else { return Ok(()) };
        // First say in the log that it is not needed, so that a missing file can be told from a removed one. A removal
        // that a power cut takes back is made again at the next start.
        if let Err(error) = self.append(Batch::new(), revision, floor) {
            self.segments.push_front(oldest);
            return Err(error);
        }
        self.sealed_bytes = self.sealed_bytes.saturating_sub(oldest.len().unwrap_or(0));
        self.disk.remove(&oldest.path).map_err(|e| self.failed(&e))
    }

    /// Counts the groups.
    #[cfg(test)]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn total_bytes(&self) -> u64 {
        self.sealed_bytes + self.end
    }

    pub fn live_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.live_bytes()).sum()
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }
}
