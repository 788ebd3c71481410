//! The sets of peers' addresses, kept up to date pod by pod: who uses a set holds it, and the last one takes it away.
//! Part of `policy_index`, which says which pods there are and what they match.
//! Invariant: pure (tidy: `pure_files`). An address stays as long as any pod brings it (test:
//! `an_address_of_two_pods_stays_with_the_second`).

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use netfilter::Family;

use crate::{
    changes::{Changes, Key, Name, SetKind, Value},
    isolation_class::PeerSetKey,
    model::{PodInfo, PodSelector},
};

struct PeerSet {
    name: Arc<str>,
    users: usize,
    /// By how many matches each is here.
    elements: HashMap<Key, u32>,
}

#[derive(Default)]
pub struct PeerSets {
    sets: HashMap<Arc<PeerSetKey>, PeerSet>,
    of_selector: HashMap<Arc<PodSelector>, HashSet<Arc<PeerSetKey>>>,
    named: usize,
}

impl PeerSets {
    pub fn name(&self, key: &PeerSetKey) -> &str {
        self.sets.get(key).map_or("", |set| &set.name)
    }

    /// One more user. `true` for the first: whoever matches has to be put in.
    pub fn acquire(&mut self, key: &PeerSetKey, changes: &mut Changes) -> bool {
        if let Some(set) = self.sets.get_mut(key) {
            set.users += 1;
            return false;
        }
        let (kind, word) = kind(key);
        self.named += 1;
        let name: Arc<str> = format!("{word}-{}", self.named).into();
        let key = Arc::new(key.clone());
        changes.set((key.family(), name.clone()), None, Some(kind));
        for selector in key.selectors() {
            self.of_selector.entry(selector).or_default().insert(key.clone());
        }
        self.sets.insert(key, PeerSet { name, users: 1, elements: HashMap::new() });
        true
    }

    /// One user less; selectors that nobody needs any more come back.
    pub fn release(&mut self, key: &PeerSetKey, changes: &mut Changes) -> Vec<Arc<PodSelector>> {
        let Some(set) = self.sets.get_mut(key) else { return Vec::new() };
        set.users -= 1;
        if set.users > 0 {
            return Vec::new();
        }
        changes.set((key.family(), set.name.clone()), Some(kind(key).0), None);
        self.sets.remove(key);
        let mut unused = Vec::new();
        for selector in key.selectors() {
            if let Some(sets) = self.of_selector.get_mut(&selector) {
                sets.remove(key);
                if sets.is_empty() {
                    self.of_selector.remove(&selector);
                    unused.push(selector);
                }
            }
        }
        unused
    }

    /// A pod that `selector` matches, in all sets by that selector or in `only` one of them.
    pub fn add(
        &mut self,
        selector: &Arc<PodSelector>,
        pod: &PodInfo,
        ips: &[IpAddr],
        only: Option<&PeerSetKey>,
        changes: &mut Changes,
    ) {
        for (key, element) in self.elements_of(selector, pod, ips, only) {
            let Some(set) = self.sets.get_mut(&key) else { continue };
            let count = set.elements.entry(element).or_default();
            *count += 1;
            if *count == 1 {
                changes.element((key.family(), set.name.clone()), element, None, Some(Value::Member));
            }
        }
    }

    pub fn remove(&mut self, selector: &Arc<PodSelector>, pod: &PodInfo, ips: &[IpAddr], changes: &mut Changes) {
        for (key, element) in self.elements_of(selector, pod, ips, None) {
            let Some(set) = self.sets.get_mut(&key) else { continue };
            let Some(count) = set.elements.get_mut(&element) else { continue };
            *count -= 1;
            if *count == 0 {
                set.elements.remove(&element);
                changes.element((key.family(), set.name.clone()), element, Some(Value::Member), None);
            }
        }
    }

    fn elements_of(
        &self,
        selector: &Arc<PodSelector>,
        pod: &PodInfo,
        ips: &[IpAddr],
        only: Option<&PeerSetKey>,
    ) -> Vec<(Arc<PeerSetKey>, Key)> {
        let sets = self.of_selector.get(selector).into_iter().flatten();
        let sets = sets.filter(|key| only.is_none_or(|only| only == &***key));
        let mut found = Vec::new();
        for key in sets {
            for ip in ips.iter().filter(|ip| Family::of_ip(**ip) == key.family()) {
                match &**key {
                    PeerSetKey::Addresses(..) => found.push((key.clone(), Key::Address(*ip))),
                    PeerSetKey::NamedPorts(_, named) => {
                        for (_, protocol, name) in named.iter().filter(|(of, _, _)| of == selector) {
                            let ports = pod.ports_named(*protocol, name);
                            found.extend(ports.map(|port| (key.clone(), Key::AddressPort(*ip, *protocol, port))));
                        }
                    }
                }
            }
        }
        found
    }

    /// All sets and what is in them.
    pub fn everything(&self, changes: &mut Changes) {
        for (key, set) in &self.sets {
            let name: Name = (key.family(), set.name.clone());
            changes.set(name.clone(), None, Some(kind(key).0));
            for element in set.elements.keys() {
                changes.element(name.clone(), *element, None, Some(Value::Member));
            }
        }
    }
}

fn kind(key: &PeerSetKey) -> (SetKind, &'static str) {
    match key {
        PeerSetKey::Addresses(..) => (SetKind::Addresses, "peers"),
        PeerSetKey::NamedPorts(..) => (SetKind::AddressPorts, "named-ports"),
    }
}
