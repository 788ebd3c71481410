//! Which clusters of ours are on this machine, and which addresses are theirs: each writes it into its run directory.
//! Written by `up` and `agent`, read by `ranges` when a further cluster starts and by `sysctls` when one ends.
//! What a cluster left that was never taken down still counts, since its containers go on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{certificates::pki::write_private, cluster::instance::Instance};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub data: PathBuf,
    pub pod_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
}

fn file(run: &Path) -> PathBuf {
    run.join("cluster.json")
}

pub fn record(instance: &Instance, pod_cidrs: &[IpNet], service_cidrs: &[IpNet]) -> Result<()> {
    let record = ClusterRecord {
        data: instance.data.clone(),
        pod_cidrs: pod_cidrs.to_vec(),
        service_cidrs: service_cidrs.to_vec(),
    };
    write_private(&file(&instance.run()), &serde_json::to_string(&record)?)
}

/// Those of other clusters. The nodes of `instance` on this machine are its own.
pub fn others(instance: &Instance) -> Vec<ClusterRecord> {
    others_in(Path::new("/run"), instance)
}

fn others_in(root: &Path, instance: &Instance) -> Vec<ClusterRecord> {
    let read = |run: PathBuf| serde_json::from_slice::<ClusterRecord>(&fs::read(file(&run)).ok()?).ok();
    let records = run_directories_in(root, instance).into_iter().filter_map(read);
    // Whoever removes a data directory by hand leaves the run directory.
    records.filter(|record| record.data.exists() && !record.data.starts_with(&instance.data)).collect()
}

/// The run directories of other instances.
pub fn run_directories(instance: &Instance) -> Vec<PathBuf> {
    run_directories_in(Path::new("/run"), instance)
}

fn run_directories_in(root: &Path, instance: &Instance) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| Instance::is_id(name) && *name != instance.id).map(|name| root.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_clusters_are_known_by_their_records() {
        let directory = tempfile::tempdir().unwrap();
        let (run, own) = (directory.path().join("run"), Instance::new(&directory.path().join("own")));
        let put = |id: &str, data: &Path| {
            fs::create_dir_all(run.join(id)).unwrap();
            let range = vec!["10.7.0.0/16".parse().unwrap()];
            let record = ClusterRecord { data: data.into(), pod_cidrs: range.clone(), service_cidrs: range };
            fs::write(file(&run.join(id)), serde_json::to_vec(&record).unwrap()).unwrap();
        };
        let (other, node) = (directory.path().join("other"), own.data.join("nodes/n-2"));
        fs::create_dir_all(&other).unwrap();
        fs::create_dir_all(&node).unwrap();
        put("mk012345", &other);
        put("mkabcdef", &node);
        put("minke", &directory.path().join("removed"));
        put("mkother", &other);
        put(&own.id, &own.data);
        let found: Vec<PathBuf> = others_in(&run, &own).into_iter().map(|record| record.data).collect();
        assert_eq!(found, [other]);
    }
}
