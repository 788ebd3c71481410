//! Reports pod statuses to the API server: only what changed, in order, never an older one after a newer one.
//! Fed by `pod_workers`; the only writer of pod status on this node.
//! Each pod has at most one sender, a task that ends when the newest status was sent; a failed request is tried again
//! with the newest status.

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
use tokio::sync::watch;

use crate::{
    node::node_metrics::STATUS_DURATION,
    pod::{pod_manager::PodManager, pod_spec},
};

const RETRY_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

struct Entry {
    /// Tells the entries of one UID apart: a static pod that comes back has the same.
    id: u64,
    pod: Arc<Pod>,
    desired: PodStatus,
    /// Grows with every change of `desired`.
    version: u64,
    sent_version: u64,
    /// What the API server had when it last answered.
    known: Option<PodStatus>,
    /// The version of the object in that answer.
    known_revision: u64,
    /// A task sends this pod's status until the newest was sent. There is one whenever `sent_version` is behind.
    sending: watch::Sender<bool>,
}

impl Entry {
    fn new(id: u64, pod: Arc<Pod>) -> Self {
        Self {
            id,
            pod,
            desired: PodStatus::default(),
            version: 0,
            sent_version: 0,
            known: None,
            known_revision: 0,
            sending: watch::Sender::new(false),
        }
    }

    fn is_behind(&self) -> bool {
        self.sent_version < self.version
    }
}

/// One version of a pod's status, to be sent.
struct Update {
    pod: Arc<Pod>,
    desired: PodStatus,
    version: u64,
    known: Option<PodStatus>,
}

#[derive(Default)]
struct Entries {
    last_id: u64,
    by_uid: HashMap<String, Entry>,
}

impl Entries {
    /// The entry that a sender was started for, unless it was forgotten meanwhile.
    fn get_mut(&mut self, uid: &str, id: u64) -> Option<&mut Entry> {
        self.by_uid.get_mut(uid).filter(|entry| entry.id == id)
    }
}

pub struct StatusManager {
    client: Client,
    env: Env,
    pods: Arc<PodManager>,
    metrics: Metrics,
    entries: Mutex<Entries>,
}

impl StatusManager {
    pub fn new(client: Client, env: Env, pods: Arc<PodManager>, metrics: Metrics) -> Self {
        Self { client, env, pods, metrics, entries: Mutex::default() }
    }

    /// The newest status of the pod, whether it was sent or not.
    pub fn get(&self, uid: &str) -> Option<PodStatus> {
        self.entries.lock().by_uid.get(uid).map(|entry| entry.desired.clone())
    }

    /// Takes a new status; it is sent at once in the background. True when it differs from the last one.
    pub fn set(self: &Arc<Self>, pod: &Arc<Pod>, status: PodStatus) -> bool {
        let uid = pod_spec::uid(pod);
        let mut entries = self.entries.lock();
        let Entries { last_id, by_uid } = &mut *entries;
        let entry = by_uid.entry(uid.to_string()).or_insert_with(|| {
            *last_id += 1;
            Entry::new(*last_id, pod.clone())
        });
        entry.pod = pod.clone();
        if entry.version > 0 && entry.desired == status {
            return false;
        }
        entry.desired = status;
        entry.version += 1;
        self.start_sending(uid, entry);
        true
    }

    /// The API server's copy changed: when it no longer shows the newest status, that is sent again.
    pub fn observe(self: &Arc<Self>, pod: &Arc<Pod>) {
        let uid = pod_spec::uid(pod);
        let mut entries = self.entries.lock();
        let Some(entry) = entries.by_uid.get_mut(uid) else { return };
        entry.pod = pod.clone();
        if *entry.sending.borrow() {
            return;
        }
        let theirs = pod.status.clone().unwrap_or_default();
        // An informer lags behind our own writes: what we know from the answer is newer.
        let is_older = revision(pod) < entry.known_revision;
        if is_older || patch::status_patch(&theirs, &entry.desired).is_none() {
            return;
        }
        entry.known = Some(theirs);
        entry.version += 1;
        self.start_sending(uid, entry);
    }

    pub fn forget(&self, uid: &str) {
        self.entries.lock().by_uid.remove(uid);
    }

    /// Starts a task that sends the pod's status, unless there is one.
    fn start_sending(self: &Arc<Self>, uid: &str, entry: &Entry) {
        if entry.sending.send_replace(true) {
            return;
        }
        let (manager, uid, id) = (self.clone(), uid.to_string(), entry.id);
        self.env.spawn(async move { manager.send(&uid, id).await });
    }

    /// Sends until the newest status was sent.
    async fn send(&self, uid: &str, id: u64) {
        let mut backoff = RETRY_BACKOFF;
        while let Some(Update { pod, desired, version, known }) = self.next_update(uid, id) {
            match self.send_once(&pod, &desired, known).await {
                Ok(answer) => {
                    if let Some(entry) = self.entries.lock().get_mut(uid, id) {
                        entry.sent_version = version;
                        if let Some(answer) = answer {
                            entry.known_revision = revision(&answer);
                            entry.known = answer.status;
                        }
                    }
                }
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    tracing::debug!(pod = pod_spec::display(&pod), %error, "the pod is gone; its status is not sent");
                    if let Some(entry) = self.entries.lock().get_mut(uid, id) {
                        entry.sent_version = version;
                    }
                }
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to send a pod's status");
                    self.env.sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// What a sender sends next. `None` ends it: the newest status was sent, or the pod was forgotten.
    fn next_update(&self, uid: &str, id: u64) -> Option<Update> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(uid, id)?;
        if !entry.is_behind() {
            entry.sending.send_replace(false);
            return None;
        }
        let (pod, desired, known) = (entry.pod.clone(), entry.desired.clone(), entry.known.clone());
        Some(Update { pod, desired, version: entry.version, known })
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
        let sending = self.entries.lock().by_uid.get(pod_spec::uid(pod)).map(|entry| entry.sending.subscribe());
        if let Some(mut sending) = sending {
            // An error says that the entry was forgotten, and nothing of it is sent.
            let _ = sending.wait_for(|sending| !sending).await;
        }
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

#[cfg(test)]
mod tests;
