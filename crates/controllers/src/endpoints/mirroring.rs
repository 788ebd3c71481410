//! Mirrors Endpoints that people write by hand into EndpointSlices, which is all that the proxy and DNS read.
//! The slices are arranged by `slice_plan` and written by `slice_control`.
//! Endpoints of services with a selector are not mirrored; they have slices of their own.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, Endpoints, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use metrics::Family;

use super::{
    selection::{self, LAST_CHANGE},
    slice_control::SliceControl,
    slice_metrics,
    slice_plan::{MANAGED_BY, Plan, SERVICE_NAME, Template, Wanted, arrange},
};
use crate::{
    common::meta::Object,
    runner::{Context, Controller, Outcome, Setup},
};

/// From two, each twice the one before.
const SKIPPED_BUCKETS: &[f64] =
    &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0];
static SKIPPED: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
    &[],
    SKIPPED_BUCKETS,
    "Addresses that a look at Endpoints left out.",
);
static SYNC_SECONDS: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_endpoints_sync_duration",
    &[],
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384],
    "How long it took to look at Endpoints.",
);

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const ADDRESSES_PER_SUBSET_MAX: usize = 1000;

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (endpoints, services) = (setup.informer::<Endpoints>(), setup.informer::<Service>());
    setup.on_keys(&endpoints);
    setup.on_keys(&services);
    let slices = SliceControl::new(setup, MANAGER, &slice_metrics::OF_ENDPOINTS);
    let recorder = setup.context.recorder("endpoint-slice-mirroring-controller");
    Arc::new(Mirroring { context: setup.context.clone(), endpoints, services, slices, recorder })
}

struct Mirroring {
    context: Context,
    endpoints: Informer<Endpoints>,
    services: Informer<Service>,
    slices: SliceControl,
    recorder: EventRecorder,
}

fn mirrored(endpoints: &Endpoints) -> bool {
    endpoints.label(SKIP) != Some("true") && endpoints.annotation(LEADER).is_none() && !endpoints.deleting()
}

/// Addresses beyond what is mirrored of each subset.
fn skipped(endpoints: &Endpoints) -> usize {
    let count = |addresses: &Option<Vec<EndpointAddress>>| addresses.as_ref().map_or(0, Vec::len);
    let beyond = endpoints.subsets.iter().flatten().map(|s| count(&s.addresses) + count(&s.not_ready_addresses));
    beyond.map(|all| all.saturating_sub(ADDRESSES_PER_SUBSET_MAX)).sum()
}

/// The slices that show the same as `endpoints`.
fn plan(endpoints: &Endpoints, existing: &[Arc<EndpointSlice>]) -> Plan {
    let mut wanted = Wanted::new();
    let mut families = BTreeSet::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = (subset.ports.iter().flatten())
            .map(|p| EndpointPort {
                name: Some(p.name.clone().unwrap_or_default()),
                port: Some(p.port),
                protocol: p.protocol.clone().or(Some("TCP".into())),
                app_protocol: p.app_protocol.clone(),
            })
            .collect();
        let ports = selection::sorted(ports);
        let id = serde_json::to_string(&ports).unwrap_or_default();
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let all = ready.chain(subset.not_ready_addresses.iter().flatten().map(|a| (a, false)));
        for (address, ready) in all.take(ADDRESSES_PER_SUBSET_MAX) {
            let family = selection::family(&address.ip).to_string();
            families.insert(family.clone());
            let group = wanted.entry((family, id.clone())).or_insert_with(|| (ports.clone(), Vec::new()));
            group.1.push(endpoint(address, ready));
        }
    }
    let families: Vec<String> = families.into_iter().collect();
    arrange(&families, wanted, &template(endpoints), existing, false)
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), serving: None, terminating: None }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn template(endpoints: &Endpoints) -> Template {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), endpoints.name().into());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    let last_change = annotations.remove(LAST_CHANGE);
    annotations.remove(LAST_APPLIED);
    Template {
        meta: ObjectMeta {
            generate_name: Some(format!("{}-", endpoints.name())),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![endpoints.as_controller()]),
            ..ObjectMeta::default()
        },
        last_change,
    }
}

#[async_trait]
impl Controller for Mirroring {
    async fn reconcile(&self, key: &str) -> Outcome {
        let began = self.context.env.monotonic();
        let outcome = self.mirror(key).await;
        let took = self.context.env.monotonic().saturating_sub(began);
        self.context.config.metrics.observe(&SYNC_SECONDS, &[], took.as_secs_f64());
        outcome
    }
}

impl Mirroring {
    async fn mirror(&self, key: &str) -> Outcome {
        if let Some(left) = self.slices.waiting(key).await? {
            return Ok(Some(left));
        }
        let existing = self.slices.existing(key);
        let endpoints = self.endpoints.get(key).filter(|e| mirrored(e));
        let selectorless = self.services.get(key).is_some_and(|s| selection::selector(&s).is_none() && !s.deleting());
        let plan = match endpoints.filter(|_| selectorless) {
            Some(endpoints) => {
                let skipped = skipped(&endpoints);
                self.context.config.metrics.observe(&SKIPPED, &[], skipped as f64);
                if skipped > 0 {
                    let message = format!(
                        "A max of {ADDRESSES_PER_SUBSET_MAX} addresses can be mirrored to EndpointSlices per Endpoints subset. \
                         {skipped} addresses were skipped"
                    );
                    self.recorder.warning(&reference(&*endpoints), "TooManyAddressesToMirror", message);
                }
                plan(&endpoints, &existing)
            }
            None if existing.is_empty() => {
                self.slices.forget(key);
                return Ok(None);
            }
            None => Plan { delete: existing.clone(), ..Plan::default() },
        };
        self.slices.carry_out(key, &existing, plan).await.map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_become_slices() {
        let endpoints: Endpoints = serde_json::from_value(json!({
            "metadata": { "name": "ext", "namespace": "d", "uid": "e", "labels": { "a": "b" } },
            "subsets": [{ "addresses": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }],
                "notReadyAddresses": [{ "ip": "192.0.2.2" }], "ports": [{ "port": 80 }] }],
        }))
        .unwrap();
        assert_eq!(skipped(&endpoints), 0);
        let mut large = endpoints.clone();
        let addresses = large.subsets.as_mut().unwrap()[0].addresses.as_mut().unwrap();
        addresses.resize(
            ADDRESSES_PER_SUBSET_MAX + 1,
            EndpointAddress { ip: "192.0.2.9".into(), ..EndpointAddress::default() },
        );
        assert_eq!(skipped(&large), 2);
        let plan = plan(&endpoints, &[]);
        let shape: Vec<_> = plan.create.iter().map(|s| (s.address_type.as_str(), s.endpoints.len())).collect();
        assert_eq!(shape, [("IPv4", 2), ("IPv6", 1)]);
        assert_eq!(plan.create[0].label("a"), Some("b"));
        assert_eq!(plan.create[0].endpoints[1].conditions.as_ref().unwrap().ready, Some(false));
        assert!(!mirrored(&serde_json::from_value(json!({ "metadata": { "labels": { SKIP: "true" } } })).unwrap()));
    }

    #[test]
    fn what_is_mirrored_stays_until_it_changes() {
        let endpoints = |annotations: serde_json::Value| -> Endpoints {
            let all = json!({
                "metadata": { "name": "ext", "namespace": "d", "uid": "e", "annotations": annotations },
                "subsets": [{ "addresses": [{ "ip": "192.0.2.1" }], "ports": [
                    { "name": "web", "port": 80 }, { "name": "admin", "port": 9000 }, { "name": "admin", "port": 90 }] }],
            });
            serde_json::from_value(all).unwrap()
        };
        let mut first = plan(&endpoints(json!({ "a": "1" })), &[]).create;
        assert_eq!(first.len(), 1);
        first[0].metadata.name = Some("ext-1".into());
        let existing: Vec<_> = first.into_iter().map(Arc::new).collect();
        let check = |wanted: serde_json::Value, updates: usize, found: serde_json::Value| {
            let plan = plan(&endpoints(wanted), &existing);
            assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, updates, 0));
            let slice = plan.update.first().unwrap_or(&existing[0]);
            assert_eq!(json!(slice.metadata.annotations.clone().unwrap_or_default()), found);
        };
        check(json!({ "a": "1" }), 0, json!({ "a": "1" }));
        check(json!({ "a": "2" }), 1, json!({ "a": "2" }));
        check(json!({}), 1, json!({}));
        check(json!({ "a": "1", LAST_APPLIED: "{}", LAST_CHANGE: "2026-01-01T00:00:00Z" }), 0, json!({ "a": "1" }));
    }
}
