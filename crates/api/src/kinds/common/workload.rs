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

/// Whether a selector can be read. Where it cannot, upstream does not look at the template at all.
pub fn has_readable_selector(errors: &mut ErrorList, path: &Path, spec: &Value, words: &str) -> bool {
    let selector = spec.get("selector").unwrap_or(&Value::Null);
    let mut found = ErrorList::new();
    label_selector(&mut found, path, selector);
    if !found.is_empty() {
        errors.invalid(&path.child("selector"), selector.clone(), words);
    }
    found.is_empty()
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
    pod_spec::validation::template(errors, &path.child("template"), &spec["template"]);
    runs_forever(errors, path, spec, kind);
}

/// The pods of a template start again whenever they end.
pub fn runs_forever(errors: &mut ErrorList, path: &Path, spec: &Value, kind: &str) {
    let path = path.child("template");
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

/// A strategy of updates as errors show it: Go's names, everything said.
pub fn shown_strategy(strategy: &Value) -> String {
    let of = |owner: &Value, field: &str| owner.get(field).cloned().unwrap_or_default().to_string();
    let rolling = part(strategy, "rollingUpdate").map_or("null".to_string(), |rolling| {
        let zero = |field: &str| rolling.get(field).cloned().unwrap_or_else(|| json!(0)).to_string();
        format!("{{\"MaxUnavailable\":{},\"MaxSurge\":{}}}", zero("maxUnavailable"), zero("maxSurge"))
    });
    format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}", of(strategy, "type"))
}

/// A counter that never runs backwards.
pub fn collision_count(errors: &mut ErrorList, new: &Value, old: &Value) {
    let count = |object: &Value| int(&object["status"], "collisionCount");
    if count(new).unwrap_or(0) < count(old).unwrap_or(0) {
        let path = Path::new("status").child("collisionCount");
        errors.invalid(&path, count(new).unwrap_or(0), "cannot be decremented");
    }
}
