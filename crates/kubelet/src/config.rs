//! What the node is told at its start.
//! Made by `minke` from flags or a KubeletConfiguration file; read all over the crate.
//! Never changes while the node runs.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use client::RequestRate;
use k8s_openapi::api::core::v1::Taint;
use rustls::server::ResolvesServerCert;

use crate::{
    configuration::{Configuration, feature_gates::KubeletFeatureGates},
    endpoint_drain::EndpointDrain,
    images::image_manager::{PullRate, credential_provider::CredentialProviderSettings, pull_records::Verification},
    node::node_shutdown::ShutdownGracePeriods,
    pod::admission::hook::HookConfig,
    resources::{container_manager::reserved_groups::ReservedGroup, resource_managers::settings::ManagerSettings},
    runtime::container_config::memory_protection::SwapBehavior,
    runtime::user_namespaces::UNIT_IDS,
    wiring::lock_file::LockFile,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

/// What is kept from pods for the system and for the node itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub ephemeral_bytes: i64,
    pub pids: i64,
}

impl Reserved {
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli + other.cpu_milli,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            ephemeral_bytes: self.ephemeral_bytes + other.ephemeral_bytes,
            pids: self.pids + other.pids,
        }
    }
}

/// Which ended containers stay beside a newer one; -1 is without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadContainerLimits {
    pub per_container: i32,
    pub total: i32,
    /// Those that ended more recently stay.
    pub age_min: Duration,
}

impl Default for DeadContainerLimits {
    fn default() -> Self {
        Self { per_container: 1, total: -1, age_min: Duration::ZERO }
    }
}

pub const VOLUME_STATS_PERIOD_DEFAULT: Duration = Duration::from_secs(60);

/// Takes upstream's `-v`.
pub type SetLogVerbosity = fn(u8) -> io::Result<()>;

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
    /// Where the runtime finds pod networks; a change there is looked at while the network is not ready.
    pub cni_conf_dir: Option<PathBuf>,
    /// Without a cluster; in one the IPAM controller says it, and a node may not.
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
    /// Plain HTTP for health checks; 0 turns it off.
    pub healthz_port: u16,
    pub healthz_address: IpAddr,
    /// Plain HTTP without any check of who asks, for pods and metrics; 0 turns it off.
    pub read_only_port: u16,
    /// The page and JSON of cAdvisor, plain and without any check of who asks; 0 turns it off.
    pub cadvisor_port: u16,
    pub cadvisor_address: IpAddr,
    /// Where static pods are submitted, on loopback; 0 turns it off.
    pub manifest_server_port: u16,
    pub enable_server: bool,
    /// Whether the server has logs, exec and the like.
    pub debugging_handlers: bool,
    /// Whether how much is logged can be changed through it.
    pub debug_flags_handler: bool,
    /// Whether it shows the node's own process.
    pub profiling_handler: bool,
    /// How much is logged, where the configuration file says so.
    pub log_verbosity: Option<u8>,
    /// Changes how much is logged; whoever opened the log can.
    pub set_log_verbosity: Option<SetLogVerbosity>,
    /// Whether it has the machine's own log files, too.
    pub system_log_handler: bool,
    /// Whether it asks the machine's services for theirs.
    pub system_log_query: bool,
    /// Those the server offers of TLS 1.2; all that are sound when empty.
    pub tls_cipher_suites: Vec<String>,
    pub tls_13_only: bool,
    /// How long it is remembered whose a bearer token is.
    pub token_cache: Duration,
    pub feature_gates: KubeletFeatureGates,
    /// How often drivers are asked how full their volumes are, when somebody wants to know; never when `None`.
    pub volume_stats_period: Option<Duration>,
    /// Whoever shows nothing is `system:anonymous` rather than refused.
    pub anonymous_auth: bool,
    /// Whether bearer tokens are shown to the API server.
    pub token_auth: bool,
    /// Whether everyone who is known may do everything.
    pub always_allow: bool,
    /// How long it is remembered that someone may do something; upstream's five minutes are long for a revoked right.
    pub allowed_cache: Duration,
    pub denied_cache: Duration,
    /// Without one the node serves nothing.
    pub serving_certificate: Option<Arc<dyn ResolvesServerCert>>,
    /// Authorities whose client certificates the server believes.
    pub client_ca_pem: Vec<u8>,
    pub manifest_dir: Option<PathBuf>,
    pub manifest_dir_interval: Duration,
    pub manifest_url: Option<String>,
    pub manifest_url_interval: Duration,
    pub manifest_url_headers: Vec<(String, String)>,
    pub register_node: bool,
    /// Whether a cloud controller manager makes the node one that takes pods.
    pub external_cloud_provider: bool,
    pub provider_id: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub max_pods: u32,
    /// Of the cores there are; 0 leaves it at `max_pods`.
    pub pods_per_core: u32,
    /// What pods do not get.
    pub reserved: Reserved,
    /// Whether all pods together are held to what is left for them.
    pub enforce_node_allocatable: bool,
    /// What the system and Kubernetes' own processes have of `reserved`, and the groups that are held to it.
    pub system_reserved: ReservedGroup,
    pub kube_reserved: ReservedGroup,
    /// How often the API server is asked, the node's own status and signs of life aside.
    pub request_rate: Option<RequestRate>,
    /// How often Events are written.
    pub event_rate: Option<RequestRate>,
    /// Of the CPU, memory and topology managers.
    pub managers: ManagerSettings,
    pub swap_behavior: SwapBehavior,
    /// Of the room between request and limit a container may fill before it is slowed down.
    pub memory_throttling_factor: f64,
    /// Whether memory that pods ask for is protected, and what goes beyond slowed down (MemoryQoS; cgroup v2).
    pub memory_qos: bool,
    /// Processes per pod.
    pub pod_pids_limit: Option<i64>,
    /// Whether processor limits are enforced.
    pub cpu_cfs_quota: bool,
    /// Whether a container that runs out of memory loses one process, not all; by default only where it must (cgroup v1).
    pub single_process_oom_kill: Option<bool>,
    /// Whether the node refuses to start on a machine that swaps.
    pub fail_swap_on: bool,
    /// Whether it refuses to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// `RuntimeDefault` for containers that name no seccomp profile.
    pub seccomp_default: bool,
    /// The sandbox's program gives up by itself every system call it does not need: faster and less than any profile.
    pub sandbox_guards_itself: bool,
    /// Held while the node runs.
    pub lock_file: Option<LockFile>,
    /// Whom to ask besides whether a pod may begin here.
    pub pod_admission_hook: Option<HookConfig>,
    /// Beyond the safe ones; a trailing `*` stands for all that begin so.
    pub allowed_unsafe_sysctls: Vec<String>,
    pub crash_backoff_max: Duration,
    /// The longest a call to the runtime may take, pulls and streams aside.
    pub runtime_request_timeout: Duration,
    pub lease_seconds: i32,
    pub lease_renew_interval: Duration,
    /// The node's status is looked at this often when nothing calls for it.
    pub status_update_interval: Duration,
    pub max_reported_images: usize,
    /// The node's status is written at least this often.
    pub status_report_interval: Duration,
    /// How long containers may take to be listed again when nothing happened.
    pub relist_interval: Duration,
    pub max_parallel_pulls: usize,
    pub image_gc_high_percent: u8,
    pub image_gc_low_percent: u8,
    /// Younger images stay, used or not.
    pub image_min_age: Duration,
    /// Images unused for longer go, however much room there is.
    pub image_max_age: Option<Duration>,
    /// Pods are ended when less than this is left, by signal ("memory.available": "100Mi" or "5%").
    pub eviction_hard: BTreeMap<String, String>,
    /// As above, once it has lasted for `eviction_soft_grace`.
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace: BTreeMap<String, Duration>,
    /// How much more than needed is freed once something has to be.
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// A node that was short stays marked for this long.
    pub eviction_transition: Duration,
    /// The most an evicted pod gets to end when a soft threshold was met.
    pub eviction_max_grace_seconds: i64,
    /// What pods get when the machine shuts down, by priority.
    pub shutdown_grace_periods: ShutdownGracePeriods,
    pub container_log_max_bytes: u64,
    pub container_log_max_files: u32,
    pub log_check_interval: Duration,
    /// Logs that are rotated at the same time.
    pub log_workers: usize,
    /// Pods are looked at this often even if nothing happens; never when `None`.
    pub sync_interval: Option<Duration>,
    /// What the kubelet's own process gets; it keeps what it was started with when `None`.
    pub max_open_files: Option<u64>,
    pub oom_score_adj: Option<i32>,
    /// The group that the kubelet's own process moves to, if any.
    pub kubelet_cgroups: String,
    /// Whether kernel settings that differ keep the node from starting (true) or are changed (false).
    pub protect_kernel_defaults: Option<bool>,
    /// Whether pods' use of the disk is counted and limited.
    pub local_storage_isolation: bool,
    pub dead_containers: DeadContainerLimits,
    /// Ids that a pod with users of its own gets.
    pub user_namespace_ids: u32,
    /// Where pods' logs are, if not below `log_dir`.
    pub pod_logs: Option<PathBuf>,
    /// Which present images pods must show credentials for.
    pub image_verification: Verification,
    /// Images that need none, where the policy says so.
    pub image_verification_allowlist: Vec<String>,
    /// How often pulls may begin; without a limit when `None`.
    pub image_pull_rate: Option<PullRate>,
    /// Programs that know credentials for images.
    pub credential_providers: Option<CredentialProviderSettings>,
    /// Never collected as unused.
    pub sandbox_image: String,
    /// Holds a pod's stop signal back until Services have let go of it; without one it is sent at once.
    pub endpoint_drain: Option<Arc<dyn EndpointDrain>>,
    /// Whether claims may be given directories of this node.
    pub local_storage: bool,
    /// What file and flags said, for whoever asks what is in force.
    pub given: Configuration,
    /// Where the directories really are, once `directories::prepare` has looked.
    pub resolved: Option<Resolved>,
}

/// Paths without links, so that the kernel can be told to follow none.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub pods: PathBuf,
    pub pod_logs: PathBuf,
    pub container_logs: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: "localhost".into(),
            root_dir: "/var/lib/kubelet".into(),
            log_dir: "/var/log".into(),
            runtime_endpoint: "/run/containerd/containerd.sock".into(),
            image_endpoint: None,
            cni_conf_dir: None,
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
            healthz_address: IpAddr::from([127, 0, 0, 1]),
            read_only_port: 0,
            cadvisor_port: 0,
            cadvisor_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            manifest_server_port: 0,
            enable_server: true,
            debugging_handlers: true,
            debug_flags_handler: true,
            profiling_handler: true,
            log_verbosity: None,
            set_log_verbosity: None,
            system_log_handler: true,
            system_log_query: false,
            tls_cipher_suites: vec![],
            tls_13_only: false,
            token_cache: Duration::ZERO,
            feature_gates: KubeletFeatureGates::default(),
            anonymous_auth: false,
            token_auth: true,
            always_allow: false,
            allowed_cache: Duration::from_secs(10),
            volume_stats_period: Some(VOLUME_STATS_PERIOD_DEFAULT),
            denied_cache: Duration::from_secs(10),
            serving_certificate: None,
            client_ca_pem: vec![],
            manifest_dir: None,
            manifest_dir_interval: Duration::from_secs(20),
            manifest_url: None,
            manifest_url_interval: Duration::from_secs(20),
            manifest_url_headers: vec![],
            register_node: true,
            external_cloud_provider: false,
            provider_id: String::new(),
            labels: BTreeMap::new(),
            taints: vec![],
            max_pods: 110,
            pods_per_core: 0,
            reserved: Reserved::default(),
            enforce_node_allocatable: true,
            system_reserved: ReservedGroup::default(),
            kube_reserved: ReservedGroup::default(),
            request_rate: None,
            event_rate: None,
            managers: ManagerSettings::default(),
            swap_behavior: SwapBehavior::default(),
            memory_throttling_factor: 0.9,
            memory_qos: false,
            pod_pids_limit: None,
            cpu_cfs_quota: true,
            single_process_oom_kill: None,
            fail_swap_on: false,
            fail_cgroup_v1: false,
            seccomp_default: false,
            sandbox_guards_itself: false,
            lock_file: None,
            pod_admission_hook: None,
            allowed_unsafe_sysctls: vec![],
            crash_backoff_max: Duration::from_secs(300),
            runtime_request_timeout: Duration::from_secs(120),
            lease_seconds: 40,
            lease_renew_interval: Duration::from_secs(10),
            status_update_interval: Duration::from_secs(10),
            max_reported_images: 50,
            status_report_interval: Duration::from_secs(300),
            relist_interval: Duration::from_secs(60),
            max_parallel_pulls: 4,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            image_min_age: Duration::from_secs(120),
            image_max_age: None,
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
            eviction_minimum_reclaim: BTreeMap::new(),
            eviction_transition: Duration::from_secs(300),
            eviction_max_grace_seconds: 0,
            shutdown_grace_periods: ShutdownGracePeriods::default(),
            container_log_max_bytes: 10 << 20,
            container_log_max_files: 5,
            log_check_interval: Duration::from_secs(10),
            log_workers: 1,
            sync_interval: None,
            max_open_files: None,
            oom_score_adj: None,
            kubelet_cgroups: String::new(),
            protect_kernel_defaults: None,
            local_storage_isolation: true,
            dead_containers: DeadContainerLimits::default(),
            user_namespace_ids: UNIT_IDS,
            pod_logs: None,
            image_verification: Verification::default(),
            image_verification_allowlist: vec![],
            image_pull_rate: None,
            credential_providers: None,
            sandbox_image: String::new(),
            endpoint_drain: None,
            local_storage: false,
            given: Configuration::default(),
            resolved: None,
        }
    }
}

impl Config {
    pub fn pods_dir(&self) -> PathBuf {
        self.resolved.as_ref().map_or_else(|| self.root_dir.join("pods"), |resolved| resolved.pods.clone())
    }

    /// The directories of local volumes are in here.
    pub fn local_storage_dir(&self) -> PathBuf {
        self.root_dir.join("local-storage")
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(uid)
    }

    /// The directories of pods' logs are in here.
    pub fn pod_logs_dir(&self) -> PathBuf {
        if let Some(resolved) = &self.resolved {
            return resolved.pod_logs.clone();
        }
        self.pod_logs.clone().unwrap_or_else(|| self.log_dir.join("pods"))
    }

    /// Links to the logs of containers, for collectors: beside the pods', unless that is the top of the file system.
    pub fn container_logs_dir(&self) -> PathBuf {
        if let Some(resolved) = &self.resolved {
            return resolved.container_logs.clone();
        }
        let logs = self.pod_logs_dir();
        let beside = logs.parent().filter(|parent| parent.parent().is_some());
        beside.unwrap_or(&self.log_dir).join("containers")
    }
}
