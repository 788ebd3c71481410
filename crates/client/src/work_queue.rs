//! A queue of keys: each at most once, never processed twice at the same time, retried with growing delays.
//! Fed by informer subscriptions; drained by controllers, the scheduler and the kubelet.
//! Invariant: a key added while it is being processed is processed again afterwards (test:
//! `a_key_is_queued_once_and_again_after_processing`).

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use env::{Backoff, Env};
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::queue_metrics::QueueMetrics;

const RATE_LIMIT: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1000));

pub struct WorkQueue<T>(Arc<Shared<T>>);

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<T> {
    env: Env,
    state: Mutex<State<T>>,
    wake: Notify,
    metrics: Option<QueueMetrics>,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Keys that want processing, and since when; those not in `processing` are also in `ready`.
    dirty: HashMap<T, Duration>,
    /// Keys being processed, and since when.
    processing: HashMap<T, Duration>,
    failures: HashMap<T, u32>,
    /// The earliest pending delayed add per key, in monotonic time.
    delayed: HashMap<T, Duration>,
    closed: bool,
}

impl<T: Hash + Eq + Clone + Send + Sync + 'static> WorkQueue<T> {
    pub fn new(env: Env) -> Self {
        Self::build(env, None)
    }

    /// One that counts into `metrics` under its name.
    pub fn measured(env: Env, metrics: Metrics, name: &'static str) -> Self {
        Self::build(env, Some(QueueMetrics::new(metrics, name)))
    }

    fn build(env: Env, metrics: Option<QueueMetrics>) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            failures: HashMap::new(),
            delayed: HashMap::new(),
            closed: false,
        };
        Self(Arc::new(Shared { env, state: Mutex::new(state), wake: Notify::new(), metrics }))
    }

    pub fn add(&self, key: T) {
        let mut state = self.0.state.lock();
        if state.closed || state.dirty.contains_key(&key) {
            return;
        }
        state.dirty.insert(key.clone(), self.0.env.monotonic());
        self.measure(QueueMetrics::added);
        if !state.processing.contains_key(&key) {
            state.ready.push_back(key);
            drop(state);
            self.0.wake.notify_one();
        }
    }

    fn measure(&self, what: impl FnOnce(&QueueMetrics)) {
        if let Some(metrics) = &self.0.metrics {
            what(metrics);
        }
    }

    /// Adds the key once `delay` has passed. Of several pending delays for one key the earliest counts.
    pub fn add_after(&self, key: T, delay: Duration) {
        self.measure(QueueMetrics::retried);
        if delay.is_zero() {
            return self.add(key);
        }
        let due = self.0.env.monotonic() + delay;
        {
            let mut state = self.0.state.lock();
            if state.closed || state.delayed.get(&key).is_some_and(|pending| *pending <= due) {
                return;
            }
            state.delayed.insert(key.clone(), due);
        }
        let queue = self.clone();
        let env = self.0.env.clone();
        self.0.env.spawn(async move {
            env.sleep(delay).await;
            let current = {
                let mut state = queue.0.state.lock();
                let current = state.delayed.get(&key) == Some(&due);
                if current {
                    state.delayed.remove(&key);
                }
                current
            };
            if current {
                queue.add(key);
            }
        });
    }

    /// After a failure: the delay doubles with each one until `forget`.
    pub fn add_rate_limited(&self, key: T) {
        let failures = {
            let mut state = self.0.state.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures += 1;
            *failures
        };
        let delay = RATE_LIMIT.delay_after(failures);
        let jitter = delay.mul_f64(0.1 * self.0.env.random_fraction());
        self.add_after(key, delay + jitter);
    }

    /// After a success: the next failure starts from the smallest delay again.
    pub fn forget(&self, key: &T) {
        self.0.state.lock().failures.remove(key);
    }

    /// How often the key has failed since the last `forget`.
    pub fn failures(&self, key: &T) -> u32 {
        self.0.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// The next key; `None` once the queue is closed. Give it back with `done`.
    pub async fn get(&self) -> Option<T> {
        loop {
            let notified = self.0.wake.notified();
            {
                let mut state = self.0.state.lock();
                if state.closed {
                    return None;
                }
                if let Some(key) = state.ready.pop_front() {
                    let now = self.0.env.monotonic();
                    let since = state.dirty.remove(&key).unwrap_or(now);
                    state.processing.insert(key.clone(), now);
                    self.measure(|metrics| metrics.taken(now.saturating_sub(since)));
                    if !state.ready.is_empty() {
                        self.0.wake.notify_one();
                    }
                    return Some(key);
                }
            }
            notified.await;
        }
    }

    pub fn done(&self, key: &T) {
        let mut state = self.0.state.lock();
        if let Some(since) = state.processing.remove(key) {
            self.measure(|metrics| metrics.done(self.0.env.monotonic().saturating_sub(since)));
        }
        if state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.0.wake.notify_one();
        }
    }

    pub fn len(&self) -> usize {
        self.0.state.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.wake.notify_waiters();
        self.0.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue<&'static str> {
        WorkQueue::new(Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_again_after_processing() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.get().await, Some("a"));
        queue.add("a");
        assert_eq!(queue.get().await, Some("b"));
        assert!(queue.is_empty(), "a is being processed");
        queue.done(&"a");
        assert_eq!(queue.get().await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn delays_keep_the_earliest_and_failures_double() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(60));
        queue.add_after("a", Duration::from_secs(1));
        let before = env::instant_now();
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(before.elapsed().as_secs(), 1);
        queue.done(&"a");
        env::sleep(Duration::from_secs(120)).await;
        assert!(queue.is_empty(), "the later delay was superseded");
        for _ in 0..3 {
            queue.add_rate_limited("b");
        }
        assert_eq!(queue.failures(&"b"), 3);
        queue.forget(&"b");
        assert_eq!(queue.failures(&"b"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn delays_grow_up_to_a_limit_and_differ_a_little() {
        let queue = queue();
        let mut beyond = Vec::new();
        for failure in 0..24 {
            let due = Duration::from_millis(5 << failure).min(Duration::from_secs(1000));
            let before = env::instant_now();
            queue.add_rate_limited("a");
            assert_eq!(queue.get().await, Some("a"));
            queue.done(&"a");
            // Timers are exact to a millisecond.
            let (waited, tick) = (before.elapsed(), Duration::from_millis(2));
            assert!(waited >= due && waited <= due.mul_f64(1.1) + tick, "{waited:?} after failure {failure}");
            beyond.push((waited.as_secs_f64() / due.as_secs_f64() * 1000.0).round() as u64);
        }
        // The last six were all due after the same time.
        let last = &beyond[18..];
        assert!(last.iter().any(|at| *at != last[0]), "{last:?}");
        queue.forget(&"a");
        let before = env::instant_now();
        queue.add_rate_limited("a");
        assert_eq!(queue.get().await, Some("a"));
        assert!(before.elapsed() < Duration::from_millis(10), "a success begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn closing_wakes_every_worker() {
        let queue = queue();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                env::spawn({
                    let q = queue.clone();
                    async move { q.get().await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_is_counted() {
        let metrics = Metrics::default();
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let queue = WorkQueue::measured(env.clone(), metrics.clone(), "q");
        queue.add("a");
        queue.add("a");
        queue.add("b");
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(queue.get().await, Some("a"));
        env.sleep(Duration::from_secs(3)).await;
        queue.add("a");
        queue.add_rate_limited("a");
        queue.done(&"a");
        let [one, other] = [0, 1].map(|_| WorkQueue::measured(env.clone(), metrics.clone(), "both"));
        one.add("a");
        other.add("a");
        other.add("b");
        drop(one);
        let mut out = metrics::Text::default();
        metrics.render(&mut out);
        let text = out.finish();
        for line in [
            "workqueue_adds_total{name=\"q\"} 3",
            "workqueue_depth{name=\"q\"} 2",
            "workqueue_depth{name=\"both\"} 2",
            "workqueue_adds_total{name=\"both\"} 3",
            "workqueue_retries_total{name=\"q\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"q\"} 2",
            "workqueue_work_duration_seconds_sum{name=\"q\"} 3",
            "workqueue_work_duration_seconds_count{name=\"q\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
