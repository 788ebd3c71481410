//! Samples of the node's groups, taken when somebody asks and shared by those who ask at the same time.
//! Asked by the kubelet for its metrics and by `http` for its page; whose a group is comes from `Naming`.
//! Invariant: nothing is sampled while nobody asks, and no group more often than once in `SAMPLE_AGE_MAX` (test:
//! `samples_are_shared_and_remembered_while_somebody_looks`).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use env::Env;
use jiff::Timestamp;
use metrics::Text;
use parking_lot::Mutex;

use crate::{
    cgroup::{Cgroups, ROOT, Usage},
    container_metrics,
    devices::{self, Devices},
    info::{ContainerSpec, ContainerStats, FsStats, MachineInfo, ProcessInfo},
    machine, machine_metrics,
    machine_metrics::Versions,
    proc_files, processes,
};

/// A younger sample is as good as a new one.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(900);
/// What the machine is changes seldom.
const MACHINE_AGE_MAX: Duration = Duration::from_secs(300);
/// Which group is whose, for a list that is asked for again and again.
const IDENTITIES_AGE_MAX: Duration = Duration::from_secs(3);
/// Samples that are remembered of a group somebody looks at.
pub const HISTORY_SAMPLES_MAX: usize = 60;
/// A group that nobody has looked at for so long is forgotten.
const HISTORY_IDLE_MAX: Duration = Duration::from_secs(120);
const HISTORIES_MAX: usize = 128;
/// Groups in one snapshot; a pod may make as many below its own as it likes.
const GROUPS_MAX: usize = 8192;
/// Below the group of all pods: a class of service, a pod, a container.
const GROUP_DEPTH_MAX: usize = 3;

/// What a group is to Kubernetes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupKind {
    #[default]
    Other,
    Pod,
    Sandbox,
    Container,
}

/// Whose a group is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Identity {
    pub kind: GroupKind,
    /// The runtime's names for it.
    pub aliases: Vec<String>,
    pub pod: String,
    pub namespace: String,
    pub container: String,
    pub image: String,
    /// Whether it has a network of its own, which its processes see.
    pub has_network: bool,
    pub started: Option<Timestamp>,
    /// What it takes of the node's file systems, where that is known.
    pub filesystem: Vec<FsStats>,
}

/// Whoever knows the pods of this node.
pub trait Naming: Send + Sync + 'static {
    /// By the names of groups. Called once per sample.
    fn identities(&self) -> HashMap<String, Identity>;
    /// Groups that hold others to be told of, with those: that of all pods first.
    fn roots(&self) -> Vec<String>;
}

/// A group with all that is known of it.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// The name of its group.
    pub id: String,
    pub aliases: Vec<String>,
    pub pod: String,
    pub namespace: String,
    pub container: String,
    pub spec: ContainerSpec,
    pub stats: ContainerStats,
}

/// A row of a list of groups.
#[derive(Debug, Clone)]
pub struct ListedGroup {
    pub id: String,
    pub identity: Identity,
    pub usage: Usage,
    pub at: Timestamp,
}

/// A group that somebody looks at, with its last samples, the oldest first.
#[derive(Debug, Clone)]
pub struct ViewedGroup {
    pub id: String,
    pub identity: Identity,
    pub spec: ContainerSpec,
    pub history: Vec<Arc<ContainerStats>>,
    /// Names of the groups directly inside.
    pub children: Vec<String>,
}

struct History {
    sampled: Duration,
    looked: Duration,
    samples: VecDeque<Arc<ContainerStats>>,
}

type Cached<T> = Mutex<Option<(Duration, Arc<T>)>>;

/// Its functions read files: call them where blocking is allowed.
pub struct Monitor {
    cgroups: Cgroups,
    naming: Arc<dyn Naming>,
    env: Env,
    versions: Versions,
    snapshot: Cached<Vec<Container>>,
    machine: Cached<MachineInfo>,
    identities: Cached<HashMap<String, Identity>>,
    lists: Mutex<HashMap<String, (Duration, Arc<Vec<ListedGroup>>)>>,
    histories: Mutex<HashMap<String, History>>,
}

impl Monitor {
    pub fn new(cgroups: Cgroups, naming: Arc<dyn Naming>, versions: Versions, env: Env) -> Self {
        Self {
            cgroups,
            naming,
            env,
            versions,
            snapshot: Mutex::default(),
            machine: Mutex::default(),
            identities: Mutex::default(),
            lists: Mutex::default(),
            histories: Mutex::default(),
        }
    }

    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Held while reading, so that those who ask meanwhile get the same.
    fn cached<T>(&self, cache: &Cached<T>, age_max: Duration, read: impl FnOnce() -> T) -> Arc<T> {
        let mut cached = cache.lock();
        let now = self.env.monotonic();
        if let Some((at, found)) = &*cached
            && now.saturating_sub(*at) < age_max
        {
            return found.clone();
        }
        let found = Arc::new(read());
        *cached = Some((now, found.clone()));
        found
    }

    pub fn machine(&self) -> Arc<MachineInfo> {
        self.cached(&self.machine, MACHINE_AGE_MAX, || machine::read(self.env.now()))
    }

    fn identities(&self) -> Arc<HashMap<String, Identity>> {
        self.cached(&self.identities, IDENTITIES_AGE_MAX, || self.naming.identities())
    }

    /// The node, the group of all pods and everything in it.
    pub fn snapshot(&self) -> Arc<Vec<Container>> {
        self.cached(&self.snapshot, SAMPLE_AGE_MAX, || {
            let (devices, identities) = (Devices::read(), self.naming.identities());
            let containers = self.group_names().into_iter();
            containers.filter_map(|name| self.container(name, &identities, &devices)).collect()
        })
    }

    /// Parents before children.
    pub fn group_names(&self) -> Vec<String> {
        let mut names = vec![ROOT.to_string()];
        for root in self.naming.roots() {
            let mut level = vec![root];
            for _ in 0..=GROUP_DEPTH_MAX {
                level.retain(|name| name != ROOT && !names.contains(name));
                names.extend(level.iter().take(GROUPS_MAX.saturating_sub(names.len())).cloned());
                level = level.iter().flat_map(|name| self.cgroups.children(name)).collect();
            }
        }
        names.retain(|name| self.cgroups.exists(name));
        names
    }

    fn container(&self, id: String, identities: &HashMap<String, Identity>, devices: &Devices) -> Option<Container> {
        let identity = identities.get(&id).cloned().unwrap_or_default();
        let spec = self.spec(&id, &identity)?;
        let mut stats = self.sample(&id, &identity, devices)?;
        processes::count(&self.cgroups.processes(&id), &mut stats);
        let Identity { aliases, pod, namespace, container, .. } = identity;
        Some(Container { id, aliases, pod, namespace, container, spec, stats })
    }

    fn spec(&self, id: &str, identity: &Identity) -> Option<ContainerSpec> {
        let mut spec = self.cgroups.spec(id)?;
        spec.image = identity.image.clone();
        spec.has_network = identity.has_network || id == ROOT;
        spec.has_filesystem = id == ROOT || !identity.filesystem.is_empty();
        if id == ROOT {
            spec.creation_time = Timestamp::from_second(proc_files::boot_time()).unwrap_or_default();
            spec.has_memory = true;
            spec.memory.limit = self.machine().memory_capacity;
        }
        spec.creation_time = identity.started.unwrap_or(spec.creation_time);
        let labels = [
            ("io.kubernetes.container.name", &identity.container),
            ("io.kubernetes.pod.name", &identity.pod),
            ("io.kubernetes.pod.namespace", &identity.namespace),
        ];
        let known = labels.into_iter().filter(|(_, value)| !value.is_empty());
        spec.labels = known.map(|(name, value)| (name.to_string(), value.clone())).collect();
        Some(spec)
    }

    fn sample(&self, id: &str, identity: &Identity, devices: &Devices) -> Option<ContainerStats> {
        let mut stats = self.cgroups.stats(id, devices, self.env.now())?;
        let own = self.cgroups.processes(id);
        stats.processes.process_count = own.len() as u64;
        if id == ROOT {
            stats.network.interfaces = proc_files::interfaces_of("self");
            stats.filesystem = devices::filesystems();
        } else {
            if let Some(first) = own.first().filter(|_| identity.has_network) {
                stats.network.interfaces = proc_files::interfaces_of(&first.to_string());
            }
            stats.filesystem = identity.filesystem.clone();
        }
        Some(stats)
    }

    /// `/metrics/cadvisor`.
    pub fn metrics(&self, text: &mut Text) {
        container_metrics::write(text, self.snapshot().iter());
        machine_metrics::write(text, &self.machine(), &self.versions);
    }

    /// A group, sampled anew where its last sample is old; none when it is gone.
    pub fn view(&self, id: &str) -> Option<ViewedGroup> {
        let identity = self.identities().get(id).cloned().unwrap_or_default();
        let spec = self.spec(id, &identity)?;
        let children = if id == ROOT { self.naming.roots() } else { self.cgroups.children(id) };
        let history = self.history(id, &identity)?;
        Some(ViewedGroup { id: id.into(), identity, spec, history, children })
    }

    fn history(&self, id: &str, identity: &Identity) -> Option<Vec<Arc<ContainerStats>>> {
        let mut histories = self.histories.lock();
        let now = self.env.monotonic();
        histories.retain(|_, history| now.saturating_sub(history.looked) < HISTORY_IDLE_MAX);
        let fresh = |history: &History| now.saturating_sub(history.sampled) < SAMPLE_AGE_MAX;
        if !histories.get(id).is_some_and(fresh) {
            let Some(mut sample) = self.sample(id, identity, &Devices::read()) else {
                histories.remove(id);
                return None;
            };
            // On machines without systemd the node's own group has all programs in it, whose files nobody counts here.
            if id != ROOT {
                processes::count(&self.cgroups.processes(id), &mut sample);
            }
            // A pod's network is its sandbox's.
            if identity.kind == GroupKind::Pod {
                sample.network.interfaces = self.pod_interfaces(id);
            }
            if histories.len() >= HISTORIES_MAX && !histories.contains_key(id) {
                let oldest = histories.iter().min_by_key(|(_, history)| history.looked).map(|(id, _)| id.clone());
                oldest.and_then(|id| histories.remove(&id));
            }
            let new = || History { sampled: now, looked: now, samples: VecDeque::new() };
            let history = histories.entry(id.to_string()).or_insert_with(new);
            history.sampled = now;
            history.samples.push_back(Arc::new(sample));
            if history.samples.len() > HISTORY_SAMPLES_MAX {
                history.samples.pop_front();
            }
        }
        let history = histories.get_mut(id)?;
        history.looked = now;
        Some(history.samples.iter().cloned().collect())
    }

    fn pod_interfaces(&self, pod: &str) -> Vec<crate::info::InterfaceStats> {
        let identities = self.identities();
        let sandbox = |id: &String| identities.get(id).is_some_and(|identity| identity.has_network);
        let sandbox = self.cgroups.children(pod).into_iter().find(sandbox);
        let process = sandbox.and_then(|id| self.cgroups.processes(&id).first().copied());
        process.map_or_else(Vec::new, |process| proc_files::interfaces_of(&process.to_string()))
    }

    /// What is in a group, with little of each: of the node its pods, else the groups directly inside.
    pub fn list(&self, id: &str) -> Arc<Vec<ListedGroup>> {
        let mut lists = self.lists.lock();
        let now = self.env.monotonic();
        lists.retain(|_, (at, _)| now.saturating_sub(*at) < SAMPLE_AGE_MAX);
        if let Some((_, list)) = lists.get(id) {
            return list.clone();
        }
        let identities = self.identities();
        let ids: Vec<String> = match id {
            ROOT => {
                let pods = identities.iter().filter(|(_, identity)| identity.kind == GroupKind::Pod);
                pods.map(|(id, _)| id.clone()).collect()
            }
            id => self.cgroups.children(id),
        };
        let at = self.env.now();
        let row = |id: String| {
            let usage = self.cgroups.usage(&id)?;
            Some(ListedGroup { identity: identities.get(&id).cloned().unwrap_or_default(), id, usage, at })
        };
        let mut list: Vec<ListedGroup> = ids.into_iter().take(GROUPS_MAX).filter_map(row).collect();
        list.sort_by(|a, b| {
            let key = |row: &ListedGroup| (row.identity.namespace.clone(), row.identity.pod.clone(), row.id.clone());
            key(a).cmp(&key(b))
        });
        let list = Arc::new(list);
        lists.insert(id.into(), (now, list.clone()));
        list
    }

    /// Those in a group and in the groups of it that are told of.
    pub fn processes(&self, id: &str) -> Vec<ProcessInfo> {
        let inside = format!("{}/", id.trim_end_matches('/'));
        let names = self.group_names().into_iter().filter(|name| name == id || name.starts_with(&inside));
        let groups: Vec<(String, Vec<u32>)> = names.map(|name| (name.clone(), self.cgroups.processes(&name))).collect();
        processes::list(&groups, self.env.now())
    }
}

#[cfg(test)]
mod tests;
