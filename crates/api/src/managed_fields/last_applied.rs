//! Moving an object from client-side to server-side apply: what `kubectl apply` once wrote may be taken over by
//! `kubectl apply --server-side` without force.
//! Used by `apply`, for the manager `kubectl` only, as upstream.
//! The annotation is trusted only where the live object still agrees with it.

use serde_json::Value;

use super::{set::Set, typed::Typed};
use crate::schema::Node;

pub const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// The fields that the annotation set and nobody has changed since.
pub fn unchanged(typed: &Typed, root: &Node, live: &Value, api_version: &str) -> Option<Set> {
    let applied: Value = serde_json::from_str(annotation(live)?).ok()?;
    if applied.get("apiVersion")?.as_str()? != api_version || typed.validate(root, &applied).is_err() {
        return None;
    }
    let changes = typed.compare(root, &applied, live);
    let set = typed.field_set(root, &applied);
    Some(set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed))
}

/// Keeps the annotation, where there is one, equal to what was applied, for those who go back to client-side apply.
pub fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.insert(ANNOTATION.into(), format!("{config}\n").into());
    }
}
