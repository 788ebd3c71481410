//! What is damaged in a log, and whether anything is lost by it.
//! Found by `replay`; a start stops for what is live, `salvage` gives it up.
//! What cannot be told to be dead counts as live.

use std::{path::PathBuf, sync::Arc};

use super::{
    damaged,
    record::KeyRecord,
    segment::{Location, Segment},
};
use crate::{Revision, StoreError, mvcc::Core};

/// So many are named in an error; the rest is counted.
const NAMED_KEYS_MAX: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRecord {
    /// Unknown when the damage is where the key is written.
    pub key: Option<String>,
    pub revision: Option<Revision>,
    pub file: PathBuf,
    pub offset: u64,
}

pub(crate) struct Damage {
    segment: Arc<Segment>,
    offset: u64,
    end: u64,
    reason: String,
    what: DamageKind,
}

enum DamageKind {
    /// The value of a record whose head is intact.
    Value {
        key: String,
        revision: Revision,
        place: Location,
    },
    /// Nobody can say whose.
    Unknown,
    /// Of a group or a segment. The records in it, which are intact.
    Head(Vec<(String, Revision, Location)>),
    SegmentHead,
}

impl Damage {
    pub fn value(place: &Location, record: &KeyRecord) -> Self {
        let reason = format!("{} at revision {}: checksum does not match", record.key, record.revision);
        let what = DamageKind::Value { key: record.key.clone(), revision: record.revision, place: place.clone() };
        Self::at(&place.segment, u64::from(place.offset), u64::from(place.offset + place.length), reason, what)
    }

    pub fn unknown(place: &Location) -> Self {
        let reason = "checksum does not match, of a record that cannot be told".to_string();
        let (from, to) = (u64::from(place.offset), u64::from(place.offset + place.length));
        Self::at(&place.segment, from, to, reason, DamageKind::Unknown)
    }

    pub fn group_head(segment: &Arc<Segment>, from: u64, to: u64, intact: Vec<(String, Revision, Location)>) -> Self {
        let reason = "checksum of a group does not match".to_string();
        Self::at(segment, from, to, reason, DamageKind::Head(intact))
    }

    pub fn missing_group(segment: &Arc<Segment>, at: u64) -> Self {
        Self::at(segment, at, at, "a group is missing before it".into(), DamageKind::Unknown)
    }

    pub fn segment_head(segment: &Arc<Segment>, reason: String) -> Self {
        Self::at(segment, 0, 0, reason, DamageKind::SegmentHead)
    }

    fn at(segment: &Arc<Segment>, offset: u64, end: u64, reason: String, what: DamageKind) -> Self {
        Self { segment: segment.clone(), offset, end, reason, what }
    }

    pub fn ends_at(&self, segment: &Segment, at: u64) -> bool {
        self.segment.id == segment.id && self.end == at
    }

    /// Whether the newest state of any key rests on it.
    pub fn is_live(&self, core: &Core<Location>) -> bool {
        match &self.what {
            DamageKind::Value { key, revision, place } => needs(core, key, *revision, place),
            DamageKind::Unknown => true,
            DamageKind::Head(records) => {
                records.iter().any(|(key, revision, place)| needs(core, key, *revision, place))
            }
            DamageKind::SegmentHead => true,
        }
    }

    /// The record that cannot be read back.
    pub fn lost(&self, core: &Core<Location>) -> Option<LostRecord> {
        let lost = |key: Option<&String>, revision| LostRecord {
            key: key.cloned(),
            revision,
            file: self.segment.path.clone(),
            offset: self.offset,
        };
        match &self.what {
            DamageKind::Value { key, revision, .. } if self.is_live(core) => Some(lost(Some(key), Some(*revision))),
            DamageKind::Unknown => Some(lost(None, None)),
            _ => None,
        }
    }

    pub fn error(&self) -> StoreError {
        damaged(&self.segment.path, self.offset, &self.reason)
    }

    pub fn describe(&self) -> String {
        format!("{} at byte {}: {}", self.segment.path.display(), self.offset, self.reason)
    }
}

fn needs(core: &Core<Location>, key: &str, revision: Revision, place: &Location) -> bool {
    let newest = core.index.newest(key).filter(|version| version.revision == revision);
    newest.and_then(|version| version.live.as_ref()).is_some_and(|live| live.value.is_at(place))
}

/// Fails if anything live is damaged; says how many dead records are.
pub(crate) fn refuse_live(damage: &[Damage], core: &Core<Location>) -> Result<u64, StoreError> {
    let live: Vec<_> = damage.iter().filter(|damage| damage.is_live(core)).collect();
    let Some(last) = live.get(..live.len().min(NAMED_KEYS_MAX)).and_then(<[_]>::last) else {
        return Ok(damage.len() as u64);
    };
    let mut all: Vec<String> =
        live.iter().take(NAMED_KEYS_MAX).rev().skip(1).rev().map(|damage| damage.describe()).collect();
    let StoreError::Corrupted(text) = last.error() else { unreachable!("damage is corruption") };
    all.push(text);
    if live.len() > NAMED_KEYS_MAX {
        all.insert(0, format!("{} places are damaged, among them", live.len()));
    }
    Err(StoreError::Corrupted(all.join("; ")))
}
