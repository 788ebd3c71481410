//! What a pod may not say when its `os` is named.
//! Used by `validation`.
//! Expects nothing of the order of fields; a pod without `os` is not looked at.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::{flag, is_set, items, part, text},
};

/// Of the pod's and of a container's security context, where Windows has nothing like it.
const NOT_OF_A_POD: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const NOT_OF_A_CONTAINER: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Every container with its path.
pub fn each_container<'a>(path: &Path, spec: &'a Value) -> impl Iterator<Item = (Path, &'a Value)> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |list| {
        let path = path.child(list);
        items(spec, list).iter().enumerate().map(move |(index, container)| (path.index(index), container))
    })
}

/// `path` is that of the specification.
pub fn operating_system(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(os) = part(spec, "os") else { return };
    let name = path.child("os").child("name");
    match text(os, "name") {
        "" => errors.required(&name, ""),
        "linux" => {
            let contexts = std::iter::once((path.clone(), spec)).chain(each_container(path, spec));
            let foreign = contexts.filter(|(_, of)| is_given(&of["securityContext"], "windowsOptions"));
            for (path, _) in foreign {
                let path = path.child("securityContext").child("windowsOptions");
                errors.forbidden(&path, "windows options cannot be set for a linux pod");
            }
        }
        "windows" => windows(errors, path, spec),
        other => errors.not_supported(&name, other, &["linux", "windows"]),
    }
}

fn windows(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let detail = "cannot be set for a windows pod";
    for field in ["hostPID", "hostIPC"].into_iter().filter(|field| flag(spec, field)) {
        errors.forbidden(&path.child(field), detail);
    }
    for field in ["hostUsers", "shareProcessNamespace"].into_iter().filter(|field| is_given(spec, field)) {
        errors.forbidden(&path.child(field), detail);
    }
    let own = std::iter::once((path.clone(), spec, NOT_OF_A_POD));
    let theirs = each_container(path, spec).map(|(path, container)| (path, container, NOT_OF_A_CONTAINER));
    for (path, of, fields) in own.chain(theirs) {
        for field in fields.iter().filter(|field| is_given(&of["securityContext"], field)) {
            errors.forbidden(&path.child("securityContext").child(field), detail);
        }
    }
}

/// An empty object or list counts too, except that no sysctls are none.
fn is_given(value: &Value, field: &str) -> bool {
    is_set(value, field) || value.get(field).is_some_and(Value::is_object)
}
