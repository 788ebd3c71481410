//! The control groups of pods: one per pod below its class of service, on cgroup v1 and v2.
//! Called by `pod_workers`; the runtime puts sandboxes and containers below what is made here.
//! Touches nothing outside its own root, so several nodes live on one machine.

mod burstable;
mod group_names;
pub mod hierarchy;
mod protected_memory;
pub mod reserved_groups;
mod systemd;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, io, path::PathBuf};

use burstable::Burstable;
use cri::v1;
use hierarchy::Hierarchy;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use protected_memory::ProtectedMemory;

use crate::{
    config::{CgroupDriver, Config},
    node::node_status::Machine,
    pod::pod_spec::{self, QosClass},
    runtime::container_config::{
        memory_protection::{NodeMemory, SwapBehavior, memory_protection, pod_memory_min, swap_limit},
        resources::{self, PodLimits},
    },
};

pub struct ContainerManager {
    hierarchy: Hierarchy,
    /// The components below the hierarchy's top: the configured root and "kubepods".
    top: Vec<String>,
    driver: CgroupDriver,
    /// Processes per pod.
    pids: Option<i64>,
    /// Whether processor limits are enforced.
    quota: bool,
    /// Whether running out of memory ends all of a container (v2).
    oom_group: bool,
    /// Sizes of huge pages this machine has, as pods name them ("2Mi").
    page_sizes: Vec<String>,
    swap_behavior: SwapBehavior,
    /// Set where memory that is asked for is protected (MemoryQoS on cgroup v2).
    throttling_factor: Option<f64>,
    node_memory: NodeMemory,
    burstable: Mutex<Burstable>,
    protected: Mutex<ProtectedMemory>,
    /// UIDs of pods that are held to no quota: some container has processors to itself.
    without_quota: Mutex<HashSet<String>>,
}

impl ContainerManager {
    /// As `new`, with everything the node was told.
    pub fn configured(config: &Config, machine: &Machine) -> Self {
        let page_sizes = machine.hugepages.iter().map(|(size, _)| size.clone()).collect();
        let plain = Self::new(&config.cgroup_root, config.cgroup_driver);
        let oom_group = !config.single_process_oom_kill.unwrap_or(false);
        let throttling_factor =
            Some(config.memory_throttling_factor).filter(|_| config.memory_qos && plain.is_unified());
        let node_memory = NodeMemory {
            memory_bytes: machine.memory_bytes,
            swap_bytes: machine.swap_bytes,
            allocatable_bytes: machine.memory_bytes - config.reserved.memory_bytes,
        };
        Self {
            pids: config.pod_pids_limit,
            quota: config.cpu_cfs_quota,
            oom_group,
            page_sizes,
            swap_behavior: config.swap_behavior,
            throttling_factor,
            node_memory,
            ..plain
        }
    }

    pub fn new(root: &str, driver: CgroupDriver) -> Self {
        Self::with_hierarchy(Hierarchy::detect(), root, driver)
    }

    fn with_hierarchy(hierarchy: Hierarchy, root: &str, driver: CgroupDriver) -> Self {
        let mut top: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
        top.push("kubepods".into());
        Self {
            hierarchy,
            top,
            driver,
            pids: None,
            quota: true,
            oom_group: true,
            page_sizes: vec![],
            swap_behavior: SwapBehavior::default(),
            throttling_factor: None,
            node_memory: NodeMemory::default(),
            burstable: Mutex::default(),
            protected: Mutex::default(),
            without_quota: Mutex::default(),
        }
    }

    /// Makes the groups of the classes. All pods together get `cpu_milli` of the processors against what else runs here,
    /// and `memory_bytes` at most.
    pub fn start(&self, cpu_milli: i64, memory_bytes: Option<i64>) -> io::Result<()> {
        let all = PodLimits { cpu_shares: resources::cpu_shares(cpu_milli), cpu_quota: 0, memory_bytes };
        // Whatever asks for nothing gets only what others leave.
        let least = PodLimits { cpu_shares: resources::MIN_SHARES, cpu_quota: 0, memory_bytes: None };
        let classes =
            [(self.top.clone(), Some(all)), (self.burstable_group(), None), (self.best_effort_group(), Some(least))];
        for (class, limits) in classes {
            match self.driver {
                CgroupDriver::Cgroupfs => self.hierarchy.create(&class)?,
                CgroupDriver::Systemd => self.start_slice(&class, &[])?,
            }
            if let Some(limits) = limits {
                self.apply(&class, limits)?;
            }
        }
        self.adopt();
        Ok(())
    }

    /// systemd answers before it has made the directories, and makes none for controllers that it does not know.
    fn start_slice(&self, components: &[String], properties: &[systemd::Property]) -> io::Result<()> {
        systemd::call(&systemd::start(components, properties))?;
        // One that was there before us has the limits of then.
        if !properties.is_empty() {
            systemd::call(&systemd::set(components, properties))?;
        }
        self.hierarchy.create(&self.place(components))
    }

    /// All pods together have at most so many processes.
    pub fn limit_processes(&self, most: i64) -> io::Result<()> {
        match self.driver {
            CgroupDriver::Cgroupfs => self.hierarchy.set_pids(&self.top, most),
            CgroupDriver::Systemd => systemd::call(&systemd::set(&self.top, &[systemd::tasks_max(most)])),
        }
    }

    /// What the pods of the Burstable class have that an earlier run left running.
    fn adopt(&self) {
        let place = self.place(&self.burstable_group());
        let mut burstable = self.burstable.lock();
        for name in self.hierarchy.children(&place) {
            let group: Vec<String> = place.iter().cloned().chain([name.clone()]).collect();
            let shares = self.hierarchy.shares(&group).unwrap_or(resources::MIN_SHARES);
            if let Some(uid) = uid_of(name) {
                burstable.set(&uid, Some(burstable::milli(shares)));
            }
        }
        drop(burstable);
        self.share();
    }

    /// Gives the Burstable class what its pods ask for.
    fn share(&self) {
        // Held while writing, so that the last to change it is the last to write.
        let mut burstable = self.burstable.lock();
        let Some(shares) = burstable.wanted() else { return };
        let limits = PodLimits { cpu_shares: shares, cpu_quota: 0, memory_bytes: None };
        match self.apply(&self.burstable_group(), limits) {
            Ok(()) => burstable.written = Some(shares),
            Err(error) => tracing::warn!(%error, "failed to give the Burstable class its share of the processors"),
        }
    }

    /// Counts what a pod asks for, if it is of the Burstable class.
    fn count(&self, pod: &Pod) {
        if pod_spec::qos_class(pod) == QosClass::Burstable {
            self.burstable.lock().set(pod_spec::uid(pod), Some(resources::pod_cpu_request(pod)));
            self.share();
        }
    }

    fn burstable_group(&self) -> Vec<String> {
        self.below(&["burstable"])
    }

    fn best_effort_group(&self) -> Vec<String> {
        self.below(&["besteffort"])
    }

    fn below(&self, names: &[&str]) -> Vec<String> {
        self.top.iter().cloned().chain(names.iter().map(|name| name.to_string())).collect()
    }

    fn components(&self, class: QosClass, uid: &str) -> Vec<String> {
        let pod = format!("pod{uid}");
        match class {
            QosClass::Guaranteed => self.below(&[&pod]),
            QosClass::Burstable => self.below(&["burstable", &pod]),
            QosClass::BestEffort => self.below(&["besteffort", &pod]),
        }
    }

    /// Where a group's directories are below the top of a hierarchy.
    fn place(&self, components: &[String]) -> Vec<String> {
        match self.driver {
            CgroupDriver::Cgroupfs => components.to_vec(),
            CgroupDriver::Systemd => systemd::directories(components),
        }
    }

    /// The group as the runtime wants it named.
    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
            CgroupDriver::Systemd => systemd::slice(&components),
        }
    }

    /// Makes the pod's group with its limits.
    pub fn create_pod(&self, pod: &Pod) -> io::Result<()> {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        let limits = self.enforced(pod_spec::uid(pod), resources::pod_limits(pod));
        if self.driver == CgroupDriver::Systemd {
            let properties = systemd::properties(limits, self.pids, self.hierarchy.is_unified());
            self.start_slice(&components, &properties)?;
        } else {
            self.hierarchy.create(&components)?;
            self.apply(&components, limits)?;
            if let Some(pids) = self.pids {
                self.hierarchy.set_pids(&components, pids)?;
            }
        }
        self.count(pod);
        self.protect(pod, &components)?;
        let pages = resources::pod_hugepages(pod, &self.page_sizes);
        self.hierarchy.set_hugepages(&self.place(&components), &pages)
    }

    /// The pod's containers have processors to themselves: no quota slows them down.
    pub fn lift_quota(&self, pod_uid: &str) {
        self.without_quota.lock().insert(pod_uid.into());
    }

    /// Takes up a pod whose groups an earlier run made.
    pub fn adopt_pod(&self, pod: &Pod) {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        if let Err(error) = self.protect(pod, &components) {
            tracing::warn!(%error, "failed to protect the memory of a running pod");
        }
    }

    /// Keeps the memory that pods ask for from being reclaimed: the pod's own, its class's and that of all.
    fn protect(&self, pod: &Pod, components: &[String]) -> io::Result<()> {
        if self.throttling_factor.is_none() {
            return Ok(());
        }
        let bytes = pod_memory_min(pod);
        if bytes > 0 {
            self.hierarchy.set_memory_min(&self.place(components), bytes)?;
        }
        self.protected.lock().set(pod_spec::uid(pod), Some((pod_spec::qos_class(pod), bytes)));
        self.protect_classes();
        Ok(())
    }

    fn protect_classes(&self) {
        // Held while writing, so that the last to change it is the last to write.
        let protected = self.protected.lock();
        let groups = [(self.burstable_group(), protected.burstable_bytes()), (self.top.clone(), protected.all_bytes())];
        for (group, bytes) in groups {
            if let Err(error) = self.hierarchy.set_memory_min(&self.place(&group), bytes) {
                tracing::warn!(%error, "failed to protect the memory of a class");
            }
        }
    }

    /// What this node wants of every container, whatever its pod says.
    pub fn enforce(&self, pod: &Pod, container: &Container, resources: &mut v1::LinuxContainerResources) {
        if let Some(factor) = self.throttling_factor {
            let protection = memory_protection(container, factor, self.node_memory);
            let files = [("memory.min", protection.min_bytes), ("memory.high", protection.high_bytes)];
            let set = files.into_iter().filter_map(|(file, bytes)| Some((file.to_string(), bytes?.to_string())));
            resources.unified.extend(set);
        }
        if !self.quota {
            resources.cpu_quota = -1;
        }
        let unified = self.hierarchy.is_unified();
        if unified && self.oom_group {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        if !self.hierarchy.limits_swap(&self.place(&self.top)) {
            return;
        }
        match unified {
            true => {
                let bytes = swap_limit(self.swap_behavior, pod, container, self.node_memory);
                resources.unified.insert("memory.swap.max".into(), bytes.to_string());
            }
            // Here no container swaps.
            // Memory and swap together; without a limit of memory it has no meaning.
            false => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        }
    }

    pub fn is_unified(&self) -> bool {
        self.hierarchy.is_unified()
    }

    fn enforced(&self, pod_uid: &str, limits: PodLimits) -> PodLimits {
        let held = self.quota && !self.without_quota.lock().contains(pod_uid);
        PodLimits { cpu_quota: if held { limits.cpu_quota } else { 0 }, ..limits }
    }

    /// Whether the container's swap depends on the memory it asks for.
    pub fn swaps(&self, pod: &Pod, container: &Container) -> bool {
        self.is_unified() && swap_limit(self.swap_behavior, pod, container, self.node_memory) > 0
    }

    /// Sets the limits of an existing pod anew.
    pub fn set_limits(&self, pod: &Pod, limits: PodLimits) -> io::Result<()> {
        let (uid, components) = (pod_spec::uid(pod), self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)));
        self.apply(&components, self.enforced(uid, limits))?;
        self.count(pod);
        self.protect(pod, &components)
    }

    fn apply(&self, components: &[String], limits: PodLimits) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            let properties = systemd::properties(limits, None, self.hierarchy.is_unified());
            return systemd::call(&systemd::set(components, &properties));
        }
        self.hierarchy.set_cpu(components, limits.cpu_shares, limits.cpu_quota)?;
        match limits.memory_bytes {
            Some(bytes) => self.hierarchy.set_memory(components, bytes),
            None => Ok(()),
        }
    }

    /// Removes the pod's groups. An error means that something still runs in them.
    pub fn remove_pod(&self, uid: &str) -> io::Result<()> {
        self.burstable.lock().set(uid, None);
        self.share();
        self.without_quota.lock().remove(uid);
        if self.throttling_factor.is_some() {
            self.protected.lock().set(uid, None);
            self.protect_classes();
        }
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let components = self.components(class, uid);
            let there = || self.hierarchy.directories(&self.place(&components)).iter().any(|place| place.exists());
            if self.driver == CgroupDriver::Systemd && there() {
                systemd::call(&systemd::stop(&components))?;
            }
            self.hierarchy.remove(&self.place(&components))?;
        }
        Ok(())
    }

    /// UIDs of the pods that have groups.
    pub fn pods(&self) -> Vec<String> {
        let places = [self.top.clone(), self.burstable_group(), self.best_effort_group()];
        let mut uids: Vec<String> =
            places.iter().flat_map(|place| self.hierarchy.children(&self.place(place))).filter_map(uid_of).collect();
        uids.sort();
        uids.dedup();
        uids
    }

    /// Removes everything of ours: what `minke down` wants. Fails when something still runs.
    pub fn remove_all(&self) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            systemd::call(&systemd::stop(&self.top))?;
        }
        self.hierarchy.remove(&self.place(&self.top))?;
        if self.top.len() > 1 {
            self.hierarchy.remove(&self.place(&self.top[..1]))?;
        }
        Ok(())
    }

    /// What the kernel calls a pod's group, and its directory for one controller.
    pub fn pod_group(&self, pod: &Pod, controller: &str) -> Option<(String, PathBuf)> {
        let place = self.place(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)));
        Some((format!("/{}", place.join("/")), self.hierarchy.group_dir(controller, &place)?))
    }

    /// Bytes of memory that all of a pod uses now.
    pub fn memory_usage(&self, pod: &Pod) -> Option<i64> {
        let file = if self.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        let (_, place) = self.pod_group(pod, "memory")?;
        std::fs::read_to_string(place.join(file)).ok()?.trim().parse().ok()
    }

    /// Directory of the group that all pods are in, for one controller.
    pub fn pods_directory(&self, controller: &str) -> Option<PathBuf> {
        self.hierarchy.group_dir(controller, &self.place(&self.top))
    }

    /// Directories of a pod's group, one per hierarchy, for statistics.
    pub fn pod_directories(&self, pod: &Pod) -> Vec<PathBuf> {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        self.hierarchy.directories(&self.place(&components))
    }
}

/// From the name of a pod's group under either driver.
fn uid_of(name: String) -> Option<String> {
    match name.strip_suffix(".slice") {
        Some(slice) => Some(slice.rsplit_once("-pod")?.1.replace('_', "-")),
        None => name.strip_prefix("pod").map(String::from),
    }
}
