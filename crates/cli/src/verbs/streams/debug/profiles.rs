//! What a debug container may do: `--profile`; and what a copied pod keeps.
//! Used by `debug`.
//! Pure.

use serde_json::{Value, json};

const NAMES: [&str; 6] = ["legacy", "general", "baseline", "netadmin", "restricted", "sysadmin"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Ephemeral,
    PodCopy,
    Node,
}

/// What of the original a copy keeps: `--keep-*`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keep {
    pub labels: bool,
    pub annotations: bool,
    pub liveness: bool,
    pub readiness: bool,
    pub startup: bool,
    pub init_containers: bool,
}

pub fn known(profile: &str) -> Result<(), String> {
    match NAMES.contains(&profile) {
        true => Ok(()),
        false => Err(format!("unknown profile: {profile}")),
    }
}

pub fn container_mut<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let spec = pod["spec"].as_object_mut()?;
    let lists = spec
        .iter_mut()
        .filter(|(field, _)| ["initContainers", "containers", "ephemeralContainers"].contains(&field.as_str()));
    lists.flat_map(|(_, list)| list.as_array_mut().into_iter().flatten()).find(|one| one["name"] == name)
}

/// Applies the profile to the container of that name, and to its pod.
pub fn apply(profile: &str, keep: Keep, pod: &mut Value, name: &str, style: Style) -> Result<(), String> {
    known(profile)?;
    if style == Style::Node {
        on_node(profile, pod);
    }
    if style == Style::PodCopy {
        let keep = match profile {
            // As before there were profiles: everything but the labels.
            "legacy" => Keep {
                annotations: true,
                liveness: true,
                readiness: true,
                startup: true,
                init_containers: true,
                labels: false,
            },
            _ => keep,
        };
        take_away(keep, pod);
        if profile != "legacy" && pod["spec"]["shareProcessNamespace"].is_null() {
            pod["spec"]["shareProcessNamespace"] = true.into();
        }
    }
    let Some(container) = container_mut(pod, name) else { return Ok(()) };
    let cleared = ["baseline", "restricted"].contains(&profile) || (profile == "general" && style == Style::Node);
    if cleared && let Some(fields) = container.as_object_mut() {
        fields.remove("securityContext");
    }
    match profile {
        "general" if style != Style::Node => add_capabilities(container, &["SYS_PTRACE"]),
        "netadmin" => add_capabilities(container, &["NET_ADMIN", "NET_RAW"]),
        "sysadmin" => container["securityContext"]["privileged"] = true.into(),
        "restricted" => {
            container["securityContext"] = json!({
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            });
        }
        _ => {}
    }
    Ok(())
}

fn add_capabilities(container: &mut Value, names: &[&str]) {
    let added = &mut container["securityContext"]["capabilities"]["add"];
    let mut all = added.as_array().cloned().unwrap_or_default();
    all.extend(names.iter().map(|name| Value::from(*name)));
    *added = all.into();
}

/// The node's root is at `/host`, its namespaces are shared, as far as the profile goes.
fn on_node(profile: &str, pod: &mut Value) {
    if ["legacy", "general", "sysadmin"].contains(&profile) {
        pod["spec"]["volumes"] = json!([{"name": "host-root", "hostPath": {"path": "/"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host-root", "mountPath": "/host"}]);
    }
    if ["legacy", "general", "netadmin", "sysadmin"].contains(&profile) {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            pod["spec"][field] = true.into();
        }
    }
}

fn take_away(keep: Keep, pod: &mut Value) {
    let remove = |object: &mut Value, field: &str| {
        object.as_object_mut().map(|fields| fields.remove(field));
    };
    for (kept, field) in [(keep.labels, "labels"), (keep.annotations, "annotations")] {
        if !kept {
            remove(&mut pod["metadata"], field);
        }
    }
    if !keep.init_containers {
        remove(&mut pod["spec"], "initContainers");
    }
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        for (kept, field) in
            [(keep.liveness, "livenessProbe"), (keep.readiness, "readinessProbe"), (keep.startup, "startupProbe")]
        {
            if !kept {
                remove(container, field);
            }
        }
    }
}

/// Whether what the profile grants may be of no use, since the pod's user is not root.
pub fn granted_to_nobody(pod: &Value, container: &Value) -> bool {
    let user = |context: &Value| context["runAsUser"].as_i64();
    let context = &container["securityContext"];
    let added = context["capabilities"]["add"].as_array().is_some_and(|all| !all.is_empty());
    user(&pod["spec"]["securityContext"]).is_some_and(|user| user != 0)
        && user(context) != Some(0)
        && (context["privileged"] == true || added)
}

/// A custom profile says how the container runs, not what runs.
pub fn check_custom(custom: &Value) -> Result<(), String> {
    match ["name", "command", "image", "lifecycle", "volumeDevices"].iter().any(|field| !custom[*field].is_null()) {
        true => Err("name, command, image, lifecycle and volume devices are not modifiable via custom profile".into()),
        false => Ok(()),
    }
}

/// The custom profile merged over what the named one gave.
pub fn customize(container: &mut Value, custom: &Value) -> Result<(), String> {
    if custom.is_null() {
        return Ok(());
    }
    let schema = api::schema::builtin();
    let pod = schema.find_kind("", "v1", "Pod").ok_or("no schema of pods")?;
    let mut custom = custom.clone();
    custom["name"] = container["name"].clone();
    let inside = |one: &Value| json!({"spec": {"containers": [one]}});
    let mut merged = api::patch::strategic(schema, pod, &inside(container), &inside(&custom))
        .map_err(|e| format!("error creating three way patch to add debug container: {e}"))?;
    *container = merged["spec"]["containers"][0].take();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context_of(profile: &str, style: Style, before: Value) -> Value {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "securityContext": before}]}});
        assert_eq!(apply(profile, Keep::default(), &mut pod, "c", style), Ok(()), "{profile}");
        pod["spec"]["containers"][0]["securityContext"].take()
    }

    #[test]
    fn profiles_give_and_take() {
        let check = |profile: &str, style: Style, before: Value, wanted: Value| {
            assert_eq!(context_of(profile, style, before), wanted, "{profile} {style:?}");
        };
        let user = || json!({"runAsUser": 7});
        check("legacy", Style::Ephemeral, Value::Null, Value::Null);
        check("legacy", Style::PodCopy, user(), user());
        check("general", Style::Ephemeral, Value::Null, json!({"capabilities": {"add": ["SYS_PTRACE"]}}));
        check(
            "general",
            Style::PodCopy,
            json!({"capabilities": {"add": ["SYS_TIME"]}}),
            json!({"capabilities": {"add": ["SYS_TIME", "SYS_PTRACE"]}}),
        );
        check("general", Style::Node, user(), Value::Null);
        check("baseline", Style::PodCopy, user(), Value::Null);
        check("netadmin", Style::Node, Value::Null, json!({"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}));
        check("sysadmin", Style::PodCopy, user(), json!({"runAsUser": 7, "privileged": true}));
        check(
            "restricted",
            Style::PodCopy,
            user(),
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
                   "seccompProfile": {"type": "RuntimeDefault"}}),
        );
        assert_eq!(known("nope"), Err("unknown profile: nope".to_string()));
    }

    #[test]
    fn a_copy_keeps_what_the_flags_say() {
        let original = || {
            json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                   "spec": {"initContainers": [{"name": "i"}],
                            "containers": [{"name": "c", "livenessProbe": {}, "readinessProbe": {}, "startupProbe": {}}]}})
        };
        let check = |profile: &str, keep: Keep, shared: Value, kept: &[&str]| {
            let mut pod = original();
            assert_eq!(apply(profile, keep, &mut pod, "c", Style::PodCopy), Ok(()));
            let there = [
                ("labels", &pod["metadata"]["labels"]),
                ("annotations", &pod["metadata"]["annotations"]),
                ("init", &pod["spec"]["initContainers"]),
                ("liveness", &pod["spec"]["containers"][0]["livenessProbe"]),
                ("readiness", &pod["spec"]["containers"][0]["readinessProbe"]),
                ("startup", &pod["spec"]["containers"][0]["startupProbe"]),
            ];
            let found: Vec<&str> = there.iter().filter(|(_, v)| !v.is_null()).map(|(name, _)| *name).collect();
            assert_eq!(found, kept, "{profile} {keep:?}");
            assert_eq!(pod["spec"]["shareProcessNamespace"], shared, "{profile}");
        };
        check("legacy", Keep::default(), Value::Null, &["annotations", "init", "liveness", "readiness", "startup"]);
        check("general", Keep::default(), true.into(), &[]);
        let some = Keep { labels: true, startup: true, init_containers: true, ..Keep::default() };
        check("restricted", some, true.into(), &["labels", "init", "startup"]);
    }

    #[test]
    fn a_user_who_is_not_root_is_warned_of() {
        let check = |pod_user: Value, context: Value, wanted: bool| {
            let pod = json!({"spec": {"securityContext": {"runAsUser": pod_user}}});
            assert_eq!(granted_to_nobody(&pod, &json!({"securityContext": context})), wanted, "{context}");
        };
        check(2000.into(), json!({"privileged": true}), true);
        check(2000.into(), json!({"capabilities": {"add": ["NET_ADMIN"]}}), true);
        check(2000.into(), json!({"privileged": true, "runAsUser": 0}), false);
        check(2000.into(), json!({"capabilities": {"drop": ["ALL"]}}), false);
        check(0.into(), json!({"privileged": true}), false);
        check(Value::Null, json!({"privileged": true}), false);
    }

    #[test]
    fn a_custom_profile_goes_over_the_named_one() {
        let custom =
            json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}, "env": [{"name": "B", "value": "2"}]});
        let mut container = json!({"name": "debugger", "image": "i", "env": [{"name": "A", "value": "1"}],
            "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
        assert_eq!(customize(&mut container, &custom), Ok(()));
        assert_eq!(container["securityContext"], json!({"capabilities": {"add": ["NET_ADMIN"]}}));
        assert_eq!(container["env"].as_array().map(Vec::len), Some(2), "{container}");
        assert_eq!(container["image"], "i");
        assert!(check_custom(&custom).is_ok());
        assert!(check_custom(&json!({"image": "other"})).is_err());
    }
}
