//! Reading the metadata of any built-in object, as upstream's `meta.Accessor` does.
//! Used by controllers, the kubelet and whoever holds `k8s-openapi` structs; `object::Meta` is for encoded objects.
//! Absent and empty mean the same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    Metadata, Resource,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

pub trait Accessor: Resource + Metadata<Ty = ObjectMeta> {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }

    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// `namespace/name`, or `name` for cluster-scoped objects: the key of caches and work queues.
    fn key(&self) -> String {
        key(self.namespace(), self.name())
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        labels_of(self.metadata())
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.metadata().labels.as_ref()?.get(name).map(String::as_str)
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata().annotations.as_ref()?.get(name).map(String::as_str)
    }

    fn deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    fn created(&self) -> Option<Timestamp> {
        self.metadata().creation_timestamp.as_ref().map(|t| t.0)
    }

    fn finalizers(&self) -> &[String] {
        self.metadata().finalizers.as_deref().unwrap_or_default()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        controller_of(self.metadata())
    }

    fn controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| owner.uid == uid)
    }

    /// The reference that makes this object the controller of another.
    fn as_controller(&self) -> OwnerReference {
        OwnerReference {
            api_version: Self::API_VERSION.to_string(),
            kind: Self::KIND.to_string(),
            name: self.name().to_string(),
            uid: self.uid().to_string(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

impl<K: Resource + Metadata<Ty = ObjectMeta>> Accessor for K {}

pub fn labels_of(meta: &ObjectMeta) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&NONE)
}

pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") }
}

/// The namespace and the name of a key; the namespace of a cluster-scoped object is empty.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_is_empty() {
        let node = Node::default();
        assert_eq!((node.name(), node.namespace(), node.labels().len(), node.deleting()), ("", "", 0, false));
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "d", "uid": "u",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1" },
                { "apiVersion": "v1", "kind": "X", "name": "x", "uid": "2", "controller": true }] } }))
        .unwrap();
        assert_eq!((pod.key().as_str(), pod.controlled_by("2"), pod.controlled_by("1")), ("d/p", true, false));
        assert_eq!((split_key("d/p"), split_key("n")), (("d", "p"), ("", "n")));
        assert_eq!(pod.as_controller().kind, "Pod");
    }
}
