//! Feature gates and `--runtime-config`: what is shown, what is hidden, and Initializers, which a gate turns on.

use std::sync::Arc;

use api::{
    WatchKind,
    codec::{self, ContentType, protobuf::read_watch_frame},
    feature_gates::FeatureGates,
};
use apiserver::{Config, config::RuntimeConfig};
use env::Env;
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::harness::{Server, server_on};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicybindings";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations";

async fn start(configure: impl FnOnce(&mut Config)) -> Server {
    let env = Env::real();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, configure).await
}

#[tokio::test]
async fn groups_are_hidden_and_gates_are_shown() {
    let s = start(|config| {
        let text = ["apps/v1=false", "batch/v1/cronjobs=false", "flowcontrol.apiserver.k8s.io/v1=false"];
        config.runtime_config = RuntimeConfig::parse(text).unwrap();
        config.feature_gates = FeatureGates::parse(["AllowParsingUserUIDFromCertAuth=false"]).unwrap();
    })
    .await;
    let check = async |path: &str, code: u16| assert_eq!(s.get(path).await.code, code, "{path}");
    check("/apis/apps/v1", 404).await;
    check("/apis/apps/v1/deployments", 404).await;
    check("/apis/batch/v1/jobs", 200).await;
    check("/apis/batch/v1/cronjobs", 404).await;
    check("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", 404).await;
    check("/apis/policy/v1/poddisruptionbudgets", 200).await;
    check(CONFIGURATIONS, 404).await;
    let groups = s.get("/apis").await.value;
    assert!(!groups.to_string().contains("\"apps\""), "{groups}");
    let page = s.get("/metrics").await;
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    for line in [
        "kubernetes_feature_enabled{name=\"AllowParsingUserUIDFromCertAuth\",stage=\"BETA\"} 0",
        "kubernetes_feature_enabled{name=\"Initializers\",stage=\"ALPHA\"} 0",
        "kubernetes_feature_enabled{name=\"StructuredAuthorizationConfiguration\",stage=\"\"} 1",
    ] {
        assert!(text.contains(line), "{line}");
    }
}

/// Go's clients speak protobuf to every kind that is built in.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_of_gates_speak_protobuf() {
    let s = start(|config| {
        config.feature_gates = FeatureGates::parse(["MutatingAdmissionPolicy=true"]).unwrap();
        config.runtime_config = RuntimeConfig::parse(["admissionregistration.k8s.io/v1beta1=true"]).unwrap();
    })
    .await;
    let binding = json!({ "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": "ours" }, "spec": { "policyName": "p" } });
    let protobuf = "application/vnd.kubernetes.protobuf";
    let decoded = |bytes: &[u8]| codec::decode(bytes, ContentType::Protobuf, None).unwrap().value;
    let body = codec::encode(&binding, ContentType::Protobuf).unwrap();
    let made = s.send("POST", BINDINGS, &[("accept", protobuf), ("content-type", protobuf)], body).await;
    assert_eq!((made.code, &decoded(&made.bytes)["spec"]), (201, &binding["spec"]));
    let list = s.send("GET", BINDINGS, &[("accept", protobuf)], Vec::new()).await;
    assert_eq!(decoded(&list.bytes)["items"][0]["spec"], binding["spec"]);

    // What an informer asks: everything there is, and the bookmark that says so.
    let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let watch = s.raw("GET", &format!("{BINDINGS}?{query}"), &[("accept", protobuf)], Vec::new()).await;
    let mut body = watch.into_body().into_data_stream();
    let (mut events, mut read) = (Vec::new(), Vec::new());
    while events.len() < 2 {
        let more = env::timeout(std::time::Duration::from_secs(60), body.next()).await;
        read.extend_from_slice(&more.expect("a frame in time").expect("a frame").unwrap());
        while let Some((kind, object, used)) = read_watch_frame(&read).unwrap() {
            events.push((kind, decoded(object)));
            read.drain(..used);
        }
    }
    assert_eq!((&*events[0].0, &events[0].1["metadata"]["name"]), ("ADDED", &json!("ours")));
    let annotations = &events[1].1["metadata"]["annotations"];
    assert_eq!((&*events[1].0, &annotations["k8s.io/initial-events-end"]), ("BOOKMARK", &json!("true")));
}

#[tokio::test]
async fn initializers_have_no_protobuf_form() {
    let s = configured(json!([])).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(s.send("GET", CONFIGURATIONS, &[("accept", protobuf)], Vec::new()).await.code, 406);
    let accept = format!("{protobuf},application/json");
    let second = s.send("GET", CONFIGURATIONS, &[("accept", &accept)], Vec::new()).await;
    assert_eq!((second.code, &second.headers["content-type"]), (200, &"application/json".parse().unwrap()));
}

#[tokio::test]
async fn mutating_policies_are_served_in_the_alpha_version_where_it_is_on() {
    let s = start(|config| {
        config.feature_gates = FeatureGates::parse(["MutatingAdmissionPolicy=true"]).unwrap();
        config.runtime_config = RuntimeConfig::parse([
            "admissionregistration.k8s.io/v1alpha1=true",
            "admissionregistration.k8s.io/v1beta1=true",
        ])
        .unwrap();
    })
    .await;
    let alpha = BINDINGS.replace("v1beta1", "v1alpha1");
    let binding = json!({ "metadata": { "name": "ours" }, "spec": { "policyName": "p" } });
    let made = s.post(&alpha, binding.clone()).await.expect(201);
    assert_eq!(made["apiVersion"], "admissionregistration.k8s.io/v1alpha1");
    let beta = s.get(&format!("{BINDINGS}/ours")).await.expect(200);
    assert_eq!(
        (&beta["apiVersion"], &beta["spec"]),
        (&json!("admissionregistration.k8s.io/v1beta1"), &binding["spec"])
    );
}

fn initializer(name: &str, policy: &str, seconds: u64) -> Value {
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"] }]);
    json!({ "name": name, "rules": rules, "failurePolicy": policy, "timeoutSeconds": seconds })
}

async fn configured(list: Value) -> Server {
    let s = start(|config| config.feature_gates = FeatureGates::parse(["Initializers=true"]).unwrap()).await;
    s.post(CONFIGURATIONS, json!({ "metadata": { "name": "ours" }, "initializers": list })).await.expect(201);
    s
}

fn map(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "k": "v" } })
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_appear_when_all_initializers_have_acted() {
    let s = configured(json!([
        initializer("first.initializers.example", "Fail", 600),
        initializer("second.initializers.example", "Fail", 600),
    ]))
    .await;
    let mut seen = s.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Da")).await;
    let made = s.post(&format!("{MAPS}?includeUninitialized=true"), map("a")).await.expect(201);
    let pending = |object: &Value| {
        let list = object["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
        list.iter().map(|i| i["name"].as_str().unwrap().split('.').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(pending(&made), ["first", "second"]);
    let names = async |query: &str| {
        let list = s.get(&format!("{MAPS}{query}")).await.expect(200);
        let items = list["items"].as_array().unwrap().clone();
        items.iter().any(|item| item["metadata"]["name"] == "a")
    };
    assert_eq!(s.get(&format!("{MAPS}/a")).await.code, 404);
    assert!(!names("").await && names("?includeUninitialized=true").await);
    assert_eq!(s.get(&format!("{MAPS}/a?includeUninitialized=true")).await.code, 200);

    // Only the first may act, and only by removing itself.
    let with = |names: &[&str]| {
        let list: Vec<Value> = names.iter().map(|n| json!({ "name": format!("{n}.initializers.example") })).collect();
        json!({ "metadata": { "initializers": { "pending": list } } })
    };
    for (names, code) in [(&["first"][..], 422), (&["second", "first"], 422), (&[], 422), (&["second"], 200)] {
        let answer = s.patch("merge-patch", &format!("{MAPS}/a"), with(names)).await;
        assert_eq!(answer.code, code, "{names:?}: {}", answer.value);
    }
    assert_eq!(s.get(&format!("{MAPS}/a")).await.code, 404);
    let marked = json!({ "data": { "k": "seen" } });
    s.patch("merge-patch", &format!("{MAPS}/a"), marked).await.expect(200);
    s.patch("merge-patch", &format!("{MAPS}/a"), with(&[])).await.expect(200);
    let shown = s.get(&format!("{MAPS}/a")).await.expect(200);
    assert!(shown["metadata"].get("initializers").is_none() && shown["data"]["k"] == "seen", "{shown}");
    // A watch that never saw it sees it come.
    let event = seen.next().await.unwrap().unwrap();
    assert_eq!((event.kind, event.object.value()["data"]["k"].as_str()), (WatchKind::Added, Some("seen")));
    // What is done stays done.
    assert_eq!(s.patch("merge-patch", &format!("{MAPS}/a"), with(&["first"])).await.code, 200);
    assert!(names("").await, "a list in a patch is nothing to an object that has none");

    // Who creates waits until it is there.
    let (created, ()) = tokio::join!(s.post(MAPS, map("b")), async {
        s.until(&format!("{MAPS}/b?includeUninitialized=true"), |answer| answer.code == 200).await;
        s.patch("merge-patch", &format!("{MAPS}/b"), with(&["second"])).await.expect(200);
        s.patch("merge-patch", &format!("{MAPS}/b"), with(&[])).await.expect(200);
    });
    let created = created.expect(201);
    assert!(pending(&created).is_empty(), "{created}");
    // Or until somebody says no.
    let (refused, ()) = tokio::join!(s.post(MAPS, map("c")), async {
        s.until(&format!("{MAPS}/c?includeUninitialized=true"), |answer| answer.code == 200).await;
        let result = json!({ "status": "Failure", "code": 403, "reason": "Forbidden", "message": "not like this" });
        let patch = json!({ "metadata": { "initializers": { "result": result } } });
        s.patch("merge-patch", &format!("{MAPS}/c"), patch).await;
    });
    assert_eq!((refused.code, refused.value["message"].as_str()), (403, Some("not like this")));
    assert_eq!(s.get(&format!("{MAPS}/c?includeUninitialized=true")).await.code, 404);

    // Others are not asked; those who may initialize need not.
    s.post("/api/v1/namespaces/default/secrets", json!({ "metadata": { "name": "s" } })).await.expect(201);
    let own = json!({ "metadata": { "name": "d", "initializers": { "pending": [] } } });
    s.post(MAPS, own).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_act_is_passed_over_or_ends_the_object() {
    let s = configured(json!([initializer("late.initializers.example", "Ignore", 1)])).await;
    s.post(MAPS, map("a")).await.expect(201);
    assert_eq!(s.get(&format!("{MAPS}/a")).await.code, 200);
    let strict = json!({ "metadata": { "name": "ours" }, "initializers": [initializer("late.initializers.example", "Fail", 1)] });
    let mut stored = s.get(&format!("{CONFIGURATIONS}/ours")).await.expect(200);
    stored["initializers"] = strict["initializers"].clone();
    s.put(&format!("{CONFIGURATIONS}/ours"), stored).await.expect(200);
    let refused = s.post(MAPS, map("b")).await;
    assert_eq!(refused.code, 504, "{}", refused.value);
    assert_eq!(s.get(&format!("{MAPS}/b?includeUninitialized=true")).await.code, 404);
    let wrong = json!({ "metadata": { "name": "x" }, "initializers": [{ "name": "short", "rules": [{}] }] });
    assert_eq!(s.post(CONFIGURATIONS, wrong).await.code, 422);
}
