//! The node ports in use as upstream's API server writes them down: one bitmap in a RangeAllocation for all of them.
//! Written with every Service whose ports change, in a store that upstream's servers may share; elsewhere `service` has
//! a key of its own for each port.
//! A port that the bitmap has is never taken again, whoever wrote it there.

use std::ops::RangeInclusive;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use api::ApiError;
use store::{Compare, Operation, Record, Revision};

use super::service::NODE_PORTS;
use crate::storage;

pub const KEY: &str = "/registry/ranges/servicenodeports";

/// The bitmap as it was read, and the object that it came in.
pub struct NodePortRange {
    ports: RangeInclusive<u16>,
    object: Value,
    /// One for each port, from the first of the range on.
    taken: Vec<bool>,
    revision: Revision,
}

/// The ports that a transaction takes, with the place of each among its comparisons, and those that it frees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PortChanges {
    taken: Vec<(u16, usize)>,
    freed: Vec<u16>,
}

impl PortChanges {
    pub fn of(compare: &[Compare], operations: &[Operation]) -> Self {
        let port = |key: &str| key.strip_prefix(NODE_PORTS)?.parse::<u16>().ok();
        let mut changes = Self::default();
        for operation in operations {
            let Some(number) = port(operation.key()) else { continue };
            match operation {
                Operation::Put { key, .. } => {
                    changes.taken.extend(compare.iter().position(|c| c.key == *key).map(|place| (number, place)));
                }
                Operation::Delete { .. } => changes.freed.push(number),
            }
        }
        changes
    }

    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.freed.is_empty()
    }
}

impl NodePortRange {
    /// Upstream's words where another server has another range.
    pub fn read(record: Option<&Record>, ports: &RangeInclusive<u16>) -> Result<Self, ApiError> {
        let new = Self::new(ports);
        let Some(record) = record else { return Ok(new) };
        let object = storage::bookkeeping_value(&record.value);
        let object = object.filter(|object| object["kind"] == "RangeAllocation");
        let object = object.ok_or_else(|| ApiError::internal(format!("unable to decode {KEY}")))?;
        if object["range"] != new.object["range"] {
            return Err(ApiError::internal("the provided range does not match the current range"));
        }
        let bytes = BASE64_STANDARD.decode(object["data"].as_str().unwrap_or_default()).unwrap_or_default();
        // The number's lowest bit, at its end, is the first port.
        let bit = |at: usize| bytes.iter().rev().nth(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        let taken = (0..new.taken.len()).map(bit).collect();
        Ok(Self { object, taken, revision: record.mod_revision, ..new })
    }

    /// Without a port.
    pub fn new(ports: &RangeInclusive<u16>) -> Self {
        let range = format!("{}-{}", ports.start(), ports.end());
        let object = json!({ "kind": "RangeAllocation", "apiVersion": "v1", "metadata": {}, "range": range });
        Self { ports: ports.clone(), object, taken: vec![false; ports.len()], revision: 0 }
    }

    pub fn has(&self, port: u16) -> bool {
        self.place(port).is_some_and(|at| self.taken[at])
    }

    fn place(&self, port: u16) -> Option<usize> {
        self.ports.contains(&port).then(|| usize::from(port - self.ports.start()))
    }

    pub fn set(&mut self, port: u16, taken: bool) {
        if let Some(at) = self.place(port) {
            self.taken[at] = taken;
        }
    }

    /// Makes the changes; `Err` has the place of a port that somebody has already.
    pub fn apply(&mut self, changes: &PortChanges) -> Result<(), usize> {
        changes.freed.iter().for_each(|port| self.set(*port, false));
        for (port, place) in &changes.taken {
            if self.has(*port) {
                return Err(*place);
            }
            self.set(*port, true);
        }
        Ok(())
    }

    /// What writes it, if nobody wrote it since it was read, or since `revision`.
    pub fn write(&self, revision: Option<Revision>) -> (Compare, Operation) {
        let mut bytes = vec![0u8; self.taken.len().div_ceil(8)];
        for (at, _) in self.taken.iter().enumerate().filter(|(_, taken)| **taken) {
            bytes[at / 8] |= 1 << (at % 8);
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        bytes.reverse();
        let mut object = self.object.clone();
        object["data"] = BASE64_STANDARD.encode(bytes).into();
        let put = Operation::Put { key: KEY.into(), value: storage::encode(&object), ttl_seconds: None };
        (Compare { key: KEY.into(), mod_revision: revision.unwrap_or(self.revision) }, put)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(range: &NodePortRange) -> Record {
        let (_, Operation::Put { key, value, .. }) = range.write(None) else { panic!("a put") };
        Record { key, value, create_revision: 1, mod_revision: 1 }
    }

    #[test]
    fn ports_are_bits_from_the_end() {
        let ports = 30000..=30019;
        let mut range = NodePortRange::read(None, &ports).unwrap();
        let puts = |port: u16| {
            let key = format!("{NODE_PORTS}{port}");
            let put = Operation::Put { key: key.clone(), value: "d/s".into(), ttl_seconds: None };
            (Compare { key, mod_revision: 0 }, put)
        };
        let (compare, operations): (Vec<_>, Vec<_>) = [30000, 30003, 30012].map(puts).into_iter().unzip();
        let changes = PortChanges::of(&compare, &operations);
        assert_eq!(range.apply(&changes), Ok(()));
        let record = written(&range);
        let value: Value = serde_json::from_slice(&record.value).unwrap();
        // 1<<0 | 1<<3 | 1<<12 as a big-endian number.
        assert_eq!((&value["range"], &value["data"]), (&json!("30000-30019"), &json!(BASE64_STANDARD.encode([16, 9]))));
        let mut again = NodePortRange::read(Some(&record), &ports).unwrap();
        assert!([30000, 30003, 30012].iter().all(|port| again.has(*port)) && !again.has(30001) && !again.has(1));
        assert_eq!(again.apply(&changes), Err(0), "taken already");
        let freed = [Operation::Delete { key: format!("{NODE_PORTS}30012") }];
        again.apply(&PortChanges::of(&[], &freed)).unwrap();
        assert!(!NodePortRange::read(Some(&written(&again)), &ports).unwrap().has(30012));
        let other = NodePortRange::read(Some(&record), &(31000..=31019)).err().unwrap();
        let words = "Internal error occurred: the provided range does not match the current range";
        assert_eq!(other.message, words);
    }
}
