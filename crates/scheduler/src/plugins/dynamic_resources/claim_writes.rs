//! What PreBind writes into claims: finalizer, allocation and reservation; and how far that has come.
//! Made at Reserve, carried out in the binding cycle, asked about by `devices` and at Unreserve.
//! Between a write and the news of it, the version that was written stands for it; a write whose answer was lost is
//! looked up before anything is said about it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    ApiError,
    resource_claims::{FINALIZER, consumer},
};
use client::{Api, Client, Patch};
use env::Env;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use parking_lot::Mutex;
use serde_json::json;

use super::devices::{allocation, uid};
use crate::pod_info::PodInfo;

/// Upstream's retries after a conflict.
const RETRIES_MAX: usize = 5;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Between questions about a write whose answer was lost.
const LOOKUP_INTERVAL_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    is_running: bool,
    is_given_up: bool,
    /// The version that a claim got, by its uid.
    written: HashMap<String, u64>,
}

/// How far the writes of one pod have come. Shared by the binding cycle and the scheduler.
#[derive(Clone, Default)]
pub struct ClaimWrites(Arc<Mutex<State>>);

impl ClaimWrites {
    /// The version of the claim since which it has its allocation.
    pub fn version(&self, uid: &str) -> Option<u64> {
        self.0.lock().written.get(uid).copied()
    }

    /// Nobody wants them any more, and none is on its way.
    pub fn is_given_up(&self) -> bool {
        let state = self.0.lock();
        state.is_given_up && !state.is_running
    }

    /// Nothing more is written.
    pub fn give_up(&self) {
        self.0.lock().is_given_up = true;
    }

    fn begin(&self) -> Result<(), String> {
        let mut state = self.0.lock();
        if state.is_given_up {
            return Err("the pod is gone".into());
        }
        state.is_running = true;
        Ok(())
    }

    /// The claim as it was written.
    pub fn note(&self, claim: &ResourceClaim) {
        let version = claim.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        self.0.lock().written.insert(uid(claim).to_string(), version.unwrap_or(0));
    }

    /// Gives each claim its allocation, where one was decided, and reserves it for the pod.
    pub async fn send(
        &self,
        client: &Client,
        env: &Env,
        pod: &PodInfo,
        claims: &[(Arc<ResourceClaim>, Option<Arc<AllocationResult>>)],
    ) -> Result<(), String> {
        self.begin()?;
        let mut result = Ok(());
        for (claim, allocation) in claims {
            if self.0.lock().is_given_up {
                result = Err("the pod is gone".into());
                break;
            }
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let key = format!("{}/{name}", pod.namespace());
            let api = client.namespaced::<ResourceClaim>(pod.namespace());
            let write = ClaimWrite { api, name, key, pod, allocation: allocation.as_deref(), env };
            match write.send(claim).await {
                Ok(written) => self.note(&written),
                Err(why) => {
                    result = Err(why);
                    break;
                }
            }
        }
        self.0.lock().is_running = false;
        result
    }
}

struct ClaimWrite<'a> {
    api: Api<ResourceClaim>,
    name: &'a str,
    key: String,
    pod: &'a PodInfo,
    allocation: Option<&'a AllocationResult>,
    env: &'a Env,
}

impl ClaimWrite<'_> {
    async fn send(&self, claim: &ResourceClaim) -> Result<ResourceClaim, String> {
        let mut claim = claim.clone();
        for tried in 0.. {
            match self.attempt(claim).await {
                Ok(written) => return Ok(written),
                Err((_, error)) if error.is_conflict() && tried < RETRIES_MAX => {}
                Err((attempt, error)) => return Err(format!("{attempt} claim {}: {}", self.key, error.message)),
            }
            self.env.sleep(RETRY_INTERVAL).await;
            let found = self.api.get(self.name).await;
            claim = found.map_err(|e| format!("get updated claim {} after conflict: {}", self.key, e.message))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("claim {} got deleted in the meantime", self.key));
            }
            if self.allocation.is_some() && allocation(&claim).is_some() {
                return Err(format!("claim {} got allocated elsewhere in the meantime", self.key));
            }
        }
        Err(format!("claim {} keeps changing", self.key))
    }

    /// The finalizer is written by itself, before the allocation: it is no part of the status.
    async fn attempt(&self, mut claim: ResourceClaim) -> Result<ResourceClaim, (&'static str, ApiError)> {
        if let Some(allocation) = self.allocation {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.into());
                let written = self.api.replace(self.name, &claim).await;
                claim = written.map_err(|error| ("add finalizer to", error))?;
            }
            claim.status.get_or_insert_default().allocation = Some(allocation.clone());
        }
        let reserved = claim.status.get_or_insert_default().reserved_for.get_or_insert_default();
        reserved.push(consumer(self.pod.name(), self.pod.uid()));
        let attempt =
            if self.allocation.is_some() { "add allocation and reservation to" } else { "add reservation to" };
        match self.api.replace_status(self.name, &claim).await {
            Ok(written) => Ok(written),
            // Refused, so nothing was written.
            Err(error) if error.code < 500 => Err((attempt, error)),
            Err(error) => self.look_up(&claim).await.ok_or((attempt, error)),
        }
    }

    /// Whether a write arrived whose answer did not. Without an answer nobody may have those devices, so it is asked for
    /// until there is one.
    async fn look_up(&self, wanted: &ResourceClaim) -> Option<ResourceClaim> {
        let backoff = env::Backoff::new(RETRY_INTERVAL, LOOKUP_INTERVAL_MAX);
        for tried in 1.. {
            if let Ok(found) = self.api.find(self.name).await {
                let status = |claim: &ResourceClaim| claim.status.clone();
                return found.filter(|found| status(found) == status(wanted) && uid(found) == uid(wanted));
            }
            self.env.sleep(backoff.delay_after(tried)).await;
        }
        None
    }
}

/// Takes the reservation of a pod back that does not get to its node.
pub async fn unreserve(client: Client, namespace: String, claim: String, claim_uid: String, pod_uid: String) {
    let patch = json!({ "metadata": { "uid": claim_uid },
        "status": { "reservedFor": [{ "$patch": "delete", "uid": pod_uid }] } });
    let api = client.namespaced::<ResourceClaim>(&namespace);
    if let Err(error) = api.patch_status(&claim, &Patch::Strategic(patch)).await
        && !error.is_not_found()
    {
        // The next attempt finds the claim reserved for the pod, which does no harm.
        tracing::warn!(claim = format!("{namespace}/{claim}"), %error, "couldn't take a reservation back");
    }
}

/// Takes the devices of a claim back that no pod uses, so that it can have others.
pub async fn deallocate(client: Client, claim: Arc<ResourceClaim>) -> Result<(), ApiError> {
    let mut claim = (*claim).clone();
    if let Some(status) = &mut claim.status {
        (status.allocation, status.reserved_for, status.devices) = (None, None, None);
    }
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let name = claim.metadata.name.clone().unwrap_or_default();
    client.namespaced::<ResourceClaim>(&namespace).replace_status(&name, &claim).await.map(drop)
}
