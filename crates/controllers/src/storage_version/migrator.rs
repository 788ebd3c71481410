//! Has every object of a resource written again, so that it is stored in the version and encryption of today: what a
//! StorageVersionMigration asks for.
//! An apply that changes nothing makes the server write what is stored otherwise than it would be now.
//! Objects newer than the migration are left alone: they are written as of today already.

use std::{sync::Arc, time::Duration};

use api::{ApiError, Resource, Verb};
use async_trait::async_trait;
use client::{ListParams, ObjectInformer};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    common::{gated_kinds, objects},
    runner::{Context, Controller, Outcome, Setup},
};

const NAME: &str = "storage-version-migrator-controller";
/// In this namespace is nothing, so that its list costs nothing but tells the revision of now.
const NO_NAMESPACE: &str = "no-such-namespace.storage-version-migrator";
/// A resource that is not there may be of a definition that is not known yet.
const UNKNOWN_RESOURCE_PATIENCE: Duration = Duration::from_secs(60);
const UNKNOWN_RESOURCE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
const PAGE_OBJECTS: u32 = 500;
const REQUIRED_VERBS: [Verb; 3] = [Verb::Update, Verb::Patch, Verb::List];
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let resource = setup.context.gated_kind("storageversionmigrations");
    let migrations = setup.context.informers.objects(resource.clone(), Default::default());
    setup.wait_for(&migrations);
    setup.on_objects(&migrations, |change, queue| queue.add(change.key.clone()));
    Arc::new(Migrator { context: setup.context.clone(), resource, migrations })
}

fn is_true(migration: &Value, kind: &str) -> bool {
    let mut conditions = migration["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == kind && c["status"] == "True")
}

/// Adds a condition; what has ended no longer runs. A condition is never set twice.
fn set_condition(migration: &mut Value, kind: &str, message: &str, now: Timestamp) {
    let reason = match kind {
        "Running" => "StorageVersionMigrationInProgress",
        "Succeeded" => "StorageVersionMigrationSucceeded",
        _ => "StorageVersionMigrationFailed",
    };
    let mut conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.iter().any(|c| c["type"] == kind) {
        return;
    }
    if kind != "Running" {
        let running = conditions.iter_mut().filter(|c| c["type"] == "Running");
        running.for_each(|c| c["status"] = "False".into());
    }
    conditions.push(json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }));
    migration["status"]["conditions"] = conditions.into();
}

fn page(limit: u32, from: Option<String>) -> ListParams {
    ListParams { limit: Some(limit), continue_token: from, ..ListParams::default() }
}

/// Another attempt may do what this one could not.
fn is_retriable(error: &ApiError) -> bool {
    matches!(error.code, 429 | 500 | 503 | 504)
}

struct Migrator {
    context: Context,
    resource: Arc<Resource>,
    migrations: ObjectInformer,
}

impl Migrator {
    async fn write(&self, migration: &Value) -> Result<Value, ApiError> {
        gated_kinds::replace_status(&self.context.client, &self.resource, migration).await
    }

    async fn fail(&self, mut migration: Value, message: &str) -> Outcome {
        // A status without a revision is not valid.
        if migration["status"]["resourceVersion"].as_str().is_none_or(str::is_empty) {
            migration["status"]["resourceVersion"] = migration["metadata"]["resourceVersion"].clone();
        }
        set_condition(&mut migration, "Failed", message, self.context.env.now());
        self.write(&migration).await.map(|_| None)
    }

    fn find(&self, migration: &Value) -> Option<Arc<Resource>> {
        let wanted = &migration["spec"]["resource"];
        let (group, plural) = (wanted["group"].as_str().unwrap_or_default(), wanted["resource"].as_str()?);
        self.context.resources.all().into_iter().find(|r| r.group == group && r.plural == plural)
    }

    fn is_new(&self, migration: &Value) -> bool {
        let created = migration["metadata"]["creationTimestamp"].as_str().and_then(|t| t.parse::<Timestamp>().ok());
        created.is_some_and(|created| created + UNKNOWN_RESOURCE_PATIENCE > self.context.env.now())
    }

    async fn list(&self, path: &str, params: &ListParams) -> Result<Value, ApiError> {
        let answer = self.context.client.get_as(&format!("{path}?{}", params.query()), METADATA_ONLY).await?;
        serde_json::from_slice(&answer).map_err(|e| ApiError::internal(format!("couldn't read a list: {e}")))
    }

    /// The revision that everything up to which is to be written again.
    async fn newest_revision(&self, resource: &Resource) -> Result<Value, ApiError> {
        let namespace = resource.namespaced().then_some(NO_NAMESPACE);
        let list = self.list(&resource.path(namespace, None), &page(1, None)).await?;
        Ok(list["metadata"]["resourceVersion"].clone())
    }

    /// Page by page, so that a large resource needs little memory.
    async fn migrate(&self, resource: &Resource, until: u64) -> Result<(), ApiError> {
        let mut from = None;
        loop {
            let mut list = self.list(&resource.path(None, None), &page(PAGE_OBJECTS, from)).await?;
            let items = list["items"].take();
            for object in items.as_array().into_iter().flatten() {
                self.rewrite(resource, &object["metadata"], until).await?;
            }
            from = list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_string);
            if from.is_none() {
                return Ok(());
            }
        }
    }

    async fn rewrite(&self, resource: &Resource, metadata: &Value, until: u64) -> Result<(), ApiError> {
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        if text("resourceVersion").parse::<u64>().is_ok_and(|revision| revision > until) {
            return Ok(());
        }
        // With both, whatever has been written or deleted meanwhile is a conflict: it needs no migration.
        let body = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] },
        });
        let path = format!("{}?fieldManager={NAME}", resource.path(Some(text("namespace")), Some(text("name"))));
        let content = "application/apply-patch+yaml";
        let body = body.to_string().into_bytes();
        match objects::call(&self.context.client, Method::PATCH, path, content, body).await {
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

#[async_trait]
impl Controller for Migrator {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(migration) = self.migrations.get(key) else { return Ok(None) };
        let mut migration = migration.value();
        if is_true(&migration, "Succeeded") || is_true(&migration, "Failed") {
            return Ok(None);
        }
        let Some(resource) = self.find(&migration) else {
            return match self.is_new(&migration) {
                true => Ok(Some(UNKNOWN_RESOURCE_RETRY_INTERVAL)),
                false => self.fail(migration, "resource does not exist in discovery").await,
            };
        };
        if !REQUIRED_VERBS.iter().all(|verb| resource.supports(verb)) {
            let shown = format!("{}/{}, Resource={}", resource.group, resource.version, resource.plural);
            let why = format!("resource {shown:?} does not support discovery operations: [update patch list]");
            return self.fail(migration, &why).await;
        }
        let Some(until) = migration["status"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()) else {
            migration["status"]["resourceVersion"] = self.newest_revision(&resource).await?;
            return self.write(&migration).await.map(|_| None);
        };
        if !is_true(&migration, "Running") {
            set_condition(&mut migration, "Running", "", self.context.env.now());
            migration = self.write(&migration).await?;
        }
        match self.migrate(&resource, until).await {
            Err(error) if is_retriable(&error) => Err(error),
            Err(error) => self.fail(migration, &format!("migration encountered unhandled error: {error}")).await,
            Ok(()) => {
                set_condition(&mut migration, "Succeeded", "", self.context.env.now());
                self.write(&migration).await.map(|_| None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_no_longer_runs() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut migration = json!({ "status": {} });
        for (kind, expected) in
            [("Running", "Running=True"), ("Running", "Running=True"), ("Succeeded", "Running=False Succeeded=True")]
        {
            set_condition(&mut migration, kind, "", now);
            let conditions = migration["status"]["conditions"].as_array().unwrap().iter();
            let shown =
                conditions.map(|c| format!("{}={}", c["type"].as_str().unwrap(), c["status"].as_str().unwrap()));
            assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
        }
    }
}
