//! Defaults of claims and ingresses, and finalizers that keep volumes in use.
//! Rows of the table in `admission`.
//! An explicit choice, even the empty class, stays.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use api::{ApiError, Object, quantity::Quantity};

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

/// The default of a kind of class: the newest of those marked so, then by name.
fn default_class(cluster: &Cluster, plural: &str, annotations: &[&str]) -> Option<Arc<Object>> {
    let is_default =
        |o: &Arc<Object>| annotations.iter().any(|a| o.meta.annotations.get(*a).is_some_and(|v| v == "true"));
    let mut classes: Vec<_> = cluster.list(plural, "").into_iter().filter(is_default).collect();
    classes.sort_by(|a, b| {
        b.meta.creation_timestamp.cmp(&a.meta.creation_timestamp).then_with(|| a.meta.name.cmp(&b.meta.name))
    });
    classes.into_iter().next()
}

pub struct DefaultStorageClass(pub Arc<Cluster>);

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let creates =
            a.is("", "persistentvolumeclaims") && a.operation == Operation::Create && a.subresource.is_empty();
        let named = a.object["spec"]["storageClassName"].is_string()
            || a.object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].is_string();
        if !creates || named || !a.object["spec"].is_object() {
            return Ok(());
        }
        const MARKS: [&str; 2] =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        if let Some(class) = default_class(&self.0, "storageclasses", &MARKS) {
            a.object["spec"]["storageClassName"] = json!(class.meta.name);
        }
        Ok(())
    }
}

pub struct DefaultIngressClass(pub Arc<Cluster>);

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let creates =
            a.is("networking.k8s.io", "ingresses") && a.operation == Operation::Create && a.subresource.is_empty();
        let named = a.object["spec"]["ingressClassName"].is_string()
            || a.object["metadata"]["annotations"]["kubernetes.io/ingress.class"].is_string();
        if !creates || named || !a.object["spec"].is_object() {
            return Ok(());
        }
        if let Some(class) = default_class(&self.0, "ingressclasses", &["ingressclass.kubernetes.io/is-default-class"])
        {
            a.object["spec"]["ingressClassName"] = json!(class.meta.name);
        }
        Ok(())
    }
}

/// Volumes and claims in use are not deleted under those who use them.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if a.operation != Operation::Create || !a.subresource.is_empty() {
            return Ok(());
        }
        let finalizer = match (a.resource.group.as_str(), a.resource.plural.as_str()) {
            ("", "persistentvolumeclaims") => "kubernetes.io/pvc-protection",
            ("", "persistentvolumes") => "kubernetes.io/pv-protection",
            ("storage.k8s.io", "volumeattributesclasses") => "kubernetes.io/vac-protection",
            _ => return Ok(()),
        };
        let finalizers = &mut a.object["metadata"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(list) if list.iter().any(|f| f == finalizer) => {}
            Some(list) => list.push(finalizer.into()),
            None => *finalizers = json!([finalizer]),
        }
        Ok(())
    }
}

/// Claims only grow, and only where their class lets them.
pub struct PersistentVolumeClaimResize(pub Arc<Cluster>);

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "persistentvolumeclaims") || a.operation != Operation::Update || !a.subresource.is_empty() {
            return Ok(());
        }
        let size =
            |o: &Value| o["spec"]["resources"]["requests"]["storage"].as_str().and_then(|t| Quantity::parse(t).ok());
        let (Some(new), Some(old)) = (size(&a.object), size(&a.old)) else { return Ok(()) };
        if new <= old {
            return Ok(());
        }
        if a.old["status"]["phase"] != "Bound" {
            return Err(a.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = a.old["spec"]["storageClassName"].as_str().unwrap_or_default();
        let class = self.0.get("storageclasses", "", class);
        match class.is_some_and(|c| c.value()["allowVolumeExpansion"] == true) {
            true => Ok(()),
            false => Err(a.forbidden(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            )),
        }
    }
}
