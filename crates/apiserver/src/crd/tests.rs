//! Custom resources whose versions only a webhook can tell apart, on a real one over TLS on loopback.

use std::{sync::Arc, time::Duration};

use env::Env;
use futures::StreamExt;
use http::{Method, Request};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::{ApiServer, Config, ObjectStream, admission::tests::webhook, authn::User, request::body, server::loopback};

const ROOT: &str = "/apis/stable.example.com";

/// v1 holds `hostPort`, v2 `host` and `port`.
fn convert(review: &Value) -> Option<Value> {
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap();
    if request["objects"].as_array().unwrap().iter().any(|o| o["apiVersion"] == wanted) {
        return Some(json!({ "response": {
            "uid": request["uid"], "result": { "status": "Failure", "message": "converted to itself" },
        } }));
    }
    let converted = request["objects"].as_array().unwrap().iter().map(|object| {
        let mut new = json!({ "apiVersion": wanted, "kind": object["kind"], "metadata": object["metadata"] });
        if wanted.ends_with("v1") {
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_string();
            new["hostPort"] = format!("{}:{}", text("host"), text("port")).into();
        } else if let Some((host, port)) = object["hostPort"].as_str().and_then(|both| both.split_once(':')) {
            new["host"] = host.into();
            new["port"] = port.into();
        }
        new
    });
    Some(json!({
        "apiVersion": review["apiVersion"], "kind": "ConversionReview",
        "response": { "uid": request["uid"], "result": { "status": "Success" }, "convertedObjects": Vec::from_iter(converted) },
    }))
}

fn definition(port: u16, ca: &str) -> Value {
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let text = |field: &&str| (field.to_string(), json!({ "type": "string" }));
        let properties: serde_json::Map<_, _> = fields.iter().map(text).collect();
        let selectable: Vec<_> = fields.iter().map(|field| json!({ "jsonPath": format!(".{field}") })).collect();
        json!({
            "name": name, "served": true, "storage": storage, "selectableFields": selectable,
            "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
        })
    };
    json!({
        "metadata": { "name": "tests.stable.example.com" },
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced", "names": { "plural": "tests", "kind": "Test" },
            "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])],
            "conversion": { "strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": { "url": format!("https://127.0.0.1:{port}/convert"), "caBundle": ca },
            } },
        },
    })
}

async fn list(server: &Arc<ApiServer>, path: &str) -> Value {
    let request = Request::builder().uri(path).header("accept", "application/json").body(body::empty()).unwrap();
    let user = User::new("admin", &["system:masters"]);
    let response = server.handle(ApiServer::in_process_request(user, request)).await;
    serde_json::from_slice(&body::read_all(response.into_body(), 1 << 20).await.unwrap()).unwrap()
}

#[tokio::test]
async fn fields_are_selected_in_the_version_that_is_asked() {
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    let server = ApiServer::new(config, store, env).await.unwrap();
    let (port, ca, _) = webhook(Arc::new(convert)).await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    loopback::send(&server, Method::POST, crds, &definition(port, &ca)).await.unwrap();
    let (v1, v2) = (format!("{ROOT}/v1/namespaces/default/tests"), format!("{ROOT}/v2/namespaces/default/tests"));
    while loopback::send(&server, Method::GET, &v2, &Value::Null).await.is_err() {
        env::sleep(Duration::from_millis(10)).await;
    }
    let request = Request::builder().uri(format!("{v2}?watch=1&fieldSelector=host%3Dhost1")).body(body::empty());
    let request = ApiServer::in_process_request(User::new("admin", &["system:masters"]), request.unwrap());
    let response = server.handle(request).await;
    let mut events = response.extensions().get::<ObjectStream>().unwrap().take().unwrap();
    for (name, host, port) in [("a", "host1", "80"), ("b", "host1", "8080"), ("c", "host2", "80")] {
        let object = json!({ "apiVersion": "stable.example.com/v2", "kind": "Test", "metadata": { "name": name },
            "host": host, "port": port });
        loopback::send(&server, Method::POST, &v2, &object).await.unwrap();
    }
    for (path, selector, expected) in [
        (&v2, "host%3Dhost1", vec!["a", "b"]),
        (&v2, "host%3Dhost1,port%3D80", vec!["a"]),
        (&v1, "hostPort%3Dhost1:8080", vec!["b"]),
        (&v2, "host%3Dhost2", vec!["c"]),
    ] {
        let list = list(&server, &format!("{path}?fieldSelector={selector}")).await;
        let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].clone()).collect();
        assert_eq!(names, expected, "{selector}");
    }
    // From here on new objects are stored in the other version, and the old ones stay as they are.
    let crd = format!("{crds}/tests.stable.example.com");
    let mut changed = loopback::send(&server, Method::GET, &crd, &Value::Null).await.unwrap();
    changed["spec"]["versions"][0]["storage"] = false.into();
    changed["spec"]["versions"][1]["storage"] = true.into();
    loopback::send(&server, Method::PUT, &crd, &changed).await.unwrap();
    let stored_in = |server: &ApiServer| {
        server.cluster.served.find("stable.example.com", "v1", "tests").map(|s| s.storage_version.version.clone())
    };
    while stored_in(&server).as_deref() != Some("v2") {
        env::sleep(Duration::from_millis(10)).await;
    }
    let object = json!({ "apiVersion": "stable.example.com/v1", "kind": "Test", "metadata": { "name": "d" },
        "hostPort": "host2:80" });
    loopback::send(&server, Method::POST, &v1, &object).await.unwrap();
    for (path, selector) in [(&v1, "hostPort%3Dhost2:80"), (&v2, "host%3Dhost2")] {
        let found = list(&server, &format!("{path}?fieldSelector={selector}")).await;
        assert_eq!(found["items"].as_array().map(Vec::len), Some(2), "{found}");
    }
    loopback::send(&server, Method::DELETE, &format!("{v2}/c"), &Value::Null).await.unwrap();
    loopback::send(&server, Method::DELETE, &format!("{v2}/a"), &Value::Null).await.unwrap();
    for expected in ["ADDED a", "ADDED b", "DELETED a"] {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(format!("{} {}", event.kind.as_str(), event.object.meta.name), expected);
        assert_eq!(event.object.value()["host"], "host1");
    }
}
