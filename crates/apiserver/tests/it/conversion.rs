//! Custom resources in two versions that only a webhook can tell apart.
//! v1 holds `hostPort`, v2 `host` and `port`.

use std::sync::Arc;

use api::WatchKind;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    harness::{DEFINITIONS, Server, definition, names, server},
    outside::{self, json_response},
};

const V1: &str = "/apis/stable.example.com/v1/namespaces/default/tests";
const V2: &str = "/apis/stable.example.com/v2/namespaces/default/tests";

fn converted(object: &Value, wanted: &str) -> Value {
    let mut new = json!({ "apiVersion": wanted, "kind": object["kind"], "metadata": object["metadata"] });
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_string();
    if wanted.ends_with("/v1") {
        new["hostPort"] = format!("{}:{}", text("host"), text("port")).into();
    } else if let Some((host, port)) = text("hostPort").split_once(':') {
        (new["host"], new["port"]) = (host.into(), port.into());
    }
    new
}

/// A server whose definition is converted by a webhook; v1 is stored.
async fn with_webhook() -> Server {
    with_webhook_at(|port| json!({ "url": format!("https://127.0.0.1:{port}/convert") })).await
}

/// `found` is the `clientConfig` but for its authority.
async fn with_webhook_at(found: impl Fn(u16) -> Value) -> Server {
    let convert: outside::Handler = Arc::new(|request| {
        let review: Value = serde_json::from_slice(request.body()).unwrap();
        let request = &review["request"];
        let wanted = request["desiredAPIVersion"].as_str().unwrap();
        let objects: Vec<_> = request["objects"].as_array().unwrap().iter().map(|o| converted(o, wanted)).collect();
        let answer = json!({
            "apiVersion": review["apiVersion"], "kind": "ConversionReview",
            "response": { "uid": request["uid"], "result": { "status": "Success" }, "convertedObjects": objects },
        });
        Box::pin(async move { json_response(200, &answer) })
    });
    let (port, ca) = outside::serve("converter.default.svc", None, convert).await;
    let mut crd = definition("stable.example.com", "Test", "Namespaced", &["v1", "v2"], &json!({}));
    for (i, fields) in [&["hostPort"][..], &["host", "port"]].into_iter().enumerate() {
        let text = |field: &&str| (field.to_string(), json!({ "type": "string" }));
        let properties: serde_json::Map<_, _> = fields.iter().map(text).collect();
        let selectable: Vec<_> = fields.iter().map(|field| json!({ "jsonPath": format!(".{field}") })).collect();
        let version = &mut crd["spec"]["versions"][i];
        version["schema"]["openAPIV3Schema"] = json!({ "type": "object", "properties": properties });
        version["selectableFields"] = selectable.into();
    }
    let mut client = found(port);
    client["caBundle"] = BASE64_STANDARD.encode(ca).into();
    let webhook = json!({ "conversionReviewVersions": ["v1"], "clientConfig": client });
    crd["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": webhook });
    let s = server().await;
    s.define(&crd).await;
    s
}

fn v1(name: &str, host_port: &str) -> Value {
    json!({ "apiVersion": "stable.example.com/v1", "kind": "Test", "metadata": { "name": name }, "hostPort": host_port })
}

fn v2(name: &str, host: &str, port: &str) -> Value {
    let metadata = json!({ "name": name });
    json!({ "apiVersion": "stable.example.com/v2", "kind": "Test", "metadata": metadata, "host": host, "port": port })
}

fn fields(object: &Value) -> Vec<&str> {
    ["apiVersion", "hostPort", "host", "port"].iter().filter_map(|field| object[field].as_str()).collect()
}

#[tokio::test]
async fn objects_are_read_in_the_other_version() {
    let s = with_webhook().await;
    let made = s.post(V1, v1("a", "localhost:8080")).await.expect(201);
    let (one, two) = (s.get(&format!("{V1}/a")).await.expect(200), s.get(&format!("{V2}/a")).await.expect(200));
    assert_eq!(fields(&one), ["stable.example.com/v1", "localhost:8080"]);
    assert_eq!(fields(&two), ["stable.example.com/v2", "localhost", "8080"]);
    assert_eq!(two["metadata"]["uid"], made["metadata"]["uid"]);
    // And written in it.
    s.post(V2, v2("b", "there", "80")).await.expect(201);
    assert_eq!(fields(&s.get(&format!("{V1}/b")).await.expect(200)), ["stable.example.com/v1", "there:80"]);
    let patched = s.patch("merge-patch", &format!("{V2}/a"), json!({ "port": "9" })).await.expect(200);
    assert_eq!(fields(&patched), ["stable.example.com/v2", "localhost", "9"]);
    assert_eq!(s.get(&format!("{V1}/a")).await.expect(200)["hostPort"], "localhost:9");
}

/// Its certificate is for the Service's name, wherever that leads.
#[tokio::test]
async fn a_webhook_is_reached_by_its_service() {
    let s = with_webhook_at(
        |port| json!({ "service": { "namespace": "default", "name": "converter", "path": "/convert", "port": port } }),
    )
    .await;
    s.post(V1, v1("a", "here:80")).await.expect(201);
    let missing = s.get(&format!("{V2}/a")).await.expect(500);
    assert!(missing["message"].as_str().unwrap().contains("service \"converter\" not found"), "{missing}");
    let external =
        json!({ "metadata": { "name": "converter" }, "spec": { "type": "ExternalName", "externalName": "localhost" } });
    s.post("/api/v1/namespaces/default/services", external).await.expect(201);
    let read = s.get(&format!("{V2}/a")).await.expect(200);
    assert_eq!(fields(&read), ["stable.example.com/v2", "here", "80"]);
}

#[tokio::test]
async fn a_list_of_objects_stored_in_different_versions_is_of_one() {
    let s = with_webhook().await;
    s.post(V1, v1("a", "one:1")).await.expect(201);
    let path = format!("{DEFINITIONS}/tests.stable.example.com");
    let mut crd = s.get(&path).await.expect(200);
    crd["spec"]["versions"][0]["storage"] = false.into();
    crd["spec"]["versions"][1]["storage"] = true.into();
    s.put(&path, crd).await.expect(200);
    let both = json!(["v1", "v2"]);
    s.until(&path, |a| a.value["status"]["storedVersions"] == both).await;
    // The server follows its own definitions a moment later.
    let stored_in = || {
        let served = s.api.cluster.served.find("stable.example.com", "v1", "tests").unwrap();
        served.storage_version.version.clone()
    };
    while stored_in() != "v2" {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    s.post(V1, v1("b", "two:2")).await.expect(201);
    let stored = async |name: &str| {
        let key = format!("/registry/stable.example.com/tests/default/{name}");
        let record = s.api.cluster.store.get(&key).await.unwrap().unwrap_or_else(|| panic!("{key}"));
        serde_json::from_slice::<Value>(&record.value).unwrap()["apiVersion"].clone()
    };
    assert_eq!(
        (stored("a").await, stored("b").await),
        (json!("stable.example.com/v1"), json!("stable.example.com/v2"))
    );
    let list = s.get(V2).await.expect(200);
    let items: Vec<_> = list["items"].as_array().unwrap().iter().map(fields).collect();
    assert_eq!(items, [["stable.example.com/v2", "one", "1"], ["stable.example.com/v2", "two", "2"]]);
    let list = s.get(V1).await.expect(200);
    let items: Vec<_> = list["items"].as_array().unwrap().iter().map(fields).collect();
    assert_eq!(items, [["stable.example.com/v1", "one:1"], ["stable.example.com/v1", "two:2"]]);
}

#[tokio::test]
async fn fields_select_in_lists_and_watches_of_every_version() {
    let s = with_webhook().await;
    let watch = async |path: &str, selector: &str| s.watch(&format!("{path}?watch=1&fieldSelector={selector}")).await;
    let mut by_host = watch(V2, "host%3Dhost1").await;
    let mut by_both = watch(V2, "host%3Dhost1,port%3D80").await;
    let mut by_one = watch(V1, "hostPort%3Dhost1:80").await;
    for (name, host, port) in [("a", "host1", "80"), ("b", "host1", "8080"), ("c", "host2", "80")] {
        s.post(V2, v2(name, host, port)).await.expect(201);
    }
    let selected = async |path: &str, selector: &str| {
        let list = s.get(&format!("{path}?fieldSelector={selector}")).await.expect(200);
        names(&list).join(" ")
    };
    assert_eq!(selected(V2, "host%3Dhost1").await, "a b");
    assert_eq!(selected(V2, "host%3Dhost1,port%3D80").await, "a");
    assert_eq!(selected(V1, "hostPort%3Dhost1:8080").await, "b");
    assert_eq!(selected(V1, "hostPort%21%3Dhost1:80").await, "b c");
    // One goes, one is changed so that it is no longer selected, one so that it is.
    s.delete(&format!("{V2}/a"), Value::Null).await.expect(200);
    s.patch("merge-patch", &format!("{V2}/b"), json!({ "host": "host2" })).await.expect(200);
    s.patch("merge-patch", &format!("{V1}/c"), json!({ "hostPort": "host1:80" })).await.expect(200);
    assert_eq!((selected(V2, "host%3Dhost1").await, selected(V2, "host%3Dhost2").await), ("c".into(), "b".into()));
    assert_eq!(selected(V1, "hostPort%3Dhost1:80").await, "c");
    use WatchKind::{Added, Deleted};
    let ac = vec![(Added, "a"), (Deleted, "a"), (Added, "c")];
    for (events, expected) in [
        (&mut by_host, vec![(Added, "a"), (Added, "b"), (Deleted, "a"), (Deleted, "b"), (Added, "c")]),
        (&mut by_both, ac.clone()),
        (&mut by_one, ac),
    ] {
        for (kind, name) in expected {
            let event = events.next().await.unwrap().unwrap();
            assert_eq!((event.kind, event.object.meta.name.as_str()), (kind, name));
        }
    }
    s.get(&format!("{V2}?fieldSelector=hostPort%3Dx")).await.refused(400, "BadRequest", "field label not supported");
}
