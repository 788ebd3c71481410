//! Gives disk space back: moves what is still needed out of the oldest segment, then removes it.
//! Run by the writer between groups, in bounded steps.
//! Invariant: only newest versions move, so a deletion is always later in the log than what it deletes. A segment goes
//! only when the index needs nothing of it, whatever is damaged in it (test: `deletions_stay_deleted_over_openings`,
//! `the_power_may_go_at_every_step`).

use crate::{
    Revision, StoreError,
    mvcc::{index::Live, shared::Shared},
};

use super::{
    damaged,
    log::{Batch, Log},
    record::{self, FRAME_HEAD_BYTES, KeyRecord, Kind, Scanned},
    scrub::{self, SharedRepairSource},
    segment::{Location, SEGMENT_HEAD_BYTES, Segment},
};

/// Bytes looked at, and at most written, in one step.
const STEP_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(crate) struct Reclaimer {
    /// How far the oldest segment is done; 0 when none is being worked on.
    cursor: u64,
    /// The oldest segment holds history that is needed until the floor passes this.
    blocked_until: Revision,
}

enum SegmentSurvey {
    Move(Vec<(Location, KeyRecord)>),
    /// History still needs something here.
    Blocked(Revision),
}

impl Reclaimer {
    /// Does some work; false when there is none to do now.
    pub fn step(
        &mut self,
        log: &mut Log,
        shared: &Shared<Location>,
        source: &SharedRepairSource,
    ) -> Result<bool, StoreError> {
        let (revision, floor) = {
            let core = shared.core.read();
            (core.revision(), core.floor())
        };
        let worth_it = log.total_bytes() > 2 * log.live_bytes() + 2 * log.segment_bytes();
        if log.segments.len() < 2 || floor <= self.blocked_until || (self.cursor == 0 && !worth_it) {
            return Ok(false);
        }
        let Some(oldest) = log.segments.front().cloned() else { return Ok(false) };
        let end = oldest.len().map_err(|e| super::unreadable(&oldest.path, &e))?;
        let from = self.cursor.max(SEGMENT_HEAD_BYTES);
        let (records, next) = records(&oldest, from, end, STEP_BYTES)?;
        match survey(shared, records, floor) {
            SegmentSurvey::Blocked(until) => {
                // What was moved up to here stays moved.
                *self = Self { cursor: from, blocked_until: until };
                return Ok(false);
            }
            SegmentSurvey::Move(needed) if !needed.is_empty() => {
                relocate(log, shared, source, needed, (revision, floor))?
            }
            SegmentSurvey::Move(_) => {}
        }
        self.cursor = next;
        if next >= end {
            self.cursor = 0;
            if oldest.live_bytes() > 0 {
                let reason = format!("{} bytes that are needed cannot be read", oldest.live_bytes());
                return Err(damaged(&oldest.path, 0, &reason));
            }
            log.remove_oldest(revision, floor)?;
        }
        Ok(true)
    }

    /// Whether writers have left it so little time that they must wait for it now.
    pub fn is_far_behind(log: &Log) -> bool {
        log.total_bytes() > 4 * log.live_bytes() + 64 * log.segment_bytes()
    }

    /// After a failure: not again before something was written.
    pub fn pause(&mut self, revision: Revision) {
        *self = Self { cursor: 0, blocked_until: revision };
    }
}

/// Key records from `offset` on with their places, about `budget` bytes of them, and where to go on. Of damaged ones
/// those whose head is intact.
fn records(
    segment: &std::sync::Arc<Segment>,
    offset: u64,
    end: u64,
    budget: u64,
) -> Result<(Vec<(Location, KeyRecord)>, u64), StoreError> {
    let mut bytes = segment.read(offset, end.min(offset + budget))?;
    let (mut at, mut records) = (0, Vec::new());
    while at < bytes.len() {
        if offset + (bytes.len() as u64) < end && !is_whole(&bytes, at) {
            if at > 0 {
                break;
            }
            // One record is larger than the budget.
            bytes = segment.read(offset, end)?;
        }
        if record::group_at(&bytes, at).is_some() {
            at += record::GROUP_FRAME_BYTES;
            continue;
        }
        let (scanned, next) = record::scan(&bytes, at, bytes.len());
        let place =
            Location { segment: segment.clone(), offset: offset as u32 + at as u32, length: (next - at) as u32 };
        match scanned {
            Scanned::Intact(record) | Scanned::Damaged(Some(record)) => records.push((place, record)),
            Scanned::Damaged(None) => {}
        }
        at = next;
        if at as u64 >= budget {
            break;
        }
    }
    Ok((records, offset + at as u64))
}

/// Whether the frame at `at` ends within `bytes`, by what it says itself.
fn is_whole(bytes: &[u8], at: usize) -> bool {
    let head = bytes.get(at..at + FRAME_HEAD_BYTES).and_then(record::frame_head);
    head.is_some_and(|(length, _)| at + FRAME_HEAD_BYTES + length <= bytes.len())
}

fn survey(shared: &Shared<Location>, records: Vec<(Location, KeyRecord)>, floor: Revision) -> SegmentSurvey {
    let core = shared.core.read();
    let mut needed = Vec::new();
    for (place, record) in records {
        if record.revision >= floor {
            return SegmentSurvey::Blocked(record.revision);
        }
        let Some((version, _)) = core.index.version(&record.key, record.revision) else { continue };
        if !version.live.as_ref().is_some_and(|live| live.value.is_at(&place)) {
            continue;
        }
        match core.index.newest(&record.key) {
            Some(newest) if newest.revision > record.revision => return SegmentSurvey::Blocked(newest.revision),
            _ => needed.push((place, record)),
        }
    }
    SegmentSurvey::Move(needed)
}

fn relocate(
    log: &mut Log,
    shared: &Shared<Location>,
    source: &SharedRepairSource,
    needed: Vec<(Location, KeyRecord)>,
    (revision, floor): (Revision, Revision),
) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    let mut moved = Vec::new();
    for (place, record) in needed {
        // A damaged one moves if it can be repaired; otherwise it keeps its segment from going.
        if record::decode_frame(&place.bytes()?).is_none() {
            scrub::verify(log, shared, source, &record.key)?;
            continue;
        }
        let mut parts = record.parts();
        parts.kind = Kind::Moved;
        batch.push(&parts);
        moved.push(record);
    }
    let places = log.append(batch, revision, floor)?;
    let mut core = shared.core.write();
    for (record, value) in moved.into_iter().zip(places) {
        let live = Live { created: record.created, expires_ms: record.expires_ms, value };
        core.relocate(&record.key, record.revision, live);
    }
    Ok(())
}
