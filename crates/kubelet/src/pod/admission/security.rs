//! Refuses pods whose security settings the machine or its runtime can't enforce.
//! Called by `pod_workers` for pods that nothing runs of yet.
//! A pod that is taken gets the confinement it asked for, or its start fails and says so.

use std::path::Path;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Node, Pod};

use super::Refusal;
use crate::{
    pod::pod_spec,
    runtime::container_config::security::{self, APPARMOR_ANNOTATION},
};

pub fn admit(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    nameless_profile(pod)?;
    supplemental_groups(pod, node)
}

/// What keeps a pod waiting because the machine can't enforce it yet.
pub fn block(pod: &Pod) -> Option<Refusal> {
    let loaded = std::fs::read_to_string("/sys/kernel/security/apparmor/profiles").ok();
    no_new_privileges(pod, nix::sys::prctl::get_no_new_privs().is_ok())
        .or_else(|| no_apparmor(pod, host_has_apparmor()))
        .or_else(|| missing_profile(pod, &loaded?))
}

/// A profile that somebody has yet to load; `loaded` is the kernel's list, as "name (mode)" by line.
fn missing_profile(pod: &Pod, loaded: &str) -> Option<Refusal> {
    let has = |name: &str| loaded.lines().any(|line| line.rsplit_once(" (").is_some_and(|(known, _)| known == name));
    let ephemeral = pod_spec::ephemeral_containers(pod);
    let mut containers = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral);
    let missing = containers.find_map(|container| {
        let profile = security::apparmor(pod, container).filter(|profile| profile.type_ == "Localhost")?;
        profile.localhost_profile.filter(|name| !has(name))
    })?;
    Some(Refusal::new("AppArmor", format!("Cannot enforce AppArmor: apparmor profile not found {missing}")))
}

fn no_new_privileges(pod: &Pod, possible: bool) -> Option<Refusal> {
    let ephemeral = pod_spec::ephemeral_containers(pod);
    let mut containers = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral);
    let wants = |container: &Container| {
        container.security_context.as_ref().is_some_and(|context| context.allow_privilege_escalation == Some(false))
    };
    (!possible && containers.any(wants))
        .then(|| Refusal::new("NoNewPrivs", "Cannot enforce NoNewPrivs: the kernel does not have no_new_privs"))
}

fn host_has_apparmor() -> bool {
    let enabled = std::fs::read("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    Path::new("/sys/kernel/security/apparmor").exists() && enabled.starts_with(b"Y")
}

/// Upstream fails such a pod; here it waits until the host enforces profiles (docs/decisions/46).
fn no_apparmor(pod: &Pod, possible: bool) -> Option<Refusal> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut named = annotations.filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION)).map(|(_, profile)| profile);
    let wanted = profiles(pod).iter().any(|profile| profile.type_ != "Unconfined");
    let wanted = wanted || named.any(|profile| profile != "unconfined");
    (wanted && !possible)
        .then(|| Refusal::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"))
}

fn nameless_profile(pod: &Pod) -> Result<(), Refusal> {
    let unnamed = |profile: &AppArmorProfile| {
        profile.type_ == "Localhost" && profile.localhost_profile.as_deref().is_none_or(|name| name.trim().is_empty())
    };
    let ephemeral = pod_spec::ephemeral_containers(pod);
    let mut containers = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral);
    match containers.find_map(|container| security::apparmor(pod, container).filter(unnamed)) {
        Some(profile) => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            let message = format!("Cannot enforce AppArmor: invalid empty AppArmor profile name: {name:?}");
            Err(Refusal::new("AppArmor", message))
        }
        None => Ok(()),
    }
}

/// Of the pod and of each of its containers.
fn profiles(pod: &Pod) -> Vec<&AppArmorProfile> {
    let spec = pod_spec::spec(pod);
    let own = spec.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.security_context);
    let containers = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    let contexts = containers.map(|container| &container.security_context).chain(ephemeral).flatten();
    own.into_iter().chain(contexts.filter_map(|context| context.app_armor_profile.as_ref())).collect()
}

/// Where the runtime knows only one way, the other would silently be that one.
fn supplemental_groups(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    let context = pod_spec::spec(pod).security_context.as_ref();
    let strict = context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    let features = node.status.as_ref().and_then(|status| status.features.as_ref());
    match strict && features.and_then(|f| f.supplemental_groups_policy) != Some(true) {
        false => Ok(()),
        true => Err(Refusal {
            reason: "SupplementalGroupsPolicyNotSupported".into(),
            message: "SupplementalGroupsPolicy=Strict is not supported in this node".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn profiles_need_a_host_that_enforces_them() {
        let check = |pod: Value, possible: bool, expected: Option<&str>| {
            let found = no_apparmor(&serde_json::from_value(pod.clone()).unwrap(), possible);
            let expected = expected.map(|why| Refusal::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
            assert_eq!(found, expected, "{pod}");
        };
        let host = Some("AppArmor is not enabled on the host");
        let profile = |kind: &str| json!({"appArmorProfile": {"type": kind, "localhostProfile": "p"}});
        let of_pod = |kind: &str| json!({"spec": {"containers": [], "securityContext": profile(kind)}});
        let of = |list: &str, kind: &str| {
            let mut spec = json!({"containers": []});
            spec[list] = json!([{"name": "c", "securityContext": profile(kind)}]);
            json!({"spec": spec})
        };
        check(json!({"spec": {"containers": []}}), false, None);
        check(of_pod("RuntimeDefault"), false, host);
        check(of_pod("RuntimeDefault"), true, None);
        check(of_pod("Unconfined"), false, None);
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            check(of(list, "Localhost"), false, host);
            check(of(list, "Localhost"), true, None);
            check(of(list, "Unconfined"), false, None);
        }
        let annotated = |profile: &str| json!({"metadata": {"annotations": {format!("{APPARMOR_ANNOTATION}c"): profile}}, "spec": {"containers": []}});
        check(annotated("runtime/default"), false, host);
        check(annotated("unconfined"), false, None);
        let nameless = |pod: &Value| nameless_profile(&serde_json::from_value(pod.clone()).unwrap()).err();
        let mut pod = annotated("localhost/ ");
        assert_eq!(nameless(&pod), None, "of no container");
        pod["spec"]["containers"] = json!([{"name": "c"}]);
        let expected = "Cannot enforce AppArmor: invalid empty AppArmor profile name: \" \"";
        assert_eq!(nameless(&pod), Some(Refusal::new("AppArmor", expected)));
        let mut unnamed = of("containers", "Localhost");
        unnamed["spec"]["containers"][0]["securityContext"]["appArmorProfile"]["localhostProfile"] = " ".into();
        assert_eq!(nameless(&unnamed), Some(Refusal::new("AppArmor", expected)));
    }

    #[test]
    fn pods_wait_for_what_the_machine_may_get() {
        let pod = |context: Value| -> Pod {
            let containers = json!([{"name": "c", "securityContext": context}]);
            serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
        };
        let named = |name: &str| pod(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": name}}));
        let loaded = "docker-default (enforce)\nmy own (complain)\n";
        let missing = |pod: &Pod| missing_profile(pod, loaded).map(|refusal| refusal.message);
        assert_eq!(missing(&named("my own")), None);
        assert_eq!(missing(&pod(json!({"appArmorProfile": {"type": "RuntimeDefault"}}))), None);
        let expected = "Cannot enforce AppArmor: apparmor profile not found my";
        assert_eq!(missing(&named("my")).as_deref(), Some(expected));
        let confined = pod(json!({"allowPrivilegeEscalation": false}));
        assert_eq!(no_new_privileges(&confined, true), None);
        assert_eq!(no_new_privileges(&confined, false).map(|r| r.reason).as_deref(), Some("NoNewPrivs"));
        assert_eq!(no_new_privileges(&pod(json!({})), false), None);
    }

    #[test]
    fn strict_groups_need_a_runtime_that_knows_them() {
        let check = |policy: Value, features: Value, admitted: bool| {
            let spec = json!({"containers": [], "securityContext": {"supplementalGroupsPolicy": policy}});
            let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let node = serde_json::from_value(json!({"status": {"features": features}})).unwrap();
            let found = supplemental_groups(&pod, &node).err().map(|refusal| refusal.reason);
            let expected = (!admitted).then(|| "SupplementalGroupsPolicyNotSupported".to_string());
            assert_eq!(found, expected, "{policy} {features}");
        };
        check(json!("Strict"), json!(null), false);
        check(json!("Strict"), json!({"supplementalGroupsPolicy": false}), false);
        check(json!("Strict"), json!({"supplementalGroupsPolicy": true}), true);
        check(json!("Merge"), json!(null), true);
        check(json!(null), json!(null), true);
    }
}
