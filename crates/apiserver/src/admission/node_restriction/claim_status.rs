//! What a node says of a PersistentVolumeClaim: how far its expansion is, and nothing else.
//! Asked by the plugin in `node_restriction`; the Node authorizer sees to it that a pod of the node uses the claim.
//! Metadata and spec stay as they are, whatever the request holds.

use serde_json::{Map, Value};

use api::ApiError;

use crate::admission::{Attributes, Operation};

const EXPANSION: [&str; 4] = ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"];

pub fn check(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    if a.subresource != "status" {
        return Err(a.forbidden("may only update PVC status"));
    }
    if a.operation != Operation::Update {
        return Err(a.forbidden(&format!("unexpected operation {:?}", a.operation.as_str())));
    }
    let changed = changed_fields(&fixed(&a.old), &fixed(&a.object));
    if changed.is_empty() {
        return Ok(());
    }
    Err(a.forbidden(&format!(
        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions: {}",
        changed.join(", ")
    )))
}

/// The claim without what a node may change, and without what changes by itself.
fn fixed(claim: &Value) -> Value {
    let mut claim = claim.clone();
    let mut remove = |part: &str, fields: &[&str]| {
        if let Some(part) = claim.get_mut(part).and_then(Value::as_object_mut) {
            part.retain(|field, _| !fields.contains(&field.as_str()));
        }
    };
    remove("metadata", &["resourceVersion", "managedFields"]);
    remove("status", &EXPANSION);
    without_empty(claim)
}

/// An empty list or map is as good as none.
pub(super) fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().map(|(name, value)| (name, without_empty(value)));
            let kept: Map<_, _> = kept.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        other => other,
    }
}

/// `part.field` of each that differs.
pub(super) fn changed_fields(old: &Value, new: &Value) -> Vec<String> {
    let mut changed = Vec::new();
    for part in names(old, new) {
        let (old, new) = (&old[&part], &new[&part]);
        match old.is_object() || new.is_object() {
            true => changed.extend(
                names(old, new).into_iter().filter(|field| old[field] != new[field]).map(|f| format!("{part}.{f}")),
            ),
            false if old != new => changed.push(part),
            false => {}
        }
    }
    changed
}

fn names(old: &Value, new: &Value) -> Vec<String> {
    let fields = [old, new].into_iter().filter_map(Value::as_object).flat_map(|fields| fields.keys().cloned());
    let mut names: Vec<String> = fields.collect();
    names.sort();
    names.dedup();
    names
}
