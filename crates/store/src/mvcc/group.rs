//! Decides a group of transactions, in order, each seeing the ones before it, without changing anything yet.
//! The caller makes the writes durable and then applies them to `Core`.
//! Invariant: pure; a decision depends only on the core, the group so far and the time given (tidy: `pure_files`).

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::{Core, Value};
use crate::{Operation, Outcome, Record, Revision, StoreError, Transaction};

/// A transaction may be as large as this many of the largest values.
const TRANSACTION_VALUES: usize = 8;

/// The changes of one transaction, each at the revision after the one before it.
pub(crate) struct Write {
    /// Of the first change.
    pub first: Revision,
    /// Never empty.
    pub changes: Vec<KeyChange>,
}

impl Write {
    /// Reached by the last change.
    pub fn revision(&self) -> Revision {
        self.first + self.changes.len() as u64 - 1
    }

    pub fn outcome(&self) -> Outcome {
        Outcome::Done { first: self.first, revision: self.revision() }
    }
}

pub(crate) struct KeyChange {
    pub key: Arc<str>,
    /// `None` deletes.
    pub put: Option<Put>,
    /// What a deletion deletes.
    pub previous: Option<Bytes>,
}

#[derive(Clone)]
pub(crate) struct Put {
    pub value: Bytes,
    pub created: Revision,
    pub expires_ms: u64,
}

pub(crate) enum Decision {
    Write(Write),
    /// Nothing to write; this is the answer.
    Answer(Outcome),
}

/// What earlier transactions of the group did to a key: the revision, and the put unless they deleted it.
type Pending = (Revision, Option<Put>);

pub(crate) struct Group {
    revision: Revision,
    pending: HashMap<Arc<str>, Pending>,
}

impl Group {
    pub fn new(revision: Revision) -> Self {
        Self { revision, pending: HashMap::new() }
    }

    /// The revision after all writes decided so far.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn decide<V: Value>(
        &mut self,
        core: &Core<V>,
        transaction: Transaction,
        wall_ms: u64,
    ) -> Result<Decision, StoreError> {
        check_size(&transaction.operations, core.limits().value_bytes)?;
        if transaction.compare.iter().any(|c| self.mod_revision(core, &c.key) != c.mod_revision) {
            let current = transaction.compare.iter().map(|c| self.record(core, &c.key)).collect::<Result<_, _>>()?;
            return Ok(Decision::Answer(Outcome::Conflict { current, revision: self.revision }));
        }
        let first = self.revision + 1;
        let mut changes: Vec<KeyChange> = Vec::with_capacity(transaction.operations.len());
        for operation in last_per_key(transaction.operations) {
            match operation {
                Operation::Put { key, value, ttl_seconds } => {
                    let created = self.create_revision(core, &key).unwrap_or(first + changes.len() as u64);
                    let expires_ms = ttl_seconds.map_or(0, |ttl| wall_ms.saturating_add(ttl.saturating_mul(1000)));
                    let put = Put { value, created, expires_ms };
                    changes.push(KeyChange { key: core.index.shared_key(&key), put: Some(put), previous: None });
                }
                Operation::Delete { key } => {
                    if let Some(record) = self.record(core, &key)? {
                        let key = core.index.shared_key(&key);
                        changes.push(KeyChange { key, put: None, previous: Some(record.value) });
                    }
                }
            }
        }
        if changes.is_empty() {
            return Ok(Decision::Answer(Outcome::Done { first: self.revision, revision: self.revision }));
        }
        for (revision, change) in (first..).zip(&changes) {
            self.pending.insert(change.key.clone(), (revision, change.put.clone()));
        }
        let write = Write { first, changes };
        self.revision = write.revision();
        Ok(Decision::Write(write))
    }

    /// 0 when the key does not exist.
    fn mod_revision<V: Value>(&self, core: &Core<V>, key: &str) -> Revision {
        match self.pending.get(key) {
            Some((revision, Some(_))) => *revision,
            Some((_, None)) => 0,
            None => core.index.newest(key).filter(|v| v.live.is_some()).map_or(0, |v| v.revision),
        }
    }

    fn create_revision<V: Value>(&self, core: &Core<V>, key: &str) -> Option<Revision> {
        match self.pending.get(key) {
            Some((_, put)) => put.as_ref().map(|put| put.created),
            None => core.index.newest(key)?.live.as_ref().map(|live| live.created),
        }
    }

    fn record<V: Value>(&self, core: &Core<V>, key: &str) -> Result<Option<Record>, StoreError> {
        if let Some((revision, put)) = self.pending.get(key) {
            return Ok(put.as_ref().map(|put| Record {
                key: key.to_string(),
                value: put.value.clone(),
                create_revision: put.created,
                mod_revision: *revision,
            }));
        }
        let Some(version) = core.index.newest(key) else { return Ok(None) };
        let Some(live) = &version.live else { return Ok(None) };
        Ok(Some(Record {
            key: key.to_string(),
            value: live.value.read(key, version.revision)?,
            create_revision: live.created,
            mod_revision: version.revision,
        }))
    }
}

fn check_size(operations: &[Operation], limit: usize) -> Result<(), StoreError> {
    let mut total = 0;
    for operation in operations {
        let Operation::Put { key, value, .. } = operation else { continue };
        let size = key.len() + value.len();
        total += size;
        if size > limit || total > limit * TRANSACTION_VALUES {
            return Err(StoreError::TooLarge { key: key.clone(), size: value.len(), limit });
        }
    }
    Ok(())
}

/// A transaction leaves one state of each key, so of several operations on one key only the last counts.
pub(crate) fn last_per_key(operations: Vec<Operation>) -> Vec<Operation> {
    if operations.len() < 2 {
        return operations;
    }
    let last: HashMap<String, usize> =
        operations.iter().enumerate().map(|(at, operation)| (operation.key().to_string(), at)).collect();
    let kept = operations.into_iter().enumerate().filter(|(at, operation)| last[operation.key()] == *at);
    kept.map(|(_, operation)| operation).collect()
}
