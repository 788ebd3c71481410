//! Builds what CRI wants to know of a sandbox and of a container.
//! Fed by `runtime_manager` with everything already fetched.
//! Invariant: pure, apart from nothing: no file is written and no call is made here (tidy: `pure_files`).

pub mod downward;
pub mod env_file;
pub mod environment;
pub mod expansion;
pub mod memory_protection;
pub mod mounts;
pub mod network_files;
pub mod resources;
pub mod security;
mod sub_paths;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};

use crate::pod::{
    pod_actions::container_hash,
    pod_spec::{self, Kind},
};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Names the node that made a sandbox, where several share one runtime.
pub const OWNER: &str = "minke.io/kubelet-root";

/// The directory of a pod's logs below the log root.
pub fn log_directory(log_root: &Path, pod: &Pod) -> PathBuf {
    log_root.join(format!("{}_{}_{}", pod_spec::namespace(pod), pod_spec::name(pod), pod_spec::uid(pod)))
}

pub fn log_file(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let own = pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    let ours =
        [(POD_NAME, pod_spec::name(pod)), (POD_NAMESPACE, pod_spec::namespace(pod)), (POD_UID, pod_spec::uid(pod))];
    own.chain(ours.map(|(key, value)| (key.to_string(), value.to_string()))).collect()
}

pub struct SandboxInput<'a> {
    pub pod: &'a Pod,
    pub attempt: u32,
    pub dns: v1::DnsConfig,
    pub cluster_domain: &'a str,
    pub cgroup_parent: String,
    pub log_root: &'a Path,
    /// Identifies this node among the users of the runtime.
    pub owner: &'a Path,
}

pub fn sandbox(input: SandboxInput) -> Result<v1::PodSandboxConfig, String> {
    let pod = input.pod;
    let spec = pod_spec::spec(pod);
    let hostname = match pod_spec::host_network(pod) {
        true => String::new(),
        false => network_files::kernel_hostname(pod, input.cluster_domain)?,
    };
    let limits = resources::pod_limits(pod);
    let sysctls = spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten());
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pod_spec::name(pod).into(),
            uid: pod_spec::uid(pod).into(),
            namespace: pod_spec::namespace(pod).into(),
            attempt: input.attempt,
        }),
        hostname,
        log_directory: log_directory(input.log_root, pod).to_string_lossy().into_owned(),
        dns_config: Some(input.dns),
        port_mappings: port_mappings(pod),
        labels: pod_labels(pod),
        annotations: sandbox_annotations(pod, input.owner),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: input.cgroup_parent,
            security_context: Some(security::sandbox_security_context(pod)),
            sysctls: sysctls.map(|s| (sysctl_name(&s.name), s.value.clone())).collect(),
            resources: Some(v1::LinuxContainerResources {
                cpu_period: resources::QUOTA_PERIOD,
                cpu_quota: limits.cpu_quota,
                cpu_shares: limits.cpu_shares,
                memory_limit_in_bytes: limits.memory_bytes.unwrap_or(0),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// With dots, the only way the runtime knows it: where the first separator is a slash, slashes and dots stand for each
/// other.
pub fn sysctl_name(given: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    match given.chars().find(|c| ['/', '.'].contains(c)) {
        Some('/') => given.chars().map(swap).collect(),
        _ => given.to_string(),
    }
}

fn sandbox_annotations(pod: &Pod, owner: &Path) -> HashMap<String, String> {
    let own = pod.metadata.annotations.clone().unwrap_or_default().into_iter();
    own.chain([(OWNER.to_string(), owner.to_string_lossy().into_owned())]).collect()
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
    let ports = pod_spec::containers(pod).iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let mapping = |port: &ContainerPort| v1::PortMapping {
        protocol: match port.protocol.as_deref() {
            Some("UDP") => v1::Protocol::Udp,
            Some("SCTP") => v1::Protocol::Sctp,
            _ => v1::Protocol::Tcp,
        } as i32,
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or(0),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    };
    ports.map(mapping).collect()
}

pub struct ContainerInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub kind: Kind,
    pub restart_count: u32,
    pub image_ref: &'a str,
    pub image_user: &'a security::ImageUser,
    pub environment: BTreeMap<String, String>,
    pub mounts: Vec<v1::Mount>,
    pub node_memory: i64,
    pub root_dir: &'a Path,
    /// Whether containers that name no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// The id of the container whose PID namespace an ephemeral container joins.
    pub target: Option<String>,
}

pub fn container(input: ContainerInput) -> Result<v1::ContainerConfig, String> {
    let ContainerInput { pod, container, kind, .. } = input;
    security::verify_non_root(pod, container, input.image_user)?;
    let expand = |words: &Option<Vec<String>>| -> Vec<String> {
        let lookup = |name: &str| input.environment.get(name).cloned();
        words.iter().flatten().map(|word| expansion::expand(word, lookup)).collect()
    };
    let mut security_context =
        security::container_security_context(pod, container, input.image_user, input.root_dir, input.seccomp_default)?;
    if let (Some(target), Some(options)) = (input.target, &mut security_context.namespace_options) {
        options.pid = v1::NamespaceMode::Target as i32;
        options.target_id = target;
    }
    let resources = resources::linux_resources(pod, container, kind, input.node_memory);
    let image = container.image.clone().unwrap_or_default();
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: input.restart_count }),
        image: Some(v1::ImageSpec { image: input.image_ref.into(), user_specified_image: image, ..Default::default() }),
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: input.environment.iter().map(|(k, v)| v1::KeyValue { key: k.clone(), value: v.clone() }).collect(),
        mounts: input.mounts,
        labels: labels(pod, container),
        annotations: annotations(pod, container, input.restart_count),
        log_path: log_file(&container.name, input.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig { resources: Some(resources), security_context: Some(security_context) }),
        ..Default::default()
    })
}

fn labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    [
        (POD_NAME, pod_spec::name(pod)),
        (POD_NAMESPACE, pod_spec::namespace(pod)),
        (POD_UID, pod_spec::uid(pod)),
        (CONTAINER_NAME, &container.name),
    ]
    .map(|(key, value)| (key.to_string(), value.to_string()))
    .into()
}

/// What must be known of the container even when its pod is gone or was changed.
fn annotations(pod: &Pod, container: &Container, restart_count: u32) -> HashMap<String, String> {
    let mut result = HashMap::from([
        (HASH.to_string(), format!("{:x}", container_hash(container))),
        (RESTART_COUNT.to_string(), restart_count.to_string()),
        (MESSAGE_PATH.to_string(), message_path(container).to_string()),
        (
            MESSAGE_POLICY.to_string(),
            container.termination_message_policy.clone().unwrap_or_else(|| "File".to_string()),
        ),
    ]);
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        result.insert(DELETION_GRACE_PERIOD.into(), seconds.to_string());
    }
    if let Some(seconds) = pod_spec::spec(pod).termination_grace_period_seconds {
        result.insert(TERMINATION_GRACE_PERIOD.into(), seconds.to_string());
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
        && let Ok(text) = serde_json::to_string(hook)
    {
        result.insert(PRE_STOP.into(), text);
    }
    if let Some(ports) = &container.ports
        && let Ok(text) = serde_json::to_string(ports)
    {
        result.insert(PORTS.into(), text);
    }
    result
}

pub fn message_path(container: &Container) -> &str {
    container.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/dev/termination-log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_settings_are_named_with_dots() {
        let check = |given: &str, expected: &str| assert_eq!(sysctl_name(given), expected);
        check("kernel.shm_rmid_forced", "kernel.shm_rmid_forced");
        check("kernel/shm_rmid_forced", "kernel.shm_rmid_forced");
        check("net/ipv4/conf/eth0.100/rp_filter", "net.ipv4.conf.eth0/100.rp_filter");
        check("net.ipv4.conf.eth0/100.rp_filter", "net.ipv4.conf.eth0/100.rp_filter");
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
            "securityContext": {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}}}))
        .unwrap();
        let (here, dns) = (Path::new("/"), v1::DnsConfig::default());
        let input = SandboxInput {
            pod: &pod,
            attempt: 0,
            dns,
            cluster_domain: "",
            cgroup_parent: String::new(),
            log_root: here,
            owner: here,
        };
        let sysctls = sandbox(input).unwrap().linux.unwrap().sysctls;
        assert_eq!(sysctls.get("kernel.shm_rmid_forced").map(String::as_str), Some("1"), "{sysctls:?}");
    }
}
