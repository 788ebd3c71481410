//! Nothing that a Secret holds, and no credential, is in a record of level Metadata, however the request went.

use futures::StreamExt;
use serde_json::{Value, json};

use crate::{audit::Recorded, harness::*};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WORD: &str = "hunter2horse";
/// The same in base64, as it lies in `data`.
const ENCODED: &str = "aHVudGVyMmhvcnNl";
const TOKEN: &str = "bm9ib2R5LXNlZXMtdGhpcw";

fn secret(name: &str) -> Value {
    let annotations = json!({ "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"k\":\"{WORD}\"}}") });
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "annotations": annotations },
        "data": { "k": ENCODED }, "stringData": { "s": WORD },
    })
}

/// Requests whose bodies hold the word, good ones and those that are refused with words about it.
fn writes() -> Vec<(&'static str, String, &'static str, String)> {
    let at = |name: &str| format!("{SECRETS}/{name}");
    let strict = "?fieldValidation=Strict";
    let mut frozen = secret("frozen");
    frozen["immutable"] = true.into();
    let mut thawed = frozen.clone();
    thawed["stringData"] = json!({ "s": format!("{WORD}2") });
    let with = |field: &str, value: Value| {
        let mut object = secret("wrong");
        object[field] = value;
        object.to_string()
    };
    let json_patch = |operations: Value| ("PATCH", at("a"), "application/json-patch+json", operations.to_string());
    let merge = |patch: Value| ("PATCH", at("a"), "application/merge-patch+json", patch.to_string());
    let applied = |manager: &str, word: &str| {
        let object =
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "b" }, "stringData": { "s": word } });
        ("PATCH", format!("{}?fieldManager={manager}", at("b")), "application/apply-patch+yaml", object.to_string())
    };
    let post = |query: &str, body: String| ("POST", format!("{SECRETS}{query}"), "application/json", body);
    vec![
        post("", secret("a").to_string()),
        post("", secret("a").to_string()),
        post("?dryRun=All", secret("dry").to_string()),
        post("", with("data", json!({ "k": WORD }))),
        post("", with("data", json!([WORD]))),
        post("", with("data", json!(WORD))),
        post("", with("type", json!({ "a": WORD }))),
        post("", with("metadata", json!({ "name": "Not A Name", "labels": { "l": format!("{WORD} !") } }))),
        post(strict, with(WORD, json!(1))),
        post(strict, format!("{{\"kind\":\"Secret\",\"apiVersion\":\"v1\",\"{WORD}\":1,\"{WORD}\":2}}")),
        post("", format!("{{\"data\": {{\"k\": \"{WORD}")),
        post("", format!("{WORD}: [")),
        post("", with("kind", json!(WORD))),
        ("POST", SECRETS.into(), "application/yaml", format!("stringData:\n  k: {WORD}\nmetadata:\n  name: yaml\n")),
        ("POST", SECRETS.into(), "application/yaml", format!("data:\n- {WORD}\n {WORD}:\n")),
        ("POST", SECRETS.into(), "application/vnd.kubernetes.protobuf", WORD.into()),
        ("POST", SECRETS.into(), "text/plain", WORD.into()),
        ("PUT", at("a"), "application/json", secret("a").to_string()),
        ("PUT", at("a"), "application/json", secret("another").to_string()),
        ("PUT", at("absent"), "application/json", secret("absent").to_string()),
        post("", frozen.to_string()),
        ("PUT", at("frozen"), "application/json", thawed.to_string()),
        merge(json!({ "stringData": { "m": WORD } })),
        merge(json!({ "data": { "m": WORD } })),
        merge(json!({ "data": [WORD] })),
        merge(json!({ "metadata": { "labels": { "l": format!("{WORD} !") } } })),
        (
            "PATCH",
            at("a"),
            "application/strategic-merge-patch+json",
            json!({ "stringData": { "m": WORD } }).to_string(),
        ),
        ("PATCH", at("a"), "application/strategic-merge-patch+json", json!({ "data": { "$patch": WORD } }).to_string()),
        json_patch(json!([{ "op": "test", "path": "/data/k", "value": WORD }])),
        json_patch(json!([{ "op": "remove", "path": format!("/data/{WORD}") }])),
        json_patch(json!([{ "op": WORD, "path": "/data/k" }])),
        json_patch(json!([{ "op": "replace", "path": "/data", "value": WORD }])),
        json_patch(json!([{ "op": "add", "path": "/stringData", "value": { "j": WORD } }])),
        applied("one", WORD),
        applied("two", &format!("{WORD}2")),
        ("PATCH", at("b"), "application/apply-patch+yaml", format!("stringData: {WORD}: {WORD}")),
        ("PATCH", at("a"), "application/unknown", WORD.into()),
    ]
}

#[tokio::test]
async fn what_secrets_hold_is_not_in_a_record_of_level_metadata() {
    let rules = "rules: [{level: None, users: ['system:apiserver']}, {level: Metadata}]";
    let r = Recorded::start(rules, |_, _| {}).await;
    let s = &r.server;
    let mut watch = s.watch(&format!("{SECRETS}?watch=1")).await;
    let (mut taken, mut refused) = (0, 0);
    for (method, path, content, body) in writes() {
        let answer = s.send(method, &path, &[("content-type", content)], body.into_bytes()).await;
        *(if answer.code < 300 { &mut taken } else { &mut refused }) += 1;
    }
    assert!(taken >= 9 && refused >= 20, "{taken} were taken, {refused} refused");
    assert_eq!(s.get(&format!("{SECRETS}/a")).await.expect(200)["data"]["k"], ENCODED);
    let event = watch.next().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(event.object.json()).contains(ENCODED), "the watch shows it");
    drop(watch);
    s.get(SECRETS).await.expect(200);
    s.get("/api/v1/secrets?limit=1").await.expect(200);
    s.delete(&format!("{SECRETS}/frozen"), Value::Null).await.expect(200);
    s.delete(SECRETS, Value::Null).await.expect(200);
    let events = r.events();
    let codes = events.iter().filter(|e| e["objectRef"]["resource"] == "secrets" && e["stage"] == "ResponseComplete");
    assert!(codes.count() >= taken + refused + 5);
    for event in &events {
        let text = event.to_string();
        assert!(!text.contains(WORD) && !text.contains(ENCODED), "{text}");
        assert!(event.get("requestObject").is_none() && event.get("responseObject").is_none(), "{text}");
    }
}

#[tokio::test]
async fn credentials_are_not_in_a_record_of_level_metadata() {
    let rules = "rules: [{level: None, users: ['system:apiserver']}, {level: Metadata}]";
    let r = Recorded::start(rules, |_, _| {}).await;
    let s = &r.server;
    default_account(s).await;
    let made = s.post("/api/v1/namespaces/default/serviceaccounts/default/token", json!({ "spec": {} })).await;
    let made = made.expect(201)["status"]["token"].as_str().unwrap().to_string();
    let signature = made.rsplit('.').next().unwrap().to_string();
    s.post("/apis/authentication.k8s.io/v1/tokenreviews", json!({ "spec": { "token": made } })).await.expect(201);
    let bearer = format!("Bearer {TOKEN}");
    let basic = format!("Basic {TOKEN}");
    let protocol = format!("base64url.bearer.authorization.k8s.io.{TOKEN}, v5.channel.k8s.io");
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=cat&command=/run/file&stdout=true";
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", protocol.as_str())];
    for headers in [&[("authorization", bearer.as_str())][..], &[("authorization", basic.as_str())], &upgrade] {
        for path in [SECRETS, exec] {
            let answer = s.anonymous().send("GET", path, headers, Vec::new()).await;
            assert_eq!(answer.code, 401, "{path}");
        }
    }
    let own = format!("Bearer {made}");
    s.anonymous().send("GET", exec, &[("authorization", &own)], Vec::new()).await.expect(403);
    let text = r.text();
    assert!(text.contains("command=cat"), "where a request went is recorded");
    for secret in [TOKEN, &signature] {
        assert!(!text.contains(secret), "{secret}");
    }
}
