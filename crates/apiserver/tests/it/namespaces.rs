//! Namespaces as objects: changed, with a status of their own and finalizers that only `finalize` changes.
//! How they are emptied is the controllers' matter.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const NAMESPACES: &str = "/api/v1/namespaces";

async fn made(s: &Server) -> (String, Value) {
    let namespace = s.post(NAMESPACES, json!({ "metadata": { "generateName": "ns-" } })).await.expect(201);
    let path = format!("{NAMESPACES}/{}", namespace["metadata"]["name"].as_str().unwrap());
    (path, namespace)
}

#[tokio::test]
async fn labels_are_patched_and_updated() {
    let s = server().await;
    let (path, first) = made(&s).await;
    assert_eq!(first["metadata"]["labels"]["kubernetes.io/metadata.name"], first["metadata"]["name"]);
    let label = json!({ "metadata": { "labels": { "patched": "yes" } } });
    s.patch("strategic-merge-patch", &path, label).await.expect(200);
    let mut found = s.get(&path).await.expect(200);
    assert_eq!(found["metadata"]["labels"]["patched"], "yes");
    let version = |n: &Value| n["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&found) > version(&first));
    found["metadata"]["labels"]["updated"] = "yes".into();
    s.put(&path, found).await.expect(200);
    let found = s.get(&path).await.expect(200);
    assert_eq!(
        (&found["metadata"]["labels"]["patched"], &found["metadata"]["labels"]["updated"]),
        (&json!("yes"), &json!("yes"))
    );
}

#[tokio::test]
async fn the_status_is_patched_and_updated() {
    let s = server().await;
    let (path, _) = made(&s).await;
    let status = format!("{path}/status");
    assert_eq!(s.get(&status).await.expect(200)["status"]["phase"], "Active");
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "reason": "Tests", "message": format!("{kind} by hand") });
    let patch =
        json!({ "metadata": { "annotations": { "by": "patch" } }, "status": { "conditions": [condition("Patched")] } });
    let patched = s.patch("merge-patch", &status, patch).await.expect(200);
    assert_eq!(
        (&patched["metadata"]["annotations"]["by"], &patched["status"]["phase"]),
        (&json!("patch"), &json!("Active"))
    );
    let mut found = s.get(&status).await.expect(200);
    let last = &found["status"]["conditions"][0];
    assert_eq!((&last["reason"], &last["message"]), (&json!("Tests"), &json!("Patched by hand")));
    found["status"]["conditions"] = json!([condition("Patched"), condition("Updated")]);
    // What is not status stays.
    found["spec"]["finalizers"] = json!(["example.com/other"]);
    let updated = s.put(&status, found).await.expect(200);
    assert_eq!(updated["spec"]["finalizers"], json!(["kubernetes"]));
    let found = s.get(&path).await.expect(200);
    let kinds: Vec<_> = found["status"]["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
    assert_eq!(kinds, ["Patched", "Updated"]);
    assert_eq!(found["status"]["conditions"][1]["message"], "Updated by hand");
}

#[tokio::test]
async fn finalizers_are_added_and_removed() {
    let s = server().await;
    let (path, mut namespace) = made(&s).await;
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    let finalize = format!("{path}/finalize");
    for finalizers in [json!(["kubernetes", "example.com/hold"]), json!(["kubernetes"])] {
        namespace["spec"]["finalizers"] = finalizers.clone();
        namespace = s.put(&finalize, namespace).await.expect(200);
        assert_eq!(namespace["spec"]["finalizers"], finalizers);
        assert_eq!(s.get(&path).await.expect(200)["spec"]["finalizers"], finalizers);
    }
    // A plain update leaves them as they are.
    namespace["spec"]["finalizers"] = json!([]);
    assert_eq!(s.put(&path, namespace).await.expect(200)["spec"]["finalizers"], json!(["kubernetes"]));
}
