//! Status, scale, binding, eviction, tokens, finalize, reviews.

use serde_json::{Value, json};

use crate::harness::{default_account, pod, server};

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let s = server().await;
    let root = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({
        "metadata": { "name": "d" }, "status": { "replicas": 9 },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "a": "b" } },
            "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        },
    });
    let mut made = s.post(root, deployment).await.expect(201);
    assert!(made["status"]["replicas"].is_null());
    assert_eq!(made["metadata"]["generation"], 1);
    made["spec"]["replicas"] = 5.into();
    made["status"] = json!({ "replicas": 2 });
    let status = s.put(&format!("{root}/d/status"), made).await.expect(200);
    assert_eq!((status["spec"]["replicas"].as_i64(), status["status"]["replicas"].as_i64()), (Some(2), Some(2)));
    assert_eq!(status["metadata"]["generation"], 1);
    let scale = s.get(&format!("{root}/d/scale")).await.expect(200);
    assert_eq!((scale["kind"].as_str(), scale["status"]["selector"].as_str()), (Some("Scale"), Some("a=b")));
    let scaled =
        s.patch("merge-patch", &format!("{root}/d/scale"), json!({ "spec": { "replicas": 7 } })).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 7);
    let now = s.get(&format!("{root}/d")).await.expect(200);
    assert_eq!((now["spec"]["replicas"].as_i64(), now["metadata"]["generation"].as_i64()), (Some(7), Some(2)));
    let negative = s.patch("merge-patch", &format!("{root}/d/scale"), json!({ "spec": { "replicas": -1 } })).await;
    negative.refused(422, "Invalid", "spec.replicas");
}

#[tokio::test]
async fn pods_are_bound_once_and_evicted_within_budget() {
    let s = server().await;
    default_account(&s).await;
    let pods = "/api/v1/namespaces/default/pods";
    s.post(pods, pod("a")).await.expect(201);
    let nominated = json!({ "status": { "nominatedNodeName": "n2" } });
    s.patch("merge-patch", &format!("{pods}/a/status"), nominated).await.expect(200);
    let mut binding = json!({ "metadata": { "name": "a" }, "target": { "kind": "Node", "name": "n1" } });
    binding["metadata"]["resourceVersion"] = "1".into();
    let stale = s.post(&format!("{pods}/a/binding"), binding.clone()).await;
    stale.refused(409, "Conflict", "Precondition failed: ResourceVersion in precondition: 1, ");
    binding["metadata"]["resourceVersion"].take();
    s.post(&format!("{pods}/a/binding"), binding.clone()).await.expect(201);
    let bound = s.get(&format!("{pods}/a")).await.expect(200);
    assert_eq!((&bound["spec"]["nodeName"], &bound["status"]["nominatedNodeName"]), (&json!("n1"), &json!(null)));
    assert!(bound["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "PodScheduled"));
    let again = s.post(&format!("{pods}/a/binding"), binding).await;
    again.refused(409, "Conflict", "pod a is already assigned to node \"n1\"");
    let budget = json!({
        "metadata": { "name": "b" }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "a" } } },
    });
    s.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await.expect(201);
    let ready = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    s.patch("merge-patch", &format!("{pods}/a/status"), ready).await.expect(200);
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "a" } });
    let refused = s.post(&format!("{pods}/a/eviction"), eviction.clone()).await;
    refused.refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
    let status = json!({ "status": {
        "disruptionsAllowed": 1, "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
    } });
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b/status";
    s.patch("merge-patch", budgets, status).await.expect(200);
    let mut other = eviction.clone();
    other["apiVersion"] = "policy/v2".into();
    let refused = s.post(&format!("{pods}/a/eviction"), other).await;
    refused.refused(400, "BadRequest", "no kind \"Eviction\" is registered for version \"policy/v2\" in scheme");
    // Older clients speak of an older version, which is the same.
    let mut older = eviction;
    older["apiVersion"] = "policy/v1beta1".into();
    s.post(&format!("{pods}/a/eviction"), older).await.expect(201);
    let evicted = s.get(&format!("{pods}/a")).await.expect(200);
    assert!(evicted["metadata"]["deletionTimestamp"].is_string());
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    let why = conditions.iter().find(|c| c["type"] == "DisruptionTarget").map(|c| c["reason"].as_str());
    assert_eq!(why, Some(Some("EvictionByEvictionAPI")));
}

#[tokio::test]
async fn namespaces_go_when_they_are_empty() {
    let s = server().await;
    s.post("/api/v1/namespaces", json!({ "metadata": { "name": "n" } })).await.expect(201);
    let mut marked = s.delete("/api/v1/namespaces/n", Value::Null).await.expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    s.delete("/api/v1/namespaces/n", Value::Null).await.refused(409, "Conflict", "The system is ensuring all content");
    let late = s.post("/api/v1/namespaces/n/configmaps", json!({ "metadata": { "name": "x" } })).await;
    late.refused(403, "Forbidden", "because it is being terminated");
    marked["spec"]["finalizers"] = json!([]);
    s.put("/api/v1/namespaces/n/finalize", marked).await.expect(200);
    s.get("/api/v1/namespaces/n").await.refused(404, "NotFound", "");
    let kept = s.delete("/api/v1/namespaces/default", Value::Null).await;
    kept.refused(403, "Forbidden", "this namespace may not be deleted");
}

#[tokio::test]
async fn tokens_speak_for_their_account() {
    let s = server().await;
    default_account(&s).await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = s.post(path, json!({ "spec": { "expirationSeconds": 600 } })).await.expect(201);
    let token = issued["status"]["token"].as_str().unwrap();
    let nobody = s.anonymous();
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let who = nobody.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &headers, b"{}".to_vec()).await;
    let who = who.expect(201);
    assert_eq!(who["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    let review = json!({ "spec": { "token": token } });
    let review = s.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.expect(201);
    assert_eq!(review["status"]["authenticated"], true);
    s.delete("/api/v1/namespaces/default/serviceaccounts/default", Value::Null).await.expect(200);
    s.get("/api/v1/namespaces/default/serviceaccounts").await.expect(200);
    let gone = nobody.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &headers, b"{}".to_vec()).await;
    gone.refused(401, "Unauthorized", "");
    let short = s.post(path, json!({ "spec": { "expirationSeconds": 5 } })).await;
    assert_ne!(short.code, 201);
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let s = server().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, kind: &str| json!({ "metadata": { "name": name }, "spec": { "type": kind, "ports": [{ "port": 80 }] } });
    let a = s.post(services, service("a", "NodePort")).await.expect(201);
    assert!(a["spec"]["clusterIP"].as_str().unwrap().starts_with("10."));
    assert_eq!(a["spec"]["clusterIPs"][0], a["spec"]["clusterIP"]);
    assert!((30000..=32767).contains(&a["spec"]["ports"][0]["nodePort"].as_i64().unwrap()));
    let mut same = service("b", "ClusterIP");
    same["spec"]["clusterIP"] = a["spec"]["clusterIP"].clone();
    s.post(services, same.clone()).await.refused(422, "Invalid", "provided IP is already allocated");
    s.delete(&format!("{services}/a"), Value::Null).await.expect(200);
    s.post(services, same).await.expect(201);
    let mut headless = service("h", "ClusterIP");
    headless["spec"]["clusterIP"] = "None".into();
    assert_eq!(s.post(services, headless).await.expect(201)["spec"]["clusterIPs"], json!(["None"]));
    let kubernetes = s.get(&format!("{services}/kubernetes")).await.expect(200);
    assert_eq!(kubernetes["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test]
async fn access_is_reviewed() {
    let s = server().await;
    let root = "/apis/authorization.k8s.io/v1";
    let ask =
        json!({ "spec": { "resourceAttributes": { "verb": "get", "resource": "pods", "namespace": "default" } } });
    let own = s.post(&format!("{root}/selfsubjectaccessreviews"), ask.clone()).await.expect(201);
    assert_eq!(own["status"]["allowed"], true);
    let mut other = ask;
    other["spec"]["user"] = "bob".into();
    let other = s.post(&format!("{root}/subjectaccessreviews"), other).await.expect(201);
    assert_eq!(other["status"]["allowed"], false);
}

#[tokio::test]
async fn parts_of_a_pod_are_written_by_their_own_rules() {
    let s = server().await;
    default_account(&s).await;
    let pods = "/api/v1/namespaces/default/pods";
    s.post(pods, pod("a")).await.expect(201);
    let debug = json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "i" }] } });
    let path = format!("{pods}/a/ephemeralcontainers");
    let mut made = s.patch("strategic-merge-patch", &path, debug).await.expect(200);
    assert_eq!(made["spec"]["ephemeralContainers"][0]["name"], "debug");
    made["spec"]["ephemeralContainers"][0]["image"] = "other".into();
    s.put(&path, made.clone()).await.refused(
        422,
        "Invalid",
        "existing ephemeral containers \"debug\" may not be changed",
    );
    made["spec"]["ephemeralContainers"][0]["image"] = "i".into();
    made["spec"]["containers"][0]["image"] = "other".into();
    made["metadata"]["labels"]["app"] = "other".into();
    let kept = s.put(&path, made.clone()).await.expect(200);
    assert_eq!(
        (&kept["spec"]["containers"][0]["image"], &kept["metadata"]["labels"]["app"]),
        (&json!("i"), &json!("a"))
    );
    made["metadata"]["resourceVersion"] = kept["metadata"]["resourceVersion"].clone();
    made["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "1" } });
    s.put(&format!("{pods}/a/resize"), made).await.refused(422, "Invalid", "Pod QOS Class may not change");
}

#[tokio::test]
async fn tables_say_what_is_over() {
    let s = server().await;
    default_account(&s).await;
    let pods = "/api/v1/namespaces/default/pods";
    s.post(pods, pod("a")).await.expect(201);
    s.patch("merge-patch", &format!("{pods}/a/status"), json!({ "status": { "phase": "Succeeded" } }))
        .await
        .expect(200);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = s.send("GET", pods, &accept, Vec::new()).await.expect(200);
    assert_eq!(table["rows"][0]["conditions"][0]["type"], "Completed");
    let endpoints = s.get("/api/v1/namespaces/default/endpoints").await;
    assert!(endpoints.headers["warning"].to_str().unwrap().contains("deprecated"), "{:?}", endpoints.headers);
}
