//! The rules of all Services together, and what changes in the kernel when one Service changes.
//! Filled from `rules`; its changes are written down by `render`.
//! Invariant: an element exists in the kernel while at least one Service claims it; the first claim gives its value
//! (test: `the_first_owner_of_an_address_keeps_it`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use crate::rules::{Family, Frontend, Key, ServiceRules, Target, Value};

/// Elements that are written down together: few beside all of them, many beside the words around them.
const ELEMENTS_PER_PIECE: usize = 2000;

#[derive(Debug, Default)]
pub struct Ruleset {
    services: HashMap<Arc<str>, ServiceRules>,
    claims: HashMap<Key, Claims>,
}

/// Nearly always one; a Vec per element would be most of the memory.
#[derive(Debug)]
enum Claims {
    One(Arc<str>, Value),
    Many(Vec<(Arc<str>, Value)>),
}

/// What a transaction has to do, in the order in which it has to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub new_affinity: BTreeMap<(Family, Arc<str>), u32>,
    pub new_chains: BTreeMap<(Family, Arc<str>), Vec<String>>,
    pub changed_chains: BTreeMap<(Family, Arc<str>), Vec<String>>,
    /// Key to (value in the kernel, value wanted).
    pub elements: BTreeMap<Key, (Option<Value>, Option<Value>)>,
    pub old_chains: BTreeSet<(Family, Arc<str>)>,
    pub old_affinity: BTreeSet<(Family, Arc<str>)>,
    /// Not in the transaction: Services that newly claim what another has, with that other.
    pub clashes: Vec<(Arc<str>, Arc<str>, Frontend)>,
    /// Not in the transaction: UDP frontends whose flows have to be looked at after it.
    pub moved: BTreeSet<Frontend>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Without what a transaction would do.
    pub fn outside_of_transaction(self) -> Self {
        Self { clashes: self.clashes, moved: self.moved, ..Self::default() }
    }
}

/// UDP frontends through which the kernel may keep sending packets to where it should not: to an endpoint that does not
/// serve any more, or, if the frontend is new, to nowhere at all.
fn moved<'a>(old: &'a ServiceRules, new: &'a ServiceRules) -> impl Iterator<Item = Frontend> + 'a {
    let served = |rules: &ServiceRules, frontend| rules.elements.contains_key(&Key::Service(frontend));
    old.flows.keys().chain(new.flows.keys()).copied().filter(move |frontend| {
        old.flows.get(frontend) != new.flows.get(frontend) || served(old, *frontend) != served(new, *frontend)
    })
}

impl Ruleset {
    /// Puts new rules in place of a Service's old ones and tells what that changes.
    pub fn replace(&mut self, service: &str, new: Option<ServiceRules>) -> Changes {
        let mut changes = Changes::default();
        self.replace_into(service, new, &mut changes);
        changes
    }

    /// The same, gathered with the changes of other Services into one transaction.
    pub fn replace_into(&mut self, service: &str, new: Option<ServiceRules>, changes: &mut Changes) {
        let (owner, old) = match self.services.remove_entry(service) {
            Some((owner, old)) => (owner, old),
            None => (Arc::from(service), ServiceRules::default()),
        };
        let wanted = new.unwrap_or_default();
        for (key, value) in &old.elements {
            if wanted.elements.get(key) != Some(value) {
                self.claim(*key, &owner, wanted.elements.get(key), changes);
            }
        }
        for (key, value) in &wanted.elements {
            if !old.elements.contains_key(key) {
                self.claim(*key, &owner, Some(value), changes);
            }
        }
        for (name, rules) in &wanted.chains {
            match old.chains.get(name) {
                None => drop(changes.new_chains.insert(name.clone(), rules.clone())),
                Some(before) if before != rules => drop(changes.changed_chains.insert(name.clone(), rules.clone())),
                Some(_) => {}
            }
        }
        let gone = old.chains.keys().filter(|name| !wanted.chains.contains_key(*name));
        changes.old_chains.extend(gone.cloned());
        let fresh = wanted.affinity.iter().filter(|(name, _)| !old.affinity.contains_key(*name));
        changes.new_affinity.extend(fresh.map(|(name, seconds)| (name.clone(), *seconds)));
        let gone = old.affinity.keys().filter(|name| !wanted.affinity.contains_key(*name));
        changes.old_affinity.extend(gone.cloned());
        changes.moved.extend(moved(&old, &wanted));
        if wanted != ServiceRules::default() {
            self.services.insert(owner, wanted);
        }
    }

    fn claim(&mut self, key: Key, owner: &Arc<str>, value: Option<&Value>, changes: &mut Changes) {
        let before = self.claims.get(&key).map(|claims| claims.value().clone());
        let mut list = match self.claims.remove(&key) {
            None => Vec::new(),
            Some(Claims::One(holder, held)) => vec![(holder, held)],
            Some(Claims::Many(list)) => list,
        };
        let position = list.iter().position(|(holder, _)| holder == owner);
        match (position, value) {
            (Some(at), Some(value)) => list[at].1 = value.clone(),
            (Some(at), None) => drop(list.remove(at)),
            (None, Some(value)) => list.push((owner.clone(), value.clone())),
            (None, None) => {}
        }
        if let Key::Service(frontend) = key
            && position.is_none()
            && list.len() > 1
        {
            changes.clashes.push((owner.clone(), list[0].0.clone(), frontend));
        }
        let after = list.first().map(|(_, value)| value.clone());
        if list.len() > 1 {
            self.claims.insert(key, Claims::Many(list));
        } else if let Some((holder, value)) = list.pop() {
            self.claims.insert(key, Claims::One(holder, value));
        }
        if before != after {
            // A key may change twice in one transaction; the kernel still has what it had at the first.
            let entry = changes.elements.entry(key).or_insert((before, None));
            entry.1 = after;
            if entry.0 == entry.1 {
                changes.elements.remove(&key);
            }
        }
    }

    /// Everything, as changes against an empty table: what elements name, then the elements, some at a time.
    pub fn everything(&self) -> impl Iterator<Item = Changes> + '_ {
        let mut named = Changes::default();
        for rules in self.services.values() {
            named.new_affinity.extend(rules.affinity.iter().map(|(name, seconds)| (name.clone(), *seconds)));
            named.new_chains.extend(rules.chains.iter().map(|(name, rules)| (name.clone(), rules.clone())));
        }
        let mut claims = self.claims.iter();
        let elements = std::iter::from_fn(move || {
            let some = claims
                .by_ref()
                .take(ELEMENTS_PER_PIECE)
                .map(|(key, claims)| (*key, (None, Some(claims.value().clone()))));
            let piece = Changes { elements: some.collect(), ..Changes::default() };
            (!piece.elements.is_empty()).then_some(piece)
        });
        std::iter::once(named).chain(elements)
    }

    pub fn service(&self, key: &str) -> Option<&ServiceRules> {
        self.services.get(key)
    }

    pub fn services(&self) -> impl Iterator<Item = (&Arc<str>, &ServiceRules)> {
        self.services.iter()
    }

    /// What the map says for `key`, for tests and for those who want to know.
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.claims.get(key).map(Claims::value)
    }

    /// Where UDP flows through `frontend` may go on going, as the Service says that has it now.
    pub fn flows(&self, frontend: Frontend) -> Arc<[Target]> {
        let claims =
            [Key::Service(frontend), Key::Unserved(frontend)].into_iter().find_map(|key| self.claims.get(&key));
        let rules = claims.and_then(|claims| self.services.get(claims.holder()));
        rules.and_then(|rules| rules.flows.get(&frontend)).cloned().unwrap_or_default()
    }

    pub fn udp_frontends(&self) -> impl Iterator<Item = Frontend> {
        self.services.values().flat_map(|rules| rules.flows.keys().copied())
    }

    pub fn endpoints_of(&self, key: &str) -> impl Iterator<Item = &IpAddr> {
        self.services.get(key).into_iter().flat_map(|rules| rules.endpoints.iter())
    }
}

impl Claims {
    fn holder(&self) -> &Arc<str> {
        match self {
            Self::One(holder, _) => holder,
            Self::Many(list) => &list[0].0,
        }
    }

    fn value(&self) -> &Value {
        match self {
            Self::One(_, value) => value,
            Self::Many(list) => &list[0].1,
        }
    }
}
