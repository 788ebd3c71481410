//! The hand of both controllers that write EndpointSlices: finds a service's slices and carries plans out.
//! Used by `endpoint_slice` and `mirroring`, each under its own manager label; plans come from `slice_plan`.
//! Slices of other managers are never touched; own writes are waited for before the next plan.

use std::{sync::Arc, time::Duration};

use api::ApiError;
use client::Informer;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{
    slice_metrics::{self, Families, SliceMetrics},
    slice_plan::{MANAGED_BY, Plan, SERVICE_NAME},
};
use crate::{
    common::{
        expectations::Expectations,
        meta::{self, Object, delete_options},
        pod_control::namespace_terminating,
    },
    runner::{Context, Setup},
};

const SERVICE: &str = "service";

pub struct SliceControl {
    context: Context,
    slices: Informer<EndpointSlice>,
    expectations: Expectations,
    manager: &'static str,
    families: &'static Families,
    pub metrics: SliceMetrics,
}

impl SliceControl {
    /// Changes of the manager's slices queue their service.
    pub fn new(setup: &mut Setup, manager: &'static str, families: &'static Families) -> Self {
        let slices = setup.informer::<EndpointSlice>();
        slices.add_index(SERVICE, |object| {
            let namespace = object.meta.namespace.as_deref().unwrap_or_default();
            object.meta.labels.get(SERVICE_NAME).map(|name| meta::key(namespace, name)).into_iter().collect()
        });
        let expectations = Expectations::new(setup.context.env.clone());
        setup.on(&slices, {
            let expectations = expectations.clone();
            move |change, queue| {
                let Some(slice) = change.new.as_ref().or(change.old.as_ref()) else { return };
                let Some(service) = slice.label(SERVICE_NAME).filter(|_| slice.label(MANAGED_BY) == Some(manager))
                else {
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
        let (context, metrics) = (setup.context.clone(), SliceMetrics::default());
        Self { context, slices, expectations, manager, families, metrics }
    }

    /// How long own writes are still to be waited for; `None` when the cache shows them all.
    pub async fn waiting(&self, service: &str) -> Result<Option<Duration>, ApiError> {
        let (created, deleted) = self.expectations.overdue(service);
        for key in created {
            if self.find(&key).await?.is_none() {
                self.expectations.created(service, &key);
            }
        }
        for (uid, key) in deleted {
            if self.find(&key).await?.is_none_or(|slice| slice.uid() != uid) {
                self.expectations.deleted(service, &uid);
            }
        }
        Ok(self.expectations.waiting(service))
    }

    async fn find(&self, key: &str) -> Result<Option<EndpointSlice>, ApiError> {
        let (namespace, name) = meta::split(key);
        self.context.client.namespaced::<EndpointSlice>(namespace).find(name).await
    }

    pub fn forget(&self, service: &str) {
        self.expectations.forget(service);
        self.metrics.forget(&self.context.config.metrics, self.families, service);
    }

    pub fn existing(&self, service: &str) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.slices.by_index(SERVICE, service);
        slices.retain(|slice| slice.label(MANAGED_BY) == Some(self.manager));
        slices
    }

    pub async fn carry_out(&self, service: &str, existing: &[Arc<EndpointSlice>], plan: Plan) -> Result<(), ApiError> {
        let (metrics, families) = (&self.context.config.metrics, self.families);
        self.metrics.synced(metrics, families, service, &slice_metrics::effect(existing, &plan));
        let (namespace, name) = meta::split(service);
        let api = self.context.client.namespaced::<EndpointSlice>(namespace);
        for mut slice in plan.create {
            slice.metadata.name = Some(format!("{name}-{}", self.context.env.name_suffix(5)));
            self.expectations.expect_created(service, &slice.key());
            if let Err(error) = api.create(&slice).await {
                self.expectations.created(service, &slice.key());
                return if namespace_terminating(&error) { Ok(()) } else { Err(error) };
            }
            slice_metrics::written(metrics, families, "create");
        }
        for slice in plan.update {
            api.replace(slice.name(), &slice).await?;
            slice_metrics::written(metrics, families, "update");
        }
        for slice in plan.delete.iter().filter(|slice| !slice.deleting()) {
            self.expectations.expect_deleted(service, slice.uid(), &slice.key());
            if let Err(error) = api.delete(slice.name(), &delete_options(slice.uid())).await {
                self.expectations.deleted(service, slice.uid());
                if !error.is_not_found() {
                    return Err(error);
                }
                continue;
            }
            slice_metrics::written(metrics, families, "delete");
        }
        Ok(())
    }
}
