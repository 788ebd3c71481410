//! Spreads the processors of one container evenly over the fewest NUMA nodes that can hold them.
//! Used by `static_policy` under `distribute-cpus-across-numa`; `assignment` chooses within a node.
//! Invariant: pure (tidy: `pure_files`).

use std::collections::BTreeMap;

use super::assignment::{Accumulator, AssignmentError, SortingStrategy, take_packed};
use crate::{
    bit_mask::combinations,
    cpu_set::CpuSet,
    machine_topology::{CpuTopology, Level},
};

/// NUMA nodes that each give `share`, and of those the ones that give a group more.
struct Plan {
    nodes: Vec<usize>,
    with_more: Vec<usize>,
    imbalance: f64,
}

/// Processors are taken in groups of `group` (whole cores, or single ones).
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    group: usize,
    strategy: SortingStrategy,
) -> Result<CpuSet, AssignmentError> {
    if group == 0 || !count.is_multiple_of(group) {
        return take_packed(topology, available, count, strategy, false);
    }
    let mut accumulator = Accumulator::new(topology, available, count, strategy)?;
    if count == 0 {
        return Ok(accumulator.taken);
    }
    let free: BTreeMap<usize, usize> = {
        let size = |node: usize| (node, accumulator.free.cpus_in(Level::NumaNode, node).len());
        accumulator.free.ids(Level::NumaNode).iter().map(size).collect()
    };
    let nodes = accumulator.in_order(Level::NumaNode);
    let groups = topology.details.len().div_ceil(group);
    let per_node = groups.div_ceil(topology.numa_nodes.max(1)).max(1);
    let wanted = count.div_ceil(group);
    for size in wanted.div_ceil(per_node)..=wanted.min(nodes.len()) {
        let Some(plan) = best_plan(&free, &nodes, size, count, group) else { continue };
        execute(&mut accumulator, &plan, count, group, strategy)?;
        return match accumulator.needed {
            0 => Ok(accumulator.taken),
            remaining => Err(AssignmentError::Accounting(remaining)),
        };
    }
    take_packed(topology, available, count, strategy, false)
}

/// Whole groups that every one of `nodes` gives.
fn share(count: usize, nodes: usize, group: usize) -> usize {
    count / nodes / group * group
}

/// The combination of `size` nodes that leaves all nodes most alike; the first of several.
fn best_plan(free: &BTreeMap<usize, usize>, nodes: &[usize], size: usize, count: usize, group: usize) -> Option<Plan> {
    let mut best: Option<Plan> = None;
    for combination in combinations(nodes, size) {
        if best.as_ref().is_some_and(|best| best.imbalance == 0.0) {
            break;
        }
        let of = |node: &usize| free.get(node).copied().unwrap_or(0);
        let groups: usize = combination.iter().map(|node| of(node) / group).sum();
        let share = share(count, combination.len(), group);
        if groups * group < count || combination.iter().any(|node| of(node) < share) {
            continue;
        }
        let mut left = free.clone();
        for node in &combination {
            left.entry(*node).and_modify(|left| *left -= share);
        }
        let Some((imbalance, with_more)) = best_remainder(&left, &combination, count - share * size, group) else {
            continue;
        };
        if best.as_ref().is_none_or(|best| imbalance < best.imbalance) {
            best = Some(Plan { nodes: combination, with_more, imbalance });
        }
    }
    best
}

/// Who gives the groups that do not divide evenly.
fn best_remainder(
    left: &BTreeMap<usize, usize>,
    nodes: &[usize],
    remainder: usize,
    group: usize,
) -> Option<(f64, Vec<usize>)> {
    if remainder == 0 {
        return Some((standard_deviation(left), vec![]));
    }
    let able: Vec<usize> = nodes.iter().copied().filter(|node| left.get(node).is_some_and(|l| *l >= group)).collect();
    let mut best: Option<(f64, Vec<usize>)> = None;
    for size in (1..=able.len()).rev() {
        for subset in combinations(&able, size) {
            let mut left = left.clone();
            let mut remainder = remainder;
            // Round after round, until one brings nothing.
            loop {
                let before = remainder;
                for node in &subset {
                    if let Some(left) = left.get_mut(node).filter(|left| remainder > 0 && **left >= group) {
                        *left -= group;
                        remainder -= group;
                    }
                }
                if remainder == 0 || remainder == before {
                    break;
                }
            }
            let imbalance = standard_deviation(&left);
            if remainder == 0 && best.as_ref().is_none_or(|(least, _)| imbalance < *least) {
                best = Some((imbalance, subset));
            }
        }
    }
    best
}

fn execute(
    accumulator: &mut Accumulator<'_>,
    plan: &Plan,
    count: usize,
    group: usize,
    strategy: SortingStrategy,
) -> Result<(), AssignmentError> {
    let mut take = |node: usize, count: usize| -> Result<bool, AssignmentError> {
        let free = accumulator.free.cpus_in(Level::NumaNode, node);
        if free.len() < count {
            return Ok(false);
        }
        let cpus = take_packed(accumulator.topology, &free, count, strategy, false)?;
        accumulator.take(&cpus);
        Ok(true)
    };
    let share = share(count, plan.nodes.len(), group);
    for node in &plan.nodes {
        take(*node, share)?;
    }
    let mut remainder = count - share * plan.nodes.len();
    while remainder > 0 {
        let before = remainder;
        for node in &plan.with_more {
            if remainder > 0 && take(*node, group)? {
                remainder -= group;
            }
        }
        if remainder == before {
            break;
        }
    }
    Ok(())
}

/// To three digits, so that equal balances compare equal.
fn standard_deviation(left: &BTreeMap<usize, usize>) -> f64 {
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let count = left.len().max(1) as f64;
    let mean = round(left.values().map(|n| *n as f64).sum::<f64>() / count);
    let variance = left.values().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / count;
    round(variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_topology::{
        MachineTopology,
        fixtures::{Shape, dual_socket, four_nodes},
    };

    fn check(machine: &MachineTopology, available: &str, count: usize, group: usize, expected: &str) {
        let available = CpuSet::parse(available).unwrap();
        let found = take_distributed(&machine.cpus, &available, count, group, SortingStrategy::Packed).unwrap();
        assert_eq!(found.to_string(), expected, "{count} of {available} by {group}");
    }

    #[test]
    fn cpus_are_spread_over_the_fewest_nodes() {
        let dual = dual_socket();
        check(&dual, "0-11", 1, 1, "0");
        check(&dual, "0-11", 6, 1, "0-2,6-8");
        check(&dual, "0-11", 8, 1, "0-1,3-4,6-7,9-10");
        check(&dual, "0-11", 8, 2, "0-1,3-4,6-7,9-10");
        // Seven do not divide: one node gives one more.
        check(&dual, "0-11", 7, 1, "0-1,3-4,6-7,9");
        check(&dual, "0-11", 12, 2, "0-11");
        // What is no multiple of a core is packed.
        check(&dual, "0-11", 7, 2, "0-3,6-8");
        let four = four_nodes();
        check(&four, "0-15", 8, 1, "0-3,8-11");
        check(&four, "0-15", 10, 2, "0-4,8-12");
        let one = Shape { sockets: 1, numa_nodes: 1, cores: 4, threads: 2, uncore_caches: 1 }.machine();
        check(&one, "0-7", 3, 1, "0-1,4");
    }

    #[test]
    fn nodes_that_are_used_already_give_less() {
        let dual = dual_socket();
        // Four from either node would break the one with three left.
        check(&dual, "2,5-11", 6, 1, "2,5-6,8-9,11");
    }
}
