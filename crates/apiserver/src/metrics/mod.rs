//! Counters in Prometheus' text format, under upstream's names.
//! Filled by `pipeline` and what it calls; shown at `/metrics`.
//! Labels come from a bounded set: paths and object names never become labels.

mod access;
mod process;
mod requests;
mod stored;

use std::{cell::Cell, sync::Arc, time::Duration};

use ::metrics::{CONTENT_TYPE, Text};
use http::{Response, StatusCode};
use parking_lot::Mutex;

use api::feature_gates::FeatureGates;
use env::Env;

use crate::{
    aggregator,
    audit::AuditMetrics,
    flow_control::FlowControl,
    handlers::respond::content_response,
    request::body::Body,
    storage,
    storage::{
        cluster::Cluster,
        watch_cache::{Counts, Figures},
    },
};
pub use access::{Access, Authentication, DecisionCounts, Decisions};
pub use requests::{Labels, Open, Requests};
pub use stored::{Measured, Operations};

static FEATURE_ENABLED: ::metrics::Family = ::metrics::Family::gauge(
    "kubernetes_feature_enabled",
    &["name", "stage"],
    "This metric records the data about the stage and enablement of a k8s feature.",
);

static REQUESTED_DEPRECATED_APIS: ::metrics::Family = ::metrics::Family::gauge(
    "apiserver_requested_deprecated_apis",
    &["group", "removed_release", "resource", "subresource", "version"],
    "Deprecated APIs that somebody asked for.",
);

/// Which feature gates are on.
pub fn feature_gates(gates: &FeatureGates) -> ::metrics::Metrics {
    let metrics = ::metrics::Metrics::default();
    for (gate, on) in gates.all() {
        metrics.set(&FEATURE_ENABLED, &[gate.name, gate.stage.label()], f64::from(u8::from(on)));
    }
    metrics
}

#[derive(Default)]
pub struct Metrics {
    pub requests: Requests,
    pub operations: Arc<Operations>,
    pub audit: Arc<AuditMetrics>,
    pub access: Access,
    deprecated: ::metrics::Metrics,
    dropped: Mutex<[u64; 2]>,
    /// What other parts of this process count.
    others: Mutex<Vec<::metrics::Metrics>>,
    /// The same of those that count without a lock.
    parts: Mutex<Vec<Part>>,
}

type Part = Box<dyn Fn(&mut Text) + Send + Sync>;

tokio::task_local! {
    /// What webhooks took of the request that this task handles.
    static WEBHOOKS: Cell<Duration>;
}

/// Runs a request; also tells how long webhooks took of it.
pub async fn handled<T>(request: impl Future<Output = T>) -> (T, Duration) {
    WEBHOOKS.scope(Cell::default(), async { (request.await, WEBHOOKS.with(Cell::get)) }).await
}

/// Adds what asking webhooks takes to the request of this task.
pub async fn in_webhooks<T>(env: &Env, asked: impl Future<Output = T>) -> T {
    let start = env.monotonic();
    let answer = asked.await;
    let took = env.monotonic() - start;
    // Nobody counts for what is no request.
    let _ = WEBHOOKS.try_with(|sum| sum.set(sum.get() + took));
    answer
}

impl Metrics {
    pub fn dropped(&self, mutating: bool) {
        self.dropped.lock()[usize::from(mutating)] += 1;
    }

    /// Somebody asked for an API that is deprecated. When it goes is not known of any that is served.
    pub fn deprecated_api(&self, group: &str, version: &str, resource: &str, subresource: &str) {
        self.deprecated.set(&REQUESTED_DEPRECATED_APIS, &[group, "", resource, subresource, version], 1.0);
    }

    /// Shows what another part of this process counts, too.
    pub fn also(&self, other: ::metrics::Metrics) {
        self.others.lock().push(other);
    }

    /// The same of what counts without a lock and shows itself.
    pub fn also_shown_by(&self, part: impl Fn(&mut Text) + Send + Sync + 'static) {
        self.parts.lock().push(Box::new(part));
    }

    /// `in_flight`: reads and writes being handled right now; `stored`: bytes on disk.
    pub fn render(
        &self,
        cluster: &Cluster,
        in_flight: [usize; 2],
        flow_control: Option<&FlowControl>,
        stored: u64,
    ) -> Response<Body> {
        let mut out = Text::default();
        self.requests.render(&mut out);
        let kinds = ["readOnly", "mutating"];
        let mut family = out.family("apiserver_dropped_requests_total", "counter", "Requests refused with 429.");
        for (kind, count) in kinds.iter().zip(*self.dropped.lock()) {
            family.sample(&[("request_kind", kind)], count);
        }
        let name = "apiserver_current_inflight_requests";
        let mut family = out.family(name, "gauge", "Requests being handled, of those that count.");
        for (kind, count) in kinds.iter().zip(in_flight) {
            family.sample(&[("request_kind", kind)], count);
        }
        if let Some(flow_control) = flow_control {
            flow_control.render(&mut out);
        }
        self.operations.render(&mut out);
        self.audit.render(&mut out);
        self.access.render(&mut out);
        self.deprecated.render(&mut out);
        self.parts.lock().iter().for_each(|part| part(&mut out));
        let mut family = out.family("apiserver_storage_size_bytes", "gauge", "What the store takes on disk.");
        family.sample(&[("storage_cluster_id", "etcd-0")], stored);
        render_resources(&mut out, &cluster.cache.figures());
        let name = "aggregator_unavailable_apiservice";
        let mut family = out.family(name, "gauge", "APIServices that are not available, by name.");
        for (name, available) in aggregator::availability(cluster) {
            family.sample(&[("name", &name)], u8::from(!available));
        }
        self.others.lock().iter().for_each(|other| other.render(&mut out));
        process::render(&mut out);
        content_response(StatusCode::OK, out.finish().into(), CONTENT_TYPE)
    }
}

type Row = (&'static str, &'static str, &'static str, fn(&Figures, &Counts) -> u64);

/// What there is of every resource and what happened to it, each by group and resource.
const ROWS: [Row; 13] = [
    ("apiserver_resource_objects", "gauge", "Stored objects.", |f, _| f.objects as u64),
    ("apiserver_resource_size_estimate_bytes", "gauge", "Bytes of the stored objects.", |f, _| f.bytes as u64),
    ("apiserver_init_events_total", "counter", "Objects the watch cache began with.", |_, c| c.initial),
    ("apiserver_storage_events_received_total", "counter", "Changes told by the store.", |f, _| f.changes),
    ("apiserver_watch_cache_events_received_total", "counter", "Changes told to the watch cache.", |f, _| f.changes),
    ("apiserver_watch_cache_events_dispatched_total", "counter", "Changes shown to watches.", |f, _| f.changes),
    ("apiserver_watch_cache_initializations_total", "counter", "Times the watch cache was filled.", |_, c| c.loads),
    ("apiserver_watch_cache_resource_version", "gauge", "How far the watch cache is.", |f, _| f.revision),
    ("watch_cache_capacity", "gauge", "Changes the watch cache keeps.", |f, _| f.capacity as u64),
    ("apiserver_terminated_watchers_total", "counter", "Watchers that could not keep up.", |_, c| c.terminated),
    ("apiserver_cache_list_total", "counter", "Lists served from the watch cache.", |_, c| c.lists),
    ("apiserver_cache_list_fetched_objects_total", "counter", "Objects read for lists.", |_, c| c.listed),
    ("apiserver_cache_list_returned_objects_total", "counter", "Objects returned by lists.", |_, c| c.returned),
];

fn render_resources(out: &mut Text, figures: &[Figures]) {
    let help = "Stored objects, by resource; apiserver_resource_objects takes its place.";
    let mut family = out.family("apiserver_storage_objects", "gauge", help);
    for f in figures {
        let (group, resource) = storage::group_resource(&f.prefix);
        let name = if group.is_empty() { resource.to_string() } else { format!("{resource}.{group}") };
        family.sample(&[("resource", &name)], f.objects);
    }
    for (name, kind, help, value) in ROWS {
        let mut family = out.family(name, kind, help);
        for f in figures {
            let (group, resource) = storage::group_resource(&f.prefix);
            // Lists use no index of the cache beyond the namespace.
            let index = [("group", group), ("index", ""), ("resource", resource)];
            let plain = [index[0], index[2]];
            let labels = if name.contains("_list_") && !name.contains("returned") { &index[..] } else { &plain[..] };
            family.sample(labels, value(f, &f.counts));
        }
    }
}
