//! What flow control counts, under upstream's names (`apiserver_flowcontrol_*`).
//! Counted by `flow_control` per level and schema; shown at `/metrics`.
//! Counting takes no lock but where time is weighed: that of a level's queues, which is held anyway, and that of all reads and
//! writes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use ::metrics::{Histogram, Labels, Samples, Text};
use parking_lot::Mutex;

use super::{
    FlowControl, Level,
    fair_queue::DispatchFigures,
    timing::{READ_WRITE_BOUNDS, TimingRatioHistogram},
};

const DURATION_BUCKETS_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_BUCKETS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEAT_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const WATCH_BUCKETS: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];
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
    /// How many watches its writes wake.
    pub watches: Histogram,
    /// How often it was its turn and there were too few seats.
    pub not_accommodated: AtomicU64,
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
            watches: Histogram::bytes(WATCH_BUCKETS),
            not_accommodated: AtomicU64::default(),
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

const EXECUTING: &str = "executing";
const WAITING: &str = "waiting";

#[derive(Debug, Clone, Copy)]
pub enum Phase {
    Waiting,
    Executing,
}

/// How many requests of both kinds wait and are handled, over time.
pub struct ReadsAndWrites(Mutex<[[(usize, TimingRatioHistogram); 2]; 2]>);

impl ReadsAndWrites {
    pub fn new(now: Duration) -> Self {
        Self(Mutex::new([[(0, TimingRatioHistogram::new(READ_WRITE_BOUNDS, 1.0, now)); 2]; 2]))
    }

    /// What counts as all of the server.
    pub fn set_denominators(&self, now: Duration, waiting: usize, executing: usize) {
        let mut phases = self.0.lock();
        for (kinds, limit) in phases.iter_mut().zip([waiting, executing]) {
            kinds.iter_mut().for_each(|(_, histogram)| histogram.set_denominator(now, limit));
        }
    }

    /// One more, or one less.
    pub fn change(&self, now: Duration, phase: Phase, is_mutating: bool, by: isize) {
        let mut phases = self.0.lock();
        let (count, histogram) = &mut phases[phase as usize][usize::from(is_mutating)];
        *count = count.saturating_add_signed(by);
        histogram.set(now, *count);
    }

    fn shown(&self) -> Vec<(&'static str, &'static str, TimingRatioHistogram)> {
        let phases = *self.0.lock();
        let named = [WAITING, EXECUTING].into_iter().zip(phases);
        let kinds = ["readOnly", "mutating"];
        named.flat_map(|(phase, of)| kinds.into_iter().zip(of).map(move |(kind, (_, h))| (phase, kind, h))).collect()
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

type OfDispatch<T> = (&'static str, &'static str, fn(&DispatchFigures) -> T);

const DISPATCHES: [OfDispatch<f64>; 2] = [
    ("apiserver_flowcontrol_dispatch_r", "Virtual time of the last dispatch from a queue.", |d| d.virtual_time),
    ("apiserver_flowcontrol_latest_s", "Virtual start of the request dispatched last.", |d| d.latest),
];

const DISPATCH_BOUNDS: [OfDispatch<(f64, f64)>; 2] = [
    ("apiserver_flowcontrol_next_s_bounds", "Virtual starts of the oldest waiting requests of the queues.", |d| d.next),
    (
        "apiserver_flowcontrol_next_discounted_s_bounds",
        "Virtual starts of the oldest waiting requests less the work under way in their queues.",
        |d| d.next_discounted,
    ),
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
        let name = "apiserver_flowcontrol_request_dispatch_no_accommodation_total";
        let mut family = out.family(name, "counter", "Turns of requests for which there were too few seats.");
        for s in stats.iter().filter(|s| s.not_accommodated.load(Ordering::Relaxed) > 0) {
            let [schema, level] = labels(s);
            let labels = [(schema.0, &*schema.1), (level.0, &*level.1)];
            family.sample(&labels, s.not_accommodated.load(Ordering::Relaxed));
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
        let shown: [Shown; 3] = [
            ("apiserver_flowcontrol_watch_count_samples", "Watches that writes wake.", |s| &s.watches),
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
        self.render_queues(out);
        let help = "Part of its target that each level could get.";
        out.single("apiserver_flowcontrol_seat_fair_frac", "gauge", help, self.fair_part());
    }
    /// What is known of the queues of each level.
    fn render_queues(&self, out: &mut Text) {
        let (now, configuration) = (self.env.monotonic(), self.configuration());
        let look = |level: &Arc<Level>| {
            let queues = level.queues.lock();
            (level.name.clone(), queues.utilization(), queues.last_dispatch())
        };
        let levels: Vec<_> = configuration.levels.values().map(look).collect();
        for (name, help, value) in DISPATCHES {
            let mut family = out.family(name, "gauge", help);
            for (level, _, dispatch) in &levels {
                dispatch.iter().for_each(|dispatch| family.sample(&[("priority_level", level)], value(dispatch)));
            }
        }
        for (name, help, bounds) in DISPATCH_BOUNDS {
            let mut family = out.family(name, "gauge", help);
            for (level, _, dispatch) in &levels {
                let (min, max) = dispatch.as_ref().map(bounds).unzip();
                for (bound, value) in [("max", max), ("min", min)] {
                    let labels = [("bound", bound), ("priority_level", level.as_str())];
                    value.into_iter().for_each(|value| family.sample(&labels, value));
                }
            }
        }
        let show = |family: &mut Samples<'_>, histogram: TimingRatioHistogram, labels: &Labels<'_>| {
            let (bounds, counts, sum) = histogram.figures(now);
            family.histogram(labels, bounds, counts, sum);
        };
        let name = "apiserver_flowcontrol_priority_level_seat_utilization";
        let mut family = out.family(name, "histogram", "Nanoseconds by the part of a level's seats in use.");
        for (level, used, _) in &levels {
            show(&mut family, used.seats, &[("phase", EXECUTING), ("priority_level", level)]);
        }
        let name = "apiserver_flowcontrol_priority_level_request_utilization";
        let mut family =
            out.family(name, "histogram", "Nanoseconds by the requests of a level, as part of its limits.");
        for (level, used, _) in &levels {
            show(&mut family, used.executing, &[("phase", EXECUTING), ("priority_level", level)]);
            show(&mut family, used.waiting, &[("phase", WAITING), ("priority_level", level)]);
        }
        let name = "apiserver_flowcontrol_demand_seats";
        let mut family = out.family(name, "histogram", "Nanoseconds by the seats that a level could use.");
        for (level, used, _) in &levels {
            show(&mut family, used.demand, &[("priority_level", level)]);
        }
        let name = "apiserver_flowcontrol_read_vs_write_current_requests";
        let mut family =
            out.family(name, "histogram", "Nanoseconds by the requests of both kinds, as part of the limits.");
        for (phase, kind, histogram) in self.reads_and_writes.shown() {
            show(&mut family, histogram, &[("phase", phase), ("request_kind", kind)]);
        }
    }
}
