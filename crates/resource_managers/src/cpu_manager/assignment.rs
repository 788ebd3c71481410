//! Which processors of those that are free a container gets: whole NUMA nodes, sockets, caches and cores first.
//! Used by `static_policy`; `distribution` spreads over NUMA nodes instead.
//! Invariant: pure (tidy: `pure_files`).

use crate::{
    cpu_set::CpuSet,
    machine_topology::{CpuDetails, CpuTopology, Level},
};

/// In which order single processors are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortingStrategy {
    /// Core by core.
    Packed,
    /// One thread of every core of a socket before the next thread.
    Spread,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    Accounting(usize),
}

/// What is free, what is still needed, and what has been taken.
pub(super) struct Accumulator<'a> {
    pub topology: &'a CpuTopology,
    pub free: CpuDetails,
    pub needed: usize,
    pub taken: CpuSet,
    strategy: SortingStrategy,
}

impl<'a> Accumulator<'a> {
    pub fn new(
        topology: &'a CpuTopology,
        available: &CpuSet,
        needed: usize,
        strategy: SortingStrategy,
    ) -> Result<Self, AssignmentError> {
        let free = topology.details.keep_only(available);
        match needed > free.len() {
            true => Err(AssignmentError::NotEnough { requested: needed, available: available.len() }),
            false => Ok(Self { topology, free, needed, taken: CpuSet::default(), strategy }),
        }
    }

    /// NUMA nodes are the outer level where a socket has at most one.
    fn is_numa_first(&self) -> bool {
        self.topology.sockets >= self.topology.numa_nodes
    }

    /// Those with the fewest free processors first, so that the others stay whole.
    fn sorted(&self, ids: CpuSet, level: Level) -> Vec<usize> {
        let mut ids: Vec<usize> = ids.iter().collect();
        ids.sort_by_key(|id| (self.free.cpus_in(level, *id).len(), *id));
        ids
    }

    fn sorted_within(&self, wanted: Level, level: Level, outer: Vec<usize>) -> Vec<usize> {
        outer.into_iter().flat_map(|id| self.sorted(self.free.ids_within(wanted, level, id), wanted)).collect()
    }

    /// The groups of a level that have something free, in the order they are taken.
    pub fn in_order(&self, level: Level) -> Vec<usize> {
        match (level, self.is_numa_first()) {
            (Level::NumaNode, true) | (Level::Socket, false) => self.sorted(self.free.ids(level), level),
            (Level::NumaNode, false) => self.sorted_within(level, Level::Socket, self.in_order(Level::Socket)),
            (Level::Core, true) => self.sorted_within(level, Level::Socket, self.in_order(Level::Socket)),
            (Level::Socket, true) | (Level::UncoreCache, _) | (Level::Core, false) => {
                self.sorted_within(level, Level::NumaNode, self.in_order(Level::NumaNode))
            }
        }
    }

    fn is_free(&self, level: Level, id: usize) -> bool {
        let whole = match level {
            Level::Socket => self.topology.cpus_per_socket(),
            Level::Core => self.topology.cpus_per_core(),
            Level::NumaNode | Level::UncoreCache => self.topology.details.cpus_in(level, id).len(),
        };
        self.free.cpus_in(level, id).len() == whole
    }

    pub fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free.remove(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// Every group that nobody has a part of, as long as all of it is needed.
    fn take_whole(&mut self, level: Level) {
        for id in self.in_order(level) {
            let cpus = self.topology.details.cpus_in(level, id);
            if self.needed >= cpus.len() && self.is_free(level, id) {
                self.take(&cpus);
            }
        }
    }

    fn take_uncore_caches(&mut self) {
        for id in self.in_order(Level::UncoreCache) {
            if self.needed >= self.topology.cpus_per_uncore_cache() {
                self.take_whole(Level::UncoreCache);
            }
            if self.needed > 0 {
                self.take_part_of_cache(id);
            }
            if self.needed == 0 {
                return;
            }
        }
    }

    /// All that is still needed from one cache, or nothing.
    fn take_part_of_cache(&mut self, id: usize) {
        let per_core = self.topology.cpus_per_core().max(1);
        let cores = self.free.ids_within(Level::Core, Level::UncoreCache, id);
        let mut cpus: Vec<usize> = cores
            .iter()
            .take(self.needed.div_ceil(per_core))
            .flat_map(|core| self.free.cpus_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect();
        cpus.sort_unstable();
        // An odd number leaves one thread of the last core.
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_single(&mut self) {
        let level = match self.strategy {
            SortingStrategy::Packed => Level::Core,
            SortingStrategy::Spread => Level::Socket,
        };
        let groups = self.in_order(level);
        let cpus = groups.into_iter().flat_map(|id| self.free.cpus_in(level, id).iter().collect::<Vec<_>>());
        let cpus: CpuSet = cpus.collect::<Vec<_>>().into_iter().take(self.needed).collect();
        self.take(&cpus);
    }

    fn take_packed(&mut self, prefer_uncore_cache: bool) {
        let (first, second) = match self.is_numa_first() {
            true => (Level::NumaNode, Level::Socket),
            false => (Level::Socket, Level::NumaNode),
        };
        self.take_whole(first);
        self.take_whole(second);
        if prefer_uncore_cache && self.needed > 0 {
            self.take_uncore_caches();
        }
        if self.strategy == SortingStrategy::Packed {
            self.take_whole(Level::Core);
        }
        if self.needed > 0 {
            self.take_single();
        }
    }
}

/// `count` of the available processors, as close together as can be.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    strategy: SortingStrategy,
    prefer_uncore_cache: bool,
) -> Result<CpuSet, AssignmentError> {
    let mut accumulator = Accumulator::new(topology, available, count, strategy)?;
    if count > 0 {
        accumulator.take_packed(prefer_uncore_cache);
    }
    match accumulator.needed {
        0 => Ok(accumulator.taken),
        _ => Err(AssignmentError::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_topology::{
        MachineTopology,
        fixtures::{Shape, dual_socket, four_nodes, single_socket},
    };

    fn check(machine: &MachineTopology, available: &str, count: usize, expected: Result<&str, &str>) {
        check_with(machine, available, count, SortingStrategy::Packed, false, expected);
    }

    fn check_with(
        machine: &MachineTopology,
        available: &str,
        count: usize,
        strategy: SortingStrategy,
        uncore: bool,
        expected: Result<&str, &str>,
    ) {
        let available = CpuSet::parse(available).unwrap();
        let found = take_packed(&machine.cpus, &available, count, strategy, uncore);
        let found = found.map(|cpus| cpus.to_string()).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{count} of {available}");
    }

    #[test]
    fn whole_groups_come_first() {
        let single = single_socket();
        check(&single, "0-7", 1, Ok("0"));
        check(&single, "0-7", 2, Ok("0,4"));
        check(&single, "0-7", 3, Ok("0-1,4"));
        check(&single, "0-7", 8, Ok("0-7"));
        // Core 0 is broken into: its other thread fills what is left over.
        check(&single, "1-7", 2, Ok("1,5"));
        check(&single, "1-7", 3, Ok("1,4-5"));
        check(&single, "1-7", 1, Ok("4"));
        check(&single, "0-7", 0, Ok(""));
        check(&single, "0", 2, Err("not enough cpus available to satisfy request: requested=2, available=1"));

        let dual = dual_socket();
        check(&dual, "0-11", 6, Ok("0-2,6-8"));
        check(&dual, "1-11", 6, Ok("3-5,9-11"));
        check(&dual, "0-11", 8, Ok("0-3,6-9"));
        // The socket with less left is used up first.
        check(&dual, "1-11", 2, Ok("1,7"));

        let four = four_nodes();
        check(&four, "0-15", 4, Ok("0-1,8-9"));
        check(&four, "0-15", 8, Ok("0-3,8-11"));
        check(&four, "2-15", 4, Ok("2-3,10-11"));
    }

    #[test]
    fn spread_takes_one_thread_per_core() {
        let spread = |machine: &MachineTopology, available: &str, count, expected| {
            check_with(machine, available, count, SortingStrategy::Spread, false, Ok(expected));
        };
        spread(&single_socket(), "0-7", 2, "0-1");
        spread(&single_socket(), "0-7", 5, "0-4");
        spread(&dual_socket(), "0-11", 3, "0-2");
        spread(&dual_socket(), "0-11", 6, "0-2,6-8");
    }

    #[test]
    fn one_cache_is_preferred() {
        let machine = Shape { sockets: 1, numa_nodes: 1, cores: 8, threads: 2, uncore_caches: 2 }.machine();
        let check = |available: &str, count, expected| {
            check_with(&machine, available, count, SortingStrategy::Packed, true, Ok(expected));
        };
        check("0-15", 8, "0-3,8-11");
        check("0-15", 4, "0-1,8-9");
        check("1-15", 8, "4-7,12-15");
        // The first cache has six left, but not on its first three cores.
        check("1-15", 6, "4-6,12-14");
        check("0-15", 3, "0-1,8");
        check("0-15", 12, "0-5,8-13");
    }
}
