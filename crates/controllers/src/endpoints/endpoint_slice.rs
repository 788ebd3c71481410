//! Keeps the EndpointSlices of services with a selector. The proxy and DNS read them.
//! The core is `slice_plan`, the hand is `slice_control`.
//! Slices of other managers are never touched.

use std::sync::Arc;

use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::api::core::v1::{Node, Pod, Service};

use super::{
    selection,
    slice_control::SliceControl,
    slice_metrics,
    slice_plan::{MANAGER, plan},
    topology_hints::{is_auto, zone_capacity, zone_shares},
};
use crate::{
    common::{indexes, meta::Object},
    runner::{Context, Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (services, pods) = (setup.informer::<Service>(), setup.informer::<Pod>());
    let nodes = setup.informer::<Node>();
    indexes::by_namespace(&services);
    indexes::by_namespace(&pods);
    indexes::by_node(&pods);
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
            let capacity = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| zone_capacity(node));
            if capacity(&change.old) != capacity(&change.new) {
                services.list().iter().filter(|service| is_auto(service)).for_each(|service| queue.add(service.key()));
            }
            if zone(&change.old) == zone(&change.new) {
                return;
            }
            for pod in pods.by_index(indexes::NODE, &change.key) {
                let added = client::Change { key: pod.key(), old: None, new: Some(pod) };
                selection::queue_services(&services, &added, queue);
            }
        }
    });
    let recorder = setup.context.recorder("endpoint-slice-controller");
    let slices = SliceControl::new(setup, MANAGER, &slice_metrics::OF_SERVICES);
    Arc::new(EndpointSlices { context: setup.context.clone(), services, pods, nodes, slices, recorder })
}

struct EndpointSlices {
    context: Context,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: SliceControl,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for EndpointSlices {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(service) = self.services.get(key).filter(|s| !s.deleting() && selection::selector(s).is_some()) else {
            self.slices.forget(key);
            return Ok(None);
        };
        let metrics = &self.context.config.metrics;
        if let Some(left) = self.slices.waiting(key).await? {
            slice_metrics::looked_at(metrics, "stale");
            return Ok(Some(left));
        }
        let distribution = service.spec.as_ref().and_then(|spec| spec.traffic_distribution.clone());
        self.slices.metrics.distribution(metrics, key, distribution.as_deref());
        let existing = self.slices.existing(key);
        let pods = selection::selected_pods(&self.pods, &service);
        let shares = || zone_shares(self.nodes.list().iter().map(|node| &**node));
        let plan = plan(&service, &pods, |name| self.nodes.get(name), &existing, shares);
        if let Some(why) = &plan.hints_refused {
            self.recorder.warning(&reference(&*service), "TopologyAwareHintsDisabled", why.clone());
        }
        let changed = plan.create.len() + plan.update.len() + plan.delete.len();
        slice_metrics::slices_changed(metrics, is_auto(&service), &distribution.unwrap_or_default(), changed);
        let result = self.slices.carry_out(key, &existing, plan).await;
        slice_metrics::looked_at(metrics, if result.is_ok() { "success" } else { "error" });
        if let Err(error) = &result
            && !error.is_conflict()
        {
            let message = format!("Error updating Endpoint Slices for Service {key}: {}", error.message);
            self.recorder.warning(&reference(&*service), "FailedToUpdateEndpointSlices", message);
        }
        result.map(|()| None)
    }
}
