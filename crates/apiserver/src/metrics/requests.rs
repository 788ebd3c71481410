//! What was asked of this server: requests, watches and other long answers, by verb and resource.
//! Filled by `pipeline`, `respond` and `registry::watch`; shown by `Metrics::render`.
//! Labels come from a bounded set: paths and object names never become labels.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use ::metrics::{Histogram, Text};
use indexmap::{Equivalent, IndexMap};
use parking_lot::{Mutex, RwLock};

use api::Verb;

use crate::request::request_info::RequestInfo;

pub const LATENCY_BUCKETS_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// The two finest bounds are of no use to a service level.
const LEVELS: &[f64] = LATENCY_BUCKETS_SECONDS.split_at(2).1;
const RESPONSE_BUCKETS_BYTES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const EVENT_BUCKETS_BYTES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0];
/// Label sets beyond this are counted under `other`.
const SERIES_MAX: usize = 4096;
const CONNECTS: [&str; 5] = ["log", "exec", "attach", "portforward", "proxy"];

/// What a request is counted under, borrowed from it.
#[derive(Clone, Copy, Hash)]
pub struct Labels<'a> {
    verb: &'static str,
    dry_run: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    scope: &'static str,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    verb: &'static str,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

impl<'a> Labels<'a> {
    /// `method` and `apply` (whether the body is one) make the verb that upstream reports.
    pub fn new(info: &'a RequestInfo, method: &http::Method, apply: bool, dry_run: &'static str) -> Self {
        let scope = match info.is_resource {
            _ if !info.name.is_empty() || info.verb == Verb::Create => "resource",
            _ if !info.namespace.is_empty() => "namespace",
            true => "cluster",
            false => "",
        };
        let verb = match method.as_str() {
            _ if info.is_resource && CONNECTS.contains(&info.subresource.as_str()) => "CONNECT",
            _ if info.verb == Verb::Watch => "WATCH",
            "GET" | "HEAD" if matches!(scope, "namespace" | "cluster") => "LIST",
            "GET" | "HEAD" => "GET",
            "PATCH" if apply => "APPLY",
            "PATCH" => "PATCH",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            _ => "other",
        };
        let [group, version, resource] = [&info.group, &info.version, &info.resource].map(String::as_str);
        let subresource = match info.is_resource {
            true => info.subresource.as_str(),
            false if ["/healthz", "/livez", "/readyz", "/version", "/metrics"].contains(&info.path.as_str()) => {
                &info.path
            }
            false => "",
        };
        Self { verb, dry_run, group, version, resource, subresource, scope }
    }

    fn other(self) -> Labels<'static> {
        Labels { verb: self.verb, dry_run: "", group: "", version: "", resource: "other", subresource: "", scope: "" }
    }

    fn owned(&self) -> Key {
        let [group, version, resource, subresource] =
            [self.group, self.version, self.resource, self.subresource].map(str::to_string);
        Key { verb: self.verb, dry_run: self.dry_run, group, version, resource, subresource, scope: self.scope }
    }
}

impl Equivalent<Key> for Labels<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        let left = [self.verb, self.dry_run, self.group, self.version, self.resource, self.subresource, self.scope];
        left == key.texts()
    }
}

impl Key {
    fn texts(&self) -> [&str; 7] {
        [self.verb, self.dry_run, &self.group, &self.version, &self.resource, &self.subresource, self.scope]
    }

    fn labels(&self) -> [(&'static str, &str); 7] {
        [
            ("component", "apiserver"),
            ("group", &self.group),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ]
    }
}

struct Series {
    codes: Mutex<Vec<(u16, u64)>>,
    /// Refused or cut short by the server, by code.
    terminated: Mutex<Vec<(u16, u64)>>,
    duration: Histogram,
    /// Absent for dry runs, which no service level covers.
    level: Option<Histogram>,
    /// Only of reads.
    sizes: Option<Histogram>,
    /// Long answers under way.
    open: Arc<AtomicI64>,
}

impl Series {
    fn new(key: &Key) -> Self {
        Self {
            codes: Mutex::default(),
            terminated: Mutex::default(),
            duration: Histogram::seconds(LATENCY_BUCKETS_SECONDS),
            level: key.dry_run.is_empty().then(|| Histogram::seconds(LEVELS)),
            sizes: matches!(key.verb, "GET" | "LIST").then(|| Histogram::bytes(RESPONSE_BUCKETS_BYTES)),
            open: Arc::default(),
        }
    }
}

fn count(codes: &Mutex<Vec<(u16, u64)>>, code: u16) {
    let mut codes = codes.lock();
    match codes.iter_mut().find(|(c, _)| *c == code) {
        Some((_, count)) => *count += 1,
        None => codes.push((code, 1)),
    }
}

#[derive(Default)]
pub struct Requests {
    series: RwLock<IndexMap<Key, Arc<Series>>>,
    watches: RwLock<IndexMap<[String; 3], Arc<WatchSeries>>>,
    handshakes_failed: AtomicU64,
}

/// A long answer under way; counted until it is dropped.
pub struct Open(Arc<AtomicI64>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The events sent to all watchers of one version of a resource.
pub struct WatchSeries(Histogram);

impl WatchSeries {
    pub fn sent(&self, bytes: usize) {
        self.0.observe(bytes as f64);
    }
}

impl Requests {
    fn series(&self, labels: Labels<'_>, known: bool) -> Arc<Series> {
        let series = self.series.read();
        if let Some(found) = series.get(&labels) {
            return found.clone();
        }
        // Names of resources that do not exist must not grow the set.
        let labels = if known && series.len() < SERIES_MAX { labels } else { labels.other() };
        drop(series);
        let mut series = self.series.write();
        if let Some(found) = series.get(&labels) {
            return found.clone();
        }
        let key = labels.owned();
        let new = Arc::new(Series::new(&key));
        series.insert(key, new.clone());
        new
    }

    /// One request that was answered; `webhooks` is the part of the time that others took.
    pub fn answered(&self, labels: Labels<'_>, code: u16, took: Duration, webhooks: Duration, bytes: Option<u64>) {
        let series = self.series(labels, code != 404);
        count(&series.codes, code);
        if code == 429 || code == 504 {
            count(&series.terminated, code);
        }
        series.duration.observe(took.as_secs_f64());
        if let Some(level) = &series.level {
            level.observe(took.saturating_sub(webhooks).as_secs_f64());
        }
        if let (Some(sizes), Some(bytes)) = (&series.sizes, bytes) {
            sizes.observe(bytes as f64);
        }
    }

    pub fn open(&self, labels: Labels<'_>) -> Open {
        let open = self.series(labels, true).open.clone();
        open.fetch_add(1, Ordering::Relaxed);
        Open(open)
    }

    pub fn watch(&self, group: &str, version: &str, resource: &str) -> Arc<WatchSeries> {
        let key = [group, version, resource];
        let find = |watches: &IndexMap<[String; 3], Arc<WatchSeries>>| {
            watches.iter().find(|(k, _)| **k == key).map(|(_, series)| series.clone())
        };
        if let Some(found) = find(&self.watches.read()) {
            return found;
        }
        let mut watches = self.watches.write();
        let new = || Arc::new(WatchSeries(Histogram::bytes(EVENT_BUCKETS_BYTES)));
        watches.entry(key.map(str::to_string)).or_insert_with(new).clone()
    }

    pub fn handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn render(&self, out: &mut Text) {
        let series = self.series.read();
        let answered = || series.iter().filter(|(_, s)| s.duration.count() > 0);
        let with = |key: &Key, extra: &[(&'static str, &str)], render: &mut dyn FnMut(&::metrics::Labels<'_>)| {
            let labels: Vec<(&'static str, &str)> = extra.iter().copied().chain(key.labels()).collect();
            render(&labels);
        };
        let mut family = out.family("apiserver_request_total", "counter", "Requests by verb, resource and code.");
        for (key, series) in answered() {
            for (code, count) in series.codes.lock().iter() {
                let extra = [("code", &*code.to_string()), ("dry_run", key.dry_run)];
                with(key, &extra, &mut |labels| family.sample(labels, count));
            }
        }
        let name = "apiserver_request_terminations_total";
        let mut family = out.family(name, "counter", "Requests the server ended in self-defense.");
        for (key, series) in series.iter() {
            for (code, count) in series.terminated.lock().iter() {
                with(key, &[("code", &*code.to_string())], &mut |labels| family.sample(labels, count));
            }
        }
        let name = "apiserver_request_duration_seconds";
        let mut family = out.family(name, "histogram", "Response latency by verb and resource.");
        for (key, series) in answered() {
            let extra = [("dry_run", key.dry_run)];
            with(key, &extra, &mut |labels| series.duration.show(&mut family, labels));
        }
        let name = "apiserver_request_sli_duration_seconds";
        let mut family = out.family(name, "histogram", "Response latency without what webhooks took.");
        for (key, level) in answered().filter_map(|(key, s)| Some((key, s.level.as_ref()?))) {
            level.show(&mut family, &key.labels());
        }
        let mut family = out.family("apiserver_response_sizes", "histogram", "Bytes of answers to reads.");
        for (key, sizes) in answered().filter_map(|(key, s)| Some((key, s.sizes.as_ref()?))) {
            sizes.show(&mut family, &key.labels());
        }
        let name = "apiserver_longrunning_requests";
        let mut family = out.family(name, "gauge", "Watches, logs, execs and the like under way.");
        for (key, series) in series.iter().filter(|(key, _)| matches!(key.verb, "WATCH" | "CONNECT")) {
            family.sample(&key.labels(), series.open.load(Ordering::Relaxed));
        }
        drop(series);
        self.render_watches(out);
        let failed = self.handshakes_failed.load(Ordering::Relaxed);
        out.single("apiserver_tls_handshake_errors_total", "counter", "Connections that never were.", failed);
    }

    fn render_watches(&self, out: &mut Text) {
        fn labels([group, version, resource]: &[String; 3]) -> [(&'static str, &str); 3] {
            [("group", group), ("resource", resource), ("version", version)]
        }
        let watches = self.watches.read();
        let mut family = out.family("apiserver_watch_events_total", "counter", "Events sent to watch clients.");
        for (key, series) in watches.iter() {
            family.sample(&labels(key), series.0.count());
        }
        let mut family =
            out.family("apiserver_watch_events_sizes", "histogram", "Bytes of events sent to watch clients.");
        for (key, series) in watches.iter() {
            series.0.show(&mut family, &labels(key));
        }
    }
}
