//! Keeps the Endpoints object of services with a selector, for clients that still read it.
//! The core is `subsets`.
//! One object per service, of the same name.

use std::sync::Arc;

use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::{
    api::core::v1::{Endpoints, Pod, Service},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
};

use super::{
    selection::{self, HEADLESS, LAST_CHANGE},
    subsets::subsets,
};
use crate::{
    common::{
        indexes,
        meta::{Object, split},
        pod_control::namespace_terminating,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (services, pods) = (setup.informer::<Service>(), setup.informer::<Pod>());
    let endpoints = setup.informer::<Endpoints>();
    indexes::by_namespace(&services);
    indexes::by_namespace(&pods);
    setup.on_keys(&services);
    setup.on_keys(&endpoints);
    setup.on(&pods, {
        let services = services.clone();
        move |change, queue| selection::queue_services(&services, change, queue)
    });
    let recorder = setup.context.recorder("endpoint-controller");
    Arc::new(LegacyEndpoints { context: setup.context.clone(), services, pods, endpoints, recorder })
}

struct LegacyEndpoints {
    context: Context,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Endpoints>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for LegacyEndpoints {
    async fn reconcile(&self, key: &str) -> Outcome {
        let (namespace, name) = split(key);
        let api = self.context.client.namespaced::<Endpoints>(namespace);
        let existing = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            // Only what this controller wrote: endpoints may stand alone, as those of leader elections once did.
            if existing.is_some_and(|e| e.label(MANAGED_BY) == Some(MANAGER)) {
                match api.delete(name, &DeleteOptions::default()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
            return Ok(None);
        };
        if selection::selector(&service).is_none() || service.deleting() {
            return Ok(None);
        }
        let pods = selection::selected_pods(&self.pods, &service);
        let wanted = wanted(&service, &pods, existing.as_deref());
        let about = reference(&wanted);
        let result = match &existing {
            Some(old) if **old == wanted => return Ok(None),
            Some(_) => api.replace(name, &stamped(wanted, &service, &pods)).await,
            None => api.create(&stamped(wanted, &service, &pods)).await,
        };
        match result {
            Err(error) if namespace_terminating(&error) => Ok(None),
            Err(error) => {
                if !error.is_conflict() && !error.is_already_exists() {
                    let (reason, what) = match existing {
                        Some(_) => ("FailedToUpdateEndpoint", "update endpoint"),
                        None => ("FailedToCreateEndpoint", "create endpoint for service"),
                    };
                    let message = format!("Failed to {what} {key}: {}", error.message);
                    self.recorder.warning(&about, reason, message);
                }
                Err(error)
            }
            Ok(_) => Ok(None),
        }
    }
}

fn wanted(service: &Service, pods: &[Arc<Pod>], existing: Option<&Endpoints>) -> Endpoints {
    let (subsets, over_capacity) = subsets(service, pods);
    let mut endpoints = existing.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        subsets: None,
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if selection::headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    endpoints.metadata.labels = Some(labels);
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    match over_capacity {
        true => annotations.insert(OVER_CAPACITY.into(), "truncated".into()),
        false => annotations.remove(OVER_CAPACITY),
    };
    endpoints.metadata.annotations = endpoints.metadata.annotations.take().filter(|a| !a.is_empty());
    endpoints.subsets = Some(subsets).filter(|s| !s.is_empty());
    endpoints
}

fn stamped(mut endpoints: Endpoints, service: &Service, pods: &[Arc<Pod>]) -> Endpoints {
    if let Some(at) = selection::last_change(service, pods) {
        endpoints.metadata.annotations.get_or_insert_default().insert(LAST_CHANGE.into(), at);
    }
    endpoints
}
