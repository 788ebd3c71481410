//! Validation of security contexts, of pods and of containers.
//! Neighbours: `validation`, `containers`. What a namespace allows is admission's matter.
//! Says what is malformed, not what is unwise.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{flag, int, items, part, text, texts},
        checks::{descending_path, optional_one_of},
    },
    names,
};

fn id(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    if let Some(number) = int(owner, field) {
        for complaint in names::in_range(number, 0, i64::from(i32::MAX)) {
            errors.invalid(&path.child(field), number, complaint);
        }
    }
}

/// `path` is that of the pod specification.
pub fn pod(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(context) = part(spec, "securityContext") else { return };
    let path = path.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(errors, &path, context, field);
    }
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        let group = group.as_i64().unwrap_or(-1);
        for complaint in names::in_range(group, 0, i64::from(i32::MAX)) {
            errors.invalid(&path.child("supplementalGroups").index(index), group, complaint);
        }
    }
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        errors.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(errors, &path.child("sysctls"), spec, context);
    optional_one_of(errors, &path, context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    optional_one_of(errors, &path, context, "supplementalGroupsPolicy", &["Merge", "Strict"]);
    optional_one_of(errors, &path, context, "seLinuxChangePolicy", &["MountOption", "Recursive"]);
    profiles(errors, &path, context);
}

/// `path` is that of the security context.
pub fn container(errors: &mut ErrorList, path: &Path, container: &Value, spec: &Value) {
    let Some(context) = part(container, "securityContext") else { return };
    id(errors, path, context, "runAsUser");
    id(errors, path, context, "runAsGroup");
    optional_one_of(errors, path, context, "procMount", &["Default", "Unmasked"]);
    let host_users = spec.get("hostUsers").and_then(Value::as_bool).unwrap_or(true);
    if host_users && text(context, "procMount") == "Unmasked" {
        errors.invalid(&path.child("procMount"), "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    if context.get("allowPrivilegeEscalation") == Some(&json!(false)) {
        if flag(context, "privileged") {
            errors.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        if texts(&context["capabilities"], "add").any(|capability| capability == "CAP_SYS_ADMIN") {
            errors.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    profiles(errors, path, context);
}

fn sysctls(errors: &mut ErrorList, path: &Path, spec: &Value, context: &Value) {
    const PATTERN: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(PATTERN).expect("a valid pattern"));
    let mut seen = BTreeSet::new();
    for (index, sysctl) in items(context, "sysctls").iter().enumerate() {
        let path = path.index(index).child("name");
        let name = text(sysctl, "name");
        if name.is_empty() {
            errors.required(&path, "");
        } else if name.len() > 253 || !NAME.is_match(name) {
            errors.invalid(&path, name, format!("must have at most 253 characters and match regex {PATTERN}"));
        } else if !seen.insert(name) {
            errors.duplicate(&path, name);
        }
        let dotted = name.replace('/', ".");
        if flag(spec, "hostNetwork") && dotted.starts_with("net.") {
            errors.invalid(&path, name, "may not be specified when 'hostNetwork' is true");
        }
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        if flag(spec, "hostIPC") && ipc.iter().any(|prefix| dotted.starts_with(prefix)) {
            errors.invalid(&path, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn profiles(errors: &mut ErrorList, path: &Path, context: &Value) {
    for (field, called) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let Some(profile) = part(context, field) else { continue };
        let path = path.child(field);
        let kind = text(profile, "type");
        if kind.is_empty() {
            errors.required(&path.child("type"), &format!("type is required when {field} is set"));
        } else if !PROFILES.contains(&kind) {
            errors.not_supported(&path.child("type"), kind, &PROFILES);
        }
        let at = path.child("localhostProfile");
        match (kind, profile.get("localhostProfile").and_then(Value::as_str)) {
            ("Localhost", None | Some("")) => {
                errors.required(&at, &format!("must be set when {called} type is Localhost"));
            }
            ("Localhost", Some(file)) if field == "seccompProfile" => descending_path(errors, &at, file),
            ("Localhost", Some(name)) => {
                if name.trim() != name {
                    errors.invalid(&at, name, "must not be padded with whitespace");
                }
                if name.len() > 4095 {
                    errors.too_long(&at, 4095);
                }
            }
            (_, Some(name)) => {
                let shown = if field == "seccompProfile" { profile.clone() } else { json!(name) };
                errors.invalid(&at, shown, format!("can only be set when {called} type is Localhost"));
            }
            (_, None) => {}
        }
    }
}
