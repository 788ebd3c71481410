//! Nothing is made in a namespace that does not exist or is going away, and the three immortal ones stay.
//! A row of the table in `admission`.
//! Never refuses an update or a deletion inside a namespace.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use api::ApiError;

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

pub struct NamespaceLifecycle(pub Arc<Cluster>);

const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if a.operation == Operation::Delete && a.is("", "namespaces") && IMMORTAL_NAMESPACES.contains(&a.name) {
            return Err(a.forbidden("this namespace may not be deleted"));
        }
        let reviews = a.resource.group == "authorization.k8s.io";
        if a.operation != Operation::Create || !a.resource.namespaced() || reviews {
            return Ok(());
        }
        let Some(namespace) = self.0.fresh_get("namespaces", "", a.namespace).await? else {
            return Err(ApiError::not_found("", "namespaces", a.namespace));
        };
        // Subresources act on what already exists.
        if namespace.meta.deletion_timestamp.is_none() || !a.subresource.is_empty() {
            return Ok(());
        }
        let why = format!("unable to create new content in namespace {} because it is being terminated", a.namespace);
        let mut error = a.forbidden(&why);
        let details = json!({
            "name": a.name, "group": a.resource.group, "kind": a.resource.plural,
            "causes": [{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {} is being terminated", a.namespace),
                "field": "metadata.namespace",
            }],
        });
        error = error.with_details(details);
        Err(error)
    }
}
