//! Takes API servers that are gone out of the StorageVersions: those without an identity Lease.
//! An object that no server speaks for any more is deleted.
//! Asks the server for each Lease anew before it believes that a server is gone.

use std::{collections::HashSet, sync::Arc};

use api::{ApiError, Resource};
use async_trait::async_trait;
use client::ObjectInformer;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use crate::{
    common::{gated_kinds, meta::delete_options, objects},
    runner::{Context, Controller, Outcome, Setup},
};

const LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";
const NAMESPACE: &str = "kube-system";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let resource = setup.context.gated_kind("storageversions");
    let versions = setup.context.informers.objects(resource.clone(), Default::default());
    setup.wait_for(&versions);
    setup.on_objects(&versions, |change, queue| queue.add(change.key.clone()));
    let leases = setup.informer::<Lease>();
    let known = versions.clone();
    setup.on_objects(leases.objects(), move |change, queue| {
        let gone = change.new.is_none().then_some(change.old.as_ref()).flatten();
        let identity = gone.filter(|lease| lease.meta.labels.get(LABEL).is_some_and(|l| l == COMPONENT));
        if let Some(lease) = identity {
            let naming = known.list().into_iter().filter(|v| servers(&v.value()).any(|id| id == lease.meta.name));
            naming.for_each(|version| queue.add(version.meta.name.clone()));
        }
    });
    Arc::new(GarbageCollector { context: setup.context.clone(), resource, versions })
}

fn servers(version: &Value) -> impl Iterator<Item = String> {
    let all = version["status"]["storageVersions"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter_map(|server| server["apiServerID"].as_str().map(str::to_string))
}

struct GarbageCollector {
    context: Context,
    resource: Arc<Resource>,
    versions: ObjectInformer,
}

impl GarbageCollector {
    async fn lives(&self, server: &str) -> Result<bool, ApiError> {
        let lease = self.context.client.namespaced::<Lease>(NAMESPACE).find(server).await?;
        let label = |lease: Lease| lease.metadata.labels.and_then(|mut labels| labels.remove(LABEL));
        Ok(lease.and_then(label).is_some_and(|component| component == COMPONENT))
    }
}

#[async_trait]
impl Controller for GarbageCollector {
    async fn reconcile(&self, key: &str) -> Outcome {
        if self.versions.get(key).is_none() {
            return Ok(None);
        }
        let mut version = match objects::get(&self.context.client, &self.resource, "", key).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let mut gone = HashSet::new();
        for server in servers(&version) {
            if !self.lives(&server).await? {
                gone.insert(server);
            }
        }
        if gone.is_empty() {
            return Ok(None);
        }
        let Some(list) = version["status"]["storageVersions"].as_array_mut() else { return Ok(None) };
        list.retain(|server| !server["apiServerID"].as_str().is_some_and(|id| gone.contains(id)));
        if list.is_empty() {
            let options = delete_options(version["metadata"]["uid"].as_str().unwrap_or_default());
            return match objects::delete(&self.context.client, &self.resource, "", key, &options).await {
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(None),
            };
        }
        api::kinds::set_common_encoding_version(&mut version, self.context.env.now());
        gated_kinds::replace_status(&self.context.client, &self.resource, &version).await.map(|_| None)
    }
}
