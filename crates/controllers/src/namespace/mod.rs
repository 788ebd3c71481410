//! Empties namespaces that are being deleted, then lets them go.
//! `conditions` is the core; resources come from the table, from custom resource definitions and from `extension_servers`.
//! The finalizer `kubernetes` is removed only after every resource was seen empty.

mod conditions;
mod extension_servers;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{ApiError, Resource};
use async_trait::async_trait;
use client::{Informer, ListParams};
use conditions::{RemainingContent, status};
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::DeleteOptions};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    common::{meta::Object, objects},
    runner::{Context, Controller, Outcome, Queue, Setup},
};

const FINALIZER: &str = "kubernetes";
/// As upstream looks again at what has finalizers.
const UNFOLLOWED_INTERVAL: Duration = Duration::from_secs(8);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let namespaces = setup.informer::<Namespace>();
    let definitions = setup.context.resources.definitions().clone();
    setup.on_keys(&namespaces);
    setup.wait_for(definitions.objects());
    let (context, queue) = (setup.context.clone(), setup.queue.clone());
    Arc::new(Namespaces { context, queue, namespaces, followed: Mutex::default() })
}

struct Namespaces {
    context: Context,
    queue: Queue,
    namespaces: Informer<Namespace>,
    /// Resources whose removals wake the namespaces they were in: those that something once waited for.
    followed: Mutex<HashMap<String, tokio::task::JoinHandle<()>>>,
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
        if let Some(error) = remains.errors.first().cloned().or_else(|| remains.discovery_failure()) {
            return Err(ApiError::internal(format!("failed to delete the content of {key}: {error}")));
        }
        if remains.any() {
            // The end of what remains wakes us. What ended before we began to listen is seen by looking once more.
            let again = self.follow(&remains).then_some(Duration::ZERO);
            return Ok(again.or(self.has_unfollowed(&remains).then_some(UNFOLLOWED_INTERVAL)));
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
    /// Listens to removals of what remains; true when that is new.
    fn follow(&self, remains: &RemainingContent) -> bool {
        let mut followed = self.followed.lock();
        followed.retain(|_, task| !task.is_finished());
        let mut began = false;
        for resource in self.context.resources.all() {
            if !remains.resources.contains_key(&title(&resource)) || followed.contains_key(&title(&resource)) {
                continue;
            }
            began = true;
            // The garbage collector follows the same informer.
            let mut changes = self.context.informers.objects(resource.clone(), ListParams::default()).subscribe();
            let (queue, namespaces) = (self.queue.clone(), self.namespaces.clone());
            let task = self.context.env.spawn(async move {
                while let Some(change) = changes.next().await {
                    let gone = change.old.filter(|_| change.new.is_none()).and_then(|o| o.meta.namespace.clone());
                    if let Some(namespace) = gone.filter(|name| namespaces.get(name).is_some_and(|n| n.deleting())) {
                        queue.add(namespace);
                    }
                }
            });
            followed.insert(title(&resource), task);
        }
        began
    }

    /// Whether something remains of what other servers keep, whose removals nobody tells us.
    fn has_unfollowed(&self, remains: &RemainingContent) -> bool {
        let followed: HashSet<String> = self.context.resources.all().iter().map(|resource| title(resource)).collect();
        remains.resources.keys().any(|name| !followed.contains(name))
    }

    /// Pods first: what they use must outlive them.
    async fn delete_content(&self, namespace: &str) -> RemainingContent {
        let mut remains = RemainingContent::default();
        let mut resources = self.context.resources.all();
        resources.retain(|resource| resource.namespaced());
        match extension_servers::discover(&self.context.client).await {
            Ok(found) => {
                resources.extend(found.resources);
                remains.undiscovered = found.failures;
            }
            Err(error) => remains.errors.push(error.message.clone()),
        }
        resources.sort_by_key(|resource| resource.group_resource() != "pods");
        for resource in resources {
            if let Err(error) = self.delete_resource(&resource, namespace, &mut remains).await {
                // A custom resource may vanish under our hands, with all its objects.
                if !error.is_not_found() && error.code != 405 {
                    remains.errors.push(error.message.clone());
                }
            }
            let is_unfinished = !remains.resources.is_empty() || !remains.errors.is_empty();
            if resource.group_resource() == "pods" && is_unfinished {
                return remains;
            }
        }
        remains
    }

    async fn delete_each(&self, resource: &Resource, namespace: &str, items: &[Value]) -> Result<(), ApiError> {
        let options = DeleteOptions { propagation_policy: Some("Background".into()), ..DeleteOptions::default() };
        for name in items.iter().filter_map(|item| item["metadata"]["name"].as_str()) {
            match objects::delete(&self.context.client, resource, namespace, name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn delete_resource(
        &self,
        resource: &Resource,
        namespace: &str,
        remains: &mut RemainingContent,
    ) -> Result<(), ApiError> {
        let client = &self.context.client;
        let items = objects::list(client, resource, namespace).await?;
        if items.is_empty() {
            return Ok(());
        }
        if items.iter().any(|item| item["metadata"]["deletionTimestamp"].is_null()) {
            match objects::delete_all(client, resource, namespace).await {
                // An extension server need not be able to delete them together.
                Err(error) if error.code == 405 => self.delete_each(resource, namespace, &items).await?,
                deleted => deleted?,
            }
        }
        let items = objects::list(client, resource, namespace).await?;
        if items.is_empty() {
            return Ok(());
        }
        remains.resources.insert(title(resource), items.len());
        for item in &items {
            for finalizer in item["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                *remains.finalizers.entry(finalizer.to_string()).or_default() += 1;
            }
        }
        Ok(())
    }
}

fn title(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}
