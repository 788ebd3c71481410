//! Counters in Prometheus' text format, under upstream's names.
//! Filled by `pipeline`; shown at `/metrics`.
//! Invariant: labels come from a bounded set: paths and object names never become labels.

use std::{collections::HashMap, fmt::Write, time::Duration};

use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::{
    body::Body, cluster::Cluster, request_info::RequestInfo, respond::content_response, storage, watch_cache::Figures,
};

const BUCKETS: [f64; 17] =
    [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];
/// Label sets beyond this are counted under `other`.
const MAX_SERIES: usize = 4096;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

#[derive(Default)]
struct Series {
    codes: HashMap<u16, u64>,
    buckets: [u64; BUCKETS.len()],
    sum: f64,
    count: u64,
}

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<HashMap<Key, Series>>,
    dropped: Mutex<[u64; 2]>,
}

impl Metrics {
    pub fn request(&self, info: &RequestInfo, code: u16, took: Duration) {
        let mut key = Key {
            verb: info.verb.to_ascii_uppercase(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope: match (info.is_resource, info.name.is_empty(), info.namespace.is_empty()) {
                (false, ..) => "",
                (true, false, _) => "resource",
                (true, true, false) => "namespace",
                (true, true, true) => "cluster",
            },
        };
        let mut requests = self.requests.lock();
        // Names of resources that do not exist must not grow the set.
        if (code == 404 || requests.len() >= MAX_SERIES) && !requests.contains_key(&key) {
            key = Key {
                verb: key.verb,
                scope: "",
                group: String::new(),
                version: String::new(),
                resource: "other".into(),
                subresource: String::new(),
            };
        }
        let series = requests.entry(key).or_default();
        *series.codes.entry(code).or_default() += 1;
        let seconds = took.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|b| seconds <= *b) {
            series.buckets[bucket] += 1;
        }
        series.sum += seconds;
        series.count += 1;
    }

    pub fn dropped(&self, mutating: bool) {
        self.dropped.lock()[usize::from(mutating)] += 1;
    }

    /// `in_flight`: reads and writes being handled right now; `stored`: bytes on disk.
    pub fn render(&self, cluster: &Cluster, in_flight: [usize; 2], stored: u64) -> Response<Body> {
        let mut out = String::with_capacity(16 << 10);
        self.render_requests(&mut out);
        head(&mut out, "apiserver_dropped_requests_total", "counter", "Requests refused with 429.");
        let [reads, writes] = *self.dropped.lock();
        let _ = writeln!(out, "apiserver_dropped_requests_total{{request_kind=\"readOnly\"}} {reads}");
        let _ = writeln!(out, "apiserver_dropped_requests_total{{request_kind=\"mutating\"}} {writes}");
        head(&mut out, "apiserver_current_inflight_requests", "gauge", "Requests being handled, of those that count.");
        let [reads, writes] = in_flight;
        let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"readOnly\"}} {reads}");
        let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"mutating\"}} {writes}");
        head(&mut out, "apiserver_storage_size_bytes", "gauge", "What the store takes on disk.");
        let _ = writeln!(out, "apiserver_storage_size_bytes{{storage_cluster_id=\"etcd-0\"}} {stored}");
        render_resources(&mut out, &cluster.cache.figures());
        render_process(&mut out);
        content_response(StatusCode::OK, out.into(), "text/plain; version=0.0.4; charset=utf-8")
    }

    fn render_requests(&self, out: &mut String) {
        let requests = self.requests.lock();
        head(out, "apiserver_request_total", "counter", "Requests by verb, resource and response code.");
        for (key, series) in requests.iter() {
            for (code, count) in &series.codes {
                let _ =
                    writeln!(out, "apiserver_request_total{{code=\"{code}\",dry_run=\"\",{}}} {count}", key.labels());
            }
        }
        let name = "apiserver_request_duration_seconds";
        head(out, name, "histogram", "Response latency in seconds by verb and resource.");
        for (key, series) in requests.iter() {
            let labels = key.labels();
            let mut total = 0;
            for (bound, count) in BUCKETS.iter().zip(series.buckets) {
                total += count;
                let _ = writeln!(out, "{name}_bucket{{dry_run=\"\",{labels},le=\"{bound}\"}} {total}");
            }
            let _ = writeln!(out, "{name}_bucket{{dry_run=\"\",{labels},le=\"+Inf\"}} {}", series.count);
            let _ = writeln!(out, "{name}_sum{{dry_run=\"\",{labels}}} {}", series.sum);
            let _ = writeln!(out, "{name}_count{{dry_run=\"\",{labels}}} {}", series.count);
        }
    }
}

type Row = (&'static str, &'static str, &'static str, fn(&Figures) -> u64);

fn render_resources(out: &mut String, figures: &[Figures]) {
    let rows: [Row; 4] = [
        ("apiserver_storage_objects", "gauge", "Stored objects, by resource.", |f| f.objects as u64),
        ("apiserver_resource_objects", "gauge", "Stored objects, by resource.", |f| f.objects as u64),
        ("apiserver_longrunning_requests", "gauge", "Open watches, by resource.", |f| f.watchers as u64),
        ("apiserver_watch_cache_events_dispatched_total", "counter", "Changes shown to watches.", |f| f.changes),
    ];
    for (name, kind, help, value) in rows {
        head(out, name, kind, help);
        for f in figures {
            let path = f.prefix.strip_prefix(storage::ROOT).unwrap_or(&f.prefix).trim_end_matches('/');
            let (group, resource) = path.split_once('/').unwrap_or(("", path));
            let verb = if name == "apiserver_longrunning_requests" { ",verb=\"WATCH\"" } else { "" };
            let _ = writeln!(out, "{name}{{group=\"{group}\",resource=\"{resource}\"{verb}}} {}", value(f));
        }
    }
}

/// What every Prometheus client says of its process, from the kernel.
fn render_process(out: &mut String) {
    head(out, "kubernetes_build_info", "gauge", "The version of Kubernetes this server speaks.");
    let version = crate::discovery::version();
    let text = |field: &str| clean(version[field].as_str().unwrap_or_default());
    let labels = ["gitVersion", "major", "minor", "platform"].map(|field| {
        let label = if field == "gitVersion" { "git_version" } else { field };
        format!("{label}=\"{}\"", text(field))
    });
    let _ = writeln!(out, "kubernetes_build_info{{{}}} 1", labels.join(","));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = |field: &str| -> Option<u64> {
        status.lines().find_map(|l| l.strip_prefix(field)?.trim().strip_suffix(" kB")?.trim().parse().ok())
    };
    if let Some(resident) = kibibytes("VmRSS:") {
        head(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
        let _ = writeln!(out, "process_resident_memory_bytes {}", resident * 1024);
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in the second field may hold spaces; it ends with the last parenthesis. Times are in hundredths.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = after.split_whitespace().skip(11).take(2).filter_map(|t| t.parse().ok()).collect();
    if let [user, system] = ticks[..] {
        head(out, "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
        let _ = writeln!(out, "process_cpu_seconds_total {}", (user + system) / 100.0);
    }
}

impl Key {
    fn labels(&self) -> String {
        format!(
            "component=\"apiserver\",group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            clean(&self.group),
            clean(&self.resource),
            self.scope,
            clean(&self.subresource),
            clean(&self.verb),
            clean(&self.version)
        )
    }
}

fn clean(text: &str) -> String {
    text.replace(['"', '\\', '\n'], "_")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
