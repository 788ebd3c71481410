//! What a node says of a PersistentVolume of local storage: that its directory is gone, and nothing else.
//! Asked by the plugin in `node_restriction`; the Node authorizer sees to it that the volume is the node's.
//! Only of a volume that is being deleted, and only by taking the finalizer off.

use serde_json::Value;

use api::{ApiError, local_storage};

use super::claim_status::{changed_fields, without_empty};
use crate::admission::{Attributes, Operation};

pub fn check(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let own = local_storage::node_of(&a.old) == Some(node);
    if a.operation != Operation::Update || !a.subresource.is_empty() || !own {
        return Err(a.forbidden(&format!("node {node:?} can only let go of persistent volumes of its own storage")));
    }
    if a.old["metadata"]["deletionTimestamp"].is_null() {
        return Err(a.forbidden("can only let go of a persistent volume that is being deleted"));
    }
    let mut changed = changed_fields(&fixed(&a.old), &fixed(&a.object));
    if kept(&a.old) != finalizers(&a.object) {
        changed.push("metadata.finalizers".into());
    }
    match changed.is_empty() {
        true => Ok(()),
        false => Err(a.forbidden(&format!(
            "node {node:?} is not allowed to change more than the finalizer {:?}: {}",
            local_storage::FINALIZER,
            changed.join(", ")
        ))),
    }
}

fn finalizers(volume: &Value) -> Vec<&str> {
    volume["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn kept(volume: &Value) -> Vec<&str> {
    finalizers(volume).into_iter().filter(|finalizer| *finalizer != local_storage::FINALIZER).collect()
}

/// The volume without what a node may change, and without what changes by itself.
fn fixed(volume: &Value) -> Value {
    let mut volume = volume.clone();
    if let Some(meta) = volume["metadata"].as_object_mut() {
        meta.retain(|field, _| !["resourceVersion", "managedFields", "finalizers"].contains(&field.as_str()));
    }
    without_empty(volume)
}
