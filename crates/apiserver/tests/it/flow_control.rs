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
