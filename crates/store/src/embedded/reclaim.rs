//! Gives disk space back: moves what is still needed out of the oldest segment, then removes it.
//! Run by the sequencer between groups, in bounded steps.
//! Invariant: only newest versions move, so a deletion is always later in the log than what it deletes.

use crate::{
    Revision, StoreError,
    mvcc::{index::Live, shared::Shared},
};

use super::{
    log::{Batch, Log},
    record::{KeyRecord, Kind},
    segment::{Location, SEGMENT_HEAD},
};

/// Bytes read, and at most written, in one step.
const STEP_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(crate) struct Reclaimer {
    /// How far the oldest segment is done; 0 when none is being worked on.
    cursor: u64,
    /// The oldest segment holds history that is needed until the floor passes this.
    blocked_until: Revision,
}

enum Survey {
    Move(Vec<(Location, KeyRecord)>),
    /// History still needs something here.
    Blocked(Revision),
}

impl Reclaimer {
    /// Does some work; false when there is none to do now.
    pub fn step(&mut self, log: &mut Log, shared: &Shared<Location>) -> Result<bool, StoreError> {
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
        let from = self.cursor.max(SEGMENT_HEAD);
        let (records, next) = oldest.records(from, end, STEP_BYTES)?;
        match survey(shared, records, floor) {
            Survey::Blocked(until) => {
                // What was moved up to here stays moved.
                *self = Self { cursor: from, blocked_until: until };
                return Ok(false);
            }
            Survey::Move(needed) if !needed.is_empty() => relocate(log, shared, needed, revision, floor)?,
            Survey::Move(_) => {}
        }
        self.cursor = next;
        if next >= end {
            self.cursor = 0;
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

fn survey(shared: &Shared<Location>, records: Vec<(Location, KeyRecord)>, floor: Revision) -> Survey {
    let core = shared.core.read();
    let mut needed = Vec::new();
    for (place, record) in records {
        if record.revision >= floor {
            return Survey::Blocked(record.revision);
        }
        let Some((version, _)) = core.index.version(&record.key, record.revision) else { continue };
        if !version.live.as_ref().is_some_and(|live| live.value.is_at(&place)) {
            continue;
        }
        match core.index.newest(&record.key) {
            Some(newest) if newest.revision > record.revision => return Survey::Blocked(newest.revision),
            _ => needed.push((place, record)),
        }
    }
    Survey::Move(needed)
}

fn relocate(
    log: &mut Log,
    shared: &Shared<Location>,
    needed: Vec<(Location, KeyRecord)>,
    revision: Revision,
    floor: Revision,
) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    for (_, record) in &needed {
        let mut parts = record.parts();
        parts.kind = Kind::Moved;
        batch.push(&parts);
    }
    let places = log.append(batch, revision, floor)?;
    let mut core = shared.core.write();
    for ((_, record), value) in needed.into_iter().zip(places) {
        let live = Live { created: record.created, expires_ms: record.expires_ms, value };
        core.relocate(&record.key, record.revision, live);
    }
    Ok(())
}
