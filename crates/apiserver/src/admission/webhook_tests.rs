//! What the conformance texts ask of admission webhooks, with real webhooks over TLS on loopback.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{Method, Request};
use serde_json::{Value, json};

use super::tests::{
    Answer, CONFIGMAPS, Fixture, PODS, REGISTRATION, config_map, configuration, fixture, pod, review, webhook,
};
use crate::{ApiServer, authn::User, request::body};

pub(super) const MUTATING: &str = "mutatingwebhookconfigurations";
pub(super) const VALIDATING: &str = "validatingwebhookconfigurations";

pub(super) fn patch(operations: Value) -> Value {
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": BASE64_STANDARD.encode(operations.to_string()) })
}

fn denies() -> Answer {
    Arc::new(|r| review(r, json!({ "allowed": false, "status": { "message": "not here", "code": 403 } })))
}

/// Adds `/data/mark`.
fn marks() -> Answer {
    Arc::new(|r| review(r, patch(json!([{ "op": "add", "path": "/data/mark", "value": "yes" }]))))
}

/// A configuration without conditions, for these operations on these resources.
pub(super) fn for_all(name: &str, port: u16, ca: &str, group: &str, operations: &[&str], resources: &[&str]) -> Value {
    let mut configuration = configuration(name, port, ca, "Fail", 30);
    let webhook = &mut configuration["webhooks"][0];
    webhook["matchConditions"] = json!([]);
    webhook["rules"] =
        json!([{ "apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": resources }]);
    configuration
}

impl Fixture {
    pub(super) async fn register(&self, kind: &str, configuration: Value) {
        self.ok(Method::POST, &format!("{REGISTRATION}/{kind}"), configuration).await;
    }

    async fn merge(&self, path: &str, patch: Value) -> (u16, Value) {
        let request = Request::patch(path).header("content-type", "application/merge-patch+json");
        let user = User::new("admin", &["system:masters"]);
        let request = ApiServer::in_process_request(user, request.body(body::full(patch.to_string())).unwrap());
        let response = self.0.handle(request).await;
        let code = response.status().as_u16();
        let bytes = body::read_all(response.into_body(), 1 << 22).await.unwrap();
        self.0.cluster.cache.wait_until_fresh().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

#[tokio::test]
async fn configurations_are_listed_and_removed_together() {
    for (kind, answer) in [(MUTATING, marks()), (VALIDATING, denies())] {
        let f = fixture(&[]).await;
        let (port, ca, _) = webhook(answer).await;
        for i in 0..10 {
            let mut one = for_all(&format!("w{i}"), port, &ca, "", &["CREATE"], &["configmaps"]);
            one["metadata"]["labels"] = json!({ "of": "ten" });
            f.register(kind, one).await;
        }
        let path = format!("{REGISTRATION}/{kind}?labelSelector=of%3Dten");
        let labelled = f.0.cluster.list(kind, "").iter().filter(|o| o.meta.labels.contains_key("of")).count();
        assert_eq!(labelled, 10);
        let (code, made, _) = f.admin(Method::POST, CONFIGMAPS, config_map("before")).await;
        match kind {
            MUTATING => assert_eq!((code, &made["data"]["mark"]), (201, &json!("yes"))),
            _ => assert_eq!(code, 403),
        }
        f.ok(Method::DELETE, &path, Value::Null).await;
        let made = f.ok(Method::POST, CONFIGMAPS, config_map("after")).await;
        assert_eq!(made["data"]["mark"], Value::Null);
    }
}

#[tokio::test]
async fn configurations_are_changed_while_they_work() {
    for (kind, answer) in [(MUTATING, marks()), (VALIDATING, denies())] {
        let f = fixture(&[]).await;
        let (port, ca, _) = webhook(answer).await;
        f.register(kind, for_all("w", port, &ca, "", &["CREATE"], &["configmaps"])).await;
        let path = format!("{REGISTRATION}/{kind}/w");
        let acts = async |name: &str| {
            let (code, made, _) = f.admin(Method::POST, CONFIGMAPS, config_map(name)).await;
            code == 403 || made["data"]["mark"] == "yes"
        };
        assert!(acts("a").await);
        let mut found = f.ok(Method::GET, &path, Value::Null).await;
        found["webhooks"][0]["rules"][0]["operations"] = json!(["UPDATE"]);
        f.ok(Method::PUT, &path, found.clone()).await;
        assert!(!acts("b").await);
        found["webhooks"][0]["rules"][0]["operations"] = json!(["CREATE"]);
        // The conditions are kept and can be changed.
        found["webhooks"][0]["matchConditions"] = json!([{ "name": "n", "expression": "object.metadata.name != 'd'" }]);
        assert_eq!(f.merge(&path, json!({ "webhooks": found["webhooks"] })).await.0, 200);
        assert!(acts("c").await);
        assert!(!acts("d").await);
        let found = f.ok(Method::GET, &path, Value::Null).await;
        assert_eq!(found["webhooks"][0]["matchConditions"][0]["expression"], "object.metadata.name != 'd'");
    }
}

#[tokio::test]
async fn pods_and_config_maps_are_refused_however_they_come() {
    let f = fixture(&[]).await;
    let judge: Answer = Arc::new(|r| {
        let object = &r["request"]["object"];
        let bad = object["data"]["forbidden"] == "yes" || object["metadata"]["labels"]["forbidden"] == "yes";
        review(r, json!({ "allowed": !bad, "status": { "message": "forbidden things", "code": 403 } }))
    });
    let (port, ca, _) = webhook(judge).await;
    let mut configuration = for_all("w", port, &ca, "", &["CREATE", "UPDATE"], &["pods", "configmaps"]);
    configuration["webhooks"][0]["namespaceSelector"] = json!({ "matchExpressions": [
        { "key": "skip", "operator": "NotIn", "values": ["yes"] },
    ] });
    f.register(VALIDATING, configuration).await;
    // Little time for the one that hangs alone: a slow machine must not make the other one late.
    let (port, ca, _) = webhook(Arc::new(|_| None)).await;
    let mut hangs = for_all("hangs", port, &ca, "", &["CREATE"], &["pods"]);
    hangs["webhooks"][0]["timeoutSeconds"] = 1.into();
    let condition = json!({ "name": "n", "expression": "object.metadata.name == 'hangs'" });
    hangs["webhooks"][0]["matchConditions"] = json!([condition]);
    f.register(VALIDATING, hangs).await;
    let mut bad = pod("bad", json!({}));
    bad["metadata"]["labels"] = json!({ "forbidden": "yes" });
    assert!(f.refused(403, PODS, bad).await.ends_with("denied the request: forbidden things"));
    let message = f.refused(500, PODS, pod("hangs", json!({}))).await;
    assert!(message.contains("context deadline exceeded"), "{message}");
    let bad = || json!({ "metadata": { "name": "c" }, "data": { "forbidden": "yes" } });
    f.refused(403, CONFIGMAPS, bad()).await;
    let mut made = f.ok(Method::POST, CONFIGMAPS, config_map("c")).await;
    made["data"]["forbidden"] = "yes".into();
    let one = format!("{CONFIGMAPS}/c");
    assert_eq!(f.admin(Method::PUT, &one, made).await.0, 403);
    assert_eq!(f.merge(&one, json!({ "data": { "forbidden": "yes" } })).await.0, 403);
    let free = json!({ "metadata": { "name": "free", "labels": { "skip": "yes" } } });
    f.ok(Method::POST, "/api/v1/namespaces", free).await;
    f.ok(Method::POST, &CONFIGMAPS.replace("default", "free"), bad()).await;
}

#[tokio::test]
async fn attaching_is_refused() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, PODS, pod("p", json!({}))).await;
    let (port, ca, asked) = webhook(denies()).await;
    f.register(VALIDATING, for_all("w", port, &ca, "", &["CONNECT"], &["pods/attach"])).await;
    let (code, answer, _) = f.admin(Method::POST, &format!("{PODS}/p/attach?stdin=true"), Value::Null).await;
    assert_eq!(code, 403, "{answer}");
    let request = asked.lock().unwrap()[0]["request"].clone();
    assert_eq!((&request["operation"], &request["subResource"]), (&json!("CONNECT"), &json!("attach")));
    assert_eq!((&request["object"]["kind"], &request["object"]["stdin"]), (&json!("PodAttachOptions"), &json!(true)));
}

fn definition(name: &str) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({ "metadata": { "name": format!("{name}s.example.com") }, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": { "plural": format!("{name}s"), "singular": name, "kind": name, "listKind": format!("{name}List") },
        "versions": [
            { "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } },
            { "name": "v2", "served": true, "storage": false, "schema": { "openAPIV3Schema": schema } },
        ],
    } })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test]
async fn custom_resources_and_their_definitions_are_refused() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, DEFINITIONS, definition("widget")).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = |name: &str| json!({ "apiVersion": "example.com/v1", "kind": "widget", "metadata": { "name": name } });
    let served = async || {
        while f.admin(Method::GET, widgets, Value::Null).await.0 == 404 {
            env::sleep(Duration::from_millis(10)).await;
        }
    };
    served().await;
    let mut made = f.ok(Method::POST, widgets, widget("w")).await;
    let (port, ca, _) = webhook(denies()).await;
    f.register(VALIDATING, for_all("w", port, &ca, "example.com", &["CREATE", "UPDATE", "DELETE"], &["widgets"])).await;
    let one = format!("{widgets}/w");
    f.refused(403, widgets, widget("x")).await;
    made["a"] = 1.into();
    assert_eq!(f.admin(Method::PUT, &one, made).await.0, 403);
    assert_eq!(f.merge(&one, json!({ "a": 1 })).await.0, 403);
    assert_eq!(f.admin(Method::DELETE, &one, Value::Null).await.0, 403);
    let definitions = &["customresourcedefinitions"];
    f.register(VALIDATING, for_all("d", port, &ca, "apiextensions.k8s.io", &["CREATE"], definitions)).await;
    f.refused(403, DEFINITIONS, definition("gadget")).await;
}

#[tokio::test]
async fn custom_resources_are_changed_also_after_the_stored_version_did() {
    let f = fixture(&[]).await;
    f.ok(Method::POST, DEFINITIONS, definition("widget")).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    while f.admin(Method::GET, widgets, Value::Null).await.0 == 404 {
        env::sleep(Duration::from_millis(10)).await;
    }
    let adds: Answer = Arc::new(|r| review(r, patch(json!([{ "op": "add", "path": "/mark", "value": "yes" }]))));
    let (port, ca, _) = webhook(adds).await;
    f.register(MUTATING, for_all("w", port, &ca, "example.com", &["CREATE", "UPDATE"], &["widgets"])).await;
    let widget = json!({ "apiVersion": "example.com/v1", "kind": "widget", "metadata": { "name": "w" } });
    assert_eq!(f.ok(Method::POST, widgets, widget).await["mark"], "yes");
    let mut versions = definition("widget")["spec"]["versions"].clone();
    (versions[0]["storage"], versions[1]["storage"]) = (false.into(), true.into());
    let changed =
        f.merge(&format!("{DEFINITIONS}/widgets.example.com"), json!({ "spec": { "versions": versions } })).await;
    assert_eq!(changed.0, 200, "{}", changed.1);
    let (code, patched) = f.merge(&format!("{widgets}/w"), json!({ "other": "field" })).await;
    assert_eq!((code, &patched["other"], &patched["mark"]), (200, &json!("field"), &json!("yes")), "{patched}");
}

#[tokio::test]
async fn webhooks_see_what_others_changed() {
    let f = fixture(&[]).await;
    let after = |seen: &'static str, adds: &'static str| -> Answer {
        Arc::new(move |r| match r["request"]["object"]["data"][seen].is_string() {
            true => review(r, patch(json!([{ "op": "add", "path": format!("/data/{adds}"), "value": "yes" }]))),
            false => review(r, json!({ "allowed": true })),
        })
    };
    for (name, answer) in [("w1", after("a", "first")), ("w2", after("first", "second"))] {
        let (port, ca, _) = webhook(answer).await;
        f.register(MUTATING, for_all(name, port, &ca, "", &["CREATE"], &["configmaps"])).await;
    }
    let made = f.ok(Method::POST, CONFIGMAPS, config_map("c")).await;
    assert_eq!(made["data"], json!({ "a": "b", "first": "yes", "second": "yes" }));
}

#[tokio::test]
async fn webhooks_are_asked_again_after_others_if_they_want() {
    let f = fixture(&[]).await;
    let (port, ca, asked) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    let mut first = for_all("w1", port, &ca, "", &["CREATE"], &["configmaps"]);
    first["webhooks"][0]["reinvocationPolicy"] = "IfNeeded".into();
    f.register(MUTATING, first).await;
    let (port, ca, other) = webhook(marks()).await;
    f.register(MUTATING, for_all("w2", port, &ca, "", &["CREATE"], &["configmaps"])).await;
    f.ok(Method::POST, CONFIGMAPS, config_map("c")).await;
    assert_eq!((asked.lock().unwrap().len(), other.lock().unwrap().len()), (2, 1));
    assert_eq!(asked.lock().unwrap()[1]["request"]["object"]["data"]["mark"], "yes");
    // What has effects outside is not asked in a dry run.
    let (port, ca, _) = webhook(marks()).await;
    let mut effects = for_all("w3", port, &ca, "", &["CREATE"], &["configmaps"]);
    effects["webhooks"][0]["sideEffects"] = "NoneOnDryRun".into();
    f.register(MUTATING, effects).await;
    f.ok(Method::POST, &format!("{CONFIGMAPS}?dryRun=All"), config_map("dry")).await;
    assert_eq!(f.admin(Method::GET, &format!("{CONFIGMAPS}/dry"), Value::Null).await.0, 404);
}

#[tokio::test]
async fn what_webhooks_add_to_pods_is_completed() {
    let f = fixture(&[]).await;
    let container = json!([{ "name": "added", "image": "i" }]);
    let adds: Answer = Arc::new(move |r| {
        review(r, patch(json!([{ "op": "add", "path": "/spec/initContainers", "value": container }])))
    });
    let (port, ca, _) = webhook(adds).await;
    f.register(MUTATING, for_all("w", port, &ca, "", &["CREATE"], &["pods"])).await;
    let made = f.ok(Method::POST, PODS, pod("p", json!({}))).await;
    assert_eq!(made["spec"]["initContainers"][0]["terminationMessagePolicy"], "File");
}

#[tokio::test]
async fn webhook_configurations_are_out_of_reach() {
    let f = fixture(&[]).await;
    let all = ["*"];
    for (kind, name, answer) in [(VALIDATING, "v", denies()), (MUTATING, "m", marks())] {
        let (port, ca, _) = webhook(answer).await;
        f.register(kind, for_all(name, port, &ca, "admissionregistration.k8s.io", &["*"], &all)).await;
    }
    for kind in [MUTATING, VALIDATING] {
        let dummy = for_all("dummy", 1, "", "", &["CREATE"], &["nothing"]);
        let made = f.ok(Method::POST, &format!("{REGISTRATION}/{kind}"), dummy).await;
        assert_eq!(made["data"], Value::Null);
        f.ok(Method::DELETE, &format!("{REGISTRATION}/{kind}/dummy"), Value::Null).await;
    }
}

#[tokio::test]
async fn what_cannot_be_called_fails_closed() {
    let f = fixture(&[]).await;
    let (port, _, _) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    f.register(VALIDATING, for_all("w", port, "", "", &["CREATE"], &["configmaps"])).await;
    let message = f.refused(500, CONFIGMAPS, config_map("c")).await;
    assert!(message.contains("failed calling webhook"), "{message}");
}
