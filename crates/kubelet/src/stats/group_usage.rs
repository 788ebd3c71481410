//! What the kernel counts of the node, its pods, their containers and the node's own programs, for the summary.
//! Part of `stats`; read on a thread of its own.
//! Only reads, and only when somebody asks; a group that goes away meanwhile is left out.

use std::{
    collections::HashMap,
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use cadvisor::{
    Cgroups, ROOT,
    info::{ContainerSpec, ContainerStats, InterfaceStats},
    proc_files, processes,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::pod_facts::container_id;
use crate::pod::{pod_spec, pod_workers::Shared};

/// Beyond this there is no limit of memory: the kernel rounds what stands for none.
const UNLIMITED_BYTES_MIN: u64 = 1 << 62;
/// There while systemd runs the machine; without it the rest of the processes is told of as one.
const SYSTEMD_RUNS: &str = "/run/systemd/system";

#[derive(Debug, Clone, Default)]
pub struct Group {
    pub spec: ContainerSpec,
    pub stats: ContainerStats,
}

impl Group {
    fn read(cgroups: &Cgroups, name: &str, now: Timestamp) -> Option<Self> {
        let stats = cgroups.stats(name, &cadvisor::Devices::default(), now)?;
        Some(Self { spec: cgroups.spec(name)?, stats })
    }

    /// What is left of its memory, if it is limited.
    pub fn available_bytes(&self) -> Option<u64> {
        let limit = Some(self.spec.memory.limit).filter(|limit| (1..UNLIMITED_BYTES_MIN).contains(limit))?;
        Some(limit.saturating_sub(self.stats.memory.working_set))
    }
}

#[derive(Debug, Default)]
pub struct Groups {
    pub node: Group,
    pub interfaces: Vec<InterfaceStats>,
    /// By UID.
    pub pods: HashMap<String, Group>,
    /// By the runtime's ids.
    pub containers: HashMap<String, Group>,
    /// Under the names that the summary has for them.
    pub system: Vec<(&'static str, Group)>,
}

pub async fn gather(shared: &Arc<Shared>) -> Groups {
    let shared = shared.clone();
    env::spawn_blocking(move || read(&shared)).await.unwrap_or_default()
}

fn read(shared: &Shared) -> Groups {
    let (cgroups, now) = (shared.cgroups.cgroups(), shared.env.now());
    let mut groups = Groups {
        node: Group::read(&cgroups, ROOT, now).unwrap_or_default(),
        interfaces: proc_files::interfaces_of("self"),
        ..Groups::default()
    };
    for pod in shared.pods.list() {
        read_pod(shared, &cgroups, &pod, now, &mut groups);
    }
    let runtime = runtime_process(&shared.config.runtime_endpoint);
    let pods = Group::read(&cgroups, &shared.cgroups.pods_group(), now);
    groups.system = system(&cgroups, std::process::id(), runtime, pods, now);
    if !Path::new(SYSTEMD_RUNS).exists() {
        groups.system.push(("misc", rest(&groups.node, &groups.system)));
    }
    groups
}

fn read_pod(shared: &Shared, cgroups: &Cgroups, pod: &Pod, now: Timestamp, groups: &mut Groups) {
    let Some((name, _)) = shared.cgroups.pod_group(pod, "cpu") else { return };
    let Some(group) = Group::read(cgroups, &name, now) else { return };
    groups.pods.insert(pod_spec::uid(pod).into(), group);
    for child in cgroups.children(&name) {
        let id = container_id(child.rsplit('/').next().unwrap_or_default()).to_string();
        if let Some(group) = Group::read(cgroups, &child, now) {
            groups.containers.insert(id, group);
        }
    }
}

/// The node's programs by the groups they run in; those that share one, or have none, by their processes.
fn system(
    cgroups: &Cgroups,
    kubelet: u32,
    runtime: Option<u32>,
    pods: Option<Group>,
    now: Timestamp,
) -> Vec<(&'static str, Group)> {
    let group_of = |process: u32| group_of(&fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default());
    let (own, others) = (group_of(kubelet), runtime.and_then(group_of));
    let apart = own != others;
    let measured = |process: u32, group: Option<String>| {
        let group = group.filter(|group| apart && group != ROOT);
        group.and_then(|group| Group::read(cgroups, &group, now)).or_else(|| of_process(process, now))
    };
    let mut found = Vec::new();
    found.extend(measured(kubelet, own).map(|group| ("kubelet", group)));
    found.extend(runtime.and_then(|process| measured(process, others)).map(|group| ("runtime", group)));
    found.extend(pods.map(|group| ("pods", group)));
    found
}

fn of_process(process: u32, now: Timestamp) -> Option<Group> {
    let (stats, creation_time) = processes::usage(process, now)?;
    Some(Group { spec: ContainerSpec { creation_time, ..ContainerSpec::default() }, stats })
}

/// Whose processor time a process counts to, from its `cgroup` file of either version.
fn group_of(text: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let counts = |controllers: &str| controllers.split(',').any(|name| name == "cpuacct");
    let unified = |controllers: &str| controllers.is_empty();
    let found = lines.clone().find(|(names, _)| counts(names)).or_else(|| lines.clone().find(|(n, _)| unified(n)));
    found.map(|(_, group)| group.to_string())
}

/// Whoever listens at the runtime's socket.
fn runtime_process(endpoint: &Path) -> Option<u32> {
    let path = endpoint.to_str()?;
    let path = PathBuf::from(path.strip_prefix("unix://").unwrap_or(path));
    let stream = UnixStream::connect(path).ok()?;
    u32::try_from(getsockopt(&stream, PeerCredentials).ok()?.pid()).ok()
}

/// What the node uses beyond what is told of by itself.
fn rest(node: &Group, told: &[(&'static str, Group)]) -> Group {
    let mut rest = node.clone();
    rest.spec.memory = Default::default();
    rest.stats.cpu.psi = None;
    rest.stats.memory.psi = None;
    rest.stats.diskio.psi = None;
    for (_, group) in told {
        let (from, less) = (&mut rest.stats, &group.stats);
        let subtract = |from: &mut u64, less: u64| *from = from.saturating_sub(less);
        subtract(&mut from.cpu.usage.total, less.cpu.usage.total);
        subtract(&mut from.memory.usage, less.memory.usage);
        subtract(&mut from.memory.working_set, less.memory.working_set);
        subtract(&mut from.memory.rss, less.memory.rss);
        subtract(&mut from.memory.swap, less.memory.swap);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_names_its_group_in_both_versions() {
        for (text, expected) in [
            ("0::/system.slice/kubelet.service\n", Some("/system.slice/kubelet.service")),
            ("12:cpu,cpuacct:/a:b\n3:memory:/m\n0::/u\n", Some("/a:b")),
            ("3:memory:/m\n", None),
            ("", None),
        ] {
            assert_eq!(group_of(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_nodes_programs_are_told_of_by_process_where_they_share_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::Unified { root: dir.path().into() };
        let own = std::process::id();
        let mut pods = Group::default();
        pods.stats.cpu.usage.total = 5;
        let found = system(&cgroups, own, Some(own), Some(pods), Timestamp::UNIX_EPOCH);
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["kubelet", "runtime", "pods"]);
        assert!(found[0].1.stats.memory.rss > 0 && found[0].1.available_bytes().is_none(), "{found:?}");
        let mut node = Group::default();
        node.stats.cpu.usage.total = 12;
        let rest = rest(&node, &found[2..]);
        assert_eq!((rest.stats.cpu.usage.total, rest.stats.memory.rss), (7, 0));
    }

    #[test]
    fn what_is_left_is_known_only_of_the_limited() {
        let mut group = Group::default();
        for (limit, working_set, expected) in
            [(0, 1, None), (u64::MAX, 1, None), (10, 4, Some(6)), (10, 20, Some(0)), (1 << 62, 1, None)]
        {
            group.spec.memory.limit = limit;
            group.stats.memory.working_set = working_set;
            assert_eq!(group.available_bytes(), expected, "{limit}");
        }
    }

    #[tokio::test]
    async fn the_runtime_is_found_at_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        assert_eq!(runtime_process(&socket), None);
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let endpoint = PathBuf::from(format!("unix://{}", socket.display()));
        assert_eq!(runtime_process(&endpoint), Some(std::process::id()));
    }
}
