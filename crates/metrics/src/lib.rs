//! Counters, gauges and histograms in Prometheus' text form, and the few bytes of HTTP that show them.
//! Used by every component, each with one table of its families under upstream's names; the API server counts its requests
//! with `Histogram`, without a lock.
//! Invariant: a family has at most `SERIES_PER_FAMILY_MAX` series; what goes beyond is not counted (test:
//! `series_are_bounded`).

mod histogram;
pub mod http;
mod process;
pub mod slis;
pub mod stability;
mod text;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

pub use histogram::Histogram;
use parking_lot::Mutex;
pub use process::{boot_time, process};
pub use text::{CONTENT_TYPE, Labels, Samples, Text};

/// Label sets of one family beyond this are not counted.
const SERIES_PER_FAMILY_MAX: usize = 4096;

/// Prometheus' own bounds for what takes between milliseconds and seconds.
pub const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// One row of a component's table.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Family {
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        buckets: &'static [f64],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram(buckets), labels, help }
    }
}

#[derive(Debug, Default, Clone)]
struct Series {
    /// The value, or the sum of what a histogram has seen.
    value: f64,
    /// How often values up to each bound, and beyond the last, were seen.
    buckets: Box<[u64]>,
}

struct FamilySeries {
    family: &'static Family,
    series: BTreeMap<Box<[Box<str>]>, Series>,
}

/// Cheap to clone; every clone counts into the same.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, FamilySeries>>>);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metrics({})", self.0.lock().len())
    }
}

impl Metrics {
    fn change(&self, family: &'static Family, labels: &[&str], change: impl FnOnce(&mut Series)) {
        debug_assert_eq!(family.labels.len(), labels.len(), "{}", family.name);
        let mut all = self.0.lock();
        let family_series = all.entry(family.name).or_insert_with(|| FamilySeries { family, series: BTreeMap::new() });
        let full = family_series.series.len() >= SERIES_PER_FAMILY_MAX;
        match family_series.series.entry(labels.iter().map(|label| Box::from(*label)).collect()) {
            Entry::Occupied(found) => change(found.into_mut()),
            Entry::Vacant(place) if !full => change(place.insert(Series::default())),
            Entry::Vacant(_) => {}
        }
    }

    pub fn add(&self, family: &'static Family, labels: &[&str], by: f64) {
        self.change(family, labels, |series| series.value += by);
    }

    pub fn count(&self, family: &'static Family, labels: &[&str]) {
        self.add(family, labels, 1.0);
    }

    pub fn set(&self, family: &'static Family, labels: &[&str], to: f64) {
        self.change(family, labels, |series| series.value = to);
    }

    pub fn observe(&self, family: &'static Family, labels: &[&str], value: f64) {
        let Kind::Histogram(bounds) = family.kind else { return };
        self.change(family, labels, |series| {
            if series.buckets.is_empty() {
                series.buckets = vec![0; bounds.len() + 1].into();
            }
            series.buckets[bounds.partition_point(|bound| *bound < value)] += 1;
            series.value += value;
        });
    }

    /// All of it, with what is known of the process, as a page.
    pub fn page(&self) -> String {
        let mut out = Text::default();
        self.render(&mut out);
        process(&mut out);
        out.finish()
    }

    /// Forgets the series that no longer exist, for example those of a pod that is gone.
    pub fn retain(&self, family: &'static Family, keep: impl Fn(&[Box<str>]) -> bool) {
        if let Some(family_series) = self.0.lock().get_mut(family.name) {
            family_series.series.retain(|labels, _| keep(labels));
        }
    }

    /// Everything, sorted by name.
    pub fn render(&self, out: &mut Text) {
        for family_series in self.0.lock().values() {
            family_series.render(out);
        }
    }
}

impl FamilySeries {
    fn render(&self, out: &mut Text) {
        let Family { name, kind, labels: names, help } = self.family;
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let mut samples = out.family(name, word, help);
        for (values, series) in &self.series {
            let labels: Vec<_> = names.iter().copied().zip(values.iter().map(|value| &**value)).collect();
            match kind {
                Kind::Counter | Kind::Gauge => samples.sample(&labels, series.value),
                Kind::Histogram(bounds) => {
                    samples.histogram(&labels, bounds, series.buckets.iter().copied(), series.value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static REQUESTS: Family = Family::counter("requests_total", &["code", "path"], "Requests.");
    static TOOK: Family = Family::histogram("took_seconds", &[], &[0.1, 1.0], "How long.");
    static LIVE: Family = Family::gauge("live", &["pod"], "What lives.");

    #[test]
    fn families_are_shown_in_prometheus_text() {
        let metrics = Metrics::default();
        metrics.count(&REQUESTS, &["200", "/a\"b\\\n"]);
        metrics.count(&REQUESTS, &["200", "/a\"b\\\n"]);
        for value in [0.05, 0.5, 5.0] {
            metrics.observe(&TOOK, &[], value);
        }
        metrics.set(&LIVE, &["a"], 1.0);
        metrics.set(&LIVE, &["b"], 2.0);
        metrics.retain(&LIVE, |labels| &*labels[0] != "a");
        let mut text = Text::default();
        metrics.render(&mut text);
        let expected = "# HELP live What lives.\n# TYPE live gauge\nlive{pod=\"b\"} 2\n\
            # HELP requests_total Requests.\n# TYPE requests_total counter\n\
            requests_total{code=\"200\",path=\"/a\\\"b\\\\\\n\"} 2\n\
            # HELP took_seconds How long.\n# TYPE took_seconds histogram\n\
            took_seconds_bucket{le=\"0.1\"} 1\ntook_seconds_bucket{le=\"1\"} 2\ntook_seconds_bucket{le=\"+Inf\"} 3\n\
            took_seconds_sum 5.55\ntook_seconds_count 3\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn series_are_bounded() {
        let metrics = Metrics::default();
        for number in 0..2 * SERIES_PER_FAMILY_MAX {
            metrics.count(&LIVE, &[&number.to_string()]);
        }
        assert_eq!(metrics.0.lock()["live"].series.len(), SERIES_PER_FAMILY_MAX);
    }
}
