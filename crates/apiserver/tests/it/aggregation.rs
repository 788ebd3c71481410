//! An extension API server behind an APIService: another server of ours, over TLS, that believes the headers of the
//! first.
//! The extension server decides by the identity the first one vouches for, and by nothing a client says.

use std::{sync::Arc, time::Duration};

use apiserver::config::{ClientCertificate, ProxyClient, RequestHeader};
use env::Env;
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{
    harness::*,
    listening::{Listening, start_with},
};

const GROUP: &str = "ext.example.com";
const WIDGETS: &str = "/apis/ext.example.com/v1/namespaces/default/widgets";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn extension() -> Listening {
    let extension = start_with(|config| {
        // Its own clients and the proxy in front are the same authority's here; the name tells them apart.
        config.authentication.request_header = Some(RequestHeader::usual(config.client_ca_pem.clone(), "front-proxy"));
    })
    .await;
    let crd = json!({
        "metadata": { "name": format!("widgets.{GROUP}") },
        "spec": { "group": GROUP, "scope": "Namespaced", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "description": "A widget of an extension.",
                "x-kubernetes-preserve-unknown-fields": true } } }] },
    });
    let own = Server::of(extension.api.clone());
    own.as_admin("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await.expect(201);
    until(async || own.as_admin("GET", WIDGETS, Value::Null).await, |a| a.code == 200).await;
    extension
}

async fn until(mut ask: impl AsyncFnMut() -> Answer, holds: impl Fn(&Answer) -> bool) -> Answer {
    for _ in 0..6000 {
        let answer = ask().await;
        if holds(&answer) {
            return answer;
        }
        env::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {}", ask().await.value);
}

fn condition(service: &Value) -> (String, String) {
    let all = service["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|c| c["type"] == "Available").cloned().unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_string();
    (text("status"), text("reason"))
}

fn role(name: &str, verbs: &[&str]) -> [(&'static str, Value); 2] {
    let rule = json!({ "apiGroups": [GROUP], "resources": ["widgets"], "verbs": verbs });
    let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
    let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice" });
    [
        ("clusterroles", json!({ "metadata": { "name": name }, "rules": [rule] })),
        ("clusterrolebindings", json!({ "metadata": { "name": name }, "roleRef": reference, "subjects": [subject] })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_serves_its_group_through_us() {
    let extension = extension().await;
    let (certificate, key) = extension.authority().issue("front-proxy", "none", false);
    let env = Env::real();
    let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        let [certificate_pem, key_pem] = [certificate, key].map(String::into_bytes);
        let certificate = ClientCertificate::new(certificate_pem, key_pem);
        config.proxy_client = Some(ProxyClient { certificate, ca_pem: Vec::new() });
    })
    .await;
    s.get(WIDGETS).await.said(404, "404 page not found\n");
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let service = json!({
        "metadata": { "name": format!("v1.{GROUP}") },
        "spec": { "group": GROUP, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": { "namespace": "default", "name": "extension", "port": extension.port } },
    });
    s.post(services, service).await.expect(201);
    let path = format!("{services}/v1.{GROUP}");
    // Its Service is not there yet.
    until(async || s.get(&path).await, |a| condition(&a.value) == ("False".into(), "ServiceNotFound".into())).await;
    s.get(WIDGETS).await.said(503, "service unavailable\n");
    let external =
        json!({ "metadata": { "name": "extension" }, "spec": { "type": "ExternalName", "externalName": "localhost" } });
    s.post("/api/v1/namespaces/default/services", external).await.expect(201);
    until(async || s.get(&path).await, |a| condition(&a.value) == ("True".into(), "Passed".into())).await;

    // Discovery in both forms, and the schemas.
    let groups = s.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == GROUP), "{groups}");
    let list = s.get(&format!("/apis/{GROUP}/v1")).await.expect(200);
    assert_eq!(list["resources"][0]["name"], "widgets");
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = s.send("GET", "/apis", &[("accept", accept)], Vec::new()).await.expect(200);
    let ours = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == GROUP).unwrap();
    assert_eq!(ours["versions"][0]["resources"][0]["resource"], "widgets");
    // A server that takes long over its schemas is available all the same, and asked again for them.
    let documented = format!("apis/{GROUP}/v1");
    let index = until(async || s.get("/openapi/v3").await, |a| a.value["paths"][&documented].is_object()).await;
    let address = index.value["paths"][&documented]["serverRelativeURL"].as_str().unwrap().to_string();
    let schemas = s.get(&address).await.expect(200)["components"]["schemas"].clone();
    assert!(schemas.as_object().unwrap().values().any(|v| v["description"] == "A widget of an extension."));
    let posted = "/apis/ext.example.com/v1/namespaces/{namespace}/widgets";
    let whole = until(async || s.get("/openapi/v2").await, |a| a.value["paths"][posted]["post"].is_object()).await;
    let whole = whole.expect(200);
    let widget = &whole["definitions"]["com.example.ext.v1.Widget"];
    assert_eq!(widget["x-kubernetes-group-version-kind"][0]["group"], GROUP);
    // What both have alike is there once.
    let twice = whole["definitions"].as_object().unwrap().keys().find(|name| name.ends_with("_v2")).cloned();
    assert_eq!(twice, None);

    // Every verb goes through, watches too.
    let watch = s.raw("GET", &format!("{WIDGETS}?watch=1&resourceVersion=0"), &[], Vec::new()).await;
    let mut events = watch.into_body().into_data_stream();
    let widget =
        json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "Widget", "metadata": { "name": "w" }, "size": 1 });
    s.post(WIDGETS, widget).await.expect(201);
    let event: Value = serde_json::from_slice(&events.next().await.unwrap().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["size"]), (&json!("ADDED"), &json!(1)));
    s.patch("merge-patch", &format!("{WIDGETS}/w"), json!({ "size": 2 })).await.expect(200);
    assert_eq!(s.get(WIDGETS).await.expect(200)["items"][0]["size"], 2);

    // Both servers decide about the same person.
    let alice = [("impersonate-user", "alice")];
    let get = async || s.send("GET", WIDGETS, &alice, Vec::new()).await;
    get().await.refused(403, "Forbidden", "User \"alice\" cannot list resource \"widgets\"");
    for (plural, object) in role("widgets", &["list"]) {
        s.post(&format!("{RBAC}/{plural}"), object).await.expect(201);
    }
    let own = Server::of(extension.api.clone());
    // The first now lets her through; what she says of herself changes nothing at the second.
    until(get, |a| a.code == 403).await;
    let claims = [("impersonate-user", "alice"), ("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    let claimed = s.send("GET", WIDGETS, &claims, Vec::new()).await;
    claimed.refused(403, "Forbidden", "User \"alice\" cannot list resource \"widgets\"");
    for (plural, object) in role("widgets", &["list"]) {
        own.as_admin("POST", &format!("{RBAC}/{plural}"), object).await.expect(201);
    }
    until(get, |a| a.code == 200).await;
    // Without our certificate the headers are worth nothing.
    let headers = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    own.send("GET", WIDGETS, &headers, Vec::new()).await.refused(403, "Forbidden", "system:anonymous");

    // A server that is gone is told, and its group with it.
    s.patch("merge-patch", &path, json!({ "spec": { "service": { "port": 1 } } })).await.expect(200);
    until(async || s.get(&path).await, |a| condition(&a.value) == ("False".into(), "FailedDiscoveryCheck".into()))
        .await;
    let gone = s.get(WIDGETS).await;
    assert_eq!((gone.code, gone.headers["content-type"].to_str().unwrap()), (503, "text/plain; charset=utf-8"));
    s.delete(&path, Value::Null).await.expect(200);
    until(async || s.get(WIDGETS).await, |a| a.code == 404).await;
    until(async || s.get("/openapi/v2").await, |a| a.value["definitions"]["com.example.ext.v1.Widget"].is_null()).await;
}
