//! What the kernel tells of a pod beyond what the runtime does: its network, its processes, its volumes and its logs.
//! Part of `stats`; gathered on a thread of its own, because disks may be slow.
//! Only reads, and only when somebody asks; what goes away meanwhile is left out.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::volume_claims::claim_name;
use cadvisor::{info::InterfaceStats, proc_files};
use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{
    csi::volume_stats::{DriverStats, VolumeStats},
    files::disk::{self, Disk, Usage},
    pod::{pod_spec, pod_workers::Shared},
    runtime::container_config,
    volumes::plugins::PLUGINS,
};

#[derive(Debug, Default)]
pub struct PodFacts {
    /// `None` for pods that have no network of their own.
    pub network: Option<Vec<InterfaceStats>>,
    pub processes: u64,
    pub volumes: Vec<VolumeUsage>,
    /// By the names of containers.
    pub logs: HashMap<String, Usage>,
}

#[derive(Debug)]
pub struct VolumeUsage {
    pub name: String,
    pub claim: Option<String>,
    pub disk: Disk,
    pub used: Usage,
    /// Whether it is on the node's own disk and goes with the pod.
    pub ephemeral: bool,
    /// Whether its driver says that something is wrong with it.
    pub abnormal: Option<bool>,
}

/// Of all pods, by UID.
pub async fn gather(shared: &Arc<Shared>) -> HashMap<String, PodFacts> {
    let shared = shared.clone();
    let pods = shared.pods.list();
    let drivers = shared.volumes.driver_stats(&pods).await;
    let work = move || {
        let of = |pod: Arc<Pod>| (pod_spec::uid(&pod).to_string(), gather_pod(&shared, &pod, &drivers));
        pods.into_iter().map(of).collect()
    };
    env::spawn_blocking(work).await.unwrap_or_default()
}

fn gather_pod(shared: &Shared, pod: &Pod, drivers: &DriverStats) -> PodFacts {
    let mut facts = PodFacts::default();
    let mut process = None;
    if let Some((_, directory)) = shared.cgroups.pod_group(pod, "cpu") {
        for (_, place) in children(&directory) {
            let (processes, first) = processes_below(&place);
            process = process.or(first);
            facts.processes += processes;
        }
    }
    if let Some(process) = process.filter(|_| !pod_spec::host_network(pod)) {
        facts.network = Some(proc_files::interfaces_of(&process.to_string()));
    }
    let paths = shared.volumes.paths(pod_spec::uid(pod));
    let volumes = pod_spec::spec(pod).volumes.iter().flatten();
    facts.volumes = volumes.filter_map(|volume| volume_usage(pod, volume, paths.get(&volume.name)?, drivers)).collect();
    let logs = container_config::log_directory(&shared.config.pod_logs_dir(), pod);
    let named = |place: PathBuf| Some((place.file_name()?.to_string_lossy().into_owned(), disk::usage_below(&place)));
    let places = std::fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path());
    facts.logs = places.filter_map(named).collect();
    facts
}

/// The groups directly inside, by the ids of the containers they are for.
pub fn children(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| (container_id(&entry.file_name().to_string_lossy()).into(), entry.path())).collect()
}

/// Runtimes name a group after the container; under systemd it is a scope with a prefix.
pub fn container_id(name: &str) -> &str {
    match name.strip_suffix(".scope") {
        Some(scope) => scope.rsplit('-').next().unwrap_or(scope),
        None => name,
    }
}

/// How many there are in a group and those below it, and one of them.
fn processes_below(group: &Path) -> (u64, Option<u32>) {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse::<u32>().ok());
    let (mut count, mut first) = own.fold((0, None), |(count, first), pid| (count + 1, first.or(Some(pid))));
    for (_, place) in children(group) {
        let (more, one) = processes_below(&place);
        count += more;
        first = first.or(one);
    }
    (count, first)
}

/// Host paths are not the pod's to be counted, a device holds no files, and of a driver's volume only the driver tells.
fn volume_usage(pod: &Pod, volume: &Volume, path: &Path, drivers: &DriverStats) -> Option<VolumeUsage> {
    let (name, claim) = (volume.name.clone(), claim_name(pod, volume));
    if let Some(told) = drivers.get(path) {
        let VolumeStats { disk, used, condition, .. } = told.clone()?;
        let abnormal = condition.map(|condition| condition.abnormal);
        return Some(VolumeUsage { name, claim, disk, used, ephemeral: false, abnormal });
    }
    if PLUGINS.find_inline(volume).is_some_and(|plugin| !plugin.has_usage()) || !path.is_dir() {
        return None;
    }
    let disk = Disk::measure(path)?;
    let in_memory = volume.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref() == Some("Memory"));
    let used = match claim.is_some() || in_memory {
        // Has a file system of its own, or is only known by it.
        true => Usage {
            bytes: disk.bytes.saturating_sub(disk.bytes_free),
            inodes: disk.inodes.saturating_sub(disk.inodes_free),
        },
        false => disk::usage_below(path),
    };
    Some(VolumeUsage { name, ephemeral: claim.is_none() && !in_memory, claim, disk, used, abnormal: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_counted_below_and_groups_known_by_their_containers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("abc/init.scope")).unwrap();
        std::fs::write(dir.path().join("abc/cgroup.procs"), "").unwrap();
        std::fs::write(dir.path().join("abc/init.scope/cgroup.procs"), "17\n18\n").unwrap();
        let groups = children(dir.path());
        assert_eq!(groups, [("abc".to_string(), dir.path().join("abc"))]);
        assert_eq!(processes_below(&groups[0].1), (2, Some(17)));
        for (name, id) in [("abc", "abc"), ("cri-containerd-abc.scope", "abc"), ("crio-abc.scope", "abc")] {
            assert_eq!(container_id(name), id);
        }
    }

    #[test]
    fn volumes_are_measured_by_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![1; 10_000]).unwrap();
        let check = |volume: serde_json::Value, expected: Option<(bool, Option<&str>)>| {
            let mut volume = volume;
            volume["name"] = "v".into();
            let volume = serde_json::from_value(volume).unwrap();
            let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}})).unwrap();
            let found = volume_usage(&pod, &volume, dir.path(), &DriverStats::default());
            let told = found.as_ref().map(|usage| (usage.ephemeral, usage.claim.as_deref()));
            assert_eq!(told, expected, "{volume:?}");
            if let Some(usage) = found.filter(|usage| usage.ephemeral) {
                assert!(usage.used.bytes >= 10_000 && usage.used.bytes < 100_000, "{usage:?}");
                assert!(usage.used.inodes >= 1 && usage.disk.bytes > 0, "{usage:?}");
            }
        };
        use serde_json::json;
        check(json!({"emptyDir": {}}), Some((true, None)));
        check(json!({"configMap": {"name": "c"}}), Some((true, None)));
        check(json!({"emptyDir": {"medium": "Memory"}}), Some((false, None)));
        check(json!({"persistentVolumeClaim": {"claimName": "c"}}), Some((false, Some("c"))));
        check(json!({"ephemeral": {}}), Some((false, Some("p-v"))));
        check(json!({"hostPath": {"path": "/"}}), None);
    }

    #[test]
    fn of_a_drivers_volume_the_driver_tells() {
        let dir = tempfile::tempdir().unwrap();
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}})).unwrap();
        let claim = serde_json::json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let claim = serde_json::from_value(claim).unwrap();
        let used = Usage { bytes: 7, inodes: 1 };
        let stats = VolumeStats { used, ..VolumeStats::default() };
        let told = |stats| volume_usage(&pod, &claim, dir.path(), &DriverStats::from([(dir.path().into(), stats)]));
        let found = told(Some(stats)).unwrap();
        assert_eq!((found.used, found.claim.as_deref(), found.ephemeral), (used, Some("c"), false));
        assert!(told(None).is_none());
    }
}
