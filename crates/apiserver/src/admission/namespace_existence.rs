//! NamespaceAutoProvision makes the namespace that an object is created in; NamespaceExists refuses what is in none.
//! Rows of the table in `admission`, both off by default: NamespaceLifecycle does what most clusters want.
//! A dry run makes no namespace.

use std::sync::Arc;

use async_trait::async_trait;
use http::Method;
use serde_json::json;

use api::ApiError;

use super::{Attributes, Operation, Plugin};
use crate::{server::loopback::Loopback, storage::cluster::Cluster};

fn in_namespace(a: &Attributes<'_>) -> bool {
    !a.namespace.is_empty() && a.resource.namespaced()
}

pub struct NamespaceAutoProvision {
    pub cluster: Arc<Cluster>,
    pub loopback: Loopback,
}

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let is_there = || self.cluster.get("namespaces", "", a.namespace).is_some();
        if a.dry_run || a.operation != Operation::Create || !in_namespace(a) || is_there() {
            return Ok(());
        }
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": a.namespace } });
        match self.loopback.send(Method::POST, "/api/v1/namespaces", &namespace).await {
            Err(e) if !e.is_already_exists() => Err(a.forbidden(&e.message)),
            _ => Ok(()),
        }
    }
}

pub struct NamespaceExists(pub Arc<Cluster>);

#[async_trait]
impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if a.operation == Operation::Connect || !in_namespace(a) {
            return Ok(());
        }
        match self.0.fresh_get("namespaces", "", a.namespace).await? {
            Some(_) => Ok(()),
            None => Err(ApiError::not_found("", "namespaces", a.namespace)),
        }
    }
}
