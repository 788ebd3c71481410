//! Field ownership (`metadata.managedFields`) and server-side apply.
//! Called by `apiserver` on every write; the schema says what a field is, custom resources bring their own.
//! Ownership never decides what an update writes, only what an apply may change or remove.

mod apply;
mod compare;
mod conflict;
mod extract;
mod last_applied;
mod managers;
mod merge;
mod object_view;
mod path;
mod scale;
mod set;
mod typed;
mod update;
mod validate;

#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod builtin_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod update_tests;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::schema::{Node, Schema, TypeId};

pub use apply::apply;
pub use managers::{Managers, UPDATE_MANAGERS_MAX};
pub(crate) use object_view::without_managed_fields;
pub use path::PathElement;
pub use scale::{from_scale, to_scale};
pub use set::Set;
pub use update::{track_update, track_update_with};

/// Who writes, and how.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    pub manager: &'a str,
    pub force: bool,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub api_version: &'a str,
    pub now: Timestamp,
    /// Dotted paths that this endpoint does not write and so nobody owns through it: `status`, or `spec` on the status
    /// endpoint. `None`: as the built-in kinds have it. Custom resources without a status endpoint pass `Some(&[])`.
    pub reset: Option<&'a [&'a str]>,
}

impl Options<'_> {
    fn ignored(&self, schema: &Schema, root: TypeId) -> Set {
        let paths = self.reset.unwrap_or_else(|| default_reset(schema, root, self.subresource));
        Set::of_paths(paths)
    }

    fn time(&self) -> String {
        self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// What upstream's strategies reset on each endpoint of a built-in kind.
fn default_reset(schema: &Schema, root: TypeId, subresource: &str) -> &'static [&'static str] {
    let kind = schema.get(root);
    match (subresource, kind.name.rsplit('.').next().unwrap_or_default()) {
        // What is asked for never changes, so nobody owns it.
        ("", "CertificateSigningRequest") => &["spec", "status"],
        ("status", "CertificateSigningRequest") => &["spec", "status.conditions"],
        ("approval", "CertificateSigningRequest") => &["spec", "status.certificate"],
        ("", _) if kind.field("status").is_some_and(|f| f.proto != 0) => &["status"],
        ("status", "Deployment") => &["spec", "metadata.labels"],
        ("status", "Pod") => &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"],
        (
            "status",
            "FlowSchema"
            | "PriorityLevelConfiguration"
            | "ResourceClaim"
            | "ValidatingAdmissionPolicy"
            | "VolumeAttachment",
        ) => &["spec", "metadata"],
        ("status", _) => &["spec"],
        _ => &[],
    }
}

/// The fields of a whole object by its schema, as `FieldsV1` counts them.
pub fn field_set(schema: &Schema, root: TypeId, object: &Value) -> Set {
    typed::Typed { schema }.field_set(&Node::Struct(root), object)
}

/// `live` with what `config` says, by its schema; nobody comes to own anything.
pub fn merged(schema: &Schema, root: TypeId, live: &Value, config: &Value) -> Value {
    let merged = typed::Typed { schema }.merge(&Node::Struct(root), Some(live), Some(config));
    merged.unwrap_or_else(|| Value::Object(Default::default()))
}

/// Whether `metadata.managedFields` can be read; admission must not leave it otherwise.
pub fn validate(managed_fields: Option<&Value>) -> Result<(), String> {
    Managers::parse(managed_fields).map(drop)
}

/// What nobody owns, because the server sets it or it is the object's name.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    Set::of_paths(&[
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.clusterName",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ])
});

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn set_managed_fields(object: &mut Value, managers: &Managers) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    if managers.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), managers.encode());
    }
}

/// Takes the entry out, so that it is neither compared nor merged.
fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}
