//! Reports pod statuses to the API server: only what changed, in order, never an older one after a newer one.
//! Fed by `pod_workers`; the only writer of pod status on this node.
//! Invariant: at most one request per pod is under way; a failed one is tried again with the newest status.

mod patch;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, Patch};
use env::Env;
use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use metrics::Metrics;
use parking_lot::Mutex;

use crate::{
    node::node_metrics::STATUS_DURATION,
    pod::{pod_manager::PodManager, pod_spec},
};

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

struct Entry {
    pod: Arc<Pod>,
    desired: PodStatus,
    /// Grows with every change of `desired`.
    version: u64,
    sent_version: u64,
    /// What the API server had when it last answered.
    known: Option<PodStatus>,
    /// The version of the object in that answer.
    known_revision: u64,
    /// Held while a request is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

pub struct StatusManager {
    client: Client,
    env: Env,
    pods: Arc<PodManager>,
    metrics: Metrics,
    entries: Mutex<HashMap<String, Entry>>,
}

impl StatusManager {
    pub fn new(client: Client, env: Env, pods: Arc<PodManager>, metrics: Metrics) -> Self {
        Self { client, env, pods, metrics, entries: Mutex::default() }
    }

    /// The newest status of the pod, whether it was sent or not.
    pub fn get(&self, uid: &str) -> Option<PodStatus> {
        self.entries.lock().get(uid).map(|entry| entry.desired.clone())
    }

    /// Takes a new status; it is sent at once in the background. True when it differs from the last one.
    pub fn set(self: &Arc<Self>, pod: &Arc<Pod>, status: PodStatus) -> bool {
        let uid = pod_spec::uid(pod).to_string();
        {
            let mut entries = self.entries.lock();
            let entry = entries.entry(uid.clone()).or_insert_with(|| Entry {
                pod: pod.clone(),
                desired: PodStatus::default(),
                version: 0,
                sent_version: 0,
                known: None,
                known_revision: 0,
                turn: Arc::default(),
            });
            entry.pod = pod.clone();
            if entry.version > 0 && entry.desired == status {
                return false;
            }
            entry.desired = status;
            entry.version += 1;
        }
        let manager = self.clone();
        self.env.spawn(async move { manager.send(&uid).await });
        true
    }

    /// The API server's copy changed: when it no longer shows what we said, it is said again.
    pub fn observe(self: &Arc<Self>, pod: &Arc<Pod>) {
        let uid = pod_spec::uid(pod).to_string();
        let differs = {
            let mut entries = self.entries.lock();
            let Some(entry) = entries.get_mut(&uid) else { return };
            entry.pod = pod.clone();
            if entry.sent_version < entry.version || entry.turn.try_lock().is_err() {
                return;
            }
            let theirs = pod.status.clone().unwrap_or_default();
            let differs = patch::status_patch(&theirs, &entry.desired).is_some();
            // An informer lags behind our own writes: what we know from the answer is newer.
            let differs = differs && revision(pod) >= entry.known_revision;
            if differs {
                entry.known = Some(theirs);
                entry.version += 1;
            }
            differs
        };
        if differs {
            let manager = self.clone();
            self.env.spawn(async move { manager.send(&uid).await });
        }
    }

    pub fn forget(&self, uid: &str) {
        self.entries.lock().remove(uid);
    }

    /// Sends until what was sent is the newest.
    async fn send(&self, uid: &str) {
        let Some(turn) = self.entries.lock().get(uid).map(|entry| entry.turn.clone()) else { return };
        let _turn = turn.lock().await;
        let mut delay = FIRST_RETRY;
        loop {
            let (pod, desired, version, known) = match self.entries.lock().get(uid) {
                Some(entry) if entry.sent_version < entry.version => {
                    (entry.pod.clone(), entry.desired.clone(), entry.version, entry.known.clone())
                }
                _ => return,
            };
            match self.send_once(&pod, &desired, known).await {
                Ok(answer) => {
                    if let Some(entry) = self.entries.lock().get_mut(uid) {
                        entry.sent_version = entry.sent_version.max(version);
                        if let Some(answer) = answer {
                            entry.known_revision = revision(&answer);
                            entry.known = answer.status;
                        }
                    }
                }
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    tracing::debug!(pod = pod_spec::display(&pod), %error, "the pod is gone; its status is not sent");
                    if let Some(entry) = self.entries.lock().get_mut(uid) {
                        entry.sent_version = entry.sent_version.max(version);
                    }
                }
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to send a pod's status");
                    self.env.sleep(delay).await;
                    delay = (delay * 2).min(LONGEST_RETRY);
                }
            }
        }
    }

    /// `None` when there was nothing to send.
    async fn send_once(
        &self,
        pod: &Pod,
        desired: &PodStatus,
        known: Option<PodStatus>,
    ) -> Result<Option<Pod>, ApiError> {
        let mirror;
        let target: &Pod = if pod_spec::is_static(pod) {
            match self.pods.mirror(pod_spec::namespace(pod), pod_spec::name(pod)) {
                // One that ends says nothing about the pod that takes its name.
                Some(found) if pod_spec::is_mirror_of(&found, pod) => {
                    mirror = found;
                    &mirror
                }
                // It is sent when the mirror appears.
                _ => return Ok(None),
            }
        } else {
            pod
        };
        let known = known.or_else(|| target.status.clone()).unwrap_or_default();
        let Some(status) = patch::status_patch(&known, desired) else { return Ok(None) };
        let body = serde_json::json!({"metadata": {"uid": target.metadata.uid}, "status": status});
        let began = self.env.monotonic();
        let answer = self
            .client
            .namespaced::<Pod>(pod_spec::namespace(target))
            .patch_status(pod_spec::name(target), &Patch::Strategic(body))
            .await?;
        self.metrics.observe(&STATUS_DURATION, &[], (self.env.monotonic() - began).as_secs_f64());
        Ok(Some(answer))
    }

    /// Waits until the newest status was sent, then removes the object: the node has nothing of the pod any more.
    pub async fn finalize(&self, pod: &Pod) -> Result<(), ApiError> {
        self.send(pod_spec::uid(pod)).await;
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..Default::default()
        };
        match self.client.namespaced::<Pod>(pod_spec::namespace(pod)).delete(pod_spec::name(pod), &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Zero for a pod that the API server does not know.
fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
