//! Validation that every kind with a pod template shares.
//! Used by deployments, replica sets, stateful sets, daemon sets, replication controllers and jobs.
//! A template carries the labels that its selector asks for.

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        common::{
            access::{int, part, text},
            checks::{label_selector, selector_is_empty, selector_matches},
        },
        core::pod_spec,
    },
};

const MISMATCH: &str = "`selector` does not match template `labels`";

/// A selector that must be there and select something. `kind` as upstream words it.
pub fn selector(errors: &mut ErrorList, path: &Path, spec: &Value, kind: &str) {
    let path = path.child("selector");
    match part(spec, "selector") {
        None => errors.required(&path, ""),
        Some(selector) => {
            label_selector(errors, &path, selector);
            if selector_is_empty(selector) {
                errors.invalid(&path, json!({}), format!("empty selector is invalid for {kind}"));
            }
        }
    }
}

/// The template matches the selector, unless that selects everything.
pub fn template_matches(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let selector = spec.get("selector").unwrap_or(&Value::Null);
    if selector.is_object() && selector_is_empty(selector) {
        return;
    }
    let labels = spec["template"]["metadata"].get("labels").cloned().unwrap_or_default();
    if !selector_matches(selector, &labels) {
        errors.invalid(&path.child("template").child("metadata").child("labels"), labels, MISMATCH);
    }
}

/// The template of something that keeps its pods running. `kind` is named in the words about deadlines.
pub fn running_template(errors: &mut ErrorList, path: &Path, spec: &Value, kind: &str) {
    let path = path.child("template");
    pod_spec::validation::template(errors, &path, &spec["template"]);
    let pod = &spec["template"]["spec"];
    if text(pod, "restartPolicy") != "Always" {
        errors.not_supported(&path.child("spec").child("restartPolicy"), text(pod, "restartPolicy"), &["Always"]);
    }
    if int(pod, "activeDeadlineSeconds").is_some() {
        errors.forbidden(
            &path.child("spec").child("activeDeadlineSeconds"),
            format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

/// A counter that never runs backwards.
pub fn collision_count(errors: &mut ErrorList, new: &Value, old: &Value) {
    let count = |object: &Value| int(&object["status"], "collisionCount");
    if count(new).unwrap_or(0) < count(old).unwrap_or(0) {
        let path = Path::new("status").child("collisionCount");
        errors.invalid(&path, count(new).unwrap_or(0), "cannot be decremented");
    }
}
