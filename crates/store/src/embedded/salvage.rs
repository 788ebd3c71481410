//! Makes a store that can be started again out of a damaged one, and says what is lost.
//! For `minke store check --salvage`; `replay` finds what can be read.
//! Invariant: the old segments count until the last of the new ones is durable; nothing is given up without being named
//! (test: `what_is_salvaged_starts_again_and_says_what_is_lost`).

use std::{path::Path, sync::Arc};

use super::{
    damage::{self, LostRecord},
    lock,
    log::{Batch, Log},
    read_all,
    record::{KeyParts, Kind},
    recovery, replay, unreadable,
};
use crate::{
    Limits, Revision, StoreError,
    backup::{BATCH_RECORDS, restored_revision},
    disk::{Disk, RealDisk},
    mvcc::Value,
};

/// What came of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Nothing had to be done.
    pub was_sound: bool,
    pub revision: Revision,
    pub kept_keys: u64,
    /// What can't be read back. Where the key is unknown an older value of it may have come back.
    pub lost: Vec<LostRecord>,
}

/// Keeps what can be read of the damaged store at `path`. What was there before is kept beside it, in files that end
/// with `.damaged`. The revision rises so far that every watcher starts again.
pub fn salvage(path: impl AsRef<Path>, wall_ms: u64) -> Result<SalvageReport, StoreError> {
    salvage_on(Arc::new(RealDisk), path.as_ref(), wall_ms)
}

pub(crate) fn salvage_on(disk: Arc<dyn Disk>, path: &Path, wall_ms: u64) -> Result<SalvageReport, StoreError> {
    replay::segment_ids(&*disk, path)?;
    let _lock = lock(&*disk, path)?;
    let (core, mut replayed) = read_all(&*disk, path)?;
    let damage = std::mem::take(&mut replayed.damage);
    let mut lost: Vec<_> = damage.iter().filter_map(|damage| damage.lost(&core)).collect();
    if damage::refuse_live(&damage, &core).is_ok() {
        let kept_keys = core.index.len() as u64;
        return Ok(SalvageReport { was_sound: true, revision: core.revision(), kept_keys, lost });
    }
    let old: Vec<_> = replayed.segments.iter().cloned().collect();
    let revision = restored_revision(core.revision(), wall_ms);
    let mut log = recovery::settle(disk.clone(), path, replayed, Limits::default().segment_bytes)?.log;
    log.begin_segment().map_err(|e| unreadable(path, &e))?;
    let mut kept_keys = 0;
    let (mut start, mut more) = (String::new(), true);
    while more {
        let (found, rest) = core.index.first(&start, BATCH_RECORDS);
        more = rest;
        let mut batch = Batch::new();
        for found in found {
            start = format!("{}\0", found.key);
            match found.live.value.read(&found.key, found.revision) {
                Ok(value) => batch.push(&KeyParts {
                    kind: Kind::Moved,
                    revision: found.revision,
                    created: found.live.created,
                    expires_ms: found.live.expires_ms,
                    key: &found.key,
                    value: &value,
                }),
                Err(StoreError::Corrupted(_)) => {
                    name(&mut lost, &found.key, found.revision, &found.live.value);
                    continue;
                }
                Err(error) => return Err(error),
            }
            kept_keys += 1;
        }
        log.append(batch, revision, revision)?;
    }
    commit(&mut log, &old, revision)?;
    for segment in old {
        let aside = segment.path.with_extension("log.damaged");
        disk.rename(&segment.path, &aside).map_err(|e| unreadable(&segment.path, &e))?;
    }
    Ok(SalvageReport { was_sound: false, revision, kept_keys, lost })
}

fn name(lost: &mut Vec<LostRecord>, key: &str, revision: Revision, place: &super::segment::Location) {
    if lost.iter().any(|known| known.key.as_deref() == Some(key)) {
        return;
    }
    let (file, offset) = (place.segment.path.clone(), u64::from(place.offset));
    lost.push(LostRecord { key: Some(key.to_string()), revision: Some(revision), file, offset });
}

/// Says in the log that the old segments are not needed.
fn commit(log: &mut Log, old: &[Arc<super::segment::Segment>], revision: Revision) -> Result<(), StoreError> {
    log.segments.retain(|segment| old.iter().all(|old| old.id != segment.id));
    log.append(Batch::new(), revision, revision).map(drop)
}
