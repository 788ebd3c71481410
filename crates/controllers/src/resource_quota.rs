//! Keeps the `used` of ResourceQuotas true; admission checks against it when objects are made.
//! The core is `api::quota`, which admission asks too.
//! Counts from the caches that the garbage collector fills anyway; no resource is listed anew.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{
    Resource,
    pod_resources::ResourceList,
    quantity::{Format, Quantity},
    quota::{self, Usage},
};
use async_trait::async_trait;
use client::{Informer, ListParams, ObjectInformer};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::api::resource::Quantity as Text,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::{
    common::{
        indexes,
        meta::{self, Object},
        pods::until,
    },
    runner::{Context, Controller, Outcome, Setup},
};

/// Every quota is counted anew after this long.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// After a correction: the count may have missed objects that were charged but not yet in our caches.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(5);
/// What was charged so lately may be of an object that is not stored yet, or not in our caches: nothing is taken back meanwhile.
/// A full quota is charged no more, so this ends.
const CHARGE_SETTLE_INTERVAL: Duration = Duration::from_secs(3);
const NAMESPACE: &str = "namespace";

/// When each quota was last charged, by key.
type Charges = Arc<Mutex<HashMap<String, Timestamp>>>;

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (quotas, pods) = (setup.informer::<ResourceQuota>(), setup.informer::<Pod>());
    let (services, claims) = (setup.informer::<Service>(), setup.informer::<PersistentVolumeClaim>());
    indexes::by_namespace(&quotas);
    indexes::by_namespace(&pods);
    indexes::by_namespace(&services);
    indexes::by_namespace(&claims);
    let resource_claims = setup.informer::<ResourceClaim>();
    indexes::by_namespace(&resource_claims);
    // Admission charges a quota before the object is stored, so neither its writes nor new objects wake us:
    // a count at that moment would miss the object and take the charge back. Only what frees something does.
    let charges = Charges::default();
    let (charged, env) = (charges.clone(), setup.context.env.clone());
    setup.on(&quotas, move |change, queue| {
        match (&change.old, &change.new) {
            (_, None) => drop(charged.lock().remove(&change.key)),
            (Some(old), Some(new)) if takes_back(new.status.as_ref(), old.status.as_ref()) => {
                charged.lock().insert(change.key.clone(), env.now());
            }
            _ => {}
        }
        let hard = |quota: &Option<Arc<ResourceQuota>>| quota.as_ref().and_then(|q| q.spec.clone());
        if change.new.is_some() && (change.old.is_none() || hard(&change.old) != hard(&change.new)) {
            queue.add(change.key.clone());
        }
    });
    on_less(setup, &pods, &quotas, {
        let env = setup.context.env.clone();
        move |pod| quota::pod(pod, env.now())
    });
    on_less(setup, &services, &quotas, quota::service);
    on_less(setup, &claims, &quotas, quota::claim);
    on_less(setup, &resource_claims, &quotas, quota::resource_claim);
    on_overdue(setup, &pods, &quotas);
    let mut counted = BTreeMap::new();
    for resource in setup.context.resources.all() {
        if !resource.namespaced() || !resource.behavior.is_counted_by_quota() {
            continue;
        }
        let informer = setup.context.informers.objects(resource.clone(), ListParams::default());
        informer.add_index(NAMESPACE, |object| object.meta.namespace.clone().into_iter().collect());
        let quotas = quotas.clone();
        setup.on_objects(&informer, move |change, queue| {
            if let Some(object) = change.old.as_ref().filter(|_| change.new.is_none()) {
                wake(&quotas, object.meta.namespace.as_deref().unwrap_or_default(), queue);
            }
        });
        counted.insert(count_name(&resource), informer);
    }
    Arc::new(Quotas {
        context: setup.context.clone(),
        quotas,
        pods,
        services,
        claims,
        resource_claims,
        counted,
        charges,
    })
}

/// Wakes the quotas of a namespace when one of its objects goes or uses less than before.
fn on_less<K: Object + DeserializeOwned + Send + Sync + 'static>(
    setup: &Setup,
    informer: &Informer<K>,
    quotas: &Informer<ResourceQuota>,
    usage: impl Fn(&K) -> Usage + Send + 'static,
) {
    let quotas = quotas.clone();
    setup.on(informer, move |change, queue| {
        let Some(old) = &change.old else { return };
        if quotas.objects().by_index(indexes::NAMESPACE, old.namespace()).is_empty() {
            return;
        }
        let less = change.new.as_ref().is_none_or(|new| {
            let now = usage(new);
            usage(old).iter().any(|(name, amount)| now.get(name).is_none_or(|now| now < amount))
        });
        if less {
            wake(&quotas, old.namespace(), queue);
        }
    });
}

/// Wakes the quotas of a namespace when a pod that is being deleted should have ended.
fn on_overdue(setup: &Setup, pods: &Informer<Pod>, quotas: &Informer<ResourceQuota>) {
    let (quotas, env) = (quotas.clone(), setup.context.env.clone());
    setup.on(pods, move |change, queue| {
        let Some(new) = &change.new else { return };
        let Some(at) = quota::charged_until(new) else { return };
        if change.old.as_ref().and_then(|old| quota::charged_until(old)) != Some(at) {
            for quota in quotas.by_index(indexes::NAMESPACE, new.namespace()) {
                queue.add_after(quota.key(), until(env.now(), at));
            }
        }
    });
}

fn wake(quotas: &Informer<ResourceQuota>, namespace: &str, queue: &crate::runner::Queue) {
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
    resource_claims: Informer<ResourceClaim>,
    counted: BTreeMap<String, ObjectInformer>,
    charges: Charges,
}

#[async_trait]
impl Controller for Quotas {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(quota) = self.quotas.get(key).filter(|q| !q.deleting()) else { return Ok(None) };
        let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
        let now = self.context.env.now();
        let (usage, overdue) = self.usage(&quota, hard.keys(), now);
        let zero = Quantity::new(0, Format::DecimalSI);
        let used: BTreeMap<String, Text> =
            hard.keys().map(|name| (name.clone(), Text(usage.get(name).unwrap_or(&zero).canonical()))).collect();
        let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
        if same(quota.status.as_ref(), &status) {
            return Ok(Some(overdue.map_or(RESYNC_INTERVAL, |at| until(now, at).min(RESYNC_INTERVAL))));
        }
        let charged = self.charges.lock().get(key).copied();
        let settles = charged.map(|at| at + CHARGE_SETTLE_INTERVAL).filter(|settles| *settles > now);
        if let Some(settles) = settles.filter(|_| takes_back(quota.status.as_ref(), Some(&status))) {
            return Ok(Some(until(now, settles)));
        }
        let mut quota = (*quota).clone();
        quota.status = Some(status);
        let api = self.context.client.namespaced::<ResourceQuota>(quota.namespace());
        match api.replace_status(quota.name(), &quota).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Some(RECOUNT_INTERVAL)),
        }
    }
}

/// Whether something of what is used by `old` is no longer used by `new`.
fn takes_back(old: Option<&ResourceQuotaStatus>, new: Option<&ResourceQuotaStatus>) -> bool {
    let used = |status: Option<&ResourceQuotaStatus>, name: &str| {
        status.and_then(|s| s.used.as_ref()?.get(name).and_then(|text| Quantity::parse(&text.0).ok()))
    };
    let names = old.and_then(|old| old.used.as_ref()).into_iter().flatten().map(|(name, _)| name);
    names.into_iter().any(|name| match (used(old, name), used(new, name)) {
        (Some(old), Some(new)) => old > new,
        (old, _) => old.is_some(),
    })
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

    /// What the quota's objects use, and when the next of them stops being charged without going.
    fn usage<'a>(
        &self,
        quota: &ResourceQuota,
        names: impl Iterator<Item = &'a String>,
        now: Timestamp,
    ) -> (Usage, Option<Timestamp>) {
        let spec = quota.spec.clone().unwrap_or_default();
        let namespace = quota.namespace();
        let (mut total, mut overdue) = (Usage::new(), None);
        for pod in self.pods.by_index(indexes::NAMESPACE, namespace).iter().filter(|p| quota::covers_pod(&spec, p)) {
            total.add(&quota::pod(pod, now));
            overdue = overdue.into_iter().chain(quota::charged_until(pod).filter(|at| *at > now)).min();
        }
        for claim in self.claims.by_index(indexes::NAMESPACE, namespace) {
            if quota::covers_claim(&spec, &claim) {
                total.add(&quota::claim(&claim));
            }
        }
        if quota::scoped(&spec) {
            return (total, overdue);
        }
        let services = self.services.by_index(indexes::NAMESPACE, namespace);
        services.iter().for_each(|service| total.add(&quota::service(service)));
        let resource_claims = self.resource_claims.by_index(indexes::NAMESPACE, namespace);
        resource_claims.iter().for_each(|claim| total.add(&quota::resource_claim(claim)));
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
        (total, overdue)
    }

    fn count_custom(&self, name: &str, namespace: &str) -> usize {
        let resource = self.context.resources.all().into_iter().find(|r| count_name(r) == name);
        let informer = resource.map(|r| self.context.informers.objects(r, ListParams::default()));
        let prefix = meta::key(namespace, "");
        informer.map_or(0, |i| i.list().iter().filter(|o| o.key().starts_with(&prefix)).count())
    }
}
