//! Validation of `metadata`, the same for every kind.
//! Called by the API server's registry beside the kind's own validation; labels and annotations of templates come here too.
//! What the server manages itself never changes by a client's hand.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Resource,
        common::{
            access::{entries, flag, int, items, text, texts},
            checks::{IMMUTABLE, NOT_NEGATIVE, complaints, labels},
        },
    },
    names,
};

const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
const MANAGER_BYTES_MAX: usize = 128;

/// Of a new object. Its name must have been generated already.
pub fn validate_create(resource: &Resource, object: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    let metadata = &object["metadata"];
    let check = |name: &str, prefix: bool| resource.behavior.validate_name(name, prefix);
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() && resource.behavior.validates_generate_name() {
        complaints(errors, &path.child("generateName"), prefix, check(prefix, true));
    }
    match text(metadata, "name") {
        "" => errors.required(&path.child("name"), "name or generateName is required"),
        name => complaints(errors, &path.child("name"), name, check(name, false)),
    }
    match (resource.namespaced(), text(metadata, "namespace")) {
        (true, "") => errors.required(&path.child("namespace"), ""),
        (true, namespace) => {
            complaints(errors, &path.child("namespace"), namespace, names::dns_label(namespace, false));
        }
        (false, "") => {}
        (false, _) => errors.forbidden(&path.child("namespace"), "not allowed on this type"),
    }
    if let Some(generation) = int(metadata, "generation").filter(|g| *g < 0) {
        errors.invalid(&path.child("generation"), generation, NOT_NEGATIVE);
    }
    validate_common(&path, metadata, errors);
    validate_finalizers(&path, metadata, errors);
}

/// Of an object that replaces `old`.
pub fn validate_update(object: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    let (new, old) = (&object["metadata"], &old["metadata"]);
    if !text(old, "deletionTimestamp").is_empty() {
        let before: Vec<&str> = texts(old, "finalizers").collect();
        let mut added: Vec<&str> = texts(new, "finalizers").filter(|f| !before.contains(f)).collect();
        if !added.is_empty() {
            added.sort_unstable();
            let shown: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
            errors.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers \
                     []string{{{}}}",
                    shown.join(", ")
                ),
            );
        }
    }
    if text(new, "resourceVersion").is_empty() {
        errors.invalid(&path.child("resourceVersion"), "", "must be specified for an update");
    }
    if int(new, "generation").unwrap_or(0) < int(old, "generation").unwrap_or(0) {
        errors.invalid(&path.child("generation"), int(new, "generation"), "must not be decremented");
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value = |metadata: &Value| metadata.get(field).filter(|v| !v.is_null() && *v != "").cloned();
        if value(new) != value(old) {
            errors.invalid(&path.child(field), value(new).unwrap_or_default(), IMMUTABLE);
        }
    }
    validate_common(&path, new, errors);
    if new.get("finalizers") != old.get("finalizers") {
        validate_finalizers(&path, new, errors);
    }
}

fn validate_common(path: &Path, metadata: &Value, errors: &mut ErrorList) {
    labels(errors, path, metadata, "labels");
    validate_annotations(path, metadata, errors);
    validate_owner_references(path, metadata, errors);
    validate_managed_fields(path, metadata, errors);
}

/// Of a template.
pub fn validate_template(path: &Path, metadata: &Value, errors: &mut ErrorList) {
    validate_annotations(path, metadata, errors);
    labels(errors, path, metadata, "labels");
}

/// `annotations` of an object or of a template.
pub fn validate_annotations(path: &Path, owner: &Value, errors: &mut ErrorList) {
    let mut total = 0;
    for (key, value) in entries(owner, "annotations") {
        let found = names::qualified_name(&key.to_lowercase());
        if !found.is_empty() {
            complaints(errors, &path.child("annotations"), key, found);
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_BYTES_MAX {
        errors.too_long(&path.child("annotations"), ANNOTATIONS_BYTES_MAX);
    }
}

fn validate_owner_references(path: &Path, metadata: &Value, errors: &mut ErrorList) {
    let owners = items(metadata, "ownerReferences");
    let mut controller: Option<String> = None;
    for owner in owners {
        let path = path.child("ownerReferences");
        let api_version = text(owner, "apiVersion");
        if api_version.rsplit('/').next().unwrap_or("").is_empty() {
            errors.invalid(&path.child("apiVersion"), api_version, "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.invalid(&path.child(field), "", "must not be empty");
            }
        }
        if api_version == "v1" && text(owner, "kind") == "Event" {
            errors.invalid(&path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
        }
        if flag(owner, "controller") {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                Some(first) => errors.invalid(
                    &path,
                    Value::Array(owners.to_vec()),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    ),
                ),
                None => controller = Some(this),
            }
        }
    }
}

fn validate_finalizers(path: &Path, metadata: &Value, errors: &mut ErrorList) {
    let finalizers: Vec<&str> = texts(metadata, "finalizers").collect();
    for finalizer in &finalizers {
        complaints(errors, &path.child("finalizers"), finalizer, names::qualified_name(finalizer));
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        errors.invalid(
            &path.child("finalizers"),
            metadata["finalizers"].clone(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}

fn validate_managed_fields(path: &Path, metadata: &Value, errors: &mut ErrorList) {
    for (index, entry) in items(metadata, "managedFields").iter().enumerate() {
        let (operation, kind) = (text(entry, "operation"), text(entry, "fieldsType"));
        let manager = text(entry, "manager");
        let legal = matches!(operation, "Apply" | "Update") && matches!(kind, "" | "FieldsV1");
        if legal && manager.len() <= MANAGER_BYTES_MAX {
            continue;
        }
        let path = path.child("managedFields").index(index);
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(&path.child("operation"), operation, "must be `Apply` or `Update`");
        }
        if !matches!(kind, "" | "FieldsV1") {
            errors.invalid(&path.child("fieldsType"), kind, "must be `FieldsV1`");
        }
        if manager.len() > MANAGER_BYTES_MAX {
            errors.too_long(&path.child("manager"), MANAGER_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts_of(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(|e| e.to_string().chars().take(70).collect()).collect()
    }

    #[test]
    fn creates() {
        let check = |metadata: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            let resource = crate::kinds::find("", "v1", "configmaps").unwrap();
            validate_create(resource, &json!({ "metadata": metadata }), &mut errors);
            let found = texts_of(&errors);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
            }
        };
        check(json!({ "name": "a", "namespace": "b" }), &[]);
        check(
            json!({}),
            &["metadata.name: Required value: name or generateName is requ", "metadata.namespace: Required"],
        );
        check(
            json!({ "name": "A_", "namespace": "b", "labels": { "a b": "c" }, "finalizers": ["x y"] }),
            &[
                "metadata.name: Invalid value: \"A_\": a lowercase RFC 1123",
                "metadata.labels: Invalid value: \"a b\": name part must",
                "metadata.finalizers: Invalid value: \"x y\"",
            ],
        );
        check(
            json!({ "name": "a", "namespace": "b", "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod" }] }),
            &["metadata.ownerReferences.name: Invalid", "metadata.ownerReferences.uid: Invalid"],
        );
        check(
            json!({ "name": "a", "namespace": "b", "annotations": { "k": "x".repeat(300_000) } }),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        );
    }

    #[test]
    fn updates() {
        let old = json!({ "metadata": { "name": "a", "uid": "1", "resourceVersion": "5" } });
        let check = |metadata: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            validate_update(&json!({ "metadata": metadata }), &old, &mut errors);
            assert_eq!(texts_of(&errors), expected);
        };
        check(json!({ "name": "a", "uid": "1", "resourceVersion": "5" }), &[]);
        check(
            json!({ "name": "b", "uid": "1" }),
            &[
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an ",
                "metadata.name: Invalid value: \"b\": field is immutable",
            ],
        );
    }
}
