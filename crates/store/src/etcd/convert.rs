//! etcd's answers in our words.
//! Used by the store and its watches.
//! Invariant: pure (tidy: `pure_files`).

use bytes::Bytes;
use etcd_client::{KeyValue, ResponseHeader};

use super::key_space::KeyReader;
use crate::{Change, Event, Operation, Record, Revision, StoreError, Transaction};

/// etcd's default `--max-request-bytes`.
const ETCD_REQUEST_BYTES: usize = 3 << 19;

const COMPACTED: &str = "required revision has been compacted";
const FUTURE: &str = "required revision is a future revision";
const LEASE_GONE: &str = "requested lease not found";

/// Why etcd would not read a revision; it does not say which ones it has.
pub(super) enum Refusal {
    Compacted,
    Future,
}

pub(super) fn refusal(error: &StoreError) -> Option<Refusal> {
    match error {
        StoreError::Unavailable(reason) if reason.contains(COMPACTED) => Some(Refusal::Compacted),
        StoreError::Unavailable(reason) if reason.contains(FUTURE) => Some(Refusal::Future),
        _ => None,
    }
}

pub(super) fn is_lease_gone(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(reason) if reason.contains(LEASE_GONE))
}

pub(super) fn error(error: &etcd_client::Error) -> StoreError {
    StoreError::Unavailable(match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_string(),
        other => other.to_string(),
    })
}

/// Names the largest value when etcd says that a request is too large.
pub(super) fn too_large(error: StoreError, transaction: &Transaction) -> StoreError {
    let refused = |reason: &str| reason.contains("request is too large") || reason.contains("larger than max");
    let puts = transaction.operations.iter().filter_map(|operation| match operation {
        Operation::Put { key, value, .. } => Some((key, value.len())),
        Operation::Delete { .. } => None,
    });
    match (&error, puts.max_by_key(|(_, size)| *size)) {
        (StoreError::Unavailable(reason), Some((key, size))) if refused(reason) => {
            StoreError::TooLarge { key: key.clone(), size, limit: ETCD_REQUEST_BYTES }
        }
        _ => error,
    }
}

pub(super) fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision().max(0) as u64)
}

pub(super) fn record(reader: &KeyReader, kv: KeyValue) -> Record {
    let (create_revision, mod_revision) = (kv.create_revision() as u64, kv.mod_revision() as u64);
    let (raw, value) = kv.into_key_value();
    Record { key: reader.key(&raw), value: value.into(), create_revision, mod_revision }
}

pub(super) fn event(reader: &KeyReader, event: &etcd_client::Event) -> Option<Event> {
    let kv = event.kv()?;
    let change = match event.event_type() {
        etcd_client::EventType::Put => Change::Put {
            value: Bytes::copy_from_slice(kv.value()),
            created: kv.create_revision() == kv.mod_revision(),
        },
        etcd_client::EventType::Delete => {
            Change::Delete { previous: event.prev_kv().map(|previous| Bytes::copy_from_slice(previous.value())) }
        }
    };
    Some(Event { revision: kv.mod_revision() as u64, key: reader.key(kv.key()), change })
}
