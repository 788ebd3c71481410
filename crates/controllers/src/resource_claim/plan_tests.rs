//! Pods and claims as tables: what is to be made, told, reserved, taken back and deleted.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use serde_json::{Value, json};

use super::plan::*;

fn pod(claim: Value, more: Value) -> Pod {
    let mut pod = json!({ "metadata": { "name": "web", "namespace": "d", "uid": "web-uid" },
        "spec": { "containers": [], "resourceClaims": [claim] }, "status": {} });
    json_patch(&mut pod, &more);
    serde_json::from_value(pod).unwrap()
}

fn json_patch(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                json_patch(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// A claim called `c` that the pod owns.
fn claim(more: Value) -> Arc<ResourceClaim> {
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "web-uid", "controller": true });
    let mut claim = json!({ "metadata": { "name": "c", "namespace": "d", "uid": "c-uid", "ownerReferences": [owner],
        "annotations": { "resource.kubernetes.io/pod-claim-name": "gpu" } }, "spec": {} });
    json_patch(&mut claim, &more);
    Arc::new(serde_json::from_value(claim).unwrap())
}

fn templated() -> Value {
    json!({ "name": "gpu", "resourceClaimTemplateName": "t" })
}

fn told() -> Value {
    json!({ "status": { "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": "c" }] } })
}

#[test]
fn claims_are_made_of_templates_once() {
    let check = |pod: &Pod, claims: &[Arc<ResourceClaim>], template: bool, expected: &str| {
        let spec = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "devices": {} } });
        let made: ResourceClaimTemplate =
            serde_json::from_value(json!({ "metadata": { "name": "t" }, "spec": spec })).unwrap();
        let (made, claims) = (Arc::new(made), claims.to_vec());
        let find = |name: &str| claims.iter().find(|c| c.metadata.name.as_deref() == Some(name)).cloned();
        let owned: Vec<_> = claims
            .iter()
            .filter(|c| c.metadata.owner_references.iter().flatten().any(|o| Some(&o.uid) == pod.metadata.uid.as_ref()))
            .cloned()
            .collect();
        let known = Known { claim: &find, template: &|_| template.then(|| made.clone()), owned: &owned };
        let listed = &api::resource_claims::pod_claims(pod)[0];
        let found = match pod_claim(pod, listed, &known) {
            Ok(PodClaimPlan::Nothing) => "nothing".to_string(),
            Ok(PodClaimPlan::Found(name)) => format!("found {name}"),
            Ok(PodClaimPlan::Create(claim)) => {
                let metadata = &claim.metadata;
                let annotation = &metadata.annotations.as_ref().unwrap()["resource.kubernetes.io/pod-claim-name"];
                let owner = &metadata.owner_references.as_ref().unwrap()[0];
                let labels = metadata.labels.as_ref().map_or(0, |labels| labels.len());
                let prefix = metadata.generate_name.as_deref().unwrap();
                format!("create {prefix} of {annotation} for {} with {labels} labels", owner.uid)
            }
            Err(why) => why,
        };
        assert_eq!(found, expected);
    };
    let none = || json!({});
    let create = "create web-gpu- of gpu for web-uid with 1 labels";
    check(&pod(json!({ "name": "gpu", "resourceClaimName": "c" }), none()), &[], false, "nothing");
    check(&pod(templated(), none()), &[], true, create);
    let missing = "resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
    check(&pod(templated(), none()), &[], false, missing);
    check(&pod(templated(), none()), &[claim(none())], true, "found c");
    let other = json!({ "metadata": { "annotations": { "resource.kubernetes.io/pod-claim-name": "other" } } });
    check(&pod(templated(), none()), &[claim(other)], true, create);
    check(&pod(templated(), told()), &[claim(none())], true, "nothing");
    check(&pod(templated(), told()), &[], true, create);
    let foreign = json!({ "metadata": { "ownerReferences": [] } });
    check(&pod(templated(), told()), &[claim(foreign)], true, create);
    check(
        &pod(json!({ "name": "gpu" }), none()),
        &[],
        true,
        "checking for claim before creating it: pod \"d/web\", spec.resourceClaim \"gpu\": none of the supported fields are set",
    );
    let long = json!({ "metadata": { "name": "p".repeat(60) } });
    let shortened = format!("create {}-gp of gpu for web-uid with 1 labels", "p".repeat(52));
    check(&pod(templated(), long), &[], true, &shortened);
}

#[test]
fn placed_pods_are_among_the_users_of_their_claims() {
    let check = |more: Value, of_claim: Value, expected: Result<usize, &str>| {
        let mut pod_more = told();
        json_patch(&mut pod_more, &more);
        let (pod, claim) = (pod(templated(), pod_more), claim(of_claim));
        let known = Known { claim: &|_| Some(claim.clone()), template: &|_| None, owned: &[] };
        assert_eq!(to_reserve(&pod, &known).map(|all| all.len()), expected.map_err(String::from));
    };
    let placed = || json!({ "spec": { "nodeName": "n" } });
    let allocated = |users: Value| json!({ "status": { "allocation": {}, "reservedFor": users } });
    let user = json!([{ "resource": "pods", "name": "web", "uid": "web-uid" }]);
    check(json!({}), allocated(json!([])), Ok(0));
    check(placed(), allocated(json!([])), Ok(1));
    check(placed(), allocated(user), Ok(0));
    check(placed(), json!({}), Ok(0));
    check(
        placed(),
        json!({ "metadata": { "ownerReferences": [] } }),
        Err("ResourceClaim d/c was not created for pod d/web (pod is not owner)"),
    );
}

#[test]
fn what_nobody_uses_is_given_back() {
    let user = |name: &str| json!({ "resource": "pods", "name": name, "uid": name });
    let check = |of_claim: Value, is_user: &[bool], owner: Option<Value>, expected: &str| {
        let claim_object = claim(of_claim.clone());
        let owner = owner.map(|more| Arc::new(pod(templated(), more)));
        let found = super::plan::claim(&claim_object, is_user, |_| owner.clone());
        let users = found.status.map(|users| users.iter().map(|user| user.name.clone()).collect::<Vec<_>>().join("+"));
        let parts = [
            users.map(|users| format!("users={users}")),
            found.deallocate.then(|| "deallocate".into()),
            found.remove_finalizer.then(|| "finalizer".into()),
            found.delete.then(|| "delete".into()),
        ];
        assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>().join(" "), expected, "{of_claim}");
    };
    let running = || Some(json!({ "spec": { "nodeName": "n" } }));
    let done = || Some(json!({ "spec": { "nodeName": "n" }, "status": { "phase": "Succeeded" } }));
    let finalizers = json!(["resource.kubernetes.io/delete-protection"]);
    let used = |users: &[&str]| {
        let users: Vec<_> = users.iter().map(|name| user(name)).collect();
        json!({ "metadata": { "finalizers": finalizers }, "status": { "allocation": {}, "reservedFor": users } })
    };
    check(json!({}), &[], running(), "");
    check(json!({}), &[], done(), "delete");
    check(json!({}), &[], None, "");
    check(json!({ "metadata": { "ownerReferences": [] } }), &[], done(), "");
    check(used(&["a", "b"]), &[true, true], running(), "");
    check(used(&["a", "b"]), &[true, false], running(), "users=a");
    check(used(&["a"]), &[false], running(), "users= deallocate finalizer");
    check(used(&["a"]), &[false], done(), "users= deallocate finalizer delete");
    check(used(&[]), &[], running(), "");
    let mut leaving = used(&[]);
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    check(leaving.clone(), &[], running(), "deallocate finalizer");
    leaving["status"]["allocation"] = Value::Null;
    check(leaving, &[], running(), "finalizer");
    let mut foreign = used(&["a"]);
    foreign["metadata"]["finalizers"] = json!(["example.com/other"]);
    check(foreign, &[false], running(), "users=");
    let gone = Some(json!({ "metadata": { "uid": "another" } }));
    check(json!({}), &[], gone, "delete");
    let never = Some(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    check(json!({}), &[], never, "delete");
}
