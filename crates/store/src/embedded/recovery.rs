//! What a start does with what it finds: refuses damage, cuts off what was torn, and makes sure of the rest.
//! Called by `writer`; `replay` reads.
//! Invariant: nothing is served before it is durable; what a crashed process left in the system's memory is not (test:
//! `the_power_may_go_at_every_step`).

use std::{path::Path, sync::Arc};

use super::{
    damage,
    log::Log,
    replay::{self, Replayed},
    segment::Location,
    unreadable,
};
use crate::{
    StoreError,
    disk::{Disk, SyncPoint},
    mvcc::Core,
};

pub(crate) struct Recovered {
    pub log: Log,
    pub torn_bytes: u64,
}

pub(crate) fn recover(
    disk: Arc<dyn Disk>,
    path: &Path,
    core: &mut Core<Location>,
    segment_bytes: u64,
) -> Result<Recovered, StoreError> {
    let ids = replay::segment_ids(&*disk, path)?;
    let segments = replay::open_segments(&*disk, path, &ids)?;
    let replayed = replay::replay(path, segments.unwrap_or_default(), core)?;
    if replayed.segments.is_empty() {
        return create(disk, path, segment_bytes);
    }
    let dead = damage::refuse_live(&replayed.damage, core)?;
    if dead > 0 {
        tracing::warn!(path = %path.display(), dead, "found damaged records that nothing needs any more");
    }
    settle(disk, path, replayed, segment_bytes)
}

fn create(disk: Arc<dyn Disk>, path: &Path, segment_bytes: u64) -> Result<Recovered, StoreError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_directory(parent, SyncPoint::StoreName).map_err(|e| unreadable(parent, &e))?;
    }
    let log = Log::create(disk, path, segment_bytes).map_err(|e| unreadable(path, &e))?;
    Ok(Recovered { log, torn_bytes: 0 })
}

/// Makes durable what was found, without the torn tail, and goes on after it.
pub(crate) fn settle(
    disk: Arc<dyn Disk>,
    path: &Path,
    replayed: Replayed,
    segment_bytes: u64,
) -> Result<Recovered, StoreError> {
    for dead in &replayed.dead {
        disk.remove(&dead.path).map_err(|e| unreadable(&dead.path, &e))?;
    }
    for (segment, end) in &replayed.slack {
        segment.file.set_len(*end).map_err(|e| unreadable(&segment.path, &e))?;
    }
    // A process that crashed may have written the newest group and not synced it, or the sync may have failed and the
    // system taken the pages for clean since. Written once more, a sync is about these very bytes.
    if let Some((segment, from, to)) = &replayed.newest_group {
        let again = segment.file.write_at(&segment.read(*from, *to)?, *from);
        let again = again.and_then(|()| segment.file.sync(SyncPoint::RecoveredLog));
        again.map_err(|e| unreadable(&segment.path, &e))?;
    }
    // A torn tail must be off before anything takes its place. The newest group may be in an earlier segment.
    if let Some(last) = replayed.segments.back() {
        last.file.sync(SyncPoint::RecoveredLog).map_err(|e| unreadable(&last.path, &e))?;
    }
    disk.sync_directory(path, SyncPoint::RecoveredNames).map_err(|e| unreadable(path, &e))?;
    let Replayed { segments, end, sealed_bytes, sequence, torn_bytes, .. } = replayed;
    let log = Log::resume(disk, path, segments, end, sealed_bytes, sequence, segment_bytes);
    Ok(Recovered { log, torn_bytes })
}
