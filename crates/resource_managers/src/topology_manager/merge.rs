//! The hint that suits all providers best.
//! Used by `topology_manager`.
//! Invariant: pure (tidy: `pure_files`).

use super::{NumaInfo, PolicyName, ProviderHints, TopologyHint};
use crate::bit_mask::BitMask;

/// The best hint and whether a pod is admitted with it.
pub fn merge(policy: PolicyName, numa: &NumaInfo, hints: &[ProviderHints]) -> (TopologyHint, bool) {
    match policy {
        PolicyName::None => (TopologyHint::default(), true),
        PolicyName::BestEffort => (best_hint(policy, numa, &by_resource(hints)), true),
        PolicyName::Restricted => {
            let best = best_hint(policy, numa, &by_resource(hints));
            (best, best.preferred)
        }
        PolicyName::SingleNumaNode => {
            let single = |hint: &TopologyHint| hint.preferred && hint.affinity.is_none_or(|mask| mask.count() == 1);
            let hints = by_resource(hints).into_iter().map(|hints| hints.into_iter().filter(single).collect());
            let best = best_hint(policy, numa, &hints.collect::<Vec<_>>());
            let affinity = best.affinity.filter(|mask| *mask != numa.all);
            (TopologyHint { affinity, ..best }, best.preferred)
        }
    }
}

/// One list per resource. A resource that does not care has one hint for all nodes; one that cannot be had anywhere
/// spoils every combination.
fn by_resource(hints: &[ProviderHints]) -> Vec<Vec<TopologyHint>> {
    let mut lists = vec![];
    for provider in hints {
        if provider.is_empty() {
            lists.push(vec![TopologyHint { affinity: None, preferred: true }]);
        }
        for list in provider.values() {
            lists.push(match list.as_deref() {
                None => vec![TopologyHint { affinity: None, preferred: true }],
                Some([]) => vec![TopologyHint { affinity: None, preferred: false }],
                Some(list) => list.to_vec(),
            });
        }
    }
    lists
}

fn best_hint(policy: PolicyName, numa: &NumaInfo, lists: &[Vec<TopologyHint>]) -> TopologyHint {
    let merger = Merger { policy, numa, wanted_count: widest_of_narrowest(lists) };
    let mut best = None;
    merger.search(lists, &mut vec![], &mut best);
    let (affinity, preferred) = best.unwrap_or((numa.all, false));
    TopologyHint { affinity: Some(affinity), preferred }
}

/// No combination can be narrower than the resource that needs the most nodes.
fn widest_of_narrowest(lists: &[Vec<TopologyHint>]) -> usize {
    let narrowest = |list: &Vec<TopologyHint>| {
        let masks = list.iter().filter_map(|hint| hint.affinity);
        masks.reduce(|a, b| if b.is_narrower_than(a) { b } else { a }).map_or(0, BitMask::count)
    };
    lists.iter().map(narrowest).max().unwrap_or(0)
}

type Merged = (BitMask, bool);

struct Merger<'a> {
    policy: PolicyName,
    numa: &'a NumaInfo,
    /// How many nodes a hint that is not preferred should have.
    wanted_count: usize,
}

impl Merger<'_> {
    /// Tries every choice of one hint per resource.
    fn search(&self, lists: &[Vec<TopologyHint>], chosen: &mut Vec<TopologyHint>, best: &mut Option<Merged>) {
        let Some((list, rest)) = lists.split_first() else {
            let candidate = self.merged(chosen);
            if candidate.0.count() > 0 {
                *best = Some(best.map_or(candidate, |best| self.better(best, candidate)));
            }
            return;
        };
        for hint in list {
            chosen.push(*hint);
            self.search(rest, chosen, best);
            chosen.pop();
        }
    }

    /// What all have in common; preferred only where all prefer the very same nodes.
    fn merged(&self, chosen: &[TopologyHint]) -> Merged {
        let mut masks = chosen.iter().filter_map(|hint| hint.affinity);
        let first = masks.next();
        let same = first.is_none_or(|first| masks.all(|mask| mask == first));
        let all = chosen.iter().filter_map(|hint| hint.affinity).fold(self.numa.all, BitMask::and);
        (all, same && chosen.iter().all(|hint| hint.preferred))
    }

    fn better(&self, current: Merged, candidate: Merged) -> Merged {
        if current.1 != candidate.1 {
            return if current.1 { current } else { candidate };
        }
        if current.1 {
            return self.closer(current, candidate);
        }
        let wanted = self.wanted_count;
        let (now, then) = (current.0.count(), candidate.0.count());
        if now > wanted {
            return self.closer(current, candidate);
        }
        if now == wanted {
            return if then == wanted { self.closer(current, candidate) } else { current };
        }
        // Fewer than wanted cannot hold everything: the nearer to what is wanted the better.
        if then > wanted {
            return current;
        }
        match then.cmp(&now) {
            std::cmp::Ordering::Greater => candidate,
            std::cmp::Ordering::Less => current,
            std::cmp::Ordering::Equal => self.closer(current, candidate),
        }
    }

    fn closer(&self, current: Merged, candidate: Merged) -> Merged {
        if current.0 == candidate.0 {
            return current;
        }
        let by_distance = self.policy != PolicyName::SingleNumaNode && self.numa.prefer_closest;
        let takes_candidate = match by_distance && current.0.count() == candidate.0.count() {
            true => {
                let distance = |mask: BitMask| self.numa.average_distance(mask);
                let (now, then) = (distance(current.0), distance(candidate.0));
                then < now || (then == now && candidate.0 < current.0)
            }
            false => candidate.0.is_narrower_than(current.0),
        };
        if takes_candidate { candidate } else { current }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_topology::NumaNode;

    /// Nodes as bits, and whether preferred.
    type Hint = (&'static [usize], bool);

    fn hints(resources: &[(&str, Option<&[Hint]>)]) -> ProviderHints {
        let hint = |(bits, preferred): &Hint| TopologyHint {
            affinity: BitMask::new(bits.iter().copied()).filter(|_| !bits.is_empty()),
            preferred: *preferred,
        };
        let list = |hints: &[Hint]| hints.iter().map(hint).collect();
        resources.iter().map(|(name, hints)| (name.to_string(), hints.map(list))).collect()
    }

    fn check(nodes: usize, providers: &[ProviderHints], expected: [(&[usize], bool, bool); 3]) {
        let nodes: Vec<NumaNode> = (0..nodes).map(|id| NumaNode { id, ..NumaNode::default() }).collect();
        let numa = NumaInfo::new(&nodes, false).unwrap();
        let policies = [PolicyName::BestEffort, PolicyName::Restricted, PolicyName::SingleNumaNode];
        for (policy, (bits, preferred, admitted)) in policies.into_iter().zip(expected) {
            let affinity = BitMask::new(bits.iter().copied()).filter(|_| !bits.is_empty());
            let found = merge(policy, &numa, providers);
            assert_eq!(found, (TopologyHint { affinity, preferred }, admitted), "{policy:?} {providers:?}");
        }
        assert_eq!(merge(PolicyName::None, &numa, providers), (TopologyHint::default(), true));
    }

    #[test]
    fn hints_merge_by_policy() {
        // Nobody cares.
        check(2, &[ProviderHints::new()], [(&[0, 1], true, true), (&[0, 1], true, true), (&[], true, true)]);
        let indifferent = hints(&[("gpu", None)]);
        check(2, &[indifferent], [(&[0, 1], true, true), (&[0, 1], true, true), (&[], true, true)]);
        // It cannot be had.
        let nowhere = hints(&[("gpu", Some(&[]))]);
        check(2, &[nowhere], [(&[0, 1], false, true), (&[0, 1], false, false), (&[], false, false)]);
        // Both could have node 0 or 1, or both.
        let cpu = || hints(&[("cpu", Some(&[(&[0], true), (&[1], true), (&[0, 1], false)]))]);
        let gpu = hints(&[("gpu", Some(&[(&[1], true), (&[0, 1], false)]))]);
        check(2, &[cpu(), gpu], [(&[1], true, true), (&[1], true, true), (&[1], true, true)]);
        // They prefer different nodes: the narrowest that is not preferred.
        let left = hints(&[("cpu", Some(&[(&[0], true), (&[0, 1], false)]))]);
        let right = hints(&[("gpu", Some(&[(&[1], true), (&[0, 1], false)]))]);
        check(2, &[left, right], [(&[0], false, true), (&[0], false, false), (&[], false, false)]);
        // One needs two nodes: a single one is not better than what is needed.
        let wide = hints(&[("cpu", Some(&[(&[0, 1], true), (&[0, 1, 2], false)]))]);
        let narrow = hints(&[("gpu", Some(&[(&[0], true), (&[0, 1], false)]))]);
        check(3, &[wide, narrow], [(&[0, 1], false, true), (&[0, 1], false, false), (&[], false, false)]);
        // Two nodes are preferred where one cannot hold it: not under single-numa-node.
        let two = hints(&[("cpu", Some(&[(&[0, 1], true)]))]);
        check(2, &[two], [(&[0, 1], true, true), (&[0, 1], true, true), (&[], false, false)]);
    }

    #[test]
    fn the_closest_nodes_win_when_asked_for() {
        let distances = [[10, 30, 20], [30, 10, 30], [20, 30, 10]];
        let nodes: Vec<NumaNode> =
            (0..3).map(|id| NumaNode { id, distances: distances[id].to_vec(), ..NumaNode::default() }).collect();
        let cpu = hints(&[("cpu", Some(&[(&[0, 1], true), (&[0, 2], true), (&[1, 2], true)]))]);
        for (closest, bits) in [(false, [0, 1]), (true, [0, 2])] {
            let numa = NumaInfo::new(&nodes, closest).unwrap();
            let (best, _) = merge(PolicyName::BestEffort, &numa, std::slice::from_ref(&cpu));
            assert_eq!(best.affinity, BitMask::new(bits), "closest {closest}");
        }
    }
}
