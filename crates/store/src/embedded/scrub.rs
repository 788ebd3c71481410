//! Reads what is live again, slowly, so that damage is found while somebody still has the value.
//! Run by `writer`; the API server's cache gives values back through `RepairSource`.
//! Invariant: a value is put in a damaged one's place only if it fits the checksum that was written with that (test:
//! `damaged_records_are_repaired_from_memory_or_reported`).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};

use super::{
    log::{Batch, Log},
    record::{self, FRAME_HEAD_BYTES, KeyParts, Kind},
    segment::Location,
};
use crate::{
    RepairSource, Revision, StoreError,
    mvcc::{
        Value,
        index::{Live, RangeEntry},
        shared::Shared,
    },
};

/// How often, and how much at once: together the most that scrubbing reads.
pub(crate) const SCRUB_INTERVAL: Duration = Duration::from_secs(2);
const SCRUB_STEP_BYTES: u64 = 256 << 10;
/// Between two rounds: half an hour.
const SCRUB_REST_STEPS: u32 = 900;
/// Keys looked at in one step.
const SCRUB_STEP_KEYS: usize = 256;

pub(crate) type SharedRepairSource = Arc<OnceLock<RepairSource>>;

#[derive(Default)]
pub(crate) struct Scrubber {
    /// Keys before this one are done, in this round.
    cursor: String,
    /// Steps until the next round begins.
    rest: u32,
}

impl Scrubber {
    pub fn step(&mut self, log: &mut Log, shared: &Shared<Location>, source: &SharedRepairSource) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let (found, more) = shared.core.read().index.first(&self.cursor, SCRUB_STEP_KEYS);
        let (mut read, mut ended) = (0, !more);
        for RangeEntry { key, live, .. } in found {
            if read >= SCRUB_STEP_BYTES {
                ended = false;
                break;
            }
            read += u64::from(live.value.length);
            live.value.forget_cached();
            // Failing to read, or to repair, is told; the next round tries again.
            if let Err(error) = verify(log, shared, source, &key) {
                tracing::error!(%error, "found damage in the store");
            }
            self.cursor = format!("{key}\0");
        }
        if ended {
            *self = Self { cursor: String::new(), rest: SCRUB_REST_STEPS };
        }
    }
}

/// Whether the newest value of `key` had to be repaired; an error when it can't be.
pub(crate) fn verify(
    log: &mut Log,
    shared: &Shared<Location>,
    source: &SharedRepairSource,
    key: &str,
) -> Result<bool, StoreError> {
    let newest = {
        let core = shared.core.read();
        core.index.newest(key).and_then(|version| Some((version.revision, version.live.clone()?)))
    };
    let Some((revision, live)) = newest else { return Ok(false) };
    let Err(damage) = live.value.read(key, revision) else { return Ok(false) };
    if !matches!(damage, StoreError::Corrupted(_)) {
        return Err(damage);
    }
    let held = source.get().and_then(|source| source(key, revision));
    let Some(value) = held.filter(|value| fits(&live, key, revision, value)) else { return Err(damage) };
    relocate(log, shared, key, revision, &live, &value)?;
    tracing::warn!(%damage, "repaired a damaged record from memory");
    Ok(true)
}

/// Whether `value` is what was written: with it the record has the checksum that is on disk. When the damage is in the
/// checksum itself nobody can tell, and it is not.
fn fits(live: &Live<Location>, key: &str, revision: Revision, value: &[u8]) -> bool {
    let Ok(bytes) = live.value.bytes() else { return false };
    let Some((_, written)) = record::frame_head(&bytes) else { return false };
    [Kind::Put, Kind::Moved].into_iter().any(|kind| {
        let mut encoded = BytesMut::new();
        let (created, expires_ms) = (live.created, live.expires_ms);
        KeyParts { kind, revision, created, expires_ms, key, value }.encode(&mut encoded);
        record::frame_head(&encoded[..FRAME_HEAD_BYTES]).is_some_and(|(_, checksum)| checksum == written)
    })
}

fn relocate(
    log: &mut Log,
    shared: &Shared<Location>,
    key: &str,
    revision: Revision,
    live: &Live<Location>,
    value: &Bytes,
) -> Result<(), StoreError> {
    let (created, expires_ms) = (live.created, live.expires_ms);
    let mut batch = Batch::new();
    batch.push(&KeyParts { kind: Kind::Moved, revision, created, expires_ms, key, value });
    let (reached, floor) = {
        let core = shared.core.read();
        (core.revision(), core.floor())
    };
    for place in log.append(batch, reached, floor)? {
        shared.core.write().relocate(key, revision, Live { created, expires_ms, value: place });
    }
    Ok(())
}
