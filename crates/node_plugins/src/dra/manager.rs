//! Has drivers prepare the claims of a pod before it starts, and unprepare them after it ended.
//! Used by the kubelet's pod workers; `claim_info` is what it knows, `drivers` whom it asks.
//! What is about to be prepared is on disk before a driver is asked, so that a restart in between is made good: drivers
//! may be asked the same twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use api::{ApiError, resource_claims::ClaimName};
use client::Client;
use env::Env;
use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::{Container, Pod, ResourceHealth, ResourceStatus},
    resource::v1::ResourceClaim,
};
use metrics::Metrics;
use parking_lot::Mutex;
use tonic::Code;

use super::{
    checkpoint,
    claim_info::{ClaimInfo, ClaimInfoCache, OldClaim, batches, key},
    drivers::{DraDrivers, DriverHealth, NotRegistered, WIPING_DELAY},
    messages::{
        Claim, Device, NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
        NodeUnprepareResourcesResponse,
    },
    pod_claims::{self, PodClaimError, container_claims, pod_claims},
    turns::ClaimTurns,
};
use crate::{
    HealthListener,
    checkpoint_file::CheckpointFile,
    grpc::{RpcError, code_name},
    plugin_metrics::{DRA_CLAIMS_IN_USE, DRA_GRPC_OPERATIONS_DURATION, DRA_OPERATIONS_DURATION},
    pod_resources::messages::{CdiDevice, ClaimResource, DynamicResource},
};

/// As upstream's.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug, thiserror::Error)]
pub enum DraError {
    #[error(transparent)]
    Pod(#[from] PodClaimError),
    #[error("fetch ResourceClaim {name}: {error}")]
    Fetch { name: String, error: ApiError },
    #[error(transparent)]
    Driver(#[from] NotRegistered),
    #[error(transparent)]
    Old(#[from] OldClaim),
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(std::io::Error),
    #[error("{call}: {error}")]
    Call { call: &'static str, error: RpcError },
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownClaim { call: &'static str, uid: String },
    #[error("{call} failed for ResourceClaim {claim}: {message}")]
    Refused { call: &'static str, claim: String, message: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: &'static str, count: usize },
    #[error("internal error: unable to get claim info for ResourceClaim {0}")]
    Unknown(String),
}

pub struct DraManager {
    client: Client,
    env: Env,
    metrics: Metrics,
    file: CheckpointFile,
    claims: Arc<Mutex<ClaimInfoCache>>,
    turns: ClaimTurns,
    drivers: Arc<DraDrivers>,
    health: Option<Arc<DriverHealth>>,
    call_timeout: Duration,
}

impl DraManager {
    /// Reads what was prepared before a restart. With `listener`, drivers are asked how their devices are.
    pub fn open(
        client: Client,
        env: Env,
        metrics: Metrics,
        root_dir: &Path,
        node_name: &str,
        listener: Option<HealthListener>,
    ) -> Self {
        let file = CheckpointFile::new(root_dir.join(checkpoint::FILE_NAME));
        let claims = read(&file).unwrap_or_else(|error| {
            tracing::error!(
                error,
                "continuing without the checkpoint of claims: those of running pods are prepared anew"
            );
            ClaimInfoCache::default()
        });
        let claims = Arc::new(Mutex::new(claims));
        let health = listener.map(|listener| Arc::new(DriverHealth::new(claims.clone(), listener)));
        let drivers = DraDrivers::new(client.clone(), env.clone(), node_name, WIPING_DELAY, health.clone());
        let (turns, call_timeout) = (ClaimTurns::default(), CALL_TIMEOUT);
        Self { client, env, metrics, file, claims, turns, drivers, health, call_timeout }
    }

    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    pub fn drivers(&self) -> &Arc<DraDrivers> {
        &self.drivers
    }

    /// Prepares all claims of a pod. Those of a pod whose sandbox is there were prepared before it was made.
    pub async fn prepare(&self, pod: &Pod, is_new_sandbox: bool) -> Result<(), DraError> {
        let named = pod_claims(pod)?;
        if named.is_empty() {
            return Ok(());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if !is_new_sandbox {
            let claims = self.claims.lock();
            let is_known = |name: &str| {
                claims.get(namespace, name).is_some_and(|info| info.pod_uids.contains(pod_claims::uid(pod)))
            };
            if named.iter().all(|(_, claim)| is_known(claim.name)) {
                return Ok(());
            }
        }
        let began = self.env.monotonic();
        let prepared = self.prepare_claims(pod, namespace, &named).await;
        self.observe("PrepareResources", began, prepared.is_err());
        prepared
    }

    async fn prepare_claims(
        &self,
        pod: &Pod,
        namespace: &str,
        named: &[(&str, ClaimName<'_>)],
    ) -> Result<(), DraError> {
        let mut wanted = BTreeMap::<String, ClaimInfo>::new();
        // Nothing is noted before everything is there: a pod that can't start can be deleted all the same.
        for (_, claim) in named {
            let found = self.client.namespaced::<ResourceClaim>(namespace).get(claim.name).await;
            let found = found.map_err(|error| DraError::Fetch { name: claim.name.into(), error })?;
            let info = pod_claims::check(pod, &found, claim.is_generated)?;
            for driver in info.drivers.keys() {
                self.drivers.get(driver)?;
            }
            wanted.insert(info.key(), info);
        }
        let _turn = self.turns.enter(wanted.keys().cloned().collect()).await;
        let wanted: Vec<ClaimInfo> = wanted.into_values().collect();
        let unprepared: Vec<&ClaimInfo> = {
            let mut claims = self.claims.lock();
            claims.add_pod(pod_claims::uid(pod), &wanted)?;
            let is_prepared = |info: &&ClaimInfo| claims.0.get(&info.key()).is_some_and(|known| known.is_prepared);
            wanted.iter().filter(|info| !is_prepared(info)).collect()
        };
        self.write().await?;
        if unprepared.is_empty() {
            return Ok(());
        }
        let asked = batches(unprepared.iter().copied());
        let answers = join_all(asked.iter().map(|(driver, claims)| self.node_prepare(driver, claims))).await;
        let answers = asked.keys().zip(answers).map(|(driver, answer)| Ok((driver, answer?)));
        let answers: Vec<(&String, BTreeMap<String, Vec<Device>>)> = answers.collect::<Result<_, DraError>>()?;
        {
            let mut claims = self.claims.lock();
            for info in unprepared {
                let Some(known) = claims.0.get_mut(&info.key()) else {
                    return Err(DraError::Unknown(info.name.clone()));
                };
                for (driver, devices) in &answers {
                    if let Some(devices) = devices.get(&info.uid) {
                        known.drivers.insert((*driver).clone(), devices.clone());
                    }
                }
                known.is_prepared = true;
            }
        }
        self.write().await
    }

    /// What the driver prepared, by the claims' UIDs.
    async fn node_prepare(&self, driver: &str, claims: &[Claim]) -> Result<BTreeMap<String, Vec<Device>>, DraError> {
        const CALL: &str = "NodePrepareResources";
        let request = NodePrepareResourcesRequest { claims: claims.to_vec() };
        let client = self.drivers.get(driver)?;
        let began = self.env.monotonic();
        let answer: Result<NodePrepareResourcesResponse, RpcError> =
            client.channel.call(client.service.prepare, request, self.call_timeout).await;
        self.observe_call(driver, client.service.prepare, began, &answer);
        let answer = answer.map_err(|error| DraError::Call { call: CALL, error })?.claims;
        check(CALL, claims, answer.iter().map(|(uid, result)| (uid.as_str(), result.error.as_str())))?;
        Ok(answer.into_iter().map(|(uid, result)| (uid, result.devices)).collect())
    }

    async fn node_unprepare(&self, driver: &str, claims: &[Claim]) -> Result<(), DraError> {
        const CALL: &str = "NodeUnprepareResources";
        let request = NodeUnprepareResourcesRequest { claims: claims.to_vec() };
        let client = self.drivers.get(driver)?;
        let began = self.env.monotonic();
        let answer: Result<NodeUnprepareResourcesResponse, RpcError> =
            client.channel.call(client.service.unprepare, request, self.call_timeout).await;
        self.observe_call(driver, client.service.unprepare, began, &answer);
        let answer = answer.map_err(|error| DraError::Call { call: CALL, error })?.claims;
        check(CALL, claims, answer.iter().map(|(uid, result)| (uid.as_str(), result.error.as_str())))
    }

    /// Nothing of the pod runs any more. Done once no driver has anything for it.
    pub async fn unprepare(&self, pod_uid: &str) -> Result<(), DraError> {
        let keys: BTreeSet<String> = self.claims.lock().of_pod(pod_uid).map(ClaimInfo::key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let began = self.env.monotonic();
        let _turn = self.turns.enter(keys).await;
        let last = self.claims.lock().release_shared(pod_uid);
        let unprepared = self.unprepare_claims(&last).await;
        self.observe("UnprepareResources", began, unprepared.is_err());
        unprepared
    }

    async fn unprepare_claims(&self, last: &[ClaimInfo]) -> Result<(), DraError> {
        let asked = batches(last.iter());
        let answers = join_all(asked.iter().map(|(driver, claims)| self.node_unprepare(driver, claims))).await;
        answers.into_iter().collect::<Result<(), DraError>>()?;
        {
            let mut claims = self.claims.lock();
            last.iter().for_each(|info| drop(claims.0.remove(&info.key())));
        }
        self.write().await
    }

    /// For pods that ended while nobody looked. False when it has to be tried again.
    pub async fn unprepare_unknown(&self, is_known: impl Fn(&str) -> bool) -> bool {
        let unknown: Vec<String> = self.claims.lock().pod_uids().into_iter().filter(|uid| !is_known(uid)).collect();
        let mut done = true;
        for uid in unknown {
            if let Err(error) = self.unprepare(&uid).await {
                tracing::warn!(pod = uid, %error, "failed to unprepare claims of a pod that has gone");
                done = false;
            }
        }
        done
    }

    /// The CDI devices of a container.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, DraError> {
        let mut devices = Vec::new();
        self.for_each_claim(pod, container, |info, request| {
            devices.extend(info.cdi_devices(request).map(String::from));
        })?;
        Ok(devices)
    }

    /// What monitors are told of a container's claims.
    pub fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let mut resources = Vec::new();
        let shown = self.for_each_claim(pod, container, |info, _| {
            let devices = info.drivers.iter().flat_map(|(driver, devices)| devices.iter().map(move |d| (driver, d)));
            let claim_resources = devices.map(|(driver, device)| ClaimResource {
                cdi_devices: device.cdi_device_ids.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
                driver_name: driver.clone(),
                pool_name: device.pool_name.clone(),
                device_name: device.device_name.clone(),
                share_id: device.share_id.clone(),
            });
            resources.push(DynamicResource {
                claim_name: info.name.clone(),
                claim_namespace: info.namespace.clone(),
                claim_resources: claim_resources.collect(),
            });
        });
        if let Err(error) = shown {
            tracing::debug!(%error, "claims of a pod that is not prepared");
        }
        resources
    }

    /// How the devices of a container's claims are; nothing where drivers are not asked.
    pub fn resource_health(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let Some(health) = &self.health else { return Vec::new() };
        let (mut statuses, now) = (BTreeMap::<String, Vec<ResourceHealth>>::new(), self.env.monotonic());
        let shown = self.for_each_named_claim(pod, container, |name, info, request| {
            let name = request.map_or(format!("claim:{name}"), |request| format!("claim:{name}/{request}"));
            let devices = info.devices(request).map(|(driver, device)| {
                let Device { pool_name, device_name, cdi_device_ids, .. } = device;
                let own = || format!("{driver}/{pool_name}/{device_name}");
                let found = health.get(driver, pool_name, device_name, now);
                ResourceHealth {
                    health: Some(found.as_str().into()),
                    resource_id: cdi_device_ids.first().cloned().unwrap_or_else(own),
                }
            });
            statuses.entry(name).or_default().extend(devices);
        });
        if let Err(error) = shown {
            tracing::debug!(%error, "claims of a pod that is not prepared");
        }
        let status = |(name, devices): (String, Vec<_>)| ResourceStatus { name, resources: Some(devices) };
        statuses.into_iter().filter(|(_, devices)| !devices.is_empty()).map(status).collect()
    }

    fn for_each_claim(
        &self,
        pod: &Pod,
        container: &Container,
        mut visit: impl FnMut(&ClaimInfo, Option<&str>),
    ) -> Result<(), DraError> {
        self.for_each_named_claim(pod, container, |_, info, request| visit(info, request))
    }

    /// With the name that the pod has for each.
    fn for_each_named_claim(
        &self,
        pod: &Pod,
        container: &Container,
        mut visit: impl FnMut(&str, &ClaimInfo, Option<&str>),
    ) -> Result<(), DraError> {
        if container_claims(container).next().is_none() {
            return Ok(());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims = self.claims.lock();
        for (pod_name, claim) in pod_claims(pod)? {
            for (_, request) in container_claims(container).filter(|(name, _)| *name == pod_name) {
                let info = claims.0.get(&key(namespace, claim.name));
                visit(pod_name, info.ok_or_else(|| DraError::Unknown(claim.name.into()))?, request);
            }
        }
        Ok(())
    }

    async fn write(&self) -> Result<(), DraError> {
        let in_use = self.claims.lock().claims_in_use();
        self.metrics.retain(&DRA_CLAIMS_IN_USE, |labels| labels.iter().all(|name| in_use.contains_key(&**name)));
        for (driver, count) in in_use {
            self.metrics.set(&DRA_CLAIMS_IN_USE, &[&driver], count as f64);
        }
        let claims = self.claims.clone();
        let written = self.file.write(move || {
            let claims = claims.lock().clone();
            checkpoint::encode(&claims)
        });
        written.await.map_err(DraError::Checkpoint)
    }

    fn observe(&self, operation: &str, began: Duration, is_error: bool) {
        let took = (self.env.monotonic() - began).as_secs_f64();
        self.metrics.observe(&DRA_OPERATIONS_DURATION, &[operation, &is_error.to_string()], took);
    }

    fn observe_call<T>(&self, driver: &str, method: &str, began: Duration, answer: &Result<T, RpcError>) {
        let code = answer.as_ref().err().map_or(Code::Ok, |error| error.code);
        let shown = code_name(&code);
        let took = (self.env.monotonic() - began).as_secs_f64();
        self.metrics.observe(&DRA_GRPC_OPERATIONS_DURATION, &[driver, method, &shown], took);
    }
}

/// Whether a driver did all that it was asked, and nothing else.
fn check<'a>(
    call: &'static str,
    claims: &[Claim],
    results: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), DraError> {
    let count = claims.len().saturating_sub(results.len());
    for (uid, error) in results {
        let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
            return Err(DraError::UnknownClaim { call, uid: uid.into() });
        };
        if !error.is_empty() {
            return Err(DraError::Refused { call, claim: claim.name.clone(), message: error.into() });
        }
    }
    if count > 0 { Err(DraError::Skipped { call, count }) } else { Ok(()) }
}

fn read(file: &CheckpointFile) -> Result<ClaimInfoCache, String> {
    match file.read().map_err(|error| error.to_string())? {
        Some(text) => checkpoint::decode(&text).map_err(|error| error.to_string()),
        None => Ok(ClaimInfoCache::default()),
    }
}
