//! What becomes of EndpointSlices, under upstream's names.
//! Told by `slice_control` for both controllers that write slices, each with its own names.
//! Services never become labels.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use metrics::{Family, Metrics};
use parking_lot::Mutex;

use super::slice_plan::{ENDPOINTS_PER_SLICE_MAX, Plan};
use crate::common::meta::Object;

/// From two, each twice the one before.
const COUNT_BUCKETS: &[f64] =
    &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0];

/// The families of one controller.
pub struct Families {
    added: Family,
    removed: Family,
    /// Only of mirrored ones.
    updated: Option<Family>,
    endpoints: Family,
    slices: Family,
    desired_slices: Family,
    changes: Family,
}

macro_rules! families {
    ($prefix:literal, $updated:expr) => {
        Families {
            added: Family::histogram(
                concat!($prefix, "_endpoints_added_per_sync"),
                &[],
                COUNT_BUCKETS,
                "Endpoints that a look at a Service added.",
            ),
            removed: Family::histogram(
                concat!($prefix, "_endpoints_removed_per_sync"),
                &[],
                COUNT_BUCKETS,
                "Endpoints that a look at a Service removed.",
            ),
            updated: $updated,
            endpoints: Family::gauge(concat!($prefix, "_endpoints_desired"), &[], "Endpoints that slices should have."),
            slices: Family::gauge(concat!($prefix, "_num_endpoint_slices"), &[], "EndpointSlices there are."),
            desired_slices: Family::gauge(
                concat!($prefix, "_desired_endpoint_slices"),
                &[],
                "EndpointSlices there would be if all were full.",
            ),
            changes: Family::counter(
                concat!($prefix, "_changes"),
                &["operation"],
                "EndpointSlices that were written, by how.",
            ),
        }
    };
}

pub static OF_SERVICES: Families = families!("endpoint_slice_controller", None);
pub static OF_ENDPOINTS: Families = families!(
    "endpoint_slice_mirroring_controller",
    Some(Family::histogram(
        "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
        &[],
        COUNT_BUCKETS,
        "Endpoints that a look at Endpoints changed.",
    ))
);

static SLICES_CHANGED: Family = Family::histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    &["topology", "traffic_distribution"],
    metrics::DEFAULT_BUCKETS,
    "EndpointSlices that a look at a Service changed.",
);
static SYNCS: Family =
    Family::counter("endpoint_slice_controller_syncs", &["result"], "How often Services were looked at.");
static TRAFFIC_DISTRIBUTIONS: Family = Family::gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    &["traffic_distribution"],
    "Services that ask for a distribution of their traffic.",
);

/// Of one Service: endpoints, slices, and slices if all were full.
type Figures = (usize, usize, usize);

/// What is known of every Service, so that their sum can be shown.
#[derive(Default)]
pub struct SliceMetrics {
    figures: Mutex<(HashMap<String, Figures>, Figures)>,
    /// Services that ask for a distribution.
    distributions: Mutex<HashMap<String, String>>,
}

/// What a plan comes to.
#[derive(Debug, Default, PartialEq)]
pub struct Effect {
    added: usize,
    removed: usize,
    updated: usize,
    figures: Figures,
}

type Identity = (Vec<String>, Option<String>);

fn identity(endpoint: &Endpoint) -> Identity {
    (endpoint.addresses.clone(), endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()))
}

/// Before the plan is carried out.
pub fn effect(existing: &[Arc<EndpointSlice>], plan: &Plan) -> Effect {
    let replaced: HashSet<&str> =
        plan.update.iter().map(|slice| slice.uid()).chain(plan.delete.iter().map(|slice| slice.uid())).collect();
    let old = |slice: &EndpointSlice| existing.iter().find(|known| known.uid() == slice.uid()).cloned();
    let gone: Vec<Arc<EndpointSlice>> = plan.update.iter().filter_map(old).chain(plan.delete.iter().cloned()).collect();
    let before: BTreeMap<Identity, &Endpoint> =
        gone.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| (identity(endpoint), endpoint)).collect();
    let new = || plan.create.iter().chain(&plan.update).flat_map(|slice| &slice.endpoints);
    let after: BTreeMap<Identity, &Endpoint> = new().map(|endpoint| (identity(endpoint), endpoint)).collect();
    let updated = after.iter().filter(|(id, endpoint)| before.get(*id).is_some_and(|known| known != *endpoint)).count();
    let kept = existing.iter().map(|slice| &**slice).filter(|slice| !replaced.contains(slice.uid()));
    let all: Vec<&EndpointSlice> = kept.chain(&plan.create).chain(&plan.update).collect();
    let mut groups: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for slice in &all {
        let ports = serde_json::to_string(&slice.ports).unwrap_or_default();
        *groups.entry((&slice.address_type, ports)).or_default() += slice.endpoints.len();
    }
    // A placeholder counts as the slice that it is.
    let full = groups.values().map(|endpoints| endpoints.div_ceil(ENDPOINTS_PER_SLICE_MAX).max(1)).sum();
    Effect {
        added: after.keys().filter(|id| !before.contains_key(*id)).count(),
        removed: before.keys().filter(|id| !after.contains_key(*id)).count(),
        updated,
        figures: (groups.values().sum(), all.len(), full),
    }
}

impl SliceMetrics {
    pub fn synced(&self, metrics: &Metrics, families: &'static Families, service: &str, effect: &Effect) {
        metrics.observe(&families.added, &[], effect.added as f64);
        metrics.observe(&families.removed, &[], effect.removed as f64);
        if let Some(updated) = &families.updated {
            metrics.observe(updated, &[], effect.updated as f64);
        }
        self.replace(metrics, families, service, Some(effect.figures));
    }

    pub fn forget(&self, metrics: &Metrics, families: &'static Families, service: &str) {
        self.replace(metrics, families, service, None);
        self.distribution(metrics, service, None);
    }

    fn replace(&self, metrics: &Metrics, families: &'static Families, service: &str, new: Option<Figures>) {
        let (of_services, sum) = &mut *self.figures.lock();
        let old = match new {
            Some(new) => of_services.insert(service.to_string(), new),
            None => of_services.remove(service),
        };
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        if old == new {
            return;
        }
        *sum = (sum.0 + new.0 - old.0, sum.1 + new.1 - old.1, sum.2 + new.2 - old.2);
        metrics.set(&families.endpoints, &[], sum.0 as f64);
        metrics.set(&families.slices, &[], sum.1 as f64);
        metrics.set(&families.desired_slices, &[], sum.2 as f64);
    }

    /// How many Services ask for each distribution.
    pub fn distribution(&self, metrics: &Metrics, service: &str, asked: Option<&str>) {
        let mut all = self.distributions.lock();
        if all.get(service).map(String::as_str) == asked {
            return;
        }
        let was = match asked {
            Some(asked) => all.insert(service.to_string(), asked.to_string()),
            None => all.remove(service),
        };
        for changed in was.as_deref().into_iter().chain(asked) {
            let count = all.values().filter(|value| *value == changed).count();
            metrics.set(&TRAFFIC_DISTRIBUTIONS, &[changed], count as f64);
        }
    }
}

pub fn written(metrics: &Metrics, families: &'static Families, operation: &str) {
    metrics.count(&families.changes, &[operation]);
}

/// A look at a Service is over: `stale` ones wait for own writes.
pub fn looked_at(metrics: &Metrics, result: &str) {
    metrics.count(&SYNCS, &[result]);
}

pub fn slices_changed(metrics: &Metrics, is_auto: bool, distribution: &str, count: usize) {
    let topology = if is_auto { "Auto" } else { "Disabled" };
    metrics.observe(&SLICES_CHANGED, &[topology, distribution], count as f64);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, addresses: &[&str], ready: bool) -> EndpointSlice {
        let endpoint = |ip: &&str| json!({ "addresses": [ip], "conditions": { "ready": ready } });
        let endpoints: Vec<_> = addresses.iter().map(endpoint).collect();
        let object = json!({ "metadata": { "name": name, "namespace": "n", "uid": name }, "addressType": "IPv4",
            "endpoints": endpoints, "ports": [{ "port": 80 }] });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn effects_of_plans() {
        let check = |plan: Plan, counts: (usize, usize, usize), figures: Figures| {
            let existing = [Arc::new(slice("a", &["1", "2"], true)), Arc::new(slice("b", &["3"], true))];
            let found = effect(&existing, &plan);
            assert_eq!(((found.added, found.removed, found.updated), found.figures), (counts, figures));
        };
        let update = |slice: EndpointSlice| Plan { update: vec![slice], ..Plan::default() };
        check(Plan::default(), (0, 0, 0), (3, 2, 1));
        check(update(slice("a", &["1", "2", "4"], true)), (1, 0, 0), (4, 2, 1));
        check(update(slice("a", &["2", "4"], false)), (1, 1, 1), (3, 2, 1));
        let moved = Plan {
            update: vec![slice("a", &["1", "2", "3"], true)],
            delete: vec![Arc::new(slice("b", &["3"], true))],
            ..Plan::default()
        };
        check(moved, (0, 0, 0), (3, 1, 1));
        check(Plan { create: vec![slice("", &["5"], true)], ..Plan::default() }, (1, 0, 0), (4, 3, 1));
    }

    #[test]
    fn sums_of_all_services() {
        let (metrics, known) = (Metrics::default(), SliceMetrics::default());
        let check = |lines: &[&str]| {
            let page = metrics.page();
            for line in lines {
                let line = format!("endpoint_slice_controller_{line}");
                assert!(page.lines().any(|found| found == line), "{line}\n{page}");
            }
        };
        let of = |figures: Figures| Effect { added: 2, figures, ..Effect::default() };
        known.synced(&metrics, &OF_SERVICES, "n/a", &of((2, 1, 1)));
        known.synced(&metrics, &OF_SERVICES, "n/b", &of((120, 3, 2)));
        check(&["endpoints_desired 122", "num_endpoint_slices 4", "desired_endpoint_slices 3"]);
        check(&["endpoints_added_per_sync_count 2", "endpoints_added_per_sync_sum 4"]);
        known.distribution(&metrics, "n/a", Some("PreferSameZone"));
        known.distribution(&metrics, "n/b", Some("PreferSameZone"));
        check(&["services_count_by_traffic_distribution{traffic_distribution=\"PreferSameZone\"} 2"]);
        known.distribution(&metrics, "n/a", Some("PreferSameNode"));
        known.forget(&metrics, &OF_SERVICES, "n/b");
        check(&[
            "num_endpoint_slices 1",
            "services_count_by_traffic_distribution{traffic_distribution=\"PreferSameNode\"} 1",
            "services_count_by_traffic_distribution{traffic_distribution=\"PreferSameZone\"} 0",
        ]);
    }
}
