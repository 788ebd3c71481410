//! Security contexts of sandboxes and containers: users, groups, namespaces, capabilities, profiles.
//! Used by `container_config`.
//! Invariant: pure; a container's own setting always wins over its pod's (tidy: `pure_files`).

use cri::v1;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile};

use crate::pod::pod_spec;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// The old way to name profiles, one key per container; pods from manifests may have nothing else.
pub const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

pub fn namespaces(pod: &Pod) -> v1::NamespaceOption {
    let spec = pod_spec::spec(pod);
    let node_or = |host: Option<bool>, other: v1::NamespaceMode| {
        if host == Some(true) { v1::NamespaceMode::Node as i32 } else { other as i32 }
    };
    let pid =
        if spec.share_process_namespace == Some(true) { v1::NamespaceMode::Pod } else { v1::NamespaceMode::Container };
    v1::NamespaceOption {
        network: node_or(spec.host_network, v1::NamespaceMode::Pod),
        pid: node_or(spec.host_pid, pid),
        ipc: node_or(spec.host_ipc, v1::NamespaceMode::Pod),
        ..Default::default()
    }
}

pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false)
}

fn groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(context) = context else { return vec![] };
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(context: Option<&PodSecurityContext>) -> i32 {
    match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict as i32,
        _ => v1::SupplementalGroupsPolicy::Merge as i32,
    }
}

fn selinux(options: Option<&SELinuxOptions>) -> Option<v1::SeLinuxOption> {
    options.map(|o| v1::SeLinuxOption {
        user: o.user.clone().unwrap_or_default(),
        role: o.role.clone().unwrap_or_default(),
        r#type: o.type_.clone().unwrap_or_default(),
        level: o.level.clone().unwrap_or_default(),
    })
}

pub fn sandbox_security_context(pod: &Pod) -> v1::LinuxSandboxSecurityContext {
    let spec = pod_spec::spec(pod);
    let context = spec.security_context.as_ref();
    let number = |value: Option<i64>| value.map(|value| v1::Int64Value { value });
    let all = || pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux(context.and_then(|c| c.se_linux_options.as_ref())),
        run_as_user: number(context.and_then(|c| c.run_as_user)),
        run_as_group: number(context.and_then(|c| c.run_as_group)),
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context),
        privileged: all().any(is_privileged),
        // The sandbox does nothing that needs more, whatever its containers ask for.
        seccomp: Some(v1::SecurityProfile::default()),
        ..Default::default()
    }
}

/// What the image says of its user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub username: String,
}

/// Where seccomp profiles named by pods are.
pub const SECCOMP_DIR: &str = "seccomp";

pub fn container_security_context(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    root_dir: &std::path::Path,
    seccomp_default: bool,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let pod_context = pod_spec::spec(pod).security_context.as_ref();
    let own = container.security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(pod_context.and_then(|c| c.run_as_user));
    let run_as_group = own.run_as_group.or(pod_context.and_then(|c| c.run_as_group));
    let privileged = own.privileged.unwrap_or(false);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |all: &[&str]| if unmasked { vec![] } else { all.iter().map(|p| p.to_string()).collect() };
    let capabilities = own.capabilities.as_ref().map(|c| v1::Capability {
        add_capabilities: c.add.clone().unwrap_or_default(),
        drop_capabilities: c.drop.clone().unwrap_or_default(),
        ..Default::default()
    });
    let seccomp = own.seccomp_profile.as_ref().or(pod_context.and_then(|c| c.seccomp_profile.as_ref()));
    let from_image = if run_as_user.is_none() { user.clone() } else { ImageUser::default() };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux(
            own.se_linux_options.as_ref().or(pod_context.and_then(|c| c.se_linux_options.as_ref())),
        ),
        run_as_user: run_as_user.or(from_image.uid).map(|value| v1::Int64Value { value }),
        run_as_group: run_as_group.map(|value| v1::Int64Value { value }),
        run_as_username: from_image.username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(pod_context),
        supplemental_groups_policy: groups_policy(pod_context),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp_profile(seccomp, privileged, root_dir, seccomp_default)?),
        apparmor: apparmor(pod, container).as_ref().map(apparmor_profile).transpose()?,
        ..Default::default()
    })
}

fn seccomp_profile(
    profile: Option<&SeccompProfile>,
    privileged: bool,
    root_dir: &std::path::Path,
    or_runtimes: bool,
) -> Result<v1::SecurityProfile, String> {
    let kind = |kind: v1::security_profile::ProfileType, reference: String| v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: reference,
    };
    let unconfined = || kind(v1::security_profile::ProfileType::Unconfined, String::new());
    let runtimes = || kind(v1::security_profile::ProfileType::RuntimeDefault, String::new());
    let Some(profile) = profile else {
        return Ok(if or_runtimes && !privileged { runtimes() } else { unconfined() });
    };
    match profile.type_.as_str() {
        _ if privileged => Ok(unconfined()),
        "RuntimeDefault" => Ok(runtimes()),
        "Localhost" => {
            let name = profile.localhost_profile.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or("localhostProfile must be set if seccompProfile type is Localhost.")?;
            let path = root_dir.join(SECCOMP_DIR).join(name);
            Ok(kind(v1::security_profile::ProfileType::Localhost, path.to_string_lossy().into_owned()))
        }
        _ => Ok(unconfined()),
    }
}

/// The profile of a container: its own, or the one it has in the old way, or the pod's.
pub fn apparmor(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    let of_pod = || pod_spec::spec(pod).security_context.as_ref().and_then(|c| c.app_armor_profile.clone());
    own.or_else(|| annotated_apparmor(pod, &container.name)).or_else(of_pod)
}

fn annotated_apparmor(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let value = pod.metadata.annotations.as_ref()?.get(&format!("{APPARMOR_ANNOTATION}{container}"))?;
    let (kind, name) = match value.as_str() {
        "runtime/default" => ("RuntimeDefault", None),
        "unconfined" => ("Unconfined", None),
        other => ("Localhost", Some(other.strip_prefix("localhost/")?.to_string())),
    };
    Some(AppArmorProfile { type_: kind.into(), localhost_profile: name })
}

fn apparmor_profile(profile: &AppArmorProfile) -> Result<v1::SecurityProfile, String> {
    use v1::security_profile::ProfileType;
    let (kind, reference) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => {
            let name = profile.localhost_profile.clone().filter(|name| !name.is_empty());
            (ProfileType::Localhost, name.ok_or("missing localhost apparmor profile name")?)
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    Ok(v1::SecurityProfile { profile_type: kind as i32, localhost_ref: reference })
}

/// Refuses a container that promises not to run as root and would.
pub fn verify_non_root(pod: &Pod, container: &Container, user: &ImageUser) -> Result<(), String> {
    let pod_context = pod_spec::spec(pod).security_context.as_ref();
    let own = container.security_context.clone().unwrap_or_default();
    if !own.run_as_non_root.or(pod_context.and_then(|c| c.run_as_non_root)).unwrap_or(false) {
        return Ok(());
    }
    let of = || format!("(pod: \"{}\", container: {})", pod_spec::full_name(pod), container.name);
    if let Some(uid) = own.run_as_user.or(pod_context.and_then(|c| c.run_as_user)) {
        return match uid {
            0 => Err(format!("container's runAsUser breaks non-root policy {}", of())),
            _ => Ok(()),
        };
    }
    match (user.uid, user.username.as_str()) {
        (Some(0), _) => Err(format!("container has runAsNonRoot and image will run as root {}", of())),
        (Some(_), _) => Ok(()),
        // An image without any user runs as root.
        (None, "") => Err(format!("container has runAsNonRoot and image will run as root {}", of())),
        (None, name) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {}",
            of()
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value, user: ImageUser, expected: &[(&str, Value)]) {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let container = &pod_spec::containers(&pod)[0];
        let context = container_security_context(&pod, container, &user, "/r".as_ref(), false).unwrap();
        let text = serde_json::to_value(&context).unwrap();
        for (field, value) in expected {
            assert_eq!(text.pointer(field), Some(value), "{field} of {text}");
        }
    }

    #[test]
    fn the_containers_setting_wins() {
        let image = || ImageUser { uid: Some(7), username: String::new() };
        check(json!({"containers": [{"name": "a"}]}), image(), &[("/run_as_user/value", json!(7))]);
        check(
            json!({"securityContext": {"runAsUser": 5, "fsGroup": 9, "supplementalGroups": [1, 2]},
                "containers": [{"name": "a"}]}),
            image(),
            &[("/run_as_user/value", json!(5)), ("/supplemental_groups", json!([9, 1, 2]))],
        );
        check(
            json!({"securityContext": {"runAsUser": 5, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [
                {"name": "a", "securityContext": {"runAsUser": 6, "allowPrivilegeEscalation": false,
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}}]}),
            image(),
            &[
                ("/run_as_user/value", json!(6)),
                ("/no_new_privs", json!(true)),
                ("/seccomp/localhost_ref", json!("/r/seccomp/x.json")),
            ],
        );
        check(
            json!({"hostPID": true, "containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}),
            image(),
            &[("/masked_paths", json!([])), ("/namespace_options/pid", json!(2))],
        );
    }

    #[test]
    fn old_annotations_name_profiles_where_no_field_of_the_container_does() {
        let check = |annotation: &str, own: Value, expected: Value| {
            let key = format!("container.apparmor.security.beta.kubernetes.io/{annotation}");
            let (key, profile) = key.split_once('=').unwrap();
            let pod = json!({"metadata": {"annotations": {key: profile}},
                "spec": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}},
                    "containers": [{"name": "a", "securityContext": {"appArmorProfile": own}}]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let container = &pod_spec::containers(&pod)[0];
            let context =
                container_security_context(&pod, container, &ImageUser::default(), "/r".as_ref(), false).unwrap();
            let found = context.apparmor.map(|p| (p.profile_type, p.localhost_ref)).unwrap();
            assert_eq!(json!(found), expected, "{annotation}");
        };
        check("a=runtime/default", json!(null), json!([0, ""]));
        check("a=unconfined", json!(null), json!([1, ""]));
        check("a=localhost/strict", json!(null), json!([2, "strict"]));
        check("a=localhost/strict", json!({"type": "RuntimeDefault"}), json!([0, ""]));
        check("other=localhost/strict", json!(null), json!([1, ""]));
        check("a=nonsense", json!(null), json!([1, ""]));
    }

    #[test]
    fn root_is_refused_where_it_is_forbidden() {
        let check = |context: Value, uid: Option<i64>, username: &str, ok: bool| {
            let spec = json!({"containers": [{"name": "a", "securityContext": context}]});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let user = ImageUser { uid, username: username.into() };
            assert_eq!(verify_non_root(&pod, &pod_spec::containers(&pod)[0], &user).is_ok(), ok, "{context} {user:?}");
        };
        check(json!({}), Some(0), "", true);
        check(json!({"runAsNonRoot": true}), Some(0), "", false);
        check(json!({"runAsNonRoot": true}), None, "", false);
        check(json!({"runAsNonRoot": true}), None, "nobody", false);
        check(json!({"runAsNonRoot": true}), Some(1000), "", true);
        check(json!({"runAsNonRoot": true, "runAsUser": 0}), Some(1000), "", false);
        check(json!({"runAsNonRoot": true, "runAsUser": 1}), Some(0), "", true);
    }
}
