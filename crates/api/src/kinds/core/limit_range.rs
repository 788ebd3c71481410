//! LimitRanges: defaults, columns, validation.
//! Enforced by the admission plugin LimitRanger.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior,
        common::{
            access::{default_to, each, entries, is_set, items, part_mut, text, text_at},
            checks,
            columns::plain,
            quantities,
        },
        core::pod_spec::resources,
    },
    names,
    quantity::Quantity,
};

#[derive(Default)]
pub struct LimitRange;

impl Behavior for LimitRange {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        each(spec, "limits", |limit| {
            for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                quantities::round_list(limit, field);
            }
            if text(limit, "type") == "Container" {
                fill(limit, "default", "max");
                fill(limit, "defaultRequest", "default");
                fill(limit, "defaultRequest", "min");
            }
        });
    }

    /// One without a name gets one.
    fn prepare_create(&self, object: &mut Value) {
        let uid = text_at(object, "metadata.uid").to_string();
        if let Some(metadata) = part_mut(object, "metadata") {
            default_to(metadata, "name", uid);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("limits");
        let limits = items(&object["spec"], "limits");
        for (index, limit) in limits.iter().enumerate() {
            let path = path.index(index);
            let kind = text(limit, "type");
            if limits[..index].iter().any(|other| text(other, "type") == kind) {
                errors.duplicate(&path.child("type"), kind);
            }
            validate_limit(errors, &path, limit, kind);
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

/// What `from` names and `field` does not.
fn fill(limit: &mut Value, field: &str, from: &str) {
    let from: Vec<(String, Value)> = entries(limit, from).map(|(k, v)| (k.to_string(), v.clone())).collect();
    if from.is_empty() {
        return;
    }
    if let Some(into) = part_mut(limit, field) {
        for (name, quantity) in from {
            default_to(into, &name, quantity);
        }
    }
}

fn validate_limit(errors: &mut ErrorList, path: &Path, limit: &Value, kind: &str) {
    let found = names::qualified_name(kind);
    if !found.is_empty() {
        checks::complaints(errors, &path.child("type"), kind, found);
    } else if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
        errors.invalid(&path.child("type"), kind, "must be a standard limit type or fully qualified");
    }
    let container = matches!(kind, "Pod" | "Container");
    for field in ["max", "min", "maxLimitRequestRatio"] {
        resources::names(errors, &path.child(field), &limit[field], container);
    }
    for field in ["default", "defaultRequest"] {
        if kind == "Pod" && is_set(limit, field) {
            errors.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
        } else {
            resources::names(errors, &path.child(field), &limit[field], container);
        }
    }
    if kind == "PersistentVolumeClaim" && limit["min"].get("storage").is_none() && limit["max"].get("storage").is_none()
    {
        errors.required(
            &path.child("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
    // field at fault, smaller, its words, larger, its words
    for (field, low, low_words, high, high_words) in [
        ("min", "min", "min", "max", "max"),
        ("defaultRequest", "min", "min", "defaultRequest", "default request"),
        ("defaultRequest", "defaultRequest", "default request", "max", "max"),
        ("defaultRequest", "defaultRequest", "default request", "default", "default limit"),
        ("default", "min", "min", "default", "default"),
        ("default", "default", "default", "max", "max"),
    ] {
        for (name, value) in entries(limit, low) {
            let (Some(least), Some(most)) =
                (Quantity::from_value(value), limit[high].get(name).and_then(Quantity::from_value))
            else {
                continue;
            };
            if least > most {
                let words = format!(
                    "{low_words} value {} is greater than {high_words} value {}",
                    least.canonical(),
                    most.canonical()
                );
                // Of its defaults upstream shows the bound.
                let shown = match (field, low) {
                    ("default", "min") => plain(value),
                    ("default", _) => plain(&limit[high][name]),
                    _ => plain(&limit[field][name]),
                };
                errors.invalid(&path.child(field).key(name), shown, words);
            }
        }
    }
}
