//! What all pods share that the same rules admit the same peers to: one pair of chains, whoever and however many they are.
//! Made from the policies that select a pod; `policy_index` holds them, `render` writes them down.
//! Invariant: pure (tidy: `pure_files`). A chain has a bounded number of rules, whatever the policies are (test:
//! `many_ports_are_one_lookup`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use netfilter::{Family, Protocol};

use crate::{
    address_range::AddressRange,
    model::{Direction, PodInfo, PodSelector, PolicyInfo, PortMatch, Rule},
};

/// Up to this many lists of ports have rules of their own in a chain; more become one map.
const PORT_LISTS_MAX: usize = 4;

/// Where what is not admitted ends.
pub const DENY: &str = "deny";

type PortRange = (Protocol, u16, u16);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    All,
    Some(Vec<PortRange>),
}

/// Who is let through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Admitted {
    anybody: bool,
    pods: BTreeSet<Arc<PodSelector>>,
    blocks: Vec<AddressRange>,
}

/// A set of addresses that follows the pods, shared by all who admit the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerSetKey {
    Addresses(Family, BTreeSet<Arc<PodSelector>>),
    /// Addresses with the ports that pods have under a name.
    NamedPorts(Family, BTreeSet<(Arc<PodSelector>, Protocol, Arc<str>)>),
}

impl PeerSetKey {
    pub fn family(&self) -> Family {
        match self {
            Self::Addresses(family, _) | Self::NamedPorts(family, _) => *family,
        }
    }

    pub fn selectors(&self) -> BTreeSet<Arc<PodSelector>> {
        match self {
            Self::Addresses(_, selectors) => selectors.clone(),
            Self::NamedPorts(_, named) => named.iter().map(|(selector, _, _)| selector.clone()).collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IsolationClass {
    pub family: Family,
    pub direction: Direction,
    groups: BTreeMap<Ports, Admitted>,
    named: BTreeSet<(Arc<PodSelector>, Protocol, Arc<str>)>,
}

impl IsolationClass {
    /// Of a pod that these policies select for `direction`.
    pub fn new<'a>(
        family: Family,
        direction: Direction,
        policies: impl Iterator<Item = &'a PolicyInfo>,
        pod: &PodInfo,
    ) -> Self {
        let mut class = Self { family, direction, groups: BTreeMap::new(), named: BTreeSet::new() };
        for rule in policies.filter_map(|policy| policy.rules(direction)).flatten() {
            class.admit(rule, pod);
        }
        class.settle();
        class
    }

    fn admit(&mut self, rule: &Rule, pod: &PodInfo) {
        let Some(matches) = &rule.ports else {
            self.admit_at(Ports::All, rule);
            return;
        };
        let mut ranges = Vec::new();
        for port in matches {
            match (port, self.direction) {
                (PortMatch::Numbers(protocol, first, last), _) => ranges.push((*protocol, *first, *last)),
                // It is the selected pod that is called: its own port of that name.
                (PortMatch::Named(protocol, name), Direction::Ingress) => {
                    ranges.extend(pod.ports_named(*protocol, name).map(|port| (*protocol, port, port)));
                }
                (PortMatch::Named(protocol, name), Direction::Egress) => {
                    let everything = || vec![Arc::new(PodSelector::everything())];
                    let pods = rule.peers.as_ref().map_or_else(everything, |peers| peers.pods.clone());
                    self.named.extend(pods.into_iter().map(|pods| (pods, *protocol, name.clone())));
                }
            }
        }
        if !ranges.is_empty() {
            self.admit_at(Ports::Some(united(ranges)), rule);
        }
    }

    fn admit_at(&mut self, ports: Ports, rule: &Rule) {
        let admitted = self.groups.entry(ports).or_default();
        match &rule.peers {
            None => admitted.anybody = true,
            Some(peers) => {
                admitted.pods.extend(peers.pods.iter().cloned());
                admitted.blocks.extend(peers.blocks.iter().filter(|block| block.family == self.family));
            }
        }
    }

    /// Equal for all that admit the same in the same words.
    fn settle(&mut self) {
        for admitted in self.groups.values_mut() {
            admitted.settle();
        }
        self.groups.retain(|_, admitted| *admitted != Admitted::default());
        if self.groups.get(&Ports::All).is_some_and(|admitted| admitted.anybody) {
            self.groups.retain(|ports, _| *ports == Ports::All);
            self.named.clear();
        }
    }

    /// The sets that its rules name.
    pub fn peer_sets(&self) -> BTreeSet<PeerSetKey> {
        let addresses = |admitted: &Admitted| admitted.set(self.family);
        let mut sets: BTreeSet<PeerSetKey> = match self.by_port() {
            Some(map) => map.into_values().filter_map(|admitted| addresses(&admitted)).collect(),
            None => self.groups.values().filter_map(addresses).collect(),
        };
        sets.extend(self.groups.get(&Ports::All).and_then(addresses));
        sets.extend(self.named_set());
        sets
    }

    fn named_set(&self) -> Option<PeerSetKey> {
        (!self.named.is_empty()).then(|| PeerSetKey::NamedPorts(self.family, self.named.clone()))
    }

    /// Its chains: the first under `name`, for the packets of who called or, with `reply`, for the answers to them.
    pub fn chains<'a>(
        &self,
        name: &str,
        reply: bool,
        set_name: impl Fn(&PeerSetKey) -> &'a str,
    ) -> Vec<(Arc<str>, Arc<[String]>)> {
        let ip = self.family.word();
        let peer = if (self.direction == Direction::Ingress) == reply { "daddr" } else { "saddr" };
        let port = if reply { "th sport" } else { "th dport" };
        let whom = |admitted: &Admitted| -> Vec<String> {
            if admitted.anybody {
                return vec![String::new()];
            }
            let pods = admitted.set(self.family).map(|set| format!("{ip} {peer} @{} ", set_name(&set)));
            let blocks: Vec<String> = admitted.blocks.iter().map(ToString::to_string).collect();
            let blocks = (!blocks.is_empty()).then(|| format!("{ip} {peer} {{ {} }} ", blocks.join(", ")));
            pods.into_iter().chain(blocks).collect()
        };
        let mut rules = Vec::new();
        if let Some(admitted) = self.groups.get(&Ports::All) {
            rules.extend(whom(admitted).iter().map(|whom| format!("{whom}return")));
        }
        if let Some(set) = self.named_set() {
            rules.push(format!("{ip} {peer} . meta l4proto . {port} @{} return", set_name(&set)));
        }
        let mut more = Vec::new();
        if let Some(by_port) = self.by_port() {
            let mut chains: BTreeMap<Admitted, String> = BTreeMap::new();
            let mut targets = Vec::new();
            for (range, admitted) in by_port {
                let count = chains.len();
                let chain = chains.entry(admitted).or_insert_with(|| format!("{name}-port-{count}"));
                targets.push(format!("{} : goto {chain}", range_text(&range)));
            }
            rules.push(format!("meta l4proto . {port} vmap {{ {} }}", targets.join(", ")));
            more.extend(chains.into_iter().map(|(admitted, chain)| {
                let rules = whom(&admitted).into_iter().map(|whom| format!("{whom}return"));
                (Arc::from(chain), rules.chain([format!("goto {DENY}")]).collect())
            }));
        } else {
            for (ports, admitted) in &self.groups {
                let Ports::Some(ranges) = ports else { continue };
                let ranges: Vec<String> = ranges.iter().map(range_text).collect();
                let at = format!("meta l4proto . {port} {{ {} }} return", ranges.join(", "));
                rules.extend(whom(admitted).iter().map(|whom| format!("{whom}{at}")));
            }
        }
        rules.push(format!("goto {DENY}"));
        // First those that the others go to.
        more.push((Arc::from(name), rules.into()));
        more
    }

    /// Who is admitted at which ports, without overlap; `None` where the lists of ports are few.
    fn by_port(&self) -> Option<BTreeMap<PortRange, Admitted>> {
        let lists = || {
            self.groups.iter().filter_map(|(ports, admitted)| match ports {
                Ports::All => None,
                Ports::Some(ranges) => Some((ranges, admitted)),
            })
        };
        if lists().count() <= PORT_LISTS_MAX {
            return None;
        }
        let mut bounds: BTreeMap<Protocol, BTreeSet<u32>> = BTreeMap::new();
        for (protocol, first, last) in lists().flat_map(|(ranges, _)| ranges) {
            bounds.entry(*protocol).or_default().extend([u32::from(*first), u32::from(*last) + 1]);
        }
        let mut map: BTreeMap<PortRange, Admitted> = BTreeMap::new();
        for (ranges, admitted) in lists() {
            for (protocol, first, last) in ranges {
                let cuts: Vec<u32> =
                    bounds[protocol].range(u32::from(*first)..=u32::from(*last) + 1).copied().collect();
                for pair in cuts.windows(2) {
                    map.entry((*protocol, pair[0] as u16, (pair[1] - 1) as u16)).or_default().extend(admitted);
                }
            }
        }
        map.values_mut().for_each(Admitted::settle);
        Some(map)
    }
}

impl Admitted {
    fn extend(&mut self, other: &Self) {
        self.anybody |= other.anybody;
        self.pods.extend(other.pods.iter().cloned());
        self.blocks.extend(&other.blocks);
    }

    fn settle(&mut self) {
        if self.anybody {
            (self.pods, self.blocks) = Default::default();
        }
        self.blocks = AddressRange::union(std::mem::take(&mut self.blocks));
    }

    fn set(&self, family: Family) -> Option<PeerSetKey> {
        (!self.pods.is_empty()).then(|| PeerSetKey::Addresses(family, self.pods.clone()))
    }
}

fn range_text((protocol, first, last): &PortRange) -> String {
    let protocol = protocol.name();
    if first == last { format!("{protocol} . {first}") } else { format!("{protocol} . {first}-{last}") }
}

/// The same ports in ranges that do not touch.
fn united(mut ranges: Vec<PortRange>) -> Vec<PortRange> {
    ranges.sort();
    let mut united: Vec<PortRange> = Vec::with_capacity(ranges.len());
    for (protocol, first, last) in ranges {
        match united.last_mut() {
            Some((held, _, end)) if *held == protocol && first <= end.saturating_add(1) => *end = last.max(*end),
            _ => united.push((protocol, first, last)),
        }
    }
    united
}

#[cfg(test)]
#[path = "isolation_class_tests.rs"]
mod tests;
