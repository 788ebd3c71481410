//! The objects of flow control: those that every cluster has are kept, and not to be changed where upstream forbids it.

use futures::StreamExt;
use serde_json::{Value, json};

use crate::harness::*;

const API: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

fn dangling(schema: &Value) -> Option<(&str, &str)> {
    let conditions = schema["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == "Dangling")?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

#[tokio::test]
async fn mandatory_objects_stay_as_they_are() {
    let s = server().await;
    // The server writes conditions after its start; what is read before could not be written back.
    let told = |a: &Answer| a.value["items"].as_array().unwrap().iter().all(|schema| dangling(schema).is_some());
    s.until(&format!("{API}/flowschemas"), told).await;
    for (plural, name, patch, words) in [
        (
            "flowschemas",
            "catch-all",
            json!({ "spec": { "matchingPrecedence": 9000 } }),
            "spec of 'catch-all' must equal",
        ),
        ("flowschemas", "exempt", json!({ "spec": { "rules": [] } }), "spec of 'exempt' must equal the fixed value"),
        (
            "prioritylevelconfigurations",
            "catch-all",
            json!({ "spec": { "limited": { "nominalConcurrencyShares": 50 } } }),
            "spec of 'catch-all' must equal the fixed value",
        ),
    ] {
        let path = format!("{API}/{plural}/{name}");
        let before = s.get(&path).await.expect(200);
        s.patch("merge-patch", &path, patch).await.refused(422, "Invalid", words);
        // It may be written as it is.
        s.put(&path, before.clone()).await.expect(200);
        // Deleted, it comes back at once.
        s.delete(&path, json!(null)).await.expect(200);
        let after = s.until(&path, |a| a.code == 200).await;
        assert_eq!(after["spec"], before["spec"]);
    }
    let exempt = format!("{API}/prioritylevelconfigurations/exempt");
    let lends = json!({ "spec": { "exempt": { "lendablePercent": 40 } } });
    s.patch("merge-patch", &exempt, lends).await.expect(200);
    // Suggested ones are an administrator's to change, once he says so.
    let low = format!("{API}/prioritylevelconfigurations/workload-low");
    let own = json!({
        "metadata": { "annotations": { "apf.kubernetes.io/autoupdate-spec": "false" } },
        "spec": { "limited": { "nominalConcurrencyShares": 7 } },
    });
    s.patch("merge-patch", &low, own).await.expect(200);
    let high = format!("{API}/prioritylevelconfigurations/workload-high");
    s.patch("merge-patch", &high, json!({ "spec": { "limited": { "nominalConcurrencyShares": 7 } } }))
        .await
        .expect(200);
    s.until(&high, |a| a.value["spec"]["limited"]["nominalConcurrencyShares"] == 40).await;
    assert_eq!(s.get(&low).await.expect(200)["spec"]["limited"]["nominalConcurrencyShares"], 7);
    assert_eq!(s.get(&exempt).await.expect(200)["spec"]["exempt"]["lendablePercent"], 40);
}

#[tokio::test]
async fn a_schema_tells_whether_its_level_is_there() {
    let s = server().await;
    let found = |a: &Answer| dangling(&a.value) == Some(("False", "Found"));
    let missing = |a: &Answer| dangling(&a.value) == Some(("True", "NotFound"));
    s.until(&format!("{API}/flowschemas/global-default"), found).await;
    let subject = json!({ "kind": "User", "user": { "name": "u" } });
    let schema = json!({
        "metadata": { "name": "own" },
        "spec": { "priorityLevelConfiguration": { "name": "own" }, "rules": [{ "subjects": [subject],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }] }] },
    });
    s.post(&format!("{API}/flowschemas"), schema).await.expect(201);
    let path = format!("{API}/flowschemas/own");
    s.until(&path, missing).await;
    let level = json!({ "metadata": { "name": "own" }, "spec": { "type": "Limited", "limited": { "limitResponse": { "type": "Reject" } } } });
    s.post(&format!("{API}/prioritylevelconfigurations"), level).await.expect(201);
    s.until(&path, found).await;
    s.delete(&format!("{API}/prioritylevelconfigurations/own"), json!(null)).await.expect(200);
    s.until(&path, missing).await;
}

/// One resource of flow control from discovery to the deletion of many, with its status.
async fn lives(
    s: &Server,
    plural: &str,
    kind: &str,
    spec: Value,
    change: fn(&mut Value, i64),
    value: fn(&Value) -> i64,
) {
    let groups = s.get("/apis").await.expect(200);
    let group = groups["groups"].as_array().unwrap().iter().find(|g| g["name"] == "flowcontrol.apiserver.k8s.io");
    let own = s.get("/apis/flowcontrol.apiserver.k8s.io").await.expect(200);
    for group in [group.unwrap(), &own] {
        assert!(group["versions"].as_array().unwrap().iter().any(|v| v["version"] == "v1"), "{group}");
    }
    let resources = s.get(API).await.expect(200);
    let has = |name: String| resources["resources"].as_array().unwrap().iter().any(|r| r["name"] == name);
    assert!(has(plural.to_string()) && has(format!("{plural}/status")), "{resources}");

    let collection = format!("{API}/{plural}");
    let (some, selected) = (format!("{collection}?labelSelector=of%3Dthree"), json!({ "of": "three" }));
    let template = json!({ "metadata": { "generateName": "own-", "labels": selected }, "spec": spec });
    let mut made = Value::Null;
    for _ in 0..3 {
        made = s.post(&collection, template.clone()).await.expect(201);
    }
    let path = format!("{collection}/{}", made["metadata"]["name"].as_str().unwrap());
    assert_eq!(s.get(&path).await.expect(200)["metadata"]["uid"], made["metadata"]["uid"]);
    let list = s.get(&some).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = s.watch(&format!("{some}&watch=1&resourceVersion={version}")).await;

    let mut patch = json!({ "metadata": { "annotations": { "patched": "true" } } });
    change(&mut patch, 99);
    let patched = s.patch("merge-patch", &path, patch).await.expect(200);
    assert_eq!((&patched["metadata"]["annotations"]["patched"], value(&patched)), (&json!("true"), 99));
    let update = async |path: &str, change: &dyn Fn(&mut Value)| loop {
        // The server itself writes conditions; then it is taken again.
        let mut object = s.get(path).await.expect(200);
        change(&mut object);
        let answer = s.put(path, object).await;
        if answer.code != 409 {
            break answer.expect(200);
        }
    };
    let updated = update(&path, &|object| {
        object["metadata"]["annotations"]["updated"] = "true".into();
        change(object, 90);
    })
    .await;
    assert_eq!((&updated["metadata"]["annotations"]["updated"], value(&updated)), (&json!("true"), 90));
    loop {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.kind, api::WatchKind::Modified);
        if event.object.meta.annotations.get("patched").is_some_and(|v| v == "true") {
            break;
        }
    }

    let status = format!("{path}/status");
    let read = s.get(&status).await.expect(200);
    assert_eq!((&read["kind"], &read["metadata"]["uid"]), (&json!(kind), &made["metadata"]["uid"]));
    let has = |object: &Value, name: &str| {
        object["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == name)
    };
    let condition = |name: &str| json!({ "type": name, "status": "False", "reason": "Tests", "message": "by hand" });
    let patch = json!({ "status": { "conditions": [condition("Patched")] } });
    assert!(has(&s.patch("merge-patch", &status, patch).await.expect(200), "Patched"));
    let updated = update(&status, &|object| {
        let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.push(condition("Updated"));
        object["status"]["conditions"] = conditions.into();
        change(object, 80);
    })
    .await;
    assert_eq!((has(&updated, "Updated"), value(&updated)), (true, 90), "{updated}");

    s.delete(&path, json!(null)).await.expect(200);
    s.get(&path).await.refused(404, "NotFound", "");
    assert_eq!(s.get(&some).await.expect(200)["items"].as_array().unwrap().len(), 2);
    s.delete(&some, json!(null)).await.expect(200);
    assert_eq!(s.get(&some).await.expect(200)["items"], json!([]));
    assert!(!s.get(&collection).await.expect(200)["items"].as_array().unwrap().is_empty(), "others stay");
}

#[tokio::test]
async fn every_operation_on_schemas_and_levels() {
    let s = server().await;
    let rule = json!({ "subjects": [{ "kind": "User", "user": { "name": "nobody" } }],
        "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }] });
    let schema = json!({ "matchingPrecedence": 100, "priorityLevelConfiguration": { "name": "global-default" },
        "distinguisherMethod": { "type": "ByUser" }, "rules": [rule] });
    lives(
        &s,
        "flowschemas",
        "FlowSchema",
        schema,
        |object, to| object["spec"]["matchingPrecedence"] = to.into(),
        |object| object["spec"]["matchingPrecedence"].as_i64().unwrap(),
    )
    .await;
    let limited = json!({ "nominalConcurrencyShares": 2, "limitResponse": { "type": "Reject" } });
    lives(
        &s,
        "prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        json!({ "type": "Limited", "limited": limited }),
        |object, to| object["spec"]["limited"]["nominalConcurrencyShares"] = to.into(),
        |object| object["spec"]["limited"]["nominalConcurrencyShares"].as_i64().unwrap(),
    )
    .await;
}

/// A server where `flooder` and `other` may do everything and share a level of one seat.
async fn narrow(queuing: Value) -> Server {
    let env = env::Env::real();
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "flooder,flooder,1,clients\nother,other,2,clients\nnode,system:node:n1,3,system:nodes\n")
        .unwrap();
    let s = server_on(std::sync::Arc::new(store::MemoryStore::new(env.clone())), env, |config| {
        config.authentication.token_file = Some(tokens);
        config.authorization_modes = vec!["AlwaysAllow".into()];
        config.limits.requests_in_flight = 8;
        config.limits.mutating_requests_in_flight = 4;
    })
    .await;
    let level = json!({ "metadata": { "name": "narrow" }, "spec": { "type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": queuing } } });
    let level = s.post(&format!("{API}/prioritylevelconfigurations"), level).await.expect(201);
    let rule = json!({ "subjects": [{ "kind": "Group", "group": { "name": "clients" } }], "resourceRules": [{
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"] }] });
    let schema = json!({ "metadata": { "name": "narrow" }, "spec": { "matchingPrecedence": 50,
        "priorityLevelConfiguration": { "name": "narrow" }, "distinguisherMethod": { "type": "ByUser" }, "rules": [rule] } });
    let schema = s.post(&format!("{API}/flowschemas"), schema).await.expect(201);
    // Until it is in force.
    for _ in 0..6000 {
        let answer = s.anonymous().send("GET", MAPS, &[("authorization", "Bearer other")], Vec::new()).await;
        let uid = |name: &str| answer.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_string);
        let uids = [uid("x-kubernetes-pf-flowschema-uid"), uid("x-kubernetes-pf-prioritylevel-uid")];
        if uids == [&schema, &level].map(|object| object["metadata"]["uid"].as_str().map(str::to_string)) {
            return s;
        }
        env::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the schema never came into force");
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A request of `flooder` that keeps its seat: a webhook that never answers holds it.
async fn stuck_webhook(s: &Server) -> tokio::net::TcpListener {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://127.0.0.1:{}/", listener.local_addr().unwrap().port());
    let rule =
        json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] });
    let hook = json!({ "metadata": { "name": "stuck" }, "webhooks": [{ "name": "stuck.example.com", "rules": [rule],
        "clientConfig": { "url": url }, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30 }] });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    s.post(path, hook).await.expect(201);
    listener
}

fn as_user(s: &Server, user: &str, method: &str, path: &str, content: Vec<u8>) -> http::Request<apiserver::Body> {
    let authorization = format!("Bearer {user}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    s.anonymous().request(method, path, &headers, content)
}

async fn page(s: &Server, path: &str) -> String {
    String::from_utf8(s.get(path).await.bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_flood_is_turned_away_and_another_flow_is_served() {
    // Many queues, one of them in each hand: the two flows meet only by chance of the hash.
    let queuing = json!({ "type": "Queue", "queuing": { "queues": 512, "handSize": 1, "queueLengthLimit": 2 } });
    let s = narrow(queuing).await;
    let listener = stuck_webhook(&s).await;
    let mut flood = Vec::new();
    for n in 0..20 {
        let (api, request) = (
            s.api.clone(),
            as_user(&s, "flooder", "POST", MAPS, config_map(&format!("f-{n}")).to_string().into_bytes()),
        );
        flood.push(env::spawn(async move { api.handle(request).await.status().as_u16() }));
    }
    let held = listener.accept().await.unwrap();
    // One has the seat, two wait, the others are turned away.
    let mut codes = Vec::new();
    while codes.len() < 17 {
        let done = flood.iter().position(|task| task.is_finished());
        match done {
            Some(index) => codes.push(flood.swap_remove(index).await.unwrap()),
            None => env::sleep(std::time::Duration::from_millis(5)).await,
        }
    }
    assert_eq!(codes, [429; 17]);
    let refused = s.api.handle(as_user(&s, "flooder", "GET", MAPS, Vec::new())).await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    assert!(refused.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    let queues = page(&s, "/debug/api_priority_and_fairness/dump_queues").await;
    assert!(queues.lines().any(|line| line.starts_with("narrow,") && line.contains(" 2, ")), "{queues}");
    let levels = page(&s, "/debug/api_priority_and_fairness/dump_priority_levels").await;
    assert!(levels.starts_with("PriorityLevelName, ActiveQueues, IsIdle,"), "{levels}");
    assert!(page(&s, "/debug/api_priority_and_fairness/dump_requests").await.contains("flooder"));
    let metrics = page(&s, "/metrics").await;
    for shown in [
        "priority_level_seat_utilization_count{phase=\"executing\",priority_level=\"narrow\"}",
        "priority_level_request_utilization_count{phase=\"waiting\",priority_level=\"narrow\"}",
        "demand_seats_bucket{priority_level=\"narrow\",le=\"1\"}",
        "read_vs_write_current_requests_count{phase=\"waiting\",request_kind=\"mutating\"}",
        "watch_count_samples_count{flow_schema=\"narrow\",priority_level=\"narrow\"}",
    ] {
        assert!(metrics.contains(&format!("apiserver_flowcontrol_{shown}")), "{shown}: {metrics}");
    }
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"narrow\",priority_level=\"narrow\",reason=\"queue-full\"} 18";
    assert!(metrics.contains(rejected), "{metrics}");
    // Others wait behind one request of the flood at most, and those of other levels not at all.
    let lease = json!({ "metadata": { "name": "n1" } }).to_string().into_bytes();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    assert_eq!(s.api.handle(as_user(&s, "node", "POST", leases, lease)).await.status(), 201);
    s.get(MAPS).await.expect(200);
    let waiting = as_user(&s, "other", "GET", MAPS, Vec::new());
    let api = s.api.clone();
    let other = env::spawn(async move { api.handle(waiting).await.status().as_u16() });
    while !page(&s, "/debug/api_priority_and_fairness/dump_requests").await.contains("other") {
        env::sleep(std::time::Duration::from_millis(5)).await;
    }
    // The webhook hangs up and its request fails. One of those who wait is next; who hangs too is hung up on as well.
    drop(held);
    let answers = async {
        loop {
            drop(listener.accept().await.unwrap());
        }
    };
    tokio::select! {
        code = other => assert_eq!(code.unwrap(), 200),
        () = answers => {}
    }
    // What left a queue is told of in virtual time.
    let metrics = page(&s, "/metrics").await;
    for name in ["dispatch_r{", "latest_s{", "next_s_bounds{bound=\"min\",", "next_discounted_s_bounds{bound=\"max\","]
    {
        assert!(
            metrics.contains(&format!("apiserver_flowcontrol_{name}priority_level=\"narrow\"}}")),
            "{name}: {metrics}"
        );
    }
}

#[tokio::test]
async fn a_level_without_queues_turns_away_at_once_and_a_client_that_leaves_frees_its_seat() {
    let s = narrow(json!({ "type": "Reject" })).await;
    let listener = stuck_webhook(&s).await;
    let request = as_user(&s, "flooder", "POST", MAPS, config_map("a").to_string().into_bytes());
    let api = s.api.clone();
    let stuck = env::spawn(async move { api.handle(request).await.status().as_u16() });
    let _held = listener.accept().await.unwrap();
    let get = async || s.api.handle(as_user(&s, "other", "GET", MAPS, Vec::new())).await.status().as_u16();
    assert_eq!(get().await, 429);
    stuck.abort();
    assert!(stuck.await.is_err());
    assert_eq!(get().await, 200);
    let rejected = "priority_level=\"narrow\",reason=\"concurrency-limit\"} 1";
    assert!(page(&s, "/metrics").await.contains(rejected));
    // What is exempt is never turned away.
    s.get("/api/v1/pods").await.expect(200);
}
