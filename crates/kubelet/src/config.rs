//! What the node is told at its start.
//! Made by `minke` from flags or a KubeletConfiguration file; read all over the crate.
//! Invariant: never changes while the node runs.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Taint;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

/// TLS files and who may ask what of the node's own server.
#[derive(Debug, Clone, Default)]
pub struct ServerConfig {
    pub address: Option<IpAddr>,
    /// 0 turns the server off.
    pub port: u16,
    pub certificate_file: Option<PathBuf>,
    pub private_key_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    /// Plain HTTP on loopback for health checks; 0 turns it off.
    pub healthz_port: u16,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Pods' directories, volumes and logs are below it.
    pub data_dir: PathBuf,
    /// `unix:///path` or a path.
    pub runtime_endpoint: String,
    pub image_endpoint: Option<String>,
    pub pod_cidr: Option<String>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    pub cgroup_root: String,
    pub cgroup_driver: CgroupDriver,
    /// Found by looking at the routes when not given.
    pub node_ips: Vec<IpAddr>,
    pub server: ServerConfig,
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
    pub container_log_max_bytes: u64,
    pub container_log_max_files: u32,
    pub sandbox_image: String,
}

impl Config {
    pub fn new(
        node_name: impl Into<String>,
        data_dir: impl Into<PathBuf>,
        runtime_endpoint: impl Into<String>,
    ) -> Self {
        Self {
            node_name: node_name.into(),
            data_dir: data_dir.into(),
            runtime_endpoint: runtime_endpoint.into(),
            image_endpoint: None,
            pod_cidr: None,
            cluster_dns: vec![],
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            cgroup_root: String::new(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            node_ips: vec![],
            server: ServerConfig::default(),
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
            container_log_max_bytes: 10 << 20,
            container_log_max_files: 5,
            sandbox_image: String::new(),
        }
    }

    pub fn pods_dir(&self) -> PathBuf {
        self.data_dir.join("pods")
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(uid)
    }

    pub fn log_dir(&self) -> PathBuf {
        self.data_dir.join("log/pods")
    }
}
