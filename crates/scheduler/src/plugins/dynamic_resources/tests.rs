//! Pods with claims among nodes with devices: verdicts, what is held for whom, and what helps.

use serde_json::json;

use super::*;
use crate::{
    diagnosis::Diagnosis,
    plugins::testing::{built, cluster as cluster_of, labelled, node, pod, scores, verdicts},
};

/// Nodes `n1` and `n2` with devices `a` and `b` each.
fn cluster() -> Cluster {
    let mut cluster = cluster_of(&[labelled("n1", &[("zone", "1")]), node("n2")], vec![]);
    for name in ["n1", "n2"] {
        set_slice(&mut cluster, name, &["a", "b"]);
    }
    set_class(&mut cluster, "gpu", "true");
    cluster
}

fn set_slice(cluster: &mut Cluster, node: &str, devices: &[&str]) {
    let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
    let devices: Vec<_> = devices.iter().map(|name| json!({"name": name})).collect();
    let spec = json!({"driver": "d", "pool": pool, "nodeName": node, "devices": devices});
    let slice = json!({"metadata": {"name": node}, "spec": spec});
    cluster.devices.set_slice(node, Some(Arc::new(serde_json::from_value(slice).unwrap())));
}

fn set_class(cluster: &mut Cluster, name: &str, expression: &str) {
    let selectors = json!([{"cel": {"expression": expression}}]);
    let class = json!({"metadata": {"name": name}, "spec": {"selectors": selectors}});
    cluster.devices.classes.insert(name.into(), Arc::new(serde_json::from_value(class).unwrap()));
}

fn claim_of(name: &str, class: &str, count: usize) -> Value {
    let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
    let requests = json!([{"name": "r", "exactly": exactly}]);
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests}}})
}

/// What a claim's status says when it has device `a` of a node.
fn allocated(node: &str, device: &str) -> Value {
    let result = json!({"request": "r", "driver": "d", "pool": node, "device": device});
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    json!({"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}})
}

fn read(claim: Value) -> Arc<ResourceClaim> {
    Arc::new(serde_json::from_value(claim).unwrap())
}

fn set_claim(cluster: &mut Cluster, claim: Value) {
    let key = format!("default/{}", claim["metadata"]["name"].as_str().unwrap());
    cluster.devices.set_claim(&key, Some(read(claim)));
}

fn claiming(claims: &[&str]) -> PendingPod {
    let claims: Vec<_> = claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
    pod(json!({"resourceClaims": claims}))
}

/// The verdicts on both nodes.
fn said(cluster: &Cluster, pod: &PendingPod) -> [String; 2] {
    let shown = |verdict: Result<(), Status>| verdict.map_or_else(|status| status.message(), |()| "ok".into());
    let both: Vec<_> = verdicts(&built(new), pod, cluster).into_iter().map(shown).collect();
    both.try_into().unwrap()
}

fn plugin() -> DynamicResources {
    DynamicResources { filter_timeout: FILTER_TIMEOUT_DEFAULT, outside: Mutex::default() }
}

#[test]
fn claims_decide_where_a_pod_can_run() {
    let check = |claims: &[Value], expected: [&str; 2]| {
        let mut cluster = cluster();
        set_class(&mut cluster, "broken", "device.attributes['x'].y == 1");
        let names: Vec<_> = claims.iter().map(|c| c["metadata"]["name"].as_str().unwrap().to_string()).collect();
        claims.iter().for_each(|claim| set_claim(&mut cluster, claim.clone()));
        let pod = claiming(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(said(&cluster, &pod), expected.map(String::from), "{claims:?}");
    };
    let with = |status: Value| {
        let mut claim = claim_of("c", "gpu", 1);
        claim["status"] = status;
        claim
    };
    check(&[], ["ok"; 2]);
    check(&[claim_of("c", "gpu", 2)], ["ok"; 2]);
    check(&[claim_of("c", "gpu", 3)], ["cannot allocate all claims"; 2]);
    check(&[claim_of("c", "gpu", 1), claim_of("e", "gpu", 2)], ["cannot allocate all claims"; 2]);
    check(&[claim_of("c", "none", 1)], ["request r: device class none does not exist"; 2]);
    check(&[with(json!({"allocation": allocated("n1", "a")}))], ["ok", ELSEWHERE]);
    check(&[with(json!({"allocation": {"devices": {"results": []}}}))], ["ok"; 2]);
    let both = [with(json!({"allocation": allocated("n1", "a")})), claim_of("e", "gpu", 2)];
    check(&both, ["cannot allocate all claims", ELSEWHERE]);
    let mut leaving = claim_of("c", "gpu", 1);
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    check(&[leaving], ["resourceclaim \"c\" is being deleted"; 2]);
    let mut cluster = cluster();
    set_class(&mut cluster, "gpu", "device.attributes['x'].y == 1");
    set_claim(&mut cluster, claim_of("c", "gpu", 1));
    let [first, _] = said(&cluster, &claiming(&["c"]));
    assert!(first.starts_with("class gpu: selector #0: CEL runtime error: "), "{first}");
}

#[test]
fn a_pod_waits_for_its_claims_to_be_made() {
    let mut cluster = cluster();
    let waits = |cluster: &Cluster, pod: &PendingPod| plugin().pre_enqueue(cluster, pod).map_err(|s| s.message());
    assert_eq!(waits(&cluster, &pod(json!({}))), Ok(()));
    let missing = "could not find ResourceClaim \"default/c\"";
    assert_eq!(waits(&cluster, &claiming(&["c"])), Err(missing.into()));
    let templated = |statuses: Value| {
        let mut value = serde_json::to_value(&*pod(json!({})).pod).unwrap();
        value["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
        value["status"] = json!({"resourceClaimStatuses": statuses});
        PendingPod::new(Arc::new(serde_json::from_value(value).unwrap()))
    };
    let made = || templated(json!([{"name": "gpu", "resourceClaimName": "c"}]));
    let not_yet = "pod \"default/p\": ResourceClaim not created yet";
    assert_eq!(waits(&cluster, &templated(json!([]))), Err(not_yet.into()));
    assert_eq!(waits(&cluster, &templated(json!([{"name": "gpu"}]))), Ok(()), "none was needed");
    assert_eq!(waits(&cluster, &made()), Err(missing.into()));
    let mut claim = claim_of("c", "gpu", 1);
    set_claim(&mut cluster, claim.clone());
    let foreign = "ResourceClaim default/c was not created for pod default/p (pod is not owner)";
    assert_eq!(waits(&cluster, &made()), Err(foreign.into()));
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true});
    claim["metadata"]["ownerReferences"] = json!([owner]);
    set_claim(&mut cluster, claim);
    assert_eq!(waits(&cluster, &made()), Ok(()));
}

#[test]
fn what_is_promised_is_not_given_again() {
    let mut cluster = cluster();
    set_slice(&mut cluster, "n1", &["a"]);
    for name in ["one", "two"] {
        set_claim(&mut cluster, claim_of(name, "gpu", 1));
    }
    let (plugin, mut state) = (plugin(), CycleState::default());
    let (one, two) = (claiming(&["one"]), claiming(&["two"]));
    plugin.reserve(&mut state, &mut cluster, &one, "n1").unwrap();
    assert!(plugin.has_pre_bind_work(&state, &one, "n1"));
    assert_eq!(said(&cluster, &two), ["cannot allocate all claims", "ok"]);
    let busy = "resource claim default/one is in the process of being allocated";
    assert_eq!(said(&cluster, &one), [busy; 2]);
    assert!(plugin.reserve(&mut CycleState::default(), &mut cluster, &two, "n1").is_err());
    // Given up before anything was written.
    plugin.unreserve(&mut state, &mut cluster, &one, "n1");
    assert_eq!(said(&cluster, &two), ["ok"; 2]);
    // Decided again; then its claim says so itself.
    plugin.reserve(&mut state, &mut cluster, &one, "n1").unwrap();
    let mut written = claim_of("one", "gpu", 1);
    written["status"] = json!({"allocation": allocated("n1", "a")});
    written["metadata"]["resourceVersion"] = json!("5");
    set_claim(&mut cluster, written.clone());
    assert_eq!((said(&cluster, &two)[0].as_str(), cluster.devices.allocated.len()), ("cannot allocate all claims", 1));
    assert_eq!(said(&cluster, &one), ["ok", ELSEWHERE]);
    plugin.unreserve(&mut state, &mut cluster, &one, "n1");
    assert_eq!(said(&cluster, &two)[0], "cannot allocate all claims");
    // The claim is gone, and its device with it.
    cluster.devices.set_claim("default/one", None);
    assert!(cluster.devices.allocated.is_empty());
    assert_eq!(said(&cluster, &two), ["ok"; 2]);
}

#[test]
fn what_was_written_is_held_until_it_is_seen() {
    let mut cluster = cluster();
    set_slice(&mut cluster, "n1", &["a"]);
    let claim = claim_of("one", "gpu", 1);
    set_claim(&mut cluster, claim.clone());
    set_claim(&mut cluster, claim_of("two", "gpu", 1));
    let writes = ClaimWrites::default();
    let allocation = Arc::new(serde_json::from_value(allocated("n1", "a")).unwrap());
    cluster.devices.promise(&read(claim.clone()), allocation, writes.clone());
    let mut answer = claim.clone();
    answer["metadata"]["resourceVersion"] = json!("7");
    writes.note(&read(answer.clone()));
    writes.give_up();
    cluster.devices.sweep();
    let two = claiming(&["two"]);
    let at = |version: &str, cluster: &mut Cluster| {
        let mut seen = claim.clone();
        seen["metadata"]["resourceVersion"] = json!(version);
        set_claim(cluster, seen);
        said(cluster, &two)[0].clone()
    };
    assert_eq!(said(&cluster, &two)[0], "cannot allocate all claims", "the write may be seen any moment");
    assert_eq!(at("6", &mut cluster), "cannot allocate all claims", "older than the write");
    assert_eq!(at("8", &mut cluster), "ok", "deallocated after the write");
}

#[test]
fn claims_that_nobody_uses_are_taken_back() {
    let check = |allocation: Value, reserved: Value, expected: &str| {
        let mut cluster = cluster();
        let mut claim = claim_of("c", "gpu", 1);
        claim["status"] = json!({"allocation": allocation, "reservedFor": reserved});
        set_claim(&mut cluster, claim);
        let pod = claiming(&["c"]);
        let plugin = plugin();
        let filters = crate::cycle::Filters::default();
        let mut diagnosis = Diagnosis::new(2);
        diagnosis.reject_node(0, "NodeResourcesFit", "n1".into(), Status::unschedulable("Insufficient cpu"));
        diagnosis.reject_node(1, NAME, "n2".into(), Status::unresolvable(ELSEWHERE));
        let (cluster, pod) = (&cluster, &pod);
        let attempt = FailedAttempt { cluster, pod, filters: Some(&filters), diagnosis: &diagnosis, offset: 3 };
        let found = match plugin.post_filter(&attempt) {
            PostFilterResult::Act { message, .. } | PostFilterResult::Unschedulable { message, .. } => message,
            PostFilterResult::Nominate(_) => "nominated".into(),
        };
        assert_eq!(found, expected, "{reserved}");
    };
    let consumer = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
    check(allocated("n1", "a"), json!([]), DEALLOCATED);
    check(allocated("n1", "a"), json!([consumer("p")]), DEALLOCATED);
    check(allocated("n1", "a"), json!([consumer("p"), consumer("q")]), STILL_NOT);
    check(allocated("n2", "a"), json!([]), STILL_NOT);
    check(Value::Null, json!([]), STILL_NOT);
}

#[test]
fn better_alternatives_score_higher() {
    let mut cluster = cluster();
    set_slice(&mut cluster, "n2", &["a"]);
    let sub = |name: &str, count: usize| json!({"name": name, "deviceClassName": "gpu", "count": count});
    let requests = json!([{"name": "r", "firstAvailable": [sub("two", 2), sub("one", 1)]}]);
    let mut claim = claim_of("c", "gpu", 1);
    claim["spec"] = json!({"devices": {"requests": requests}});
    set_claim(&mut cluster, claim);
    assert_eq!(scores(&built(new), &claiming(&["c"]), &cluster), [100, 87]);
    set_claim(&mut cluster, claim_of("c", "gpu", 1));
    assert_eq!(scores(&built(new), &claiming(&["c"]), &cluster), [0, 0]);
}

#[test]
fn arguments_are_checked() {
    let check = |arguments: Value, expected: &[&str]| {
        let mut errors = ErrorList::new();
        check_arguments(&mut errors, &arguments, &Path::new("args"));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{arguments}");
    };
    check(Value::Null, &[]);
    check(json!({"filterTimeout": "0s"}), &[]);
    check(json!({"filterTimeout": "-1s"}), &["args.filterTimeout: Invalid value: \"-1s\": must be zero or positive"]);
    let off = "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled";
    check(json!({"bindingTimeout": "10s"}), &[&format!("args.bindingTimeout: Forbidden: {off}")]);
}
