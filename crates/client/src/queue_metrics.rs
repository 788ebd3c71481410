//! What a work queue counts, under upstream's names.
//! Kept by `work_queue` where somebody asks for it; shown at a component's `/metrics`.
//! Keys are no labels: there are as many as there are objects.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use metrics::{Family, Metrics};

/// From ten nanoseconds, each ten times the one before.
const BUCKETS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];

static DEPTH: Family = Family::gauge("workqueue_depth", &["name"], "Keys that wait.");
static ADDS: Family = Family::counter("workqueue_adds_total", &["name"], "Keys that were added.");
static RETRIES: Family = Family::counter("workqueue_retries_total", &["name"], "Keys that are to be tried later.");
static WAITED: Family =
    Family::histogram("workqueue_queue_duration_seconds", &["name"], BUCKETS, "How long keys waited for their turn.");
static WORKED: Family =
    Family::histogram("workqueue_work_duration_seconds", &["name"], BUCKETS, "How long it took to process a key.");

/// Of one queue; queues of one name are counted together.
pub struct QueueMetrics {
    metrics: Metrics,
    name: &'static str,
    /// How many of the keys that wait are this queue's.
    waiting: AtomicI64,
}

impl Drop for QueueMetrics {
    fn drop(&mut self) {
        // Nobody takes them any more; where the process goes on, its next term of leadership counts anew.
        self.metrics.add(&DEPTH, &[self.name], -(*self.waiting.get_mut() as f64));
    }
}

impl QueueMetrics {
    pub fn new(metrics: Metrics, name: &'static str) -> Self {
        // A queue that nobody has used yet is there, and empty.
        metrics.add(&DEPTH, &[name], 0.0);
        metrics.add(&ADDS, &[name], 0.0);
        metrics.add(&RETRIES, &[name], 0.0);
        Self { metrics, name, waiting: AtomicI64::new(0) }
    }

    pub fn added(&self) {
        self.metrics.count(&ADDS, &[self.name]);
        self.waits(1);
    }

    fn waits(&self, more: i64) {
        self.waiting.fetch_add(more, Ordering::Relaxed);
        self.metrics.add(&DEPTH, &[self.name], more as f64);
    }

    pub fn retried(&self) {
        self.metrics.count(&RETRIES, &[self.name]);
    }

    pub fn taken(&self, waited: Duration) {
        self.waits(-1);
        self.metrics.observe(&WAITED, &[self.name], waited.as_secs_f64());
    }

    pub fn done(&self, worked: Duration) {
        self.metrics.observe(&WORKED, &[self.name], worked.as_secs_f64());
    }
}
