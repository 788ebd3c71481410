//! Keeps the EndpointSlices of services with a selector. The proxy and DNS read them.
//! The core is `slice_plan`.
//! Invariant: slices of other managers are never touched.

use std::sync::Arc;

use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};

use super::{
    selection,
    slice_plan::{MANAGED_BY, MANAGER, Plan, SERVICE_NAME, plan},
};
use crate::{
    expectations::Expectations,
    indexes,
    meta::{self, Object, delete_options},
    pod_control::namespace_terminating,
    shell::{Context, Controller, Outcome, Setup},
};

const SERVICE: &str = "service";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (services, pods) = (setup.informer::<Service>(), setup.informer::<Pod>());
    let (nodes, slices) = (setup.informer::<Node>(), setup.informer::<EndpointSlice>());
    indexes::by_namespace(&services);
    indexes::by_namespace(&pods);
    indexes::by_node(&pods);
    slices.add_index(SERVICE, |object| {
        let service = object.meta.labels.get(SERVICE_NAME);
        service.map(|name| meta::key(object.meta.namespace.as_deref().unwrap_or_default(), name)).into_iter().collect()
    });
    let expectations = Expectations::new(setup.context.env.clone());
    setup.on_keys(&services);
    setup.on(&pods, {
        let services = services.clone();
        move |change, queue| selection::queue_services(&services, change, queue)
    });
    setup.on(&nodes, {
        let (services, pods) = (services.clone(), pods.clone());
        move |change, queue| {
            let zone = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|n| n.label("topology.kubernetes.io/zone").map(String::from))
            };
            if zone(&change.old) == zone(&change.new) {
                return;
            }
            for pod in pods.by_index(indexes::NODE, &change.key) {
                let added = client::Change { key: pod.key(), old: None, new: Some(pod) };
                selection::queue_services(&services, &added, queue);
            }
        }
    });
    setup.on(&slices, {
        let expectations = expectations.clone();
        move |change, queue| {
            let Some(slice) = change.new.as_ref().or(change.old.as_ref()) else { return };
            let (Some(service), true) = (slice.label(SERVICE_NAME), slice.label(MANAGED_BY) == Some(MANAGER)) else {
                return;
            };
            let service = meta::key(slice.namespace(), service);
            expectations.created(&service, &change.key);
            if change.new.is_none() || slice.deleting() {
                expectations.deleted(&service, slice.uid());
            }
            queue.add(service);
        }
    });
    let recorder = setup.context.recorder("endpoint-slice-controller");
    Arc::new(EndpointSlices { context: setup.context.clone(), services, pods, nodes, slices, expectations, recorder })
}

struct EndpointSlices {
    context: Context,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    expectations: Expectations,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for EndpointSlices {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(service) = self.services.get(key).filter(|s| !s.deleting() && selection::selector(s).is_some()) else {
            self.expectations.forget(key);
            return Ok(None);
        };
        if let Some(left) = self.expectations.waiting(key) {
            return Ok(Some(left));
        }
        let mut existing = self.slices.by_index(SERVICE, key);
        existing.retain(|slice| slice.label(MANAGED_BY) == Some(MANAGER));
        let pods = selection::selected_pods(&self.pods, &service);
        let plan = plan(&service, &pods, |name| self.nodes.get(name), &existing);
        let result = self.carry_out(key, &service, plan).await;
        if let Err(error) = &result
            && !error.is_conflict()
        {
            let message = format!("Error updating Endpoint Slices for Service {key}: {}", error.message);
            self.recorder.warning(&reference(&*service), "FailedToUpdateEndpointSlices", message);
        }
        result.map(|()| None)
    }
}

impl EndpointSlices {
    async fn carry_out(&self, key: &str, service: &Service, plan: Plan) -> Result<(), api::ApiError> {
        let api = self.context.client.namespaced::<EndpointSlice>(service.namespace());
        for mut slice in plan.create {
            let name = format!("{}-{}", service.name(), self.context.env.name_suffix(5));
            slice.metadata.name = Some(name);
            self.expectations.expect_created(key, &slice.key());
            if let Err(error) = api.create(&slice).await {
                self.expectations.created(key, &slice.key());
                if namespace_terminating(&error) {
                    return Ok(());
                }
                return Err(error);
            }
        }
        for slice in plan.update {
            api.replace(slice.name(), &slice).await?;
        }
        for slice in plan.delete {
            self.expectations.expect_deleted(key, slice.uid(), &slice.key());
            if let Err(error) = api.delete(slice.name(), &delete_options(slice.uid())).await {
                self.expectations.deleted(key, slice.uid());
                if !error.is_not_found() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
