//! What the node is told at its start.
//! Made by `minke` from flags or a KubeletConfiguration file; read all over the crate.
//! Invariant: never changes while the node runs.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Taint;
use rustls::server::ResolvesServerCert;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Pods' directories and volumes are below it.
    pub root_dir: PathBuf,
    /// Container logs are below its `pods`.
    pub log_dir: PathBuf,
    /// The socket of the runtime, with or without `unix://`.
    pub runtime_endpoint: PathBuf,
    pub image_endpoint: Option<PathBuf>,
    pub pod_cidr: Option<String>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    /// The group below which "kubepods" is made.
    pub cgroup_root: String,
    pub cgroup_driver: CgroupDriver,
    /// Found by looking at the routes when empty.
    pub node_ips: Vec<IpAddr>,
    /// Where the node's server listens; all addresses when `None`.
    pub address: Option<IpAddr>,
    /// Of the node's server; 0 takes a free one.
    pub port: u16,
    /// Plain HTTP on loopback for health checks; 0 turns it off.
    pub healthz_port: u16,
    /// Without one the node serves nothing.
    pub serving_certificate: Option<Arc<dyn ResolvesServerCert>>,
    /// Authorities whose client certificates the server believes.
    pub client_ca_pem: Vec<u8>,
    pub manifest_dir: Option<PathBuf>,
    pub manifest_url: Option<String>,
    pub register_node: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub max_pods: u32,
    pub system_reserved_cpu_milli: i64,
    pub system_reserved_memory_bytes: i64,
    pub lease_renew_interval: Duration,
    /// The node's status is written at least this often.
    pub status_report_interval: Duration,
    /// How long containers may take to be listed again when nothing happened.
    pub relist_interval: Duration,
    pub max_parallel_pulls: usize,
    pub image_gc_high_percent: u8,
    pub image_gc_low_percent: u8,
    /// Pods are ended when less than this is left, by signal ("memory.available": "100Mi" or "5%").
    pub eviction_hard: BTreeMap<String, String>,
    /// As above, once it has lasted for `eviction_soft_grace`.
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace: BTreeMap<String, Duration>,
    pub container_log_max_bytes: u64,
    pub container_log_max_files: u32,
    /// Never collected as unused.
    pub sandbox_image: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: "localhost".into(),
            root_dir: "/var/lib/kubelet".into(),
            log_dir: "/var/log".into(),
            runtime_endpoint: "/run/containerd/containerd.sock".into(),
            image_endpoint: None,
            pod_cidr: None,
            cluster_dns: vec![],
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            cgroup_root: String::new(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            node_ips: vec![],
            address: None,
            port: 10250,
            healthz_port: 10248,
            serving_certificate: None,
            client_ca_pem: vec![],
            manifest_dir: None,
            manifest_url: None,
            register_node: true,
            labels: BTreeMap::new(),
            taints: vec![],
            max_pods: 110,
            system_reserved_cpu_milli: 0,
            system_reserved_memory_bytes: 0,
            lease_renew_interval: Duration::from_secs(10),
            status_report_interval: Duration::from_secs(300),
            relist_interval: Duration::from_secs(60),
            max_parallel_pulls: 4,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            eviction_hard: [
                ("memory.available", "100Mi"),
                ("nodefs.available", "10%"),
                ("nodefs.inodesFree", "5%"),
                ("imagefs.available", "15%"),
                ("imagefs.inodesFree", "5%"),
            ]
            .map(|(signal, least)| (signal.to_string(), least.to_string()))
            .into(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace: BTreeMap::new(),
            container_log_max_bytes: 10 << 20,
            container_log_max_files: 5,
            sandbox_image: String::new(),
        }
    }
}

impl Config {
    pub fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(uid)
    }

    /// The directories of pods' logs are in here.
    pub fn pod_logs_dir(&self) -> PathBuf {
        self.log_dir.join("pods")
    }
}
