//! What a debug container may do: `--profile`.
//! Used by `debug`.
//! Pure.

use serde_json::{Value, json};

const NAMES: [&str; 6] = ["legacy", "general", "baseline", "netadmin", "restricted", "sysadmin"];

fn unknown(profile: &str) -> String {
    format!("unknown profile: {profile}")
}

/// Of an ephemeral container, or one in a copied pod.
pub fn ephemeral(profile: &str, container: &mut Value) -> Result<(), String> {
    match profile {
        "legacy" | "baseline" => {}
        "general" => container["securityContext"] = json!({"capabilities": {"add": ["SYS_PTRACE"]}}),
        "netadmin" => container["securityContext"] = json!({"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}),
        "sysadmin" => container["securityContext"] = json!({"privileged": true}),
        "restricted" => container["securityContext"] = restricted(),
        other => return Err(unknown(other)),
    }
    Ok(())
}

fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Of a pod on a node: the node's root is at `/host`, its namespaces are shared, as far as the profile goes.
pub fn node(profile: &str, pod: &mut Value) -> Result<(), String> {
    if !NAMES.contains(&profile) {
        return Err(unknown(profile));
    }
    if ["legacy", "general", "sysadmin"].contains(&profile) {
        pod["spec"]["volumes"] = json!([{"name": "host-root", "hostPath": {"path": "/"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host-root", "mountPath": "/host"}]);
    }
    if ["legacy", "general", "netadmin", "sysadmin"].contains(&profile) {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            pod["spec"][field] = true.into();
        }
    }
    let container = &mut pod["spec"]["containers"][0];
    match profile {
        "netadmin" | "sysadmin" | "restricted" => ephemeral(profile, container),
        _ => Ok(()),
    }
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

    #[test]
    fn profiles_give_and_take() {
        let check = |profile: &str, wanted: Value| {
            let mut container = json!({});
            assert_eq!(ephemeral(profile, &mut container), Ok(()), "{profile}");
            assert_eq!(container["securityContext"], wanted, "{profile}");
        };
        check("legacy", Value::Null);
        check("general", json!({"capabilities": {"add": ["SYS_PTRACE"]}}));
        check("sysadmin", json!({"privileged": true}));
        let custom =
            json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}, "env": [{"name": "B", "value": "2"}]});
        let mut container = json!({"name": "debugger", "image": "i", "env": [{"name": "A", "value": "1"}]});
        assert_eq!(ephemeral("general", &mut container).and_then(|()| customize(&mut container, &custom)), Ok(()));
        assert_eq!(container["securityContext"], json!({"capabilities": {"add": ["NET_ADMIN"]}}));
        assert_eq!(container["env"].as_array().map(Vec::len), Some(2), "{container}");
        assert_eq!(container["image"], "i");
        assert!(check_custom(&custom).is_ok());
        assert!(check_custom(&json!({"image": "other"})).is_err());
        assert_eq!(ephemeral("nope", &mut json!({})), Err("unknown profile: nope".to_string()));
    }
}
