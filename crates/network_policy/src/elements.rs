//! Changes of elements alone, in the kernel's form: a pod that came, went or moved.
//! Fed by `run`; written by `netfilter::set_elements`. Everything else is `render`'s.

use std::collections::BTreeMap;

use netfilter::set_elements::{
    ELEMENTS_PER_BATCH_MAX, ElementData, ElementList, SetName, Verb, address_key, port_key, protocol_key,
};

use crate::changes::{Changes, Key, Value};

/// Whether they fit one batch.
pub fn are_few(changes: &Changes) -> bool {
    changes.elements.len() <= ELEMENTS_PER_BATCH_MAX
}

/// The elements by message.
pub fn lists(changes: &Changes) -> BTreeMap<SetName<'_>, ElementList> {
    let mut lists: BTreeMap<SetName<'_>, ElementList> = BTreeMap::new();
    for ((family, set, key), (before, after)) in &changes.elements {
        let name = |verb| SetName { verb, family: family.number(), set };
        if before.is_some() {
            lists.entry(name(Verb::Delete)).or_default().put(&key_bytes(key), None);
        }
        match after {
            Some(Value::Member) => lists.entry(name(Verb::Add)).or_default().put(&key_bytes(key), None),
            Some(Value::Jump(chain)) => {
                lists.entry(name(Verb::Add)).or_default().put(&key_bytes(key), Some(&ElementData::jump(chain)))
            }
            None => {}
        }
    }
    lists
}

fn key_bytes(key: &Key) -> Vec<u8> {
    match key {
        Key::Address(ip) => address_key(*ip),
        Key::AddressPort(ip, protocol, port) => {
            [&address_key(*ip)[..], &protocol_key(protocol.number()), &port_key(*port)].concat()
        }
        Key::Itself(ip) => address_key(*ip).repeat(2),
    }
}
