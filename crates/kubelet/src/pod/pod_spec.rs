//! Questions about a Pod that many modules ask: its names, its containers, its class of service.
//! Pure; used all over the crate.
//! Never looks at what runs, only at what was asked for.

use std::sync::Arc;

use api::Accessor;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};

pub use api::pod_resources::{
    is_sidecar,
    qos::{QosClass, qos_class},
};

pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// Which of a Pod's three lists a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Init,
    App,
    Ephemeral,
}

pub fn name(pod: &Pod) -> &str {
    pod.name()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.namespace()
}

/// The identity under which the runtime knows this pod: for a static pod its hash, otherwise the object's UID.
pub fn uid(pod: &Pod) -> &str {
    pod.uid()
}

/// "namespace/name", for people.
pub fn display(pod: &Pod) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

/// "name_namespace(uid)", as messages name it.
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Came from a file or a URL on this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// The API server's image of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// The mirror shows this static pod, not an earlier one of its name nor what somebody else made.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    is_mirror(mirror) && annotation(mirror, CONFIG_MIRROR) == annotation(pod, CONFIG_HASH)
}

/// A pod as the API server has it: what its annotations say of another source is not true.
pub fn from_api(pod: Arc<Pod>) -> Arc<Pod> {
    if !is_static(&pod) {
        return pod;
    }
    let mut pod = (*pod).clone();
    pod.metadata.annotations.get_or_insert_default().insert(CONFIG_SOURCE.into(), "api".into());
    Arc::new(pod)
}

pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

/// Resolves names with the cluster's servers, where there are any.
pub fn wants_cluster_dns(pod: &Pod) -> bool {
    match spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "ClusterFirst" => !host_network(pod),
        policy => policy == "ClusterFirstWithHostNet",
    }
}

pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

pub fn grace_period_seconds(pod: &Pod) -> i64 {
    pod.metadata
        .deletion_grace_period_seconds
        .or_else(|| spec(pod).termination_grace_period_seconds)
        .unwrap_or(30)
        .max(0)
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

pub fn containers(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

/// Ephemeral containers in the common form.
pub fn ephemeral_containers(pod: &Pod) -> Vec<Container> {
    spec(pod).ephemeral_containers.iter().flatten().map(as_container).collect()
}

/// The container of this name with its kind.
pub fn find_container(pod: &Pod, name: &str) -> Option<(Kind, Container)> {
    let within = |list: &[Container], kind| list.iter().find(|c| c.name == name).map(|c| (kind, c.clone()));
    within(containers(pod), Kind::App)
        .or_else(|| within(init_containers(pod), Kind::Init))
        .or_else(|| within(&ephemeral_containers(pod), Kind::Ephemeral))
}

fn as_container(e: &EphemeralContainer) -> Container {
    Container {
        args: e.args.clone(),
        command: e.command.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        lifecycle: e.lifecycle.clone(),
        liveness_probe: e.liveness_probe.clone(),
        name: e.name.clone(),
        ports: e.ports.clone(),
        readiness_probe: e.readiness_probe.clone(),
        resize_policy: e.resize_policy.clone(),
        resources: e.resources.clone(),
        restart_policy: e.restart_policy.clone(),
        restart_policy_rules: e.restart_policy_rules.clone(),
        security_context: e.security_context.clone(),
        startup_probe: e.startup_probe.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        tty: e.tty,
        volume_devices: e.volume_devices.clone(),
        volume_mounts: e.volume_mounts.clone(),
        working_dir: e.working_dir.clone(),
    }
}
