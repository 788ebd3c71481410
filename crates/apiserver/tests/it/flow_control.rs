//! The objects of flow control that every cluster has: kept, and not to be changed where upstream forbids it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const API: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// Looks again until `holds`; what is kept is kept in the background.
async fn until(s: &Server, path: &str, holds: impl Fn(u16, &Value) -> bool) -> Value {
    for _ in 0..1000 {
        let found = s.get(path).await;
        if holds(found.code, &found.value) {
            return found.value;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} never came to be as it should: {}", s.get(path).await.value);
}

fn dangling(schema: &Value) -> Option<(&str, &str)> {
    let conditions = schema["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == "Dangling")?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

#[tokio::test]
async fn mandatory_objects_stay_as_they_are() {
    let s = server().await;
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
        let after = until(&s, &path, |code, _| code == 200).await;
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
    until(&s, &high, |_, found| found["spec"]["limited"]["nominalConcurrencyShares"] == 40).await;
    assert_eq!(s.get(&low).await.expect(200)["spec"]["limited"]["nominalConcurrencyShares"], 7);
    assert_eq!(s.get(&exempt).await.expect(200)["spec"]["exempt"]["lendablePercent"], 40);
}

#[tokio::test]
async fn a_schema_tells_whether_its_level_is_there() {
    let s = server().await;
    let found = |_: u16, schema: &Value| dangling(schema) == Some(("False", "Found"));
    let missing = |_: u16, schema: &Value| dangling(schema) == Some(("True", "NotFound"));
    until(&s, &format!("{API}/flowschemas/global-default"), found).await;
    let subject = json!({ "kind": "User", "user": { "name": "u" } });
    let schema = json!({
        "metadata": { "name": "own" },
        "spec": { "priorityLevelConfiguration": { "name": "own" }, "rules": [{ "subjects": [subject],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }] }] },
    });
    s.post(&format!("{API}/flowschemas"), schema).await.expect(201);
    let path = format!("{API}/flowschemas/own");
    until(&s, &path, missing).await;
    let level = json!({ "metadata": { "name": "own" }, "spec": { "type": "Limited", "limited": { "limitResponse": { "type": "Reject" } } } });
    s.post(&format!("{API}/prioritylevelconfigurations"), level).await.expect(201);
    until(&s, &path, found).await;
    s.delete(&format!("{API}/prioritylevelconfigurations/own"), json!(null)).await.expect(200);
    until(&s, &path, missing).await;
}
