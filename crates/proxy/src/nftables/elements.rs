//! Changes of elements alone, in the kernel's form.
//! Fed by `run` with what `ruleset` says; written by `netfilter::set_elements`. Everything but elements is `render`'s.

use std::collections::BTreeMap;

use netfilter::set_elements::{
    ELEMENTS_PER_BATCH_MAX, ElementData, ElementList, SetName, Verb, address_key, port_key, protocol_key,
};

use super::render::{balancer_name, set_of};
use crate::{
    rules::{Frontend, Key, Value},
    ruleset::Changes,
};

/// Whether a change is of elements alone, and of few.
pub fn only_elements(changes: &Changes) -> bool {
    let Changes { new_affinity, new_chains, changed_chains, elements, old_chains, old_affinity, .. } = changes;
    elements.len() <= ELEMENTS_PER_BATCH_MAX
        && new_affinity.is_empty()
        && new_chains.is_empty()
        && changed_chains.is_empty()
        && old_chains.is_empty()
        && old_affinity.is_empty()
}

/// The elements by message.
pub fn lists(changes: &Changes) -> BTreeMap<SetName<'static>, ElementList> {
    let mut lists: BTreeMap<SetName<'static>, ElementList> = BTreeMap::new();
    for (key, (before, after)) in &changes.elements {
        let (family, set) = set_of(key);
        let name = |verb| SetName { verb, family: family.number(), set };
        if before.is_some() {
            lists.entry(name(Verb::Delete)).or_default().put(&key_bytes(key), None);
        }
        if let Some(value) = after {
            lists.entry(name(Verb::Add)).or_default().put(&key_bytes(key), data(value).as_ref());
        }
    }
    lists
}

fn key_bytes(key: &Key) -> Vec<u8> {
    let frontend =
        |f: &Frontend| [&address_key(f.ip)[..], &protocol_key(f.protocol.number()), &port_key(f.port)].concat();
    match key {
        Key::Service(f) | Key::Unserved(f) => frontend(f),
        // Made by the machine for itself, so in its own order of bytes.
        Key::Endpoint(f, index) => [frontend(f), index.to_ne_bytes().to_vec()].concat(),
        Key::ClusterIp(ip) => address_key(*ip),
        Key::Hairpin(ip) => address_key(*ip).repeat(2),
    }
}

fn data(value: &Value) -> Option<ElementData> {
    match value {
        Value::Member => None,
        Value::Balance { count, masquerade } => Some(ElementData::goto(&balancer_name(*count, *masquerade))),
        Value::Chain(name) => Some(ElementData::goto(name)),
        Value::Target(target) => {
            Some(ElementData::value(&[address_key(target.ip), port_key(target.port).to_vec()].concat()))
        }
        Value::Reject => Some(ElementData::goto("refuse")),
        Value::Drop => Some(ElementData::drop()),
    }
}
