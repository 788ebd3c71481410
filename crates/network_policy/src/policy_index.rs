//! Namespaces, pods and policies in; what has to change in the kernel's tables out.
//! Fed by `run`; sets of peers are `peer_sets`', the rules of a chain `isolation_class`'.
//! Invariant: pure (tidy: `pure_files`). A pod that comes or goes changes elements, never rules, unless it is the first
//! or last of its class (test: `pods_are_elements`).

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use netfilter::Family;

use crate::{
    changes::{Changes, Key, Value},
    isolation_class::{IsolationClass, PeerSetKey},
    model::{Direction, Labels, NamespaceScope, PodInfo, PodSelector, PolicyInfo},
    peer_sets::PeerSets,
};

/// Maps from a pod's address to its chain: for packets of who called, and for the answers.
pub fn map_name(direction: Direction, reply: bool) -> &'static str {
    match (direction, reply) {
        (Direction::Ingress, false) => "ingress",
        (Direction::Ingress, true) => "ingress-reply",
        (Direction::Egress, false) => "egress",
        (Direction::Egress, true) => "egress-reply",
    }
}

/// The set of isolated pods' addresses, each paired with itself: no policy keeps a pod from itself.
pub const ITSELF: &str = "itself";

/// Pods of one namespace with the same labels: whatever selects one selects all.
type Identity = (Arc<str>, Arc<Labels>);

#[derive(Default)]
struct IdentityEntry {
    pods: HashSet<Arc<str>>,
    /// Those in use that match.
    selectors: Vec<Arc<PodSelector>>,
    /// Those that select it, in order.
    policies: Vec<Arc<str>>,
}

#[derive(Default)]
struct NamespaceEntry {
    labels: Labels,
    identities: HashSet<Identity>,
    policies: BTreeSet<Arc<str>>,
}

struct PodEntry {
    info: PodInfo,
    /// Those that are really its own.
    ips: Vec<IpAddr>,
}

/// The addresses that the network plugin gave a pod, known before its status is.
struct PodClaim {
    uid: Arc<str>,
    ips: Vec<IpAddr>,
}

struct ClassEntry {
    name: Arc<str>,
    pods: usize,
}

struct Subject {
    pod: Arc<str>,
    class: Arc<IsolationClass>,
}

#[derive(Default)]
pub struct PolicyIndex {
    namespaces: HashMap<Arc<str>, NamespaceEntry>,
    identities: HashMap<Identity, IdentityEntry>,
    pods: HashMap<Arc<str>, PodEntry>,
    policies: HashMap<Arc<str>, PolicyInfo>,
    /// Selectors in use, and whom they match.
    selectors: HashMap<Arc<PodSelector>, HashSet<Identity>>,
    peer_sets: PeerSets,
    classes: HashMap<Arc<IsolationClass>, ClassEntry>,
    subjects: HashMap<(Direction, IpAddr), Subject>,
    claims: HashMap<Arc<str>, PodClaim>,
    claimed_by: HashMap<IpAddr, Arc<str>>,
    /// Whose policies have to be looked at again.
    stale_identities: HashSet<Identity>,
    stale_pods: HashSet<Arc<str>>,
    classes_named: usize,
    changes: Changes,
}

impl PolicyIndex {
    pub fn apply_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let labels = labels.unwrap_or_default();
        let entry = self.namespaces.entry(name.into()).or_default();
        if entry.labels == labels {
            self.forget_namespace(name);
            return;
        }
        entry.labels = labels;
        for identity in entry.identities.iter().cloned().collect::<Vec<_>>() {
            self.withdraw_identity(&identity);
            self.match_identity(&identity);
            self.offer_identity(&identity);
        }
        self.forget_namespace(name);
    }

    fn forget_namespace(&mut self, name: &str) {
        let unused = |entry: &NamespaceEntry| {
            entry.labels.is_empty() && entry.identities.is_empty() && entry.policies.is_empty()
        };
        if self.namespaces.get(name).is_some_and(unused) {
            self.namespaces.remove(name);
        }
    }

    pub fn apply_policy(&mut self, key: &str, policy: Option<PolicyInfo>) {
        if self.policies.get(key) == policy.as_ref() {
            return;
        }
        let key: Arc<str> = key.into();
        let old = match &policy {
            Some(new) => self.policies.insert(key.clone(), new.clone()),
            None => self.policies.remove(&key),
        };
        let Some(namespace) = policy.as_ref().or(old.as_ref()).map(|policy| policy.namespace.clone()) else { return };
        let entry = self.namespaces.entry(namespace.clone()).or_default();
        match policy.is_some() {
            true => drop(entry.policies.insert(key)),
            false => drop(entry.policies.remove(&key)),
        }
        let selected =
            |(_, labels): &&Identity| old.iter().chain(&policy).any(|policy| policy.subjects.matches(labels));
        self.stale_identities.extend(entry.identities.iter().filter(selected).cloned());
        self.forget_namespace(&namespace);
    }

    pub fn apply_pod(&mut self, key: &str, info: Option<PodInfo>) {
        let old = self.pods.get(key).map(|entry| &entry.info);
        if old == info.as_ref() {
            return;
        }
        // What the plugin gave to a pod that is gone says nothing of its namesake.
        let ended = old.filter(|old| info.as_ref().is_none_or(|new| new.uid != old.uid)).map(|old| old.uid.clone());
        if let Some(uid) = ended
            && self.claims.get(key).is_some_and(|claim| claim.uid.is_empty() || claim.uid == uid)
        {
            self.drop_claim(key);
        }
        self.replace_pod(key, info);
    }

    /// The network plugin gave these addresses to a pod: whoever had them has them no longer.
    pub fn claim(&mut self, key: &str, uid: &str, ips: &[IpAddr]) {
        self.drop_claim(key);
        for ip in ips {
            if let Some(former) = self.claimed_by.insert(*ip, key.into())
                && let Some(claim) = self.claims.get_mut(&former)
            {
                claim.ips.retain(|held| held != ip);
            }
        }
        self.claims.insert(key.into(), PodClaim { uid: uid.into(), ips: ips.to_vec() });
        let touched =
            |(other, entry): &(&Arc<str>, &PodEntry)| &***other == key || entry.ips.iter().any(|ip| ips.contains(ip));
        let touched: Vec<Arc<str>> = self.pods.iter().filter(touched).map(|(key, _)| key.clone()).collect();
        for pod in touched {
            let info = self.pods.get(&pod).map(|entry| entry.info.clone());
            self.replace_pod(&pod, info);
        }
    }

    pub fn is_claimed(&self, key: &str) -> bool {
        self.claims.contains_key(key)
    }

    fn drop_claim(&mut self, key: &str) {
        for ip in self.claims.remove(key).into_iter().flat_map(|claim| claim.ips) {
            self.claimed_by.remove(&ip);
        }
    }

    /// Whether the rules that the changes so far give are those of this very pod.
    pub fn covers(&self, key: &str, uid: &str) -> bool {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        let known = self.pods.get(key).is_some_and(|entry| uid.is_empty() || *entry.info.uid == *uid);
        known || self.namespaces.get(namespace).is_none_or(|entry| entry.policies.is_empty())
    }

    pub fn policies(&self) -> usize {
        self.policies.len()
    }

    /// Addresses that a policy isolates.
    pub fn isolated_addresses(&self) -> usize {
        self.subjects.len()
    }

    fn own_addresses(&self, key: &str, info: &PodInfo) -> Vec<IpAddr> {
        if let Some(claim) = self.claims.get(key)
            && (claim.uid.is_empty() || claim.uid == info.uid)
        {
            return claim.ips.clone();
        }
        // What was given to a pod of this node is no other's, whatever another node says of its pods.
        info.ips.iter().filter(|ip| !self.claimed_by.contains_key(*ip)).copied().collect()
    }

    fn replace_pod(&mut self, key: &str, info: Option<PodInfo>) {
        let key: Arc<str> = self.pods.get_key_value(key).map_or_else(|| key.into(), |(key, _)| key.clone());
        let mut former = Vec::new();
        if let Some(PodEntry { info, ips }) = self.pods.remove(&key) {
            let identity = (info.namespace.clone(), info.labels.clone());
            if let Some(entry) = self.identities.get_mut(&identity) {
                for selector in &entry.selectors {
                    self.peer_sets.remove(selector, &info, &ips, &mut self.changes);
                }
                entry.pods.remove(&key);
                if entry.pods.is_empty() {
                    self.forget_identity(&identity);
                }
            }
            self.stale_pods.remove(&key);
            former = ips;
        }
        let Some(info) = info else {
            self.release_addresses(&key, &former);
            return;
        };
        let ips = self.own_addresses(&key, &info);
        former.retain(|ip| !info.local || !ips.contains(ip));
        self.release_addresses(&key, &former);
        let identity = (info.namespace.clone(), info.labels.clone());
        if !self.identities.contains_key(&identity) {
            self.identities.insert(identity.clone(), IdentityEntry::default());
            self.namespaces.entry(identity.0.clone()).or_default().identities.insert(identity.clone());
            self.match_identity(&identity);
            self.stale_identities.insert(identity.clone());
        }
        if let Some(entry) = self.identities.get_mut(&identity) {
            entry.pods.insert(key.clone());
            for selector in &entry.selectors {
                self.peer_sets.add(selector, &info, &ips, None, &mut self.changes);
            }
        }
        if info.local {
            self.stale_pods.insert(key.clone());
        }
        self.pods.insert(key, PodEntry { info, ips });
    }

    /// Where they are another's already, they stay isolated.
    fn release_addresses(&mut self, pod: &Arc<str>, ips: &[IpAddr]) {
        for (direction, ip) in Direction::ALL.into_iter().flat_map(|d| ips.iter().map(move |ip| (d, *ip))) {
            if self.subjects.get(&(direction, ip)).is_some_and(|subject| subject.pod == *pod) {
                self.set_subject(direction, ip, None);
            }
        }
    }

    fn forget_identity(&mut self, identity: &Identity) {
        let Some(entry) = self.identities.remove(identity) else { return };
        for selector in entry.selectors {
            if let Some(matching) = self.selectors.get_mut(&selector) {
                matching.remove(identity);
            }
        }
        if let Some(namespace) = self.namespaces.get_mut(&identity.0) {
            namespace.identities.remove(identity);
        }
        self.stale_identities.remove(identity);
        self.forget_namespace(&identity.0);
    }

    fn matches(&self, selector: &PodSelector, (namespace, labels): &Identity) -> bool {
        let in_scope = match &selector.namespaces {
            NamespaceScope::Own(name) => name == namespace,
            NamespaceScope::Matching(namespaces) => {
                let held = self.namespaces.get(namespace);
                held.map_or_else(|| namespaces.is_empty(), |entry| namespaces.matches(&entry.labels))
            }
        };
        in_scope && selector.pods.matches(labels)
    }

    fn match_identity(&mut self, identity: &Identity) {
        let matching: Vec<Arc<PodSelector>> =
            self.selectors.keys().filter(|selector| self.matches(selector, identity)).cloned().collect();
        let Some(entry) = self.identities.get_mut(identity) else { return };
        for selector in std::mem::replace(&mut entry.selectors, matching.clone()) {
            if let Some(matched) = self.selectors.get_mut(&selector) {
                matched.remove(identity);
            }
        }
        for selector in matching {
            self.selectors.entry(selector).or_default().insert(identity.clone());
        }
    }

    fn withdraw_identity(&mut self, identity: &Identity) {
        let Some(entry) = self.identities.get(identity) else { return };
        for pod in entry.pods.iter().filter_map(|key| self.pods.get(key)) {
            for selector in &entry.selectors {
                self.peer_sets.remove(selector, &pod.info, &pod.ips, &mut self.changes);
            }
        }
    }

    fn offer_identity(&mut self, identity: &Identity) {
        let Some(entry) = self.identities.get(identity) else { return };
        for pod in entry.pods.iter().filter_map(|key| self.pods.get(key)) {
            for selector in &entry.selectors {
                self.peer_sets.add(selector, &pod.info, &pod.ips, None, &mut self.changes);
            }
        }
    }

    fn acquire_set(&mut self, key: &PeerSetKey) {
        if !self.peer_sets.acquire(key, &mut self.changes) {
            return;
        }
        for selector in key.selectors() {
            if !self.selectors.contains_key(&selector) {
                self.match_selector(&selector);
            }
            for identity in &self.selectors[&selector] {
                let Some(entry) = self.identities.get(identity) else { continue };
                for pod in entry.pods.iter().filter_map(|key| self.pods.get(key)) {
                    self.peer_sets.add(&selector, &pod.info, &pod.ips, Some(key), &mut self.changes);
                }
            }
        }
    }

    /// One that came into use.
    fn match_selector(&mut self, selector: &Arc<PodSelector>) {
        let matched: HashSet<Identity> = match &selector.namespaces {
            NamespaceScope::Own(name) => {
                let own = self.namespaces.get(name).into_iter().flat_map(|entry| &entry.identities);
                own.filter(|(_, labels)| selector.pods.matches(labels)).cloned().collect()
            }
            NamespaceScope::Matching(_) => {
                self.identities.keys().filter(|identity| self.matches(selector, identity)).cloned().collect()
            }
        };
        for identity in &matched {
            if let Some(entry) = self.identities.get_mut(identity) {
                entry.selectors.push(selector.clone());
            }
        }
        self.selectors.insert(selector.clone(), matched);
    }

    fn release_set(&mut self, key: &PeerSetKey) {
        for selector in self.peer_sets.release(key, &mut self.changes) {
            for identity in self.selectors.remove(&selector).into_iter().flatten() {
                if let Some(entry) = self.identities.get_mut(&identity) {
                    entry.selectors.retain(|held| *held != selector);
                }
            }
        }
    }

    /// What has changed since the last time.
    pub fn take_changes(&mut self) -> Changes {
        for identity in std::mem::take(&mut self.stale_identities) {
            let policies = self.namespaces.get(&identity.0).into_iter().flat_map(|entry| &entry.policies);
            let selecting = policies.filter(|key| self.policies[*key].subjects.matches(&identity.1));
            let selecting: Vec<Arc<str>> = selecting.cloned().collect();
            let Some(entry) = self.identities.get_mut(&identity) else { continue };
            entry.policies = selecting;
            let local = entry.pods.iter().filter(|key| self.pods.get(*key).is_some_and(|pod| pod.info.local));
            self.stale_pods.extend(local.cloned());
        }
        let mut known = HashMap::new();
        for key in std::mem::take(&mut self.stale_pods) {
            self.isolate(&key, &mut known);
        }
        std::mem::take(&mut self.changes)
    }

    fn isolate(&mut self, key: &Arc<str>, known: &mut HashMap<ClassInput, Option<Arc<IsolationClass>>>) {
        let Some(PodEntry { info, ips }) = self.pods.get(key) else { return };
        let identity = (info.namespace.clone(), info.labels.clone());
        let mut wanted = Vec::new();
        for direction in Direction::ALL {
            for ip in ips {
                let input = (identity.clone(), info.named_ports.clone(), direction, Family::of_ip(*ip));
                let class =
                    known.entry(input).or_insert_with(|| self.class_of(&identity, info, direction, *ip)).clone();
                wanted.push((direction, *ip, class.map(|class| Subject { pod: key.clone(), class })));
            }
        }
        for (direction, ip, subject) in wanted {
            self.set_subject(direction, ip, subject);
        }
    }

    fn class_of(
        &self,
        identity: &Identity,
        info: &PodInfo,
        direction: Direction,
        ip: IpAddr,
    ) -> Option<Arc<IsolationClass>> {
        let policies = self.identities.get(identity)?.policies.iter().map(|key| &self.policies[key]);
        let mut policies = policies.filter(|policy| policy.rules(direction).is_some()).peekable();
        policies.peek()?;
        Some(Arc::new(IsolationClass::new(Family::of_ip(ip), direction, policies, info)))
    }

    fn set_subject(&mut self, direction: Direction, ip: IpAddr, subject: Option<Subject>) {
        let place = (direction, ip);
        let same = |held: &Subject| subject.as_ref().is_some_and(|new| new.pod == held.pod && new.class == held.class);
        if self.subjects.get(&place).map_or(subject.is_none(), same) {
            return;
        }
        let (new, pod) = match subject {
            Some(Subject { pod, class }) => (Some(class), Some(pod)),
            None => (None, None),
        };
        let isolated = |all: &Self| Direction::ALL.iter().any(|d| all.subjects.contains_key(&(*d, ip)));
        let before = isolated(self);
        // The new one first: what both use stays.
        let after_name = new.as_ref().map(|class| self.acquire_class(class));
        let old = match new.zip(pod) {
            Some((class, pod)) => self.subjects.insert(place, Subject { pod, class }),
            None => self.subjects.remove(&place),
        };
        let before_name = old.as_ref().map(|old| self.classes[&old.class].name.clone());
        for reply in [false, true] {
            let jump = |name: &Option<Arc<str>>| name.as_ref().map(|name| Value::Jump(chain_name(name, reply)));
            let map = (Family::of_ip(ip), map_name(direction, reply).into());
            self.changes.element(map, Key::Address(ip), jump(&before_name), jump(&after_name));
        }
        let after = isolated(self);
        let member = |is: bool| is.then_some(Value::Member);
        self.changes.element((Family::of_ip(ip), ITSELF.into()), Key::Itself(ip), member(before), member(after));
        if let Some(old) = old {
            self.release_class(&old.class);
        }
    }

    fn acquire_class(&mut self, class: &Arc<IsolationClass>) -> Arc<str> {
        if let Some(entry) = self.classes.get_mut(class) {
            entry.pods += 1;
            return entry.name.clone();
        }
        for set in class.peer_sets() {
            self.acquire_set(&set);
        }
        self.classes_named += 1;
        let word = map_name(class.direction, false);
        let name: Arc<str> = format!("{word}-{}", self.classes_named).into();
        self.classes.insert(class.clone(), ClassEntry { name: name.clone(), pods: 1 });
        for (chain, rules) in self.chains(class, &name) {
            self.changes.chain((class.family, chain), None, Some(rules));
        }
        name
    }

    fn release_class(&mut self, class: &Arc<IsolationClass>) {
        let Some(entry) = self.classes.get_mut(class) else { return };
        entry.pods -= 1;
        if entry.pods > 0 {
            return;
        }
        let name = entry.name.clone();
        for (chain, rules) in self.chains(class, &name) {
            self.changes.chain((class.family, chain), Some(rules), None);
        }
        self.classes.remove(class);
        for set in class.peer_sets() {
            self.release_set(&set);
        }
    }

    fn chains(&self, class: &IsolationClass, name: &Arc<str>) -> Vec<(Arc<str>, Arc<[String]>)> {
        let chains = |reply| class.chains(&chain_name(name, reply), reply, |set| self.peer_sets.name(set));
        [false, true].into_iter().flat_map(chains).collect()
    }

    /// All of it, for empty tables.
    pub fn everything(&self) -> Changes {
        let mut all = Changes::default();
        self.peer_sets.everything(&mut all);
        for (class, entry) in &self.classes {
            for (chain, rules) in self.chains(class, &entry.name) {
                all.chain((class.family, chain), None, Some(rules));
            }
        }
        for ((direction, ip), subject) in &self.subjects {
            let family = Family::of_ip(*ip);
            for reply in [false, true] {
                let chain = chain_name(&self.classes[&subject.class].name, reply);
                let map = (family, map_name(*direction, reply).into());
                all.element(map, Key::Address(*ip), None, Some(Value::Jump(chain)));
            }
            all.element((family, ITSELF.into()), Key::Itself(*ip), None, Some(Value::Member));
        }
        all
    }
}

/// What the class of an address follows from.
type ClassInput = (Identity, Vec<(netfilter::Protocol, Arc<str>, u16)>, Direction, Family);

fn chain_name(class: &Arc<str>, reply: bool) -> Arc<str> {
    if reply { format!("{class}-reply").into() } else { class.clone() }
}

#[cfg(test)]
#[path = "policy_index_tests.rs"]
mod tests;
