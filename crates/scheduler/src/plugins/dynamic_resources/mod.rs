//! A pod's ResourceClaims must have devices that can be reached from its node. Where a claim has none yet, they are found
//! for the node, held at Reserve, and written into the claim before the pod is bound.
//! `devices` is what is known of devices and claims, `pod_claims` what a pod has, `claim_writes` the writes; which devices
//! will do, `device_allocation` says.
//! A pod without claims is not looked at.

mod claim_writes;
pub mod devices;
mod pod_claims;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{
    ApiError,
    field::{ErrorList, Path},
    resource_claims::{is_reserved_for, reserved_for},
};
use client::Client;
use device_allocation::{ALTERNATIVES_MAX, AllocationError, Allocator, ClaimRequests, NodeView};
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use parking_lot::Mutex;
use serde_json::Value;

use self::{
    claim_writes::ClaimWrites,
    devices::{Devices, allocation, uid},
    pod_claims::pod_claims,
};
use crate::{
    cluster::Cluster,
    config,
    equivalence_class::{PodSignature, Scope},
    framework::*,
    node_info::NodeInfo,
    node_selector::NodeTerms,
    pod_info::PendingPod,
};

pub const NAME: &str = "DynamicResources";

const ELSEWHERE: &str = "resourceclaim not available on the node";
const NOTHING_TO_DEALLOCATE: &str = "no new claims to deallocate";
const DEALLOCATED: &str = "deallocation of ResourceClaim completed";
const STILL_NOT: &str = "still not schedulable";

const FILTER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

pub struct DynamicResources {
    /// How long devices may be looked for, on all nodes together. Zero: as long as it takes.
    filter_timeout: Duration,
    /// Known from the first binding cycle on; before, there is no reservation to take back.
    outside: Mutex<Option<(Client, Env)>>,
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let plugin = DynamicResources {
        filter_timeout: arguments["filterTimeout"]
            .as_str()
            .map_or(Some(FILTER_TIMEOUT_DEFAULT), config::duration)
            .ok_or(format!("filterTimeout: {} is not a duration", arguments["filterTimeout"]))?,
        outside: Mutex::default(),
    };
    let plugin = Plugin::of(plugin).pre_enqueue().pre_filter().filter().post_filter().pre_score().score().reserve();
    Ok(plugin.pre_bind().enqueue_extensions().sign().build())
}

pub fn check_arguments(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    let timeout = &arguments["filterTimeout"];
    if !timeout.is_null() && timeout.as_str().and_then(config::duration).is_none() {
        errors.invalid(&path.child("filterTimeout"), timeout.clone(), "must be zero or positive");
    }
    if !arguments["bindingTimeout"].is_null() {
        let why = "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled";
        errors.forbidden(&path.child("bindingTimeout"), why);
    }
}

impl PreEnqueuePlugin for DynamicResources {
    fn pre_enqueue(&self, cluster: &Cluster, pod: &PendingPod) -> Result<(), Status> {
        if !pod.has_resource_claims {
            return Ok(());
        }
        pod_claims(&cluster.devices, pod).map(drop).map_err(Status::unresolvable)
    }
}

impl EnqueueExtensions for DynamicResources {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::ResourceClaim { was, now } => claim_change_helps(&cluster.devices, pod, was, now),
            ClusterEvent::ResourceSlice | ClusterEvent::DeviceClass => true,
            ClusterEvent::Node { change, .. } => change.added || change.labels || change.allocatable,
            // It was decided and given up: what it was to get is free again.
            ClusterEvent::PodGone(gone) => gone.has_resource_claims && gone.node_name().is_none(),
            _ => false,
        })
    }
}

fn claim_change_helps(
    devices: &Devices,
    pod: &PendingPod,
    was: &Option<Arc<ResourceClaim>>,
    now: &Option<Arc<ResourceClaim>>,
) -> bool {
    let Ok(claims) = pod_claims(devices, pod) else { return false };
    let has = |claim: &Option<Arc<ResourceClaim>>| claim.as_deref().and_then(allocation).is_some();
    if has(was) && !has(now) {
        return true;
    }
    let Some(now) = now else { return false };
    let is_own = claims.iter().any(|claim| uid(claim) == uid(now));
    is_own && was.as_ref().is_none_or(|was| was.status != now.status)
}

impl SignPlugin for DynamicResources {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.resource_claims();
    }

    /// While devices are looked for, what is wrong with a claim on one node is no verdict on that node alone.
    fn scope(&self, cluster: &Cluster, pod: &PendingPod) -> Scope {
        let has_all =
            || pod_claims(&cluster.devices, pod).is_ok_and(|claims| claims.iter().all(|c| allocation(c).is_some()));
        if !pod.has_resource_claims || has_all() { Scope::Node } else { Scope::Alone }
    }
}

/// A pod's claims, and what those ask for that have no devices yet.
struct PodClaims {
    claims: Vec<Arc<ResourceClaim>>,
    requests: Vec<ClaimRequests>,
}

impl PodClaims {
    fn new(devices: &Devices, pod: &PendingPod) -> Result<Self, Status> {
        let claims = pod_claims(devices, pod).map_err(Status::unresolvable)?;
        let mut requests = Vec::new();
        for claim in claims.iter().filter(|claim| allocation(claim).is_none()) {
            if devices.is_pending(claim) {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                let key = format!("{}/{name}", pod.namespace());
                let text = format!("resource claim {key} is in the process of being allocated");
                return Err(Status::unresolvable(text));
            }
            let class = |name: &str| devices.classes.get(name).cloned();
            let read = ClaimRequests::new(claim.clone(), class, &devices.selectors);
            requests.push(read.map_err(|why| Status::unresolvable(why.to_string()))?);
        }
        Ok(Self { claims, requests })
    }

    fn allocate(
        &self,
        devices: &Devices,
        node: &NodeInfo,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<AllocationResult>, Status> {
        if self.requests.is_empty() {
            return Ok(Vec::new());
        }
        let Devices { inventory, allocated, .. } = devices;
        let view = NodeView { name: &node.name, labels: node.labels() };
        Allocator { inventory, allocated, is_over }.allocate(view, &self.requests).map_err(|why| match why {
            AllocationError::Broken(text) => Status::error(text),
            other => Status::unresolvable(other.to_string()),
        })
    }
}

impl DynamicResources {
    /// Whether the time for looking is over, from now on.
    fn timer(&self) -> impl Fn() -> bool + use<> {
        let deadline = (!self.filter_timeout.is_zero()).then(|| env::instant_now() + self.filter_timeout);
        move || deadline.is_some_and(|deadline| env::instant_now() > deadline)
    }
}

impl PreFilterPlugin for DynamicResources {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        if !pod.has_resource_claims {
            return PreFilterResult::Skip;
        }
        match PodClaims::new(&cluster.devices, pod) {
            Ok(found) if found.claims.is_empty() => PreFilterResult::Skip,
            Ok(_) => PreFilterResult::AllNodes,
            Err(status) => PreFilterResult::Reject(status),
        }
    }
}

/// Where the devices of a claim are that has them already.
fn places(claim: &ResourceClaim) -> Option<NodeTerms> {
    allocation(claim)?.node_selector.as_ref().map(NodeTerms::new)
}

struct DeviceFilter<'a> {
    cluster: &'a Cluster,
    claims: Result<Arc<PodClaims>, Status>,
    places: Vec<NodeTerms>,
    is_over: Arc<dyn Fn() -> bool>,
}

impl FilterPlugin for DynamicResources {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let claims = PodClaims::new(&cluster.devices, pod).map(Arc::new);
        let places = claims.iter().flat_map(|found| &found.claims).filter_map(|claim| places(claim)).collect();
        Box::new(DeviceFilter { cluster, claims, places, is_over: Arc::new(self.timer()) })
    }
}

impl<'a> NodeFilter<'a> for DeviceFilter<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let claims = self.claims.as_ref().map_err(Status::clone)?;
        claims.allocate(&self.cluster.devices, node, &*self.is_over)?;
        match self.places.iter().all(|place| place.matches(node)) {
            true => Ok(()),
            false => Err(Status::unresolvable(ELSEWHERE)),
        }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        let DeviceFilter { cluster, claims, places, is_over } = self;
        let (claims, places, is_over) = (claims.clone(), places.clone(), is_over.clone());
        Box::new(DeviceFilter { cluster, claims, places, is_over })
    }
}

impl PostFilterPlugin for DynamicResources {
    /// A claim that nobody uses and whose devices are not where the pod could go, is to get others.
    fn post_filter(&self, attempt: &FailedAttempt<'_, '_>) -> PostFilterResult {
        let say = |message: &str| PostFilterResult::Unschedulable { message: message.into(), clear_nomination: false };
        let FailedAttempt { cluster, pod, diagnosis, offset, .. } = *attempt;
        if !pod.has_resource_claims || attempt.filters.is_none() {
            return say(NOTHING_TO_DEALLOCATE);
        }
        let Ok(claims) = pod_claims(&cluster.devices, pod) else { return say(NOTHING_TO_DEALLOCATE) };
        let refused = diagnosis.groups.iter().filter(|group| group.plugin == NAME).flat_map(|group| &group.nodes);
        let nodes: Vec<&NodeInfo> = refused.filter_map(|name| cluster.cache.node(name)).collect();
        let is_elsewhere = |claim: &&Arc<ResourceClaim>| {
            places(claim).is_some_and(|place| nodes.iter().any(|node| !place.matches(node)))
        };
        let is_unused =
            |claim: &&Arc<ResourceClaim>| reserved_for(claim).iter().all(|consumer| consumer.uid == pod.uid());
        let unused: Vec<_> = claims.iter().filter(is_elsewhere).filter(is_unused).collect();
        let Some(at) = (offset as usize).checked_rem(unused.len()) else { return say(STILL_NOT) };
        let claim = unused[at].clone();
        let work = move |handle: &Handle| claim_writes::deallocate(handle.client.clone(), claim).boxed();
        PostFilterResult::Act { message: DEALLOCATED.into(), work: Box::new(work) }
    }

    fn prepare_candidate(
        &self,
        _: &Handle,
        _: Arc<PendingPod>,
        _: Candidate,
    ) -> BoxFuture<'static, Result<(), ApiError>> {
        // It nominates nobody.
        async { Ok(()) }.boxed()
    }
}

/// The better the alternatives are that its requests got, the more.
fn claim_score(claim: &ResourceClaim, allocation: &AllocationResult) -> i64 {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let chosen: BTreeSet<&str> = results.map(|result| result.request.as_str()).collect();
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let listed = requests.flat_map(|request| {
        let alternatives = request.first_available.iter().flatten().enumerate();
        alternatives.map(move |(at, one)| (at, format!("{}/{}", request.name, one.name)))
    });
    listed.filter(|(_, name)| chosen.contains(name.as_str())).map(|(at, _)| (ALTERNATIVES_MAX - at) as i64).sum()
}

impl PreScorePlugin for DynamicResources {
    fn pre_score(&self, cluster: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        let has_alternatives = |claim: &Arc<ResourceClaim>| {
            let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
            allocation(claim).is_none() && requests.into_iter().any(|request| request.first_available.is_some())
        };
        let claims = || pod_claims(&cluster.devices, pod).unwrap_or_default();
        match pod.has_resource_claims && claims().iter().any(has_alternatives) {
            true => PreScoreResult::Continue,
            false => PreScoreResult::Skip,
        }
    }
}

struct DeviceScorer<'a> {
    cluster: &'a Cluster,
    claims: Option<PodClaims>,
    is_over: Box<dyn Fn() -> bool>,
}

impl ScorePlugin for DynamicResources {
    fn node_scorer<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a PendingPod,
        _: &[&'a NodeInfo],
    ) -> Box<dyn NodeScorer + 'a> {
        let claims = PodClaims::new(&cluster.devices, pod).ok();
        Box::new(DeviceScorer { cluster, claims, is_over: Box::new(self.timer()) })
    }
}

impl NodeScorer for DeviceScorer<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let Some(claims) = &self.claims else { return 0 };
        let Ok(found) = claims.allocate(&self.cluster.devices, node, &*self.is_over) else { return 0 };
        let mut new = found.iter();
        let scores = claims.claims.iter().filter_map(|claim| {
            let allocation = allocation(claim).or_else(|| new.next())?;
            Some(claim_score(claim, allocation))
        });
        scores.sum()
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, false);
    }
}

/// What Reserve held for a pod, and what PreBind has to write.
struct Reserved {
    /// With the allocation that each is to get.
    claims: Vec<(Arc<ResourceClaim>, Option<Arc<AllocationResult>>)>,
    writes: ClaimWrites,
}

impl ReservePlugin for DynamicResources {
    fn reserve(
        &self,
        state: &mut CycleState,
        cluster: &mut Cluster,
        pod: &PendingPod,
        node: &str,
    ) -> Result<(), Status> {
        if !pod.has_resource_claims {
            return Ok(());
        }
        cluster.devices.sweep();
        let found = PodClaims::new(&cluster.devices, pod)?;
        if found.claims.is_empty() {
            return Ok(());
        }
        let Some(target) = cluster.cache.node(node) else { return Err(Status::unresolvable(ELSEWHERE)) };
        let allocations = found.allocate(&cluster.devices, target, &self.timer())?;
        let (mut allocations, writes) = (allocations.into_iter(), ClaimWrites::default());
        let mut claims = Vec::new();
        for claim in found.claims {
            let new = if allocation(&claim).is_none() { allocations.next().map(Arc::new) } else { None };
            if let Some(new) = &new {
                cluster.devices.promise(&claim, new.clone(), writes.clone());
                cluster.objects_version += 1;
            }
            claims.push((claim, new));
        }
        state.write(Reserved { claims, writes });
        Ok(())
    }

    fn unreserve(&self, state: &mut CycleState, cluster: &mut Cluster, pod: &PendingPod, _: &str) {
        let Some(Reserved { claims, writes }) = state.delete::<Reserved>() else { return };
        writes.give_up();
        cluster.devices.sweep();
        cluster.objects_version += 1;
        let Some((client, env)) = self.outside.lock().clone() else { return };
        let is_written = |claim: &ResourceClaim| writes.version(uid(claim)).is_some();
        for (claim, _) in claims.iter().filter(|(claim, _)| is_written(claim) || is_reserved_for(claim, pod.uid())) {
            let (claim_name, claim_uid) = (claim.metadata.name.clone().unwrap_or_default(), uid(claim).to_string());
            let (namespace, pod_uid) = (pod.namespace().to_string(), pod.uid().to_string());
            env.spawn(claim_writes::unreserve(client.clone(), namespace, claim_name, claim_uid, pod_uid));
        }
    }
}

impl PreBindPlugin for DynamicResources {
    fn has_pre_bind_work(&self, state: &CycleState, _: &PendingPod, _: &str) -> bool {
        state.read::<Reserved>().is_some()
    }

    fn pre_bind(
        &self,
        handle: &Handle,
        state: &CycleState,
        _: &Cluster,
        pod: &Arc<PendingPod>,
        _: &str,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let Some(Reserved { claims, writes }) = state.read::<Reserved>() else { return async { Ok(()) }.boxed() };
        let (client, env) = (handle.client.clone(), handle.env.clone());
        *self.outside.lock() = Some((client.clone(), env.clone()));
        let open = claims.iter().filter(|(claim, _)| !is_reserved_for(claim, pod.uid()));
        let (claims, writes, pod) = (open.cloned().collect::<Vec<_>>(), writes.clone(), pod.info());
        async move { writes.send(&client, &env, &pod, &claims).await.map_err(Status::error) }.boxed()
    }
}
