//! What flow control counts, under upstream's names (`apiserver_flowcontrol_*`).
//! Counted by `flow_control` per level and schema; shown at `/metrics`.
//! Counting takes no lock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ::metrics::{Histogram, Text};

use super::{FlowControl, Level};

const DURATION_BUCKETS_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_BUCKETS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEAT_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 10.0];
pub const REASONS: [&str; 4] = ["queue-full", "concurrency-limit", "time-out", "cancelled"];

/// Of one schema in one level.
pub struct FlowStats {
    pub level: String,
    pub schema: String,
    pub dispatched: AtomicU64,
    pub rejected: [AtomicU64; REASONS.len()],
    pub executing: AtomicI64,
    pub executing_seats: AtomicI64,
    pub waiting: AtomicI64,
    pub waiting_seats: AtomicI64,
    pub waited: [Histogram; 2],
    pub execution: Histogram,
    pub queue_length: Histogram,
    pub seats: Histogram,
}

impl FlowStats {
    pub fn new(level: &str, schema: &str) -> Self {
        Self {
            level: level.to_string(),
            schema: schema.to_string(),
            dispatched: AtomicU64::default(),
            rejected: Default::default(),
            executing: AtomicI64::default(),
            executing_seats: AtomicI64::default(),
            waiting: AtomicI64::default(),
            waiting_seats: AtomicI64::default(),
            waited: [Histogram::seconds(DURATION_BUCKETS_SECONDS), Histogram::seconds(DURATION_BUCKETS_SECONDS)],
            execution: Histogram::seconds(DURATION_BUCKETS_SECONDS),
            queue_length: Histogram::bytes(QUEUE_BUCKETS),
            seats: Histogram::bytes(SEAT_BUCKETS),
        }
    }

    pub fn reject(&self, reason: &str) {
        if let Some(index) = REASONS.iter().position(|r| *r == reason) {
            self.rejected[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn rejected(&self, reason: &str) -> u64 {
        let index = REASONS.iter().position(|r| *r == reason);
        index.map_or(0, |index| self.rejected[index].load(Ordering::Relaxed))
    }
}

type Gauge = (&'static str, &'static str, fn(&FlowStats) -> i64);

const GAUGES: [Gauge; 5] = [
    ("apiserver_flowcontrol_current_executing_requests", "Requests being handled.", |s| load(&s.executing)),
    ("apiserver_flowcontrol_current_executing_seats", "Seats in use.", |s| load(&s.executing_seats)),
    ("apiserver_flowcontrol_request_concurrency_in_use", "Seats in use.", |s| load(&s.executing_seats)),
    ("apiserver_flowcontrol_current_inqueue_requests", "Requests that wait.", |s| load(&s.waiting)),
    ("apiserver_flowcontrol_current_inqueue_seats", "Seats that are waited for.", |s| load(&s.waiting_seats)),
];

type OfLevel = (&'static str, &'static str, fn(&Level) -> f64);

const LEVELS: [OfLevel; 11] = [
    ("apiserver_flowcontrol_nominal_limit_seats", "Seats by the level's shares.", |l| l.state().limits.nominal as f64),
    ("apiserver_flowcontrol_request_concurrency_limit", "Seats by the level's shares.", |l| {
        l.state().limits.nominal as f64
    }),
    ("apiserver_flowcontrol_lower_limit_seats", "Seats that are never lent.", |l| l.state().limits.lower as f64),
    ("apiserver_flowcontrol_upper_limit_seats", "Seats with all that may be borrowed.", |l| {
        l.state().limits.upper as f64
    }),
    ("apiserver_flowcontrol_current_limit_seats", "Seats of the level now.", |l| l.state().seats as f64),
    ("apiserver_flowcontrol_demand_seats_high_watermark", "Most seats wanted in the last period.", |l| {
        l.state().demand.high_watermark
    }),
    ("apiserver_flowcontrol_demand_seats_average", "Seats wanted in the last period.", |l| l.state().demand.average),
    ("apiserver_flowcontrol_demand_seats_stdev", "How much that varied.", |l| l.state().demand.deviation),
    ("apiserver_flowcontrol_demand_seats_smoothed", "Seats wanted, smoothed.", |l| l.state().demand.smoothed),
    ("apiserver_flowcontrol_target_seats", "Seats the level aims at.", |l| l.state().target()),
    ("apiserver_flowcontrol_current_r", "Virtual time of the level's queues.", |l| l.virtual_time()),
];

fn load(value: &AtomicI64) -> i64 {
    value.load(Ordering::Relaxed)
}

impl FlowControl {
    pub fn render(&self, out: &mut Text) {
        let stats = self.all_stats();
        let labels = |s: &'_ FlowStats| [("flow_schema", s.schema.clone()), ("priority_level", s.level.clone())];
        let mut family =
            out.family("apiserver_flowcontrol_dispatched_requests_total", "counter", "Requests that got a seat.");
        for s in &stats {
            let [schema, level] = labels(s);
            family.sample(&[(schema.0, &schema.1), (level.0, &level.1)], s.dispatched.load(Ordering::Relaxed));
        }
        let mut family =
            out.family("apiserver_flowcontrol_rejected_requests_total", "counter", "Requests turned away.");
        for s in &stats {
            for reason in REASONS.iter().filter(|reason| s.rejected(reason) > 0) {
                let [schema, level] = labels(s);
                let labels = [(schema.0, &*schema.1), (level.0, &*level.1), ("reason", *reason)];
                family.sample(&labels, s.rejected(reason));
            }
        }
        for (name, help, value) in GAUGES {
            let mut family = out.family(name, "gauge", help);
            for s in &stats {
                let [schema, level] = labels(s);
                family.sample(&[(schema.0, &schema.1), (level.0, &level.1)], value(s));
            }
        }
        let name = "apiserver_flowcontrol_request_wait_duration_seconds";
        let mut family = out.family(name, "histogram", "How long requests waited for a seat.");
        for s in &stats {
            for (execute, waited) in ["false", "true"].into_iter().zip(&s.waited).filter(|(_, w)| w.count() > 0) {
                let [schema, level] = labels(s);
                waited.show(&mut family, &[("execute", execute), (schema.0, &schema.1), (level.0, &level.1)]);
            }
        }
        let name = "apiserver_flowcontrol_request_execution_seconds";
        let mut family = out.family(name, "histogram", "How long requests had a seat.");
        for s in stats.iter().filter(|s| s.execution.count() > 0) {
            let [schema, level] = labels(s);
            s.execution.show(&mut family, &[(schema.0, &schema.1), (level.0, &level.1), ("type", "regular")]);
        }
        type Shown = (&'static str, &'static str, fn(&FlowStats) -> &Histogram);
        let shown: [Shown; 2] = [
            ("apiserver_flowcontrol_work_estimated_seats", "Seats of requests.", |s| &s.seats),
            ("apiserver_flowcontrol_request_queue_length_after_enqueue", "Queues as requests find them.", |s| {
                &s.queue_length
            }),
        ];
        for (name, help, histogram) in shown {
            let mut family = out.family(name, "histogram", help);
            for s in stats.iter().filter(|s| histogram(s).count() > 0) {
                let [schema, level] = labels(s);
                histogram(s).show(&mut family, &[(schema.0, &schema.1), (level.0, &level.1)]);
            }
        }
        let configuration = self.configuration();
        for (name, help, value) in LEVELS {
            let mut family = out.family(name, "gauge", help);
            for level in configuration.levels.values() {
                family.sample(&[("priority_level", &level.name)], value(level));
            }
        }
        let help = "Part of its target that each level could get.";
        out.single("apiserver_flowcontrol_seat_fair_frac", "gauge", help, self.fair_part());
    }
}
