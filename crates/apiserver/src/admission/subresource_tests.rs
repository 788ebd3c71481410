//! What webhooks and policies are shown of subresources that have kinds of their own.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use super::{
    tests::{Answer, Fixture, PODS, fixture, pod, review, webhook},
    webhook_tests::{MUTATING, VALIDATING, for_all, patch},
};
use crate::authn::User;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";

fn deployment(name: &str) -> Value {
    let labels = json!({ "app": name });
    let container = json!({ "name": "c", "image": "i" });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": template });
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn binding(pod: &str, node: &str) -> Value {
    json!({ "metadata": { "name": pod }, "target": { "kind": "Node", "name": node } })
}

fn eviction(pod: &str) -> Value {
    json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } })
}

impl Fixture {
    async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, Value::Null).await
    }
}

/// `OPERATION resource/subresource name: kind of the request, of the object, of the old one; kind of the options`
fn summary(review: &Value) -> String {
    let request = &review["request"];
    let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
    let typed = |value: &Value| format!("{} {}", text(&value["apiVersion"]), text(&value["kind"]));
    let kind = &request["kind"];
    assert_eq!(kind, &request["requestKind"]);
    format!(
        "{} {}/{} {}: {} {} {}; {}, {}; {}{}",
        text(&request["operation"]),
        text(&request["resource"]["resource"]),
        text(&request["subResource"]),
        text(&request["name"]),
        text(&kind["group"]),
        text(&kind["version"]),
        text(&kind["kind"]),
        typed(&request["object"]),
        typed(&request["oldObject"]),
        text(&request["options"]["kind"]),
        if request["dryRun"] == true { " dry" } else { "" },
    )
}

#[tokio::test]
async fn bodies_are_shown_as_what_they_are_and_nothing_of_what_comes_of_them() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, PODS, pod("p", json!({}))).await;
    f.ok(Method::POST, PODS, pod("q", json!({}))).await;
    f.ok(Method::POST, DEPLOYMENTS, deployment("d")).await;
    let (port, ca, asked) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    let everything = for_all("all", port, &ca, "*", &["*"], &["*/*"]);
    f.register(VALIDATING, everything).await;
    let check = async |method: Method, path: &str, body: Value, expected: &str| {
        f.ok(method, path, body).await;
        let seen: Vec<String> = asked.lock().unwrap().drain(..).map(|r| summary(&r)).collect();
        assert_eq!(seen, [expected], "{path}");
    };
    let bind = "CREATE pods/binding p:  v1 Binding; v1 Binding, - -; CreateOptions";
    check(Method::POST, &format!("{PODS}/p/binding?dryRun=All"), binding("p", "n"), &format!("{bind} dry")).await;
    check(Method::POST, &format!("{PODS}/p/binding"), binding("p", "n"), bind).await;
    assert_eq!(f.get(&format!("{PODS}/p")).await["spec"]["nodeName"], "n");
    let bind = "CREATE bindings/- q:  v1 Binding; v1 Binding, - -; CreateOptions";
    check(Method::POST, "/api/v1/namespaces/default/bindings", binding("q", "n"), bind).await;
    let evict = "CREATE pods/eviction p: policy v1 Eviction; policy/v1 Eviction, - -; CreateOptions";
    check(Method::POST, &format!("{PODS}/p/eviction?dryRun=All"), eviction("p"), &format!("{evict} dry")).await;
    check(Method::POST, &format!("{PODS}/p/eviction"), eviction("p"), evict).await;
    assert!(f.get(&format!("{PODS}/p")).await["metadata"]["deletionTimestamp"].is_string());
    let scale = "UPDATE deployments/scale d: autoscaling v1 Scale; autoscaling/v1 Scale, autoscaling/v1 Scale; \
                 UpdateOptions";
    let wanted = json!({ "metadata": { "name": "d" }, "spec": { "replicas": 3 } });
    check(Method::PUT, &format!("{DEPLOYMENTS}/d/scale"), wanted, scale).await;
    assert_eq!(f.get(&format!("{DEPLOYMENTS}/d")).await["spec"]["replicas"], 3);
    let token = "CREATE serviceaccounts/token default: authentication.k8s.io v1 TokenRequest; \
                 authentication.k8s.io/v1 TokenRequest, - -; CreateOptions";
    check(Method::POST, &format!("{ACCOUNT}/token"), json!({ "spec": {} }), token).await;
}

#[tokio::test]
async fn what_webhooks_change_of_a_body_counts() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, PODS, pod("p", json!({}))).await;
    f.ok(Method::POST, DEPLOYMENTS, deployment("d")).await;
    let answer: Answer = Arc::new(|r| {
        let operations = match r["request"]["object"]["kind"].as_str() {
            Some("Binding") => json!([{ "op": "add", "path": "/metadata/labels", "value": { "seen": "yes" } }]),
            Some("Scale") => json!([{ "op": "replace", "path": "/spec/replicas", "value": 7 }]),
            Some("TokenRequest") => json!([{ "op": "replace", "path": "/spec/expirationSeconds", "value": 900 }]),
            other => panic!("{other:?}"),
        };
        review(r, patch(operations))
    });
    let (port, ca, _) = webhook(answer).await;
    let resources = ["pods/binding", "deployments/scale", "serviceaccounts/token"];
    f.register(MUTATING, for_all("changes", port, &ca, "*", &["*"], &resources)).await;
    f.ok(Method::POST, &format!("{PODS}/p/binding"), binding("p", "n")).await;
    assert_eq!(f.get(&format!("{PODS}/p")).await["metadata"]["labels"]["seen"], "yes");
    let wanted = json!({ "metadata": { "name": "d" }, "spec": { "replicas": 3 } });
    let scale = f.ok(Method::PUT, &format!("{DEPLOYMENTS}/d/scale"), wanted).await;
    assert_eq!((&scale["spec"]["replicas"], &scale["kind"]), (&json!(7), &json!("Scale")));
    assert_eq!(f.get(&format!("{DEPLOYMENTS}/d")).await["spec"]["replicas"], 7);
    let token = f.ok(Method::POST, &format!("{ACCOUNT}/token"), json!({ "spec": {} })).await;
    assert_eq!(token["spec"]["expirationSeconds"], 900);
}

#[tokio::test]
async fn bodies_can_be_refused() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, PODS, pod("p", json!({}))).await;
    f.ok(Method::POST, DEPLOYMENTS, deployment("d")).await;
    for (resource, group, expression) in [
        ("pods/binding", "", "object.target.name != 'forbidden'"),
        ("pods/eviction", "", "object.metadata.name != 'p'"),
        ("deployments/scale", "apps", "object.spec.replicas <= oldObject.spec.replicas + 1"),
    ] {
        let rule = json!({ "apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource] });
        let spec = json!({
            "matchConstraints": { "resourceRules": [rule] }, "validations": [{ "expression": expression }],
        });
        let name = resource.replace('/', "-");
        f.policy(json!({ "metadata": { "name": name }, "spec": spec }), &["Deny"]).await;
    }
    let check = async |method: Method, path: String, body: Value, expected: u16| {
        let (code, answer, _) = f.admin(method, &path, body).await;
        assert_eq!(code, expected, "{path}: {answer}");
    };
    check(Method::POST, format!("{PODS}/p/binding"), binding("p", "forbidden"), 422).await;
    check(Method::POST, format!("{PODS}/p/binding"), binding("q", "n"), 400).await;
    check(Method::POST, format!("{PODS}/p/binding"), binding("p", "n"), 201).await;
    check(Method::POST, format!("{PODS}/p/eviction"), eviction("p"), 422).await;
    assert_eq!(f.get(&format!("{PODS}/p")).await["metadata"]["deletionTimestamp"], Value::Null);
    let scale = |replicas: u32| json!({ "metadata": { "name": "d" }, "spec": { "replicas": replicas } });
    check(Method::PUT, format!("{DEPLOYMENTS}/d/scale"), scale(3), 422).await;
    check(Method::PUT, format!("{DEPLOYMENTS}/d/scale"), scale(2), 200).await;
}

#[tokio::test]
async fn a_node_asks_for_tokens_of_its_own_pods_only() {
    let f = fixture(&["NodeRestriction"]).await;
    let node = User::new("system:node:n1", &["system:nodes"]);
    let mut uids = Vec::new();
    for (name, node) in [("own", "n1"), ("other", "n2")] {
        let mut placed = pod(name, json!({}));
        placed["spec"]["nodeName"] = node.into();
        let made = f.ok(Method::POST, PODS, placed).await;
        uids.push(made["metadata"]["uid"].clone());
    }
    let bound = |name: &str, uid: &Value| json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid });
    for (bound, expected) in [
        (Value::Null, Some("node requested token not bound to a pod")),
        (json!({ "apiVersion": "v1", "kind": "Node", "name": "n1" }), Some("node requested token not bound to a pod")),
        (bound("own", &json!("")), Some("node requested token with a pod binding without a uid")),
        (bound("own", &uids[1]), Some("does not match the UID in record")),
        (bound("other", &uids[1]), Some("node requested token bound to a pod scheduled on a different node")),
        (bound("own", &uids[0]), None),
    ] {
        let request = json!({ "spec": { "boundObjectRef": bound } });
        let (code, answer, _) = f.send(&node, Method::POST, &format!("{ACCOUNT}/token"), request).await;
        match expected {
            None => assert_eq!(code, 201, "{answer}"),
            Some(why) => {
                assert_eq!(code, 403, "{answer}");
                assert!(answer["message"].as_str().unwrap().contains(why), "{answer}");
            }
        }
    }
}

/// What a webhook that may change a TokenRequest sees of it, and one that may only judge.
#[tokio::test]
async fn a_token_request_is_completed_between_those_who_change_it_and_those_who_judge_it() {
    let f = fixture(&[]).await;
    let (port, ca, asked) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    for kind in [MUTATING, VALIDATING] {
        f.register(kind, for_all("sees", port, &ca, "*", &["*"], &["serviceaccounts/token"])).await;
    }
    let uid = f.get(ACCOUNT).await["metadata"]["uid"].clone();
    let answer = f.ok(Method::POST, &format!("{ACCOUNT}/token"), json!({ "spec": {} })).await;
    assert_eq!(answer["metadata"]["uid"], uid);
    let audiences = answer["spec"]["audiences"].clone();
    let seen: Vec<Value> = asked.lock().unwrap().drain(..).map(|r| r["request"]["object"].clone()).collect();
    let [changes, judges] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((&changes["spec"]["expirationSeconds"], &changes["spec"]["audiences"]), (&json!(3600), &Value::Null));
    assert_eq!(changes["metadata"]["name"], Value::Null);
    assert_eq!(judges["spec"]["audiences"], audiences);
    assert_eq!((&judges["metadata"]["name"], &judges["metadata"]["uid"]), (&json!("default"), &uid));

    for (request, code, message) in [
        (
            json!({ "spec": { "expirationSeconds": 5 } }),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 5: may not \
             specify a duration less than 10 minutes",
        ),
        (
            json!({ "metadata": { "uid": "other" }, "spec": {} }),
            409,
            "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"default\": the UID in the token \
             request (other) does not match the UID of the service account",
        ),
        (
            json!({ "spec": { "boundObjectRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" } } }),
            400,
            "cannot bind token to object of type apps/v1, Kind=Deployment",
        ),
    ] {
        let found = f.refused(code, &format!("{ACCOUNT}/token"), request).await;
        assert!(found.starts_with(message), "{found}");
    }
}

#[tokio::test]
async fn a_node_asks_for_tokens_for_the_audiences_of_its_pods_only() {
    let f = fixture(&["NodeRestriction"]).await;
    let user = "system:node:n1";
    let node = User::new(user, &["system:nodes"]);
    for (name, audience) in [("inline", "of-inline"), ("claimed", "of-claimed"), ("ebs.csi.aws.com", "of-ebs")] {
        let spec = json!({ "tokenRequests": [{ "audience": audience }] });
        let driver = json!({ "metadata": { "name": name }, "spec": spec });
        f.ok(Method::POST, "/apis/storage.k8s.io/v1/csidrivers", driver).await;
    }
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } },
    });
    for (name, source) in [
        ("claim", json!({ "csi": { "driver": "claimed", "volumeHandle": "h" } })),
        ("pod-own", json!({ "awsElasticBlockStore": { "volumeID": "v" } })),
        ("unbound", Value::Null),
    ] {
        let mut wanted = claim.clone();
        if let Value::Object(source) = source {
            let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } });
            spec.as_object_mut().unwrap().extend(source);
            let volume = json!({ "metadata": { "name": name }, "spec": spec });
            f.ok(Method::POST, "/api/v1/persistentvolumes", volume).await;
            wanted["volumeName"] = name.into();
        }
        let made = json!({ "metadata": { "name": name }, "spec": wanted });
        f.ok(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", made).await;
    }
    let token = |audience: &str| {
        let token = json!({ "path": "token", "audience": audience, "expirationSeconds": 3607 });
        json!({ "name": "token", "projected": { "sources": [{ "serviceAccountToken": token }] } })
    };
    let claimed = |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
    let inline = |driver: &str| json!({ "name": "inline", "csi": { "driver": driver } });
    let own = json!({ "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": claim } } });
    let unknown = |audience: &str| {
        format!(
            "audience \"{audience}\" not found in pod spec volume, {user} is not authorized to request tokens for this \
             audience"
        )
    };
    let broken = "error validating audience \"vault\": [persistentvolume \"\" not found, csidriver.storage.k8s.io \
                  \"gone\" not found]";
    let check = async |volumes: Value, audiences: &[&str], expected: Option<&str>| {
        let mut placed = pod("pod", json!({}));
        placed["spec"]["nodeName"] = "n1".into();
        placed["spec"]["automountServiceAccountToken"] = false.into();
        placed["spec"]["volumes"] = volumes.clone();
        let made = f.ok(Method::POST, PODS, placed).await;
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": made["metadata"]["uid"] });
        let request = json!({ "spec": { "boundObjectRef": bound, "audiences": audiences } });
        let (code, answer, _) = f.send(&node, Method::POST, &format!("{ACCOUNT}/token"), request).await;
        match expected {
            None => assert_eq!(code, 201, "{volumes} {audiences:?}: {answer}"),
            Some(why) => {
                let message = format!("serviceaccounts \"default\" is forbidden: {why}");
                assert_eq!((code, &answer["message"]), (403, &json!(message)), "{volumes} {audiences:?}");
            }
        }
        f.ok(Method::DELETE, &format!("{PODS}/pod?gracePeriodSeconds=0"), Value::Null).await;
    };
    check(json!([token("")]), &[], None).await;
    check(json!([token("vault")]), &["vault"], None).await;
    check(json!([token("vault")]), &[], Some(&unknown(""))).await;
    check(json!([token("vault")]), &["other"], Some(&unknown("other"))).await;
    check(json!([token("vault")]), &["vault", "vault"], Some("node may only request 0 or 1 audiences")).await;
    check(json!([]), &[], Some(&unknown(""))).await;
    check(json!([inline("inline")]), &["of-inline"], None).await;
    check(json!([inline("inline")]), &["of-claimed"], Some(&unknown("of-claimed"))).await;
    check(json!([claimed("claim")]), &["of-claimed"], None).await;
    check(json!([own]), &["of-ebs"], None).await;
    check(json!([claimed("unbound"), inline("gone")]), &["vault"], Some(broken)).await;
    check(json!([claimed("unbound"), token("vault")]), &["vault"], None).await;

    let rule = json!({
        "apiGroups": [""], "resources": ["other"], "resourceNames": ["default"],
        "verbs": ["request-serviceaccounts-token-audience"],
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({ "metadata": { "name": "other" }, "rules": [rule] });
    f.ok(Method::POST, &format!("{rbac}/clusterroles"), role).await;
    let binding = json!({
        "metadata": { "name": "other" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "other" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }],
    });
    f.ok(Method::POST, &format!("{rbac}/clusterrolebindings"), binding).await;
    check(json!([token("vault")]), &["other"], None).await;
    check(json!([token("vault")]), &["another"], Some(&unknown("another"))).await;
}
