//! Counters in Prometheus' text format, under upstream's names.
//! Filled by `pipeline`; shown at `/metrics`.
//! Invariant: labels come from a bounded set: paths and object names never become labels.

use std::{collections::HashMap, fmt::Write, time::Duration};

use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::{body::Body, cluster::Cluster, request_info::RequestInfo, respond::content_response, storage};

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
        let mut requests = self.requests.lock();
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

    pub fn render(&self, cluster: &Cluster) -> Response<Body> {
        let mut out = String::with_capacity(16 << 10);
        self.render_requests(&mut out);
        head(&mut out, "apiserver_dropped_requests_total", "counter", "Requests refused with 429.");
        let [reads, writes] = *self.dropped.lock();
        let _ = writeln!(out, "apiserver_dropped_requests_total{{request_kind=\"readOnly\"}} {reads}");
        let _ = writeln!(out, "apiserver_dropped_requests_total{{request_kind=\"mutating\"}} {writes}");
        for name in ["apiserver_storage_objects", "apiserver_resource_objects"] {
            head(&mut out, name, "gauge", "Stored objects at the time of last check, by resource.");
            for (prefix, count) in cluster.cache.counts() {
                let resource = prefix.strip_prefix(storage::ROOT).unwrap_or(&prefix).trim_end_matches('/');
                let _ = writeln!(out, "{name}{{resource=\"{resource}\"}} {count}");
            }
        }
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
