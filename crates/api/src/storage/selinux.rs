//! SELinux labels of volumes: which a pod's containers ask for, and whether two of them can share a volume.
//! Used by the SELinux warning controller and by the kubelet, which mounts volumes with them.
//! Pure; knows nothing of the labels that a machine has by default.

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, SecurityContext, VolumeMount};

/// Leaves a volume to the container runtime, which labels file by file.
pub const RECURSIVE: &str = "Recursive";
pub const MOUNT_OPTION: &str = "MountOption";

/// What the containers that mount the volume say of their labels; those that say nothing are left out.
pub fn options_of_volume<'a>(pod: &'a Pod, volume: &str) -> Vec<&'a SELinuxOptions> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let of_pod = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let own = |context: Option<&'a SecurityContext>| context.and_then(|c| c.se_linux_options.as_ref()).or(of_pod);
    let mounts = |list: Option<&Vec<VolumeMount>>| list.into_iter().flatten().any(|mount| mount.name == volume);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = containers.filter(|c| mounts(c.volume_mounts.as_ref())).map(|c| c.security_context.as_ref());
    let debugging = spec.ephemeral_containers.iter().flatten();
    let debugging = debugging.filter(|c| mounts(c.volume_mounts.as_ref())).map(|c| c.security_context.as_ref());
    containers.chain(debugging).filter_map(own).collect()
}

/// Whether any container mounts the volume as a file system.
pub fn is_mounted(pod: &Pod, volume: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let lists = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.volume_mounts.as_ref());
    let debugging = spec.ephemeral_containers.iter().flatten().map(|c| c.volume_mounts.as_ref());
    lists.chain(debugging).flatten().flatten().any(|mount| mount.name == volume)
}

/// How the pod wants its volumes labelled; what it does not say is left to the mount option.
pub fn change_policy(pod: &Pod) -> &str {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.and_then(|context| context.se_linux_change_policy.as_deref()).unwrap_or(MOUNT_OPTION)
}

/// User, role, type and level, as far as they are said; nothing where none is.
pub fn label(options: &SELinuxOptions) -> String {
    let parts = [&options.user, &options.role, &options.type_, &options.level];
    let parts = parts.map(|part| part.as_deref().unwrap_or_default());
    if parts.iter().all(|part| part.is_empty()) { String::new() } else { parts.join(":") }
}

/// Whether pods with these labels can't have one volume on one node. Only the level counts where it is absent too.
pub fn conflicts(label: &str, other: &str) -> bool {
    let parts = |label: &str| -> [String; 4] {
        let mut split = label.splitn(4, ':').map(String::from);
        std::array::from_fn(|_| split.next().unwrap_or_default())
    };
    let (one, two) = (parts(label), parts(other));
    let differ = |index: usize| one[index] != two[index] && !one[index].is_empty() && !two[index].is_empty();
    one[3] != two[3] || (0..3).any(differ)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn labels_conflict_in_what_both_say_and_in_their_levels() {
        let check = |one: &str, two: &str, expected: bool| {
            assert_eq!(conflicts(one, two), expected, "{one:?} {two:?}");
            assert_eq!(conflicts(two, one), expected, "{two:?} {one:?}");
        };
        check("", "", false);
        check("", "system_u:system_r:container_t", false);
        check("", "system_u:system_r:container_t:s0:c1,c2", true);
        check("u:r:t:", "u:r", false);
        check("u:r:x:", "u:r:t:", true);
        check("u::t", ":r::", false);
        check(":::s0:c1,c2", ":::s0:c1,c3", true);
    }

    #[test]
    fn labels_are_those_of_the_containers_that_mount_the_volume() {
        let check = |container: Value, expected: &[&str]| {
            let mount = json!([{ "name": "v", "mountPath": "/v" }]);
            let level = |level: &str| json!({ "seLinuxOptions": { "level": level } });
            let pod = json!({ "spec": { "securityContext": level("of-pod"),
                "initContainers": [{ "name": "i", "volumeMounts": mount, "securityContext": container }],
                "containers": [{ "name": "c", "volumeMounts": mount },
                    { "name": "other", "securityContext": level("unused") }],
                "ephemeralContainers": [{ "name": "e", "volumeMounts": mount, "securityContext": level("e") }] } });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let found: Vec<String> = options_of_volume(&pod, "v").into_iter().map(label).collect();
            assert_eq!(found, expected);
            assert!(is_mounted(&pod, "v") && !is_mounted(&pod, "w"));
            assert_eq!(change_policy(&pod), MOUNT_OPTION);
        };
        check(json!({}), &[":::of-pod", ":::of-pod", ":::e"]);
        check(json!({ "seLinuxOptions": { "type": "t" } }), &["::t:", ":::of-pod", ":::e"]);
        check(json!({ "seLinuxOptions": {} }), &["", ":::of-pod", ":::e"]);
    }
}
