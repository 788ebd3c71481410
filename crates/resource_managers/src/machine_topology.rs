//! Processors, cores, sockets, caches and NUMA nodes of the machine, read from the text of sysfs.
//! Read by the CPU, memory and topology managers; `kubelet` collects the files.
//! Invariant: pure; a processor that is offline or has no core is left out (tidy: `pure_files`).

use std::collections::BTreeMap;

use crate::cpu_set::{CpuSet, CpuSetError};

/// Contents of files by their path below `/sys/devices/system`.
pub type SysfsFiles = BTreeMap<String, String>;

/// Caches above this level may be shared by some cores of a NUMA node only.
const CORE_CACHE_LEVEL_MAX: u32 = 2;

/// What processors are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    NumaNode,
    Socket,
    UncoreCache,
    Core,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuInfo {
    pub numa_node: usize,
    pub socket: usize,
    pub uncore_cache: usize,
    /// The lowest processor of the core: the kernel's ids repeat from socket to socket.
    pub core: usize,
}

impl CpuInfo {
    pub fn id(&self, level: Level) -> usize {
        match level {
            Level::NumaNode => self.numa_node,
            Level::Socket => self.socket,
            Level::UncoreCache => self.uncore_cache,
            Level::Core => self.core,
        }
    }
}

/// Processors and where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuDetails(BTreeMap<usize, CpuInfo>);

impl CpuDetails {
    pub fn get(&self, cpu: usize) -> Option<&CpuInfo> {
        self.0.get(&cpu)
    }

    pub fn cpus(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn keep_only(&self, cpus: &CpuSet) -> Self {
        Self(self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(cpu, info)| (*cpu, *info)).collect())
    }

    pub fn remove(&mut self, cpus: &CpuSet) {
        self.0.retain(|cpu, _| !cpus.contains(*cpu));
    }

    pub fn ids(&self, level: Level) -> CpuSet {
        self.0.values().map(|info| info.id(level)).collect()
    }

    pub fn cpus_in(&self, level: Level, id: usize) -> CpuSet {
        self.0.iter().filter(|(_, info)| info.id(level) == id).map(|(cpu, _)| *cpu).collect()
    }

    /// The groups of level `wanted` that have a processor in one group of another level.
    pub fn ids_within(&self, wanted: Level, level: Level, id: usize) -> CpuSet {
        self.0.values().filter(|info| info.id(level) == id).map(|info| info.id(wanted)).collect()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTopology {
    pub details: CpuDetails,
    pub cores: usize,
    pub sockets: usize,
    pub numa_nodes: usize,
    pub uncore_caches: usize,
}

impl CpuTopology {
    pub fn new(cpus: impl IntoIterator<Item = (usize, CpuInfo)>) -> Self {
        let details = CpuDetails(cpus.into_iter().collect());
        let count = |level| details.ids(level).len();
        Self {
            cores: count(Level::Core),
            sockets: count(Level::Socket),
            numa_nodes: count(Level::NumaNode),
            uncore_caches: count(Level::UncoreCache),
            details,
        }
    }

    pub fn cpus_per_core(&self) -> usize {
        self.details.len().checked_div(self.cores).unwrap_or(0)
    }

    pub fn cpus_per_socket(&self) -> usize {
        self.details.len().checked_div(self.sockets).unwrap_or(0)
    }

    pub fn cpus_per_uncore_cache(&self) -> usize {
        self.details.len().checked_div(self.uncore_caches).unwrap_or(0)
    }

    /// Whether all of them share one uncore cache.
    pub fn is_uncore_cache_aligned(&self, cpus: &CpuSet) -> bool {
        let mut caches = cpus.iter().map(|cpu| self.details.get(cpu).map(|info| info.uncore_cache));
        match caches.next() {
            None => true,
            Some(first) => cpus.len() == 1 || (first.is_some() && caches.all(|cache| cache == first)),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    pub id: usize,
    pub memory_bytes: u64,
    /// Size of a page in KiB, and how many there are.
    pub hugepages: Vec<(u64, u64)>,
    /// To every node, by position.
    pub distances: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineTopology {
    pub cpus: CpuTopology,
    /// By id.
    pub nodes: Vec<NumaNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("could not detect number of cpus")]
    NoCpus,
    #[error("failed to read {path}: {source}")]
    List { path: String, source: CpuSetError },
    #[error("failed to read {path}: {text:?} is not a number")]
    Number { path: String, text: String },
}

impl MachineTopology {
    pub fn from_sysfs(files: &SysfsFiles) -> Result<Self, TopologyError> {
        let online = match files.get("cpu/online") {
            Some(_) => list(files, "cpu/online")?,
            None => ids(files, "cpu/cpu").collect(),
        };
        let mut cores: Vec<Core> = vec![];
        let mut nodes = vec![];
        for id in ids(files, "node/node").collect::<CpuSet>().iter() {
            let cpus = list(files, &format!("node/node{id}/cpulist"))?.intersection(&online);
            cores.extend(node_cores(files, id, &cpus)?);
            nodes.push(numa_node(files, id)?);
        }
        if nodes.is_empty() {
            // Without nodes a socket counts as one; nothing is known of its memory.
            let sockets = by_socket(files, &online)?;
            for (socket, cpus) in sockets {
                cores.extend(node_cores(files, socket, &cpus)?);
                nodes.push(NumaNode { id: socket, ..NumaNode::default() });
            }
        }
        let cpus = CpuTopology::new(cores.iter().flat_map(Core::details));
        match cpus.details.is_empty() {
            true => Err(TopologyError::NoCpus),
            false => Ok(Self { cpus, nodes }),
        }
    }
}

/// Processors that share a core.
struct Core {
    kernel_id: usize,
    numa_node: usize,
    socket: usize,
    threads: Vec<usize>,
    uncore_cache: Option<usize>,
}

impl Core {
    fn details(&self) -> impl Iterator<Item = (usize, CpuInfo)> + '_ {
        let info = CpuInfo {
            numa_node: self.numa_node,
            socket: self.socket,
            uncore_cache: self.uncore_cache.unwrap_or(self.socket),
            core: self.threads.iter().copied().min().unwrap_or_default(),
        };
        self.threads.iter().map(move |thread| (*thread, info))
    }
}

fn node_cores(files: &SysfsFiles, numa_node: usize, cpus: &CpuSet) -> Result<Vec<Core>, TopologyError> {
    let mut cores: Vec<Core> = vec![];
    for cpu in cpus.iter() {
        let read = |name: &str| number(files, &format!("cpu/cpu{cpu}/topology/{name}"));
        let (Some(kernel_id), Some(socket)) = (read("core_id")?, read("physical_package_id")?) else { continue };
        match cores.iter_mut().find(|core| core.kernel_id == kernel_id && core.socket == socket) {
            Some(core) => core.threads.push(cpu),
            None => cores.push(Core { kernel_id, numa_node, socket, threads: vec![cpu], uncore_cache: None }),
        }
    }
    let count = cores.len();
    for core in &mut cores {
        core.uncore_cache = uncore_cache(files, core, count)?;
    }
    Ok(cores)
}

/// The cache above the core's own that not all of the NUMA node shares.
fn uncore_cache(files: &SysfsFiles, core: &Core, cores_of_node: usize) -> Result<Option<usize>, TopologyError> {
    let Some(cpu) = core.threads.first() else { return Ok(None) };
    for index in ids(files, &format!("cpu/cpu{cpu}/cache/index")).collect::<CpuSet>().iter() {
        let place = format!("cpu/cpu{cpu}/cache/index{index}");
        let level = number(files, &format!("{place}/level"))?.unwrap_or(0) as u32;
        if level <= CORE_CACHE_LEVEL_MAX {
            continue;
        }
        let shared = list(files, &format!("{place}/shared_cpu_list"))?.len();
        if shared != cores_of_node * core.threads.len() {
            return number(files, &format!("{place}/id"));
        }
    }
    Ok(None)
}

fn numa_node(files: &SysfsFiles, id: usize) -> Result<NumaNode, TopologyError> {
    let place = format!("node/node{id}");
    let meminfo = files.get(&format!("{place}/meminfo")).map_or("", String::as_str);
    let total =
        meminfo.lines().find_map(|line| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse().ok());
    let distances = files.get(&format!("{place}/distance")).map_or("", String::as_str);
    let mut hugepages = vec![];
    for size in ids(files, &format!("{place}/hugepages/hugepages-")).collect::<CpuSet>().iter() {
        let path = format!("{place}/hugepages/hugepages-{size}kB/nr_hugepages");
        hugepages.push((size as u64, number(files, &path)?.unwrap_or(0) as u64));
    }
    Ok(NumaNode {
        id,
        memory_bytes: total.unwrap_or(0u64) * 1024,
        hugepages,
        distances: distances.split_whitespace().filter_map(|distance| distance.parse().ok()).collect(),
    })
}

fn by_socket(files: &SysfsFiles, cpus: &CpuSet) -> Result<BTreeMap<usize, CpuSet>, TopologyError> {
    let mut sockets: BTreeMap<usize, CpuSet> = BTreeMap::new();
    for cpu in cpus.iter() {
        if let Some(socket) = number(files, &format!("cpu/cpu{cpu}/topology/physical_package_id"))? {
            let cpus = sockets.entry(socket).or_default();
            *cpus = cpus.union(&CpuSet::from_iter([cpu]));
        }
    }
    Ok(sockets)
}

/// The numbers that follow `prefix` in paths.
fn ids<'a>(files: &'a SysfsFiles, prefix: &'a str) -> impl Iterator<Item = usize> + 'a {
    let below = files.range(prefix.to_string()..).take_while(move |(path, _)| path.starts_with(prefix));
    below.filter_map(move |(path, _)| {
        let name = path[prefix.len()..].split('/').next()?;
        name.strip_suffix("kB").unwrap_or(name).parse().ok()
    })
}

fn list(files: &SysfsFiles, path: &str) -> Result<CpuSet, TopologyError> {
    let text = files.get(path).map_or("", |text| text.trim());
    CpuSet::parse(text).map_err(|source| TopologyError::List { path: path.into(), source })
}

fn number(files: &SysfsFiles, path: &str) -> Result<Option<usize>, TopologyError> {
    let Some(text) = files.get(path).map(|text| text.trim()) else { return Ok(None) };
    // Some virtual machines say -1 where there is one socket only.
    if text == "-1" {
        return Ok(Some(0));
    }
    text.parse().map(Some).map_err(|_| TopologyError::Number { path: path.into(), text: text.into() })
}

#[cfg(test)]
pub mod fixtures {
    //! Machines for the tests of this crate.

    use super::{CpuInfo, CpuTopology, MachineTopology, NumaNode};

    /// Threads of one core are numbered one after the other, or `cores` apart as the kernel often has it.
    pub struct Shape {
        pub sockets: usize,
        pub numa_nodes: usize,
        pub cores: usize,
        pub threads: usize,
        pub uncore_caches: usize,
    }

    impl Shape {
        /// CPU `c` and `c + cores` share a core; cores fill sockets, nodes and caches in order.
        pub fn machine(&self) -> MachineTopology {
            let cpus = (0..self.cores * self.threads).map(|cpu| {
                let core = cpu % self.cores;
                let part = |parts: usize| core * parts / self.cores;
                let (numa_node, socket) = (part(self.numa_nodes), part(self.sockets));
                (cpu, CpuInfo { numa_node, socket, uncore_cache: part(self.uncore_caches), core })
            });
            let node = |id: usize| NumaNode {
                id,
                memory_bytes: 16 << 30,
                hugepages: vec![],
                distances: (0..self.numa_nodes)
                    .map(|other| if other == id { 10 } else { 10 + 10 * other.abs_diff(id) as u64 })
                    .collect(),
            };
            MachineTopology { cpus: CpuTopology::new(cpus), nodes: (0..self.numa_nodes).map(node).collect() }
        }
    }

    /// Four cores of two threads in one socket: 0 and 4, 1 and 5, …
    pub fn single_socket() -> MachineTopology {
        Shape { sockets: 1, numa_nodes: 1, cores: 4, threads: 2, uncore_caches: 1 }.machine()
    }

    /// Two sockets, each a NUMA node of three cores of two threads.
    pub fn dual_socket() -> MachineTopology {
        Shape { sockets: 2, numa_nodes: 2, cores: 6, threads: 2, uncore_caches: 2 }.machine()
    }

    /// Two sockets of two NUMA nodes of two cores, two threads each.
    pub fn four_nodes() -> MachineTopology {
        Shape { sockets: 2, numa_nodes: 4, cores: 8, threads: 2, uncore_caches: 4 }.machine()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(cpus: &[(usize, usize, usize)], nodes: &[(usize, &str)], caches: &[(usize, &str)]) -> SysfsFiles {
        let mut files = SysfsFiles::new();
        for (cpu, core, socket) in cpus {
            files.insert(format!("cpu/cpu{cpu}/topology/core_id"), format!("{core}\n"));
            files.insert(format!("cpu/cpu{cpu}/topology/physical_package_id"), format!("{socket}\n"));
            for (id, list) in caches.iter().filter(|(_, list)| CpuSet::parse(list).unwrap().contains(*cpu)) {
                files.insert(format!("cpu/cpu{cpu}/cache/index3/level"), "3\n".into());
                files.insert(format!("cpu/cpu{cpu}/cache/index3/id"), format!("{id}\n"));
                files.insert(format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), format!("{list}\n"));
            }
        }
        files.insert("cpu/online".into(), "0-7\n".into());
        for (node, list) in nodes {
            files.insert(format!("node/node{node}/cpulist"), format!("{list}\n"));
            files.insert(format!("node/node{node}/meminfo"), format!("Node {node} MemTotal:  1024 kB\n"));
            files.insert(format!("node/node{node}/distance"), "10 21\n".into());
            files.insert(format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n".into());
        }
        files
    }

    #[test]
    fn sysfs_is_understood() {
        // Core ids repeat on the second socket; CPU 9 is offline.
        let cpus = [(0, 0, 0), (1, 1, 0), (4, 0, 0), (5, 1, 0), (2, 0, 1), (3, 1, 1), (6, 0, 1), (7, 1, 1), (9, 3, 1)];
        let machine = MachineTopology::from_sysfs(&files(&cpus, &[(0, "0-1,4-5"), (1, "2-3,6-7,9")], &[])).unwrap();
        let topology = &machine.cpus;
        assert_eq!((topology.details.len(), topology.cores, topology.sockets, topology.numa_nodes), (8, 4, 2, 2));
        assert_eq!(topology.details.cpus_in(Level::Core, 2).to_string(), "2,6");
        assert_eq!(topology.details.cpus_in(Level::NumaNode, 1).to_string(), "2-3,6-7");
        assert_eq!(topology.uncore_caches, 2, "the socket stands in for a cache");
        let node = NumaNode { id: 1, memory_bytes: 1 << 20, hugepages: vec![(2048, 3)], distances: vec![10, 21] };
        assert_eq!(machine.nodes[1], node);
    }

    #[test]
    fn caches_below_the_node_are_found() {
        let cpus = [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 0)];
        let check = |caches: &[(usize, &str)], expected: &[&str]| {
            let details = MachineTopology::from_sysfs(&files(&cpus, &[(0, "0-3")], caches)).unwrap().cpus.details;
            let found: Vec<String> = details
                .ids(Level::UncoreCache)
                .iter()
                .map(|id| details.cpus_in(Level::UncoreCache, id).to_string())
                .collect();
            assert_eq!(found, expected);
        };
        check(&[(7, "0-1"), (8, "2-3")], &["0-1", "2-3"]);
        check(&[(7, "0-3")], &["0-3"]);
        check(&[], &["0-3"]);
    }

    #[test]
    fn machines_without_nodes_have_sockets() {
        let machine = MachineTopology::from_sysfs(&files(&[(0, 0, 0), (1, 0, 1)], &[], &[])).unwrap();
        assert_eq!((machine.nodes.len(), machine.cpus.numa_nodes), (2, 2));
        assert_eq!(MachineTopology::from_sysfs(&SysfsFiles::new()), Err(TopologyError::NoCpus));
    }
}
