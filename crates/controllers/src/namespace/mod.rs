//! Empties namespaces that are being deleted, then lets them go.
//! `conditions` is the core; resources come from the table and from custom resource definitions.
//! Invariant: the finalizer `kubernetes` is removed only after every resource was seen empty.

mod conditions;

use std::{sync::Arc, time::Duration};

use api::{ApiError, Resource};
use async_trait::async_trait;
use client::Informer;
use conditions::{Remains, status};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde_json::Value;

use crate::{
    meta::Object,
    objects,
    shell::{Context, Controller, Outcome, Setup},
};

const FINALIZER: &str = "kubernetes";
/// How long content that nothing announces may go unseen.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (namespaces, pods) = (setup.informer::<Namespace>(), setup.informer::<Pod>());
    let definitions = setup.context.resources.definitions().clone();
    setup.on_keys(&namespaces);
    setup.on(&pods, {
        let namespaces = namespaces.clone();
        move |change, queue| {
            let Some(pod) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
            if namespaces.get(pod.namespace()).is_some_and(|n| n.deleting()) {
                queue.add(pod.namespace().to_string());
            }
        }
    });
    setup.wait_for(definitions.objects());
    Arc::new(Namespaces { context: setup.context.clone(), namespaces })
}

struct Namespaces {
    context: Context,
    namespaces: Informer<Namespace>,
}

#[async_trait]
impl Controller for Namespaces {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(namespace) = self.namespaces.get(key).filter(|n| n.deleting()) else { return Ok(None) };
        let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.clone()).unwrap_or_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            return Ok(None);
        }
        let remains = self.delete_content(key).await;
        let api = self.context.client.api::<Namespace>();
        let mut namespace = (*namespace).clone();
        if let Some(status) = status(&namespace.status.clone().unwrap_or_default(), &remains, self.context.env.now()) {
            namespace.status = Some(status);
            match api.replace_status(key, &namespace).await {
                Ok(updated) => namespace = updated,
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = remains.errors.first() {
            return Err(ApiError::internal(format!("failed to delete the content of {key}: {error}")));
        }
        if remains.any() {
            // Pods announce their end; other content may wait for a finalizer of anyone.
            let grace = Duration::from_secs((remains.grace_seconds / 2 + 1).max(1) as u64);
            return Ok(Some(grace.min(LOOK_AGAIN)));
        }
        if let Some(spec) = &mut namespace.spec {
            spec.finalizers = Some(finalizers.into_iter().filter(|f| f != FINALIZER).collect());
        }
        match api.replace_subresource::<_, Value>(key, "finalize", &namespace).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }
}

impl Namespaces {
    /// Pods first: what they use must outlive them.
    async fn delete_content(&self, namespace: &str) -> Remains {
        let mut remains = Remains::default();
        let mut resources = self.context.resources.all();
        resources.retain(|resource| resource.namespaced());
        resources.sort_by_key(|resource| resource.group_resource() != "pods");
        for resource in resources {
            if let Err(error) = self.delete_resource(&resource, namespace, &mut remains).await {
                // A custom resource may vanish under our hands, with all its objects.
                if !error.is_not_found() && error.code != 405 {
                    remains.errors.push(error.message.clone());
                }
            }
            if resource.group_resource() == "pods" && remains.any() {
                return remains;
            }
        }
        remains
    }

    async fn delete_resource(
        &self,
        resource: &Resource,
        namespace: &str,
        remains: &mut Remains,
    ) -> Result<(), ApiError> {
        let client = &self.context.client;
        let items = objects::list(client, resource, namespace).await?;
        if items.is_empty() {
            return Ok(());
        }
        if items.iter().any(|item| item["metadata"]["deletionTimestamp"].is_null()) {
            objects::delete_all(client, resource, namespace).await?;
        }
        let items = objects::list(client, resource, namespace).await?;
        if items.is_empty() {
            return Ok(());
        }
        remains.resources.insert(format!("{}.{}", resource.plural, resource.group), items.len());
        for item in &items {
            let grace = item["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
            remains.grace_seconds = remains.grace_seconds.max(grace);
            for finalizer in item["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                *remains.finalizers.entry(finalizer.to_string()).or_default() += 1;
            }
        }
        Ok(())
    }
}
