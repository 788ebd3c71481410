//! AppArmor profiles that pods still name in annotations: made fields of, and held against them.
//! Used by `pod` when one is made, and by `pod_spec` for templates, which keep their annotations.
//! An annotation never overrules a field.

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{at, entries, items, items_mut, part, part_mut, set, text, text_at},
        checks,
    },
};

pub const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const PROFILE_BYTES_MAX: usize = 4095;

/// The field that says the same, if there is one.
fn field_for(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({ "type": "Unconfined" })),
        "runtime/default" => Some(json!({ "type": "RuntimeDefault" })),
        _ => annotation
            .strip_prefix("localhost/")
            .filter(|name| !name.is_empty() && name.trim() == *name && name.len() <= PROFILE_BYTES_MAX)
            .map(|name| json!({ "type": "Localhost", "localhostProfile": name })),
    }
}

fn is_windows(spec: &Value) -> bool {
    text_at(spec, "os.name") == "windows"
}

fn annotation_of<'a>(metadata: &'a Value, container: &Value) -> Option<(String, &'a str)> {
    let key = format!("{ANNOTATION_PREFIX}{}", text(container, "name"));
    let value = metadata["annotations"].get(&key)?.as_str()?;
    Some((key, value))
}

/// Gives containers the profile that an annotation names and no field does.
pub fn annotations_to_fields(pod: &mut Value) {
    let metadata = pod["metadata"].clone();
    if metadata["annotations"].is_null() || is_windows(&pod["spec"]) {
        return;
    }
    let of_pod = at(&pod["spec"], "securityContext.appArmorProfile").clone();
    for list in LISTS {
        for container in items_mut(&mut pod["spec"], list) {
            let Some((_, annotation)) = annotation_of(&metadata, container) else { continue };
            if !at(container, "securityContext.appArmorProfile").is_null() {
                continue;
            }
            if let Some(profile) = field_for(annotation).filter(|profile| *profile != of_pod)
                && let Some(context) = part_mut(container, "securityContext")
            {
                set(context, "appArmorProfile", profile);
            }
        }
    }
}

/// Of a pod whose annotations have not been made fields yet.
pub fn warnings(pod: &Value) -> Vec<String> {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    if is_windows(spec) {
        return Vec::new();
    }
    let of_pod = at(spec, "securityContext.appArmorProfile");
    let containers = LISTS.iter().flat_map(|list| items(spec, list));
    let warning = |container: &Value| {
        let (key, annotation) = annotation_of(metadata, container)?;
        let has_field = !at(container, "securityContext.appArmorProfile").is_null();
        let is_told = field_for(annotation).is_none_or(|profile| profile != *of_pod);
        (is_told && !has_field).then(|| {
            format!("metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead")
        })
    };
    containers.filter_map(warning).collect()
}

/// Annotations that name no container, or no profile. `path` is that of the annotations.
pub fn validate_annotations(errors: &mut ErrorList, path: &Path, metadata: &Value, spec: &Value) {
    for (key, value) in entries(metadata, "annotations") {
        let Some(name) = key.strip_prefix(ANNOTATION_PREFIX) else { continue };
        let mut containers = LISTS.iter().flat_map(|list| items(spec, list));
        if !containers.any(|container| text(container, "name") == name) {
            errors.invalid(&path.key(key), name, "container not found");
        }
        let value = value.as_str().unwrap_or_default();
        let is_known = matches!(value, "" | "runtime/default" | "unconfined") || value.starts_with("localhost/");
        if !is_known {
            errors.invalid(&path.key(key), value, format!("invalid AppArmor profile name: {value:?}"));
        }
    }
}

/// Annotation and field of a container say the same. `path` is that of the spec.
pub fn validate_match(errors: &mut ErrorList, path: &Path, metadata: &Value, spec: &Value) {
    if metadata["annotations"].is_null() || is_windows(spec) {
        return;
    }
    for list in LISTS {
        for (index, container) in items(spec, list).iter().enumerate() {
            let own = part(&container["securityContext"], "appArmorProfile");
            let Some(profile) = own.or(part(&spec["securityContext"], "appArmorProfile")) else { continue };
            let Some((_, annotation)) = annotation_of(metadata, container) else { continue };
            let path = path.child(list).index(index).child("securityContext").child("appArmorProfile");
            let same_type = match text(profile, "type") {
                "Unconfined" => annotation == "unconfined",
                "RuntimeDefault" => annotation == "runtime/default",
                "Localhost" => annotation.starts_with("localhost/"),
                _ => true,
            };
            if !same_type {
                errors.forbidden(&path.child("type"), "apparmor type in annotation and field must match");
            } else if let Some(name) = annotation.strip_prefix("localhost/")
                && !checks::same(&json!(name), &profile["localhostProfile"])
            {
                let why = "apparmor profile in annotation and field must match";
                errors.forbidden(&path.child("localhostProfile"), why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotation: &str, field: Value) -> Value {
        json!({
            "metadata": { "annotations": { format!("{ANNOTATION_PREFIX}c"): annotation } },
            "spec": { "containers": [{ "name": "c", "securityContext": { "appArmorProfile": field } }] },
        })
    }

    #[test]
    fn annotations_become_fields() {
        let localhost = json!({ "type": "Localhost", "localhostProfile": "nginx" });
        for (annotation, field, expected, warned) in [
            ("localhost/nginx", Value::Null, localhost, true),
            ("runtime/default", Value::Null, json!({ "type": "RuntimeDefault" }), true),
            ("unconfined", json!({ "type": "RuntimeDefault" }), json!({ "type": "RuntimeDefault" }), false),
            ("localhost/", Value::Null, Value::Null, true),
        ] {
            let mut pod = pod(annotation, field);
            assert_eq!(!warnings(&pod).is_empty(), warned, "{annotation}");
            annotations_to_fields(&mut pod);
            let found = at(&pod["spec"]["containers"][0], "securityContext.appArmorProfile");
            assert_eq!(*found, expected, "{annotation}");
        }
    }

    #[test]
    fn annotations_are_checked() {
        for (annotation, field, expected) in [
            ("localhost/a", json!({ "type": "Localhost", "localhostProfile": "a" }), ""),
            (
                "localhost/a",
                json!({ "type": "Localhost", "localhostProfile": "b" }),
                "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Forbidden: apparmor profile in \
                 annotation and field must match",
            ),
            (
                "unconfined",
                json!({ "type": "RuntimeDefault" }),
                "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and \
                 field must match",
            ),
            (
                "x",
                Value::Null,
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: \"x\": \
                 invalid AppArmor profile name: \"x\"",
            ),
        ] {
            let pod = pod(annotation, field);
            let mut errors = ErrorList::new();
            let annotations = Path::new("metadata").child("annotations");
            validate_annotations(&mut errors, &annotations, &pod["metadata"], &pod["spec"]);
            validate_match(&mut errors, &Path::new("spec"), &pod["metadata"], &pod["spec"]);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(", "), expected, "{annotation}");
        }
    }
}
