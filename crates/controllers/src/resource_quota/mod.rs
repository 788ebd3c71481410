//! Keeps the `used` of ResourceQuotas true; admission checks against it when objects are made.
//! The core is `usage`.
//! Invariant: counts from the caches that the garbage collector fills anyway; no resource is listed anew.

mod usage;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    Resource,
    quantity::{Format, Quantity},
};
use async_trait::async_trait;
use client::{Informer, ListParams, ObjectInformer};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service},
    apimachinery::pkg::api::resource::Quantity as Text,
};
use usage::Usage;

use crate::{
    indexes,
    meta::{self, Object},
    pods,
    shell::{Context, Controller, Outcome, Setup},
};

/// Custom resources are counted when something else wakes us, or after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "namespace";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (quotas, pods) = (setup.informer::<ResourceQuota>(), setup.informer::<Pod>());
    let (services, claims) = (setup.informer::<Service>(), setup.informer::<PersistentVolumeClaim>());
    indexes::by_namespace(&quotas);
    indexes::by_namespace(&pods);
    indexes::by_namespace(&services);
    indexes::by_namespace(&claims);
    setup.on_keys(&quotas);
    setup.on(&pods, {
        let quotas = quotas.clone();
        move |change, queue| {
            // Between being made and being finished a pod uses the same.
            let view = |p: &Option<Arc<Pod>>| p.as_ref().map(|p| (pods::finished(p), p.spec.clone()));
            if let Some(pod) = change.new.as_ref().or(change.old.as_ref())
                && view(&change.old) != view(&change.new)
            {
                wake(&quotas, pod.namespace(), queue);
            }
        }
    });
    let mut counted = BTreeMap::new();
    for resource in setup.context.resources.all() {
        let skip = ["events", "pods", "leases.coordination.k8s.io"].contains(&resource.group_resource().as_str());
        if !resource.namespaced() || skip {
            continue;
        }
        let informer = setup.context.informers.objects(resource.clone(), ListParams::default());
        informer.add_index(NAMESPACE, |object| object.meta.namespace.clone().into_iter().collect());
        let every_change = matches!(resource.plural.as_str(), "services" | "persistentvolumeclaims");
        let quotas = quotas.clone();
        setup.on_objects(&informer, move |change, queue| {
            let here_or_gone = change.old.is_none() || change.new.is_none();
            if let Some(object) = change.new.as_ref().or(change.old.as_ref()).filter(|_| here_or_gone || every_change) {
                wake(&quotas, object.meta.namespace.as_deref().unwrap_or_default(), queue);
            }
        });
        counted.insert(count_name(&resource), informer);
    }
    Arc::new(Quotas { context: setup.context.clone(), quotas, pods, services, claims, counted })
}

fn wake(quotas: &Informer<ResourceQuota>, namespace: &str, queue: &crate::shell::Queue) {
    for quota in quotas.by_index(indexes::NAMESPACE, namespace) {
        queue.add(quota.key());
    }
}

fn count_name(resource: &Resource) -> String {
    format!("count/{}", resource.group_resource())
}

struct Quotas {
    context: Context,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    counted: BTreeMap<String, ObjectInformer>,
}

#[async_trait]
impl Controller for Quotas {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(quota) = self.quotas.get(key).filter(|q| !q.deleting()) else { return Ok(None) };
        let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
        let usage = self.usage(&quota, hard.keys());
        let zero = Quantity::new(0, Format::DecimalSI);
        let used: BTreeMap<String, Text> =
            hard.keys().map(|name| (name.clone(), Text(usage.get(name).unwrap_or(&zero).canonical()))).collect();
        let again = hard.keys().any(|name| self.custom(name)).then_some(LOOK_AGAIN);
        let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
        if same(quota.status.as_ref(), &status) {
            return Ok(again);
        }
        let mut quota = (*quota).clone();
        quota.status = Some(status);
        let api = self.context.client.namespaced::<ResourceQuota>(quota.namespace());
        match api.replace_status(quota.name(), &quota).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(again),
        }
    }
}

/// Equal amounts, however they are written.
fn same(old: Option<&ResourceQuotaStatus>, new: &ResourceQuotaStatus) -> bool {
    let amounts = |map: &Option<BTreeMap<String, Text>>| -> BTreeMap<String, Option<Quantity>> {
        map.iter().flatten().map(|(name, text)| (name.clone(), Quantity::parse(&text.0).ok())).collect()
    };
    old.is_some_and(|old| amounts(&old.hard) == amounts(&new.hard) && amounts(&old.used) == amounts(&new.used))
}

impl Quotas {
    fn custom(&self, name: &str) -> bool {
        name.starts_with("count/") && name != "count/pods" && !self.counted.contains_key(name)
    }

    fn usage<'a>(&self, quota: &ResourceQuota, names: impl Iterator<Item = &'a String>) -> Usage {
        let spec = quota.spec.clone().unwrap_or_default();
        let namespace = quota.namespace();
        let mut total = Usage::new();
        let mut take = |usage: Usage| usage.iter().for_each(|(name, amount)| usage::add(&mut total, name, amount));
        for pod in self.pods.by_index(indexes::NAMESPACE, namespace).iter().filter(|p| usage::covers(&spec, p)) {
            take(usage::pod(pod));
        }
        if usage::scoped(&spec) {
            return total;
        }
        self.services.by_index(indexes::NAMESPACE, namespace).iter().for_each(|s| take(usage::service(s)));
        self.claims.by_index(indexes::NAMESPACE, namespace).iter().for_each(|c| take(usage::claim(c)));
        for name in names.filter(|name| !total.contains_key(*name)).cloned().collect::<Vec<_>>() {
            // `configmaps` is the old way to say `count/configmaps`.
            let old = matches!(name.as_str(), "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas");
            let full = if old { format!("count/{name}") } else { name.clone() };
            let count = match self.counted.get(&full) {
                Some(informer) => informer.by_index(NAMESPACE, namespace).len(),
                None if self.custom(&full) => self.count_custom(&full, namespace),
                None => continue,
            };
            total.insert(name, Quantity::new(count as i64, Format::DecimalSI));
        }
        total
    }

    fn count_custom(&self, name: &str, namespace: &str) -> usize {
        let resource = self.context.resources.all().into_iter().find(|r| count_name(r) == name);
        let informer = resource.map(|r| self.context.informers.objects(r, ListParams::default()));
        let prefix = meta::key(namespace, "");
        informer.map_or(0, |i| i.list().iter().filter(|o| o.key().starts_with(&prefix)).count())
    }
}
