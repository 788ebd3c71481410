//! What has to change in the kernel's tables, netted: what came and went in between is not in it.
//! Gathered by `policy_index`; written by `render` and `elements`.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use netfilter::{Family, Protocol};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    Addresses,
    AddressPorts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Address(IpAddr),
    AddressPort(IpAddr, Protocol, u16),
    /// The address twice: from itself to itself.
    Itself(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Member,
    Jump(Arc<str>),
}

/// Before and after.
type Change<T> = (Option<T>, Option<T>);
pub type Name = (Family, Arc<str>);

#[derive(Debug, Default)]
pub struct Changes {
    pub sets: BTreeMap<Name, Change<SetKind>>,
    /// Their rules never change: other rules are another chain.
    pub chains: BTreeMap<Name, Change<Arc<[String]>>>,
    pub elements: BTreeMap<(Family, Arc<str>, Key), Change<Value>>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.elements.is_empty()
    }

    pub fn set(&mut self, name: Name, before: Option<SetKind>, after: Option<SetKind>) {
        if after.is_none() {
            // Its elements go with it.
            let first = (name.0, name.1.clone(), Key::Address(IpAddr::from([0, 0, 0, 0])));
            let held =
                self.elements.range(first..).take_while(|((family, set, _), _)| (*family, set) == (name.0, &name.1));
            let held: Vec<_> = held.map(|(key, _)| key.clone()).collect();
            held.iter().for_each(|key| drop(self.elements.remove(key)));
        }
        record(&mut self.sets, name, before, after);
    }

    pub fn chain(&mut self, name: Name, before: Option<Arc<[String]>>, after: Option<Arc<[String]>>) {
        record(&mut self.chains, name, before, after);
    }

    pub fn element(&mut self, name: Name, key: Key, before: Option<Value>, after: Option<Value>) {
        record(&mut self.elements, (name.0, name.1, key), before, after);
    }
}

fn record<K: Ord, T: PartialEq>(all: &mut BTreeMap<K, Change<T>>, key: K, before: Option<T>, after: Option<T>) {
    match all.entry(key) {
        std::collections::btree_map::Entry::Vacant(entry) if before != after => drop(entry.insert((before, after))),
        std::collections::btree_map::Entry::Vacant(_) => {}
        std::collections::btree_map::Entry::Occupied(mut entry) if entry.get().0 != after => entry.get_mut().1 = after,
        std::collections::btree_map::Entry::Occupied(entry) => drop(entry.remove()),
    }
}
