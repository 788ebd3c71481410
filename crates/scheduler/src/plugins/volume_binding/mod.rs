//! A pod's claims must be usable on its node: bound volumes reachable, unbound ones satisfiable. The chosen node's volumes
//! are reserved, and before the pod is bound its claims are.
//! `claims` matches claims with volumes, `claim_requests` are the writes, `claim_waits` the pods that wait for the result.
//! A volume is reserved for at most one claim.

pub mod claim_requests;
mod claim_waits;
pub mod claims;

use std::{sync::Arc, time::Duration};

use claim_requests::ClaimRequest;
use claim_waits::{ClaimWaits, ClaimsOutcome};
use claims::{ClaimBinding, NOT_FOUND, is_bound, reachable, volume_name, waits_for_node};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::PersistentVolume;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, Code, CycleState, EnqueueExtensions, FilterPlugin, Handle, NodeFilter, Plugin, PreBindPlugin,
        PreFilterPlugin, PreFilterResult, QueueingHint, ReservePlugin, SignPlugin, Status,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const UNREACHABLE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";
const TIMED_OUT: &str = "binding volumes: timed out waiting for the condition";

const BIND_TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);

pub struct VolumeBinding {
    /// How long the claims of a decided pod may take.
    bind_timeout: Duration,
    waits: Arc<Mutex<ClaimWaits>>,
}

impl Default for VolumeBinding {
    fn default() -> Self {
        Self { bind_timeout: BIND_TIMEOUT_DEFAULT, waits: Arc::default() }
    }
}

impl VolumeBinding {
    fn from_arguments(arguments: &Value) -> Result<Self, String> {
        if !arguments["shape"].is_null() {
            return Err("shape: Forbidden: volumes are not scored by their capacity".into());
        }
        let bind_timeout = match (&arguments["bindTimeoutSeconds"], arguments["bindTimeoutSeconds"].as_u64()) {
            (Value::Null, _) => BIND_TIMEOUT_DEFAULT,
            (_, Some(seconds)) => Duration::from_secs(seconds),
            (given, None) => {
                return Err(format!("bindTimeoutSeconds: {given} is not zero or a positive whole number"));
            }
        };
        Ok(Self { bind_timeout, ..Self::default() })
    }
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let plugin = Plugin::of(VolumeBinding::from_arguments(arguments)?).pre_filter().filter().reserve().pre_bind();
    Ok(plugin.enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Usable<'a> {
    cluster: &'a Cluster,
    pod: &'a PendingPod,
    waiting: bool,
}

/// Why the pod can't be scheduled anywhere yet.
fn obstacle(cluster: &Cluster, pod: &PendingPod) -> Option<String> {
    for key in &pod.claims {
        let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
        let Some(claim) = cluster.claims.get(key) else {
            let named = pod.spec().and_then(|s| s.volumes.as_ref()).into_iter().flatten();
            let is_named = named.filter_map(|v| v.persistent_volume_claim.as_ref()).any(|c| c.claim_name == name);
            return Some(match is_named {
                true => format!("persistentvolumeclaim {name:?} not found"),
                false => {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                }
            });
        };
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
            let volume = volume_name(claim).unwrap_or_default();
            return Some(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if !is_bound(claim) && (volume_name(claim).is_some() || !waits_for_node(cluster, claim)) {
            return Some(IMMEDIATE.into());
        }
    }
    None
}

impl PreFilterPlugin for VolumeBinding {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        if pod.claims.is_empty() {
            return PreFilterResult::Skip;
        }
        match obstacle(cluster, pod) {
            Some(reason) => PreFilterResult::Reject(Status::unresolvable(reason)),
            None => PreFilterResult::AllNodes,
        }
    }
}

impl FilterPlugin for VolumeBinding {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Usable { cluster, pod, waiting: !claims::all_bound(cluster, pod) })
    }
}

impl EnqueueExtensions for VolumeBinding {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Volume | ClusterEvent::StorageClass => true,
            ClusterEvent::CsiDriver | ClusterEvent::CsiStorageCapacity => true,
            ClusterEvent::Node { change, .. } => change.labels,
            _ => false,
        })
    }
}

impl SignPlugin for VolumeBinding {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.claims();
    }
}

/// What Reserve held for a pod, and what PreBind has to ask for.
struct Reserved {
    /// By name, with the claim each is for.
    volumes: Vec<(String, String)>,
    requests: Vec<ClaimRequest>,
}

impl ReservePlugin for VolumeBinding {
    fn reserve(
        &self,
        state: &mut CycleState,
        cluster: &mut Cluster,
        pod: &PendingPod,
        node: &str,
    ) -> Result<(), Status> {
        if pod.claims.is_empty() {
            return Ok(());
        }
        let target = cluster.cache.node(node);
        let bindings = target.ok_or(NOT_FOUND).and_then(|target| claims::claim_bindings(cluster, pod, target));
        let bindings = bindings.map_err(Status::unschedulable)?;
        if bindings.is_empty() {
            return Ok(());
        }
        let requests = claim_requests::claim_requests(cluster, &bindings, node);
        let volumes = bindings.into_iter().filter_map(|binding| match binding {
            ClaimBinding::Static { claim, volume } => Some((volume, claim)),
            ClaimBinding::Provision { .. } => None,
        });
        let volumes: Vec<_> = volumes.collect();
        cluster.reserved_volumes.extend(volumes.iter().cloned());
        state.write(Reserved { volumes, requests });
        Ok(())
    }

    fn unreserve(&self, state: &mut CycleState, cluster: &mut Cluster, pod: &PendingPod, _: &str) {
        self.waits.lock().remove(&pod.key);
        for (volume, claim) in state.delete::<Reserved>().iter().flat_map(|reserved| &reserved.volumes) {
            if cluster.reserved_volumes.get(volume) == Some(claim) {
                cluster.reserved_volumes.remove(volume);
            }
        }
    }
}

/// A volume that has its claim needs no reservation any more, and one that is gone can have none.
pub fn volume_changed(cluster: &mut Cluster, name: &str, volume: Option<&PersistentVolume>) {
    let is_free = volume.is_some_and(|v| v.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none()));
    if !is_free {
        cluster.reserved_volumes.remove(name);
    }
}

impl PreBindPlugin for VolumeBinding {
    fn has_pre_bind_work(&self, state: &CycleState, _: &PendingPod, _: &str) -> bool {
        state.read::<Reserved>().is_some()
    }

    fn pre_bind(
        &self,
        handle: &Handle,
        state: &CycleState,
        cluster: &Cluster,
        pod: &Arc<PendingPod>,
        _: &str,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let requests = state.read::<Reserved>().map(|reserved| reserved.requests.clone()).unwrap_or_default();
        let all_bound = claims::all_bound(cluster, pod);
        let wait = (!all_bound).then(|| self.waits.lock().add(pod.info(), claims::selected(cluster, pod)));
        let (waits, key) = (self.waits.clone(), pod.key.clone());
        let (client, env, timeout) = (handle.client.clone(), handle.env.clone(), self.bind_timeout);
        async move {
            let (id, bound) = wait.unzip();
            let work = async {
                let sent = claim_requests::send(&client, requests).await;
                sent.map_err(|error| Status::error(format!("binding volumes: {}", error.message)))?;
                match bound {
                    Some(bound) => match bound.await {
                        Ok(ClaimsOutcome::Bound) => Ok(()),
                        Ok(ClaimsOutcome::NodeGivenBack(claim)) => Err(Status::error(format!(
                            "binding volumes: selectedNode annotation reset for PVC {claim:?}"
                        ))),
                        Err(_) => Err(Status::error("binding volumes: the pod is gone")),
                    },
                    None => Ok(()),
                }
            };
            let done = env.timeout(timeout, work).await.unwrap_or_else(|| Err(Status::error(TIMED_OUT)));
            if let Some(id) = id {
                waits.lock().end(&key, id);
            }
            done
        }
        .boxed()
    }

    fn cluster_changed(&self, cluster: &Cluster, event: &ClusterEvent) {
        if let ClusterEvent::Claim(claim) = event {
            let has_node = cluster.claims.get(claim).is_some_and(|c| claims::selected_node(c).is_some() || is_bound(c));
            self.waits.lock().claim_changed(claim, has_node, |pod| claims::all_bound(cluster, pod));
        }
    }
}

impl<'a> NodeFilter<'a> for Usable<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let mut reasons = Vec::new();
        for claim in self.pod.claims.iter().filter_map(|key| self.cluster.claims.get(key)).filter(|c| is_bound(c)) {
            match volume_name(claim).and_then(|name| self.cluster.volumes.get(name)) {
                None => reasons.push(NO_VOLUME),
                Some(volume) if !reachable(volume, node) => reasons.push(UNREACHABLE),
                Some(_) => {}
            }
        }
        if self.waiting
            && let Err(reason) = claims::claim_bindings(self.cluster, self.pod, node)
        {
            reasons.push(reason);
        }
        reasons.dedup();
        if reasons.is_empty() {
            return Ok(());
        }
        let reasons = reasons.into_iter().map(Into::into).collect();
        Err(Status { code: Code::UnschedulableAndUnresolvable, reasons })
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, cluster, labelled, pod, verdicts};

    /// On node n in zone 1: the claim's spec and annotations, the class's mode and provisioner, the volume's zone.
    fn check(claim: Option<Value>, class: (&str, &str), volume_zone: Option<&str>, wanted: Result<(), &str>) {
        let mut cluster = cluster(&[labelled("n", &[("zone", "1")])], vec![]);
        if let Some(mut claim) = claim {
            claim["spec"]["storageClassName"] = json!("fast");
            claim["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
            claim["metadata"]["namespace"] = json!("default");
            cluster.claims.insert("default/data".into(), Arc::new(serde_json::from_value(claim).unwrap()));
        }
        let class = json!({"metadata": {}, "volumeBindingMode": class.0, "provisioner": class.1});
        cluster.storage_classes.insert("fast".into(), Arc::new(serde_json::from_value(class).unwrap()));
        if let Some(zone) = volume_zone {
            let volume = json!({"metadata": {}, "spec": {"storageClassName": "fast", "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"], "nodeAffinity": {"required": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}}}});
            cluster.volumes.insert("pv".into(), Arc::new(serde_json::from_value(volume).unwrap()));
        }
        let pod = pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}));
        let found = verdicts(&built(new), &pod, &cluster).pop().unwrap();
        assert_eq!(found.map_err(|f| f.message()), wanted.map_err(str::to_string));
    }

    #[test]
    fn claims_decide_where_a_pod_can_run() {
        let late = ("WaitForFirstConsumer", "kubernetes.io/no-provisioner");
        let dynamic = ("WaitForFirstConsumer", "example.com/disk");
        let open = || Some(json!({"metadata": {"name": "data"}, "spec": {}}));
        let bound = || {
            let annotations = json!({"pv.kubernetes.io/bind-completed": "yes"});
            Some(json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": "pv"}}))
        };
        let elsewhere = Some(json!({"metadata": {"annotations": {SELECTED_NODE: "m"}}, "spec": {}}));
        check(None, late, None, Err("persistentvolumeclaim \"data\" not found"));
        check(open(), ("Immediate", "example.com/disk"), None, Err(IMMEDIATE));
        check(open(), late, None, Err(NOT_FOUND));
        check(open(), late, Some("1"), Ok(()));
        check(open(), late, Some("2"), Err(NOT_FOUND));
        check(open(), dynamic, None, Ok(()));
        check(elsewhere, dynamic, None, Err(NOT_FOUND));
        check(bound(), late, Some("1"), Ok(()));
        check(bound(), late, Some("2"), Err(UNREACHABLE));
        check(bound(), late, None, Err(NO_VOLUME));
    }

    #[test]
    fn volumes_are_made_where_their_driver_says_there_is_room() {
        let check = |publishes: bool, capacity: Option<(&str, &str, Option<&str>)>, wanted: Result<(), &str>| {
            let mut cluster = cluster(&[labelled("n", &[("zone", "1")])], vec![]);
            let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {
                "storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}});
            cluster.claims.insert("default/data".into(), Arc::new(serde_json::from_value(claim).unwrap()));
            let class = json!({"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer",
                "provisioner": "d"});
            cluster.storage_classes.insert("fast".into(), Arc::new(serde_json::from_value(class).unwrap()));
            let driver = json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": publishes}});
            cluster.csi_drivers.insert("d".into(), Arc::new(serde_json::from_value(driver).unwrap()));
            if let Some((zone, size, most)) = capacity {
                let object = json!({"metadata": {"name": "c"}, "storageClassName": "fast", "capacity": size,
                    "maximumVolumeSize": most, "nodeTopology": {"matchLabels": {"zone": zone}}});
                cluster.csi_storage_capacities.insert("c".into(), Arc::new(serde_json::from_value(object).unwrap()));
            }
            let pod = pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}));
            let found = verdicts(&built(new), &pod, &cluster).pop().unwrap();
            assert_eq!(found.map_err(|f| f.message()), wanted.map_err(str::to_string), "{publishes} {capacity:?}");
        };
        check(false, None, Ok(()));
        check(true, None, Err(claims::NOT_ENOUGH_SPACE));
        check(true, Some(("1", "10Gi", None)), Ok(()));
        check(true, Some(("1", "1Gi", None)), Err(claims::NOT_ENOUGH_SPACE));
        check(true, Some(("1", "10Gi", Some("2Gi"))), Err(claims::NOT_ENOUGH_SPACE));
        check(true, Some(("2", "10Gi", None)), Err(claims::NOT_ENOUGH_SPACE));
    }

    use claims::SELECTED_NODE;

    #[test]
    fn claims_may_take_as_long_as_the_arguments_say() {
        let seconds =
            |arguments: Value| VolumeBinding::from_arguments(&arguments).map(|plugin| plugin.bind_timeout.as_secs());
        assert_eq!(seconds(Value::Null), Ok(600));
        assert_eq!(seconds(json!({"bindTimeoutSeconds": 30})), Ok(30));
        assert!(seconds(json!({"bindTimeoutSeconds": -1})).is_err());
    }

    #[test]
    fn a_volume_is_reserved_until_it_has_its_claim() {
        let mut cluster = cluster(&[labelled("n", &[])], vec![]);
        let claim = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"storageClassName": "fast"}})
        };
        for name in ["one", "two"] {
            cluster.claims.insert(format!("default/{name}"), Arc::new(serde_json::from_value(claim(name)).unwrap()));
        }
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"storageClassName": "fast"}});
        let read = |volume: &Value| Arc::new(serde_json::from_value::<PersistentVolume>(volume.clone()).unwrap());
        cluster.volumes.insert("pv".into(), read(&volume));
        let (plugin, mut state) = (VolumeBinding::default(), CycleState::default());
        let claiming =
            |name: &str| pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}));
        let (one, two) = (claiming("one"), claiming("two"));
        plugin.reserve(&mut state, &mut cluster, &one, "n").unwrap();
        assert!(plugin.has_pre_bind_work(&state, &one, "n"));
        assert!(plugin.reserve(&mut CycleState::default(), &mut cluster, &two, "n").is_err());
        plugin.unreserve(&mut state, &mut cluster, &one, "n");
        plugin.reserve(&mut CycleState::default(), &mut cluster, &two, "n").unwrap();
        volume["spec"]["claimRef"] = json!({"name": "two", "namespace": "default", "uid": "two"});
        volume_changed(&mut cluster, "pv", Some(&read(&volume)));
        assert!(cluster.reserved_volumes.is_empty());
    }
}
