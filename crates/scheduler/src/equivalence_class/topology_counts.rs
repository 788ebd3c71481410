//! Numbers by topology domain for one class: which domain each node is in, and what it adds to which number.
//! Kept by `node_groups`, one slot per node in the order of the cache.
//! A domain's number is the sum of what the slots in it hold.

use std::collections::{HashMap, HashSet};

use super::topology_rules::{DomainCount, Outdated};
use crate::node_info::NodeInfo;

/// A topology key that some count is kept by.
struct Axis {
    key: String,
    /// Whether some value is on several nodes. Where each node has a value of its own, its number tells its group.
    shared: bool,
    ids: HashMap<String, u32>,
    /// How many nodes each domain has.
    nodes: Vec<u32>,
}

impl Axis {
    fn enter(&mut self, value: &str) -> Result<u32, Outdated> {
        let id = match self.ids.get(value) {
            Some(id) => *id,
            None => {
                let id = self.nodes.len() as u32;
                self.ids.insert(value.to_string(), id);
                self.nodes.push(0);
                id
            }
        };
        let nodes = &mut self.nodes[id as usize];
        *nodes += 1;
        if *nodes > 1 && !self.shared { Err(Outdated) } else { Ok(id) }
    }
}

struct Count {
    axis: usize,
    per_node: bool,
    /// By domain.
    totals: Vec<i64>,
}

/// A node's domains, one per axis, and amounts, one per count.
#[derive(Default)]
struct Slot {
    domains: Box<[Option<u32>]>,
    amounts: Box<[i64]>,
}

pub struct TopologyCounts {
    axes: Vec<Axis>,
    counts: Vec<Count>,
    slots: Vec<Slot>,
}

impl TopologyCounts {
    pub fn new(counts: impl Iterator<Item = DomainCount>, nodes: &[NodeInfo]) -> Self {
        let mut axes: Vec<Axis> = Vec::new();
        let mut kept = Vec::new();
        for count in counts {
            let axis = axes.iter().position(|axis| axis.key == count.key).unwrap_or_else(|| {
                let mut values = HashSet::new();
                let shared = nodes.iter().filter_map(|node| node.label(&count.key)).any(|value| !values.insert(value));
                axes.push(Axis { key: count.key, shared, ids: HashMap::new(), nodes: Vec::new() });
                axes.len() - 1
            });
            kept.push(Count { axis, per_node: count.per_node, totals: Vec::new() });
        }
        Self { axes, counts: kept, slots: Vec::new() }
    }

    pub fn counts(&self) -> usize {
        self.counts.len()
    }

    fn is_own(&self, count: &Count) -> bool {
        count.per_node || !self.axes[count.axis].shared
    }

    pub fn resize(&mut self, slots: usize) {
        while self.slots.len() > slots {
            self.leave(self.slots.len() - 1);
            self.slots.pop();
        }
        self.slots.resize_with(slots, Slot::default);
    }

    /// Takes back what the slot added.
    fn leave(&mut self, slot: usize) {
        let Slot { domains, amounts } = std::mem::take(&mut self.slots[slot]);
        for (count, amount) in self.counts.iter_mut().zip(&amounts) {
            if let Some(domain) = domains[count.axis] {
                count.totals[domain as usize] -= amount;
            }
        }
        for (axis, domain) in self.axes.iter_mut().zip(&domains) {
            if let Some(domain) = domain {
                axis.nodes[*domain as usize] -= 1;
            }
        }
    }

    /// The slot's node is `node` now, and adds these amounts.
    pub fn set(&mut self, slot: usize, node: &NodeInfo, amounts: Box<[i64]>) -> Result<(), Outdated> {
        self.leave(slot);
        // Values that no node has any more are only forgotten with the class.
        if self.axes.iter().any(|axis| axis.ids.len() > 2 * self.slots.len() + 64) {
            return Err(Outdated);
        }
        let domains = self.axes.iter_mut().map(|axis| node.label(&axis.key).map(|value| axis.enter(value)).transpose());
        let domains = domains.collect::<Result<Box<[_]>, Outdated>>()?;
        for (count, amount) in self.counts.iter_mut().zip(&amounts) {
            if let Some(domain) = domains[count.axis] {
                if count.totals.len() <= domain as usize {
                    count.totals.resize(domain as usize + 1, 0);
                }
                count.totals[domain as usize] += amount;
            }
        }
        self.slots[slot] = Slot { domains, amounts };
        Ok(())
    }

    /// What tells the slot's node from others: shared domains, which keys it has, its own numbers.
    pub fn describe(&self, slot: usize, into: &mut Vec<i64>) {
        let Slot { domains, amounts } = &self.slots[slot];
        for (axis, domain) in self.axes.iter().zip(domains) {
            into.push(match domain {
                None => -1,
                Some(domain) if axis.shared => i64::from(*domain),
                Some(_) => 0,
            });
        }
        for (count, amount) in self.counts.iter().zip(amounts) {
            into.push(if self.is_own(count) { *amount } else { 0 });
        }
    }

    /// The number and, where it is shared, the domain of each count for nodes described so.
    pub fn read(&self, description: &[i64], numbers: &mut Vec<Option<i64>>, domains: &mut Vec<Option<u32>>) {
        let (places, own) = description.split_at(self.axes.len());
        for (count, own) in self.counts.iter().zip(own) {
            let place = places[count.axis];
            let (number, domain) = match u32::try_from(place) {
                Err(_) => (None, None),
                Ok(_) if self.is_own(count) => (Some(*own), None),
                Ok(domain) => (Some(count.totals.get(domain as usize).copied().unwrap_or(0)), Some(domain)),
            };
            numbers.push(number);
            domains.push(domain);
        }
    }
}
