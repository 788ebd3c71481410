//! Ends pods before the machine does: a shutdown is delayed until they have had their time, by priority.
//! Run by `wiring` where the configuration asks for it; admission and `node_status` ask whether a shutdown is under way.
//! Without logind nothing is delayed, and the log says so.

mod groups;
mod logind;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
pub use groups::{PriorityGracePeriod, ShutdownGracePeriods};
use groups::{ShutdownGroup, grace_period_seconds};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use logind::{InhibitLock, Logind, LogindError, ShutdownSignals};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    node::node_metrics::{GRACEFUL_SHUTDOWN_END, GRACEFUL_SHUTDOWN_START},
    pod::{
        admission::{Refusal, occupies},
        pod_spec,
        pod_workers::{Eviction, PodWorkers},
    },
};

const RECONNECT_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
const STATE_FILE: &str = "graceful_node_shutdown_state";

/// Whether the machine is shutting down.
#[derive(Debug, Default)]
pub struct ShutdownState(AtomicBool);

impl ShutdownState {
    pub fn is_active(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Why no pod begins here any more.
    pub fn refuse(&self) -> Option<Refusal> {
        self.is_active().then(|| Refusal::new("NodeShutdown", "Pod was rejected as the node is shutting down."))
    }
}

/// The last shutdown, kept for the next start.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct LastShutdown {
    start_time: Option<Timestamp>,
    end_time: Option<Timestamp>,
}

pub struct NodeShutdownManager {
    pub workers: Arc<PodWorkers>,
    pub periods: ShutdownGracePeriods,
    /// Asks for the node's status to be told.
    pub tell: Arc<Notify>,
}

impl NodeShutdownManager {
    pub async fn run(self) {
        self.show_last();
        let logind = Logind::new(self.workers.shared.env.clone());
        self.watch(&logind).await;
    }

    async fn watch(&self, logind: &Logind) {
        let mut failures = 0;
        loop {
            match self.prepare(logind).await {
                Ok((lock, signals)) => {
                    failures = 0;
                    self.follow(logind, lock, signals).await;
                    tracing::warn!("no more signals of shutdowns; watching anew");
                }
                Err(error) => {
                    failures += 1;
                    tracing::error!(%error, "failed to start node shutdown manager: a shutdown is not delayed for pods");
                }
            }
            self.workers.shared.env.sleep(RECONNECT_BACKOFF.delay_after(failures.max(1))).await;
        }
    }

    async fn prepare(&self, logind: &Logind) -> Result<(InhibitLock, ShutdownSignals), LogindError> {
        logind.allow_delay(self.periods.total()).await?;
        let lock = logind.inhibit().await?;
        Ok((lock, logind.signals()?))
    }

    async fn follow(&self, logind: &Logind, lock: InhibitLock, mut signals: ShutdownSignals) {
        let shared = &self.workers.shared;
        let mut lock = Some(lock);
        while let Some(active) = signals.next().await {
            let what = if active { "event" } else { "cancellation" };
            let message = format!("Shutdown manager detected shutdown {what}");
            shared.recorder.normal(&client::reference(&*shared.node.lock()), "Shutdown", message);
            shared.shutdown.0.store(active, Ordering::Release);
            self.tell.notify_one();
            if active {
                self.end_pods().await;
                // The machine goes on with its shutdown.
                lock = None;
            } else if lock.is_none() {
                lock = logind
                    .inhibit()
                    .await
                    .inspect_err(|error| tracing::warn!(%error, "failed to delay the next shutdown"))
                    .ok();
            }
        }
    }

    async fn end_pods(&self) {
        let shared = &self.workers.shared;
        let mut state = LastShutdown { start_time: Some(shared.env.now()), end_time: None };
        self.keep(&state);
        let mut pods = shared.pods.list();
        pods.retain(|pod| occupies(pod));
        for group in self.periods.groups(&pods) {
            self.end_group(&group).await;
        }
        state.end_time = Some(shared.env.now());
        self.keep(&state);
    }

    /// Until all of the group have ended, or its time has.
    async fn end_group(&self, group: &ShutdownGroup) {
        let ends = group.pods.iter().map(|pod| {
            self.end_pod(pod, grace_period_seconds(pod, &group.period));
            self.workers.wait_terminated(pod_spec::uid(pod))
        });
        let limit = Duration::from_secs(group.period.grace_period_seconds.max(0) as u64);
        if self.workers.shared.env.timeout(limit, join_all(ends)).await.is_none() {
            tracing::warn!(priority = group.period.priority, ?limit, "pods did not end in time for the shutdown");
        }
    }

    fn end_pod(&self, pod: &Pod, grace_period_seconds: i64) {
        tracing::info!(pod = pod_spec::display(pod), grace_period_seconds, "ending a pod for the node's shutdown");
        let eviction = Eviction {
            reason: REASON.into(),
            message: MESSAGE.into(),
            disruption_message: Some(MESSAGE.into()),
            grace_period_seconds,
        };
        self.workers.evict(pod_spec::uid(pod), eviction);
    }

    fn keep(&self, state: &LastShutdown) {
        let shared = &self.workers.shared;
        self.show(state);
        let saved = serde_json::to_vec(state).map_err(std::io::Error::from);
        let file = shared.config.root_dir.join(STATE_FILE);
        if let Err(error) = saved.and_then(|bytes| save(&file, &bytes)) {
            tracing::warn!(%error, "failed to keep when the node was shut down");
        }
    }

    fn show(&self, state: &LastShutdown) {
        let seconds = |time: Option<Timestamp>| time.map_or(0.0, |time| time.as_second() as f64);
        let metrics = &self.workers.shared.metrics;
        metrics.set(&GRACEFUL_SHUTDOWN_START, &[], seconds(state.start_time));
        metrics.set(&GRACEFUL_SHUTDOWN_END, &[], seconds(state.end_time));
    }

    fn show_last(&self) {
        let Ok(bytes) = std::fs::read(self.workers.shared.config.root_dir.join(STATE_FILE)) else { return };
        match serde_json::from_slice(&bytes) {
            Ok(state) => self.show(&state),
            Err(error) => tracing::warn!(%error, "failed to read when the node was last shut down"),
        }
    }
}

fn save(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(new, file)
}
