//! CustomResourceDefinitions as objects: listed, removed together, with a status; and what their changes do to objects.
//! `crd` follows one resource from definition to deletion, `published` has the schemas.

use api::WatchKind;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::harness::{DEFINITIONS, Server, any_object, definition, names, server};

/// Defines a resource and reads the definition once it is established.
async fn established(s: &Server, definition: &Value) -> (String, Value) {
    s.define(definition).await;
    let path = format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap());
    let is = |d: &Value, kind: &str| {
        let conditions = d["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
    };
    let found = s.until(&path, |a| is(&a.value, "Established") && is(&a.value, "NamesAccepted")).await;
    (path, found)
}

#[tokio::test]
async fn definitions_are_selected_and_removed_together() {
    let s = server().await;
    let mut specs = Vec::new();
    for i in 0..11 {
        let mut one = definition(&format!("g{i}.example.com"), "Noxu", "Cluster", &["v1"], &any_object());
        // The eleventh is there to stay.
        one["metadata"]["labels"] = if i < 10 { json!({ "of": "ten" }) } else { json!({}) };
        specs.push(established(&s, &one).await.1);
    }
    let some = format!("{DEFINITIONS}?labelSelector=of%3Dten");
    let list = s.get(&some).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 10);
    for found in list["items"].as_array().unwrap() {
        let made = specs.iter().find(|d| d["metadata"]["name"] == found["metadata"]["name"]).unwrap();
        assert_eq!(found["spec"], made["spec"]);
    }
    s.delete(&some, Value::Null).await.expect(200);
    s.until(&some, |a| a.value["items"] == json!([])).await;
    s.until("/apis/g0.example.com/v1/noxus", |a| a.code == 404).await;
    assert_eq!(names(&s.get(DEFINITIONS).await.expect(200)), ["noxus.g10.example.com"]);
    s.get("/apis/g10.example.com/v1/noxus").await.expect(200);
    // One by one too, and it may come again.
    let path = format!("{DEFINITIONS}/noxus.g10.example.com");
    s.delete(&path, Value::Null).await.expect(200);
    s.until(&path, |a| a.code == 404).await;
    s.until("/apis/g10.example.com/v1/noxus", |a| a.code == 404).await;
    established(&s, &definition("g10.example.com", "Noxu", "Cluster", &["v1"], &any_object())).await;
}

#[tokio::test]
async fn the_status_of_a_definition_is_read_updated_and_patched() {
    let s = server().await;
    let (path, made) = established(&s, &definition("example.com", "Noxu", "Cluster", &["v1"], &any_object())).await;
    let status = format!("{path}/status");
    let mut found = s.get(&status).await.expect(200);
    assert_eq!(found["spec"], made["spec"]);
    let has = |d: &Value, message: &str| {
        d["status"]["conditions"].as_array().unwrap().iter().any(|c| c["message"] == message)
    };
    let condition = |message: &str| json!({ "type": "Tests", "status": "True", "message": message });
    found["status"]["conditions"].as_array_mut().unwrap().push(condition("updated"));
    assert!(has(&s.put(&status, found).await.expect(200), "updated"));
    assert!(has(&s.get(&path).await.expect(200), "updated"));
    let patch = json!([{ "op": "add", "path": "/status/conditions/-", "value": condition("patched") }]);
    assert!(has(&s.patch("json-patch", &status, patch).await.expect(200), "patched"));
    let found = s.get(&status).await.expect(200);
    assert!(has(&found, "patched") && has(&found, "updated"), "{found}");
    // Upstream's own test sends one that says next to nothing, in place of all others.
    let patch = json!([{ "op": "add", "path": "/status/conditions", "value": [{ "message": "bare" }] }]);
    assert!(has(&s.patch("json-patch", &status, patch).await.expect(200), "bare"));
}

#[tokio::test]
async fn defaults_come_with_requests_and_from_storage() {
    let s = server().await;
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": { "a": { "type": "string" }, "b": { "type": "string" } } });
    let crd = definition("example.com", "Noxu", "Cluster", &["v1"], &schema);
    let (crd_path, _) = established(&s, &crd).await;
    let noxus = "/apis/example.com/v1/noxus";
    let noxu = |name: &str| json!({ "apiVersion": "example.com/v1", "kind": "Noxu", "metadata": { "name": name } });
    let made = s.post(noxus, noxu("first")).await.expect(201);
    assert!(made["a"].is_null() && made["b"].is_null(), "{made}");

    let property = |name: &str| format!("/spec/versions/0/schema/openAPIV3Schema/properties/{name}/default");
    let patch = json!([{ "op": "add", "path": property("a"), "value": "A" }]);
    s.patch("json-patch", &crd_path, patch).await.expect(200);
    s.until(&format!("{noxus}/first"), |a| a.value["a"] == "A").await;
    let list = s.get(noxus).await.expect(200);
    assert_eq!(list["items"][0]["a"], "A", "lists too");
    let second = s.post(noxus, noxu("second")).await.expect(201);
    assert_eq!((&second["a"], &second["b"]), (&json!("A"), &Value::Null));

    let patch =
        json!([{ "op": "remove", "path": property("a") }, { "op": "add", "path": property("b"), "value": "B" }]);
    s.patch("json-patch", &crd_path, patch).await.expect(200);
    // What was stored with it keeps the old default; what was not has lost it.
    let second = s.until(&format!("{noxus}/second"), |a| a.value["b"] == "B").await;
    assert_eq!(second["a"], "A");
    let first = s.get(&format!("{noxus}/first")).await.expect(200);
    assert_eq!((&first["a"], &first["b"]), (&Value::Null, &json!("B")));
}

#[tokio::test]
async fn definitions_and_their_objects_are_watched() {
    let s = server().await;
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    let noxus = s.define(&definition("example.com", "Noxu", "Cluster", &["v1"], &any_object())).await;
    let watch = async |name: &str| s.watch(&format!("{noxus}?watch=1&fieldSelector=metadata.name%3D{name}")).await;
    let (mut one, mut two) = (watch("one").await, watch("two").await);
    let names = ["one", "two"];
    for name in names {
        let noxu = json!({ "apiVersion": "example.com/v1", "kind": "Noxu", "metadata": { "name": name } });
        s.post(&noxus, noxu).await.expect(201);
    }
    for name in names {
        let patch = json!([{ "op": "add", "path": "/dummy", "value": "test" }]);
        s.patch("json-patch", &format!("{noxus}/{name}"), patch).await.expect(200);
    }
    for name in names {
        s.delete(&format!("{noxus}/{name}"), Value::Null).await.expect(200);
    }
    for (events, name) in [(&mut one, "one"), (&mut two, "two")] {
        for (kind, dummy) in
            [(WatchKind::Added, json!(null)), (WatchKind::Modified, json!("test")), (WatchKind::Deleted, json!("test"))]
        {
            let event = events.next().await.unwrap().unwrap();
            assert_eq!((event.kind, event.object.meta.name.as_str()), (kind, name));
            assert_eq!(event.object.value()["dummy"], dummy);
        }
    }
    let path = format!("{DEFINITIONS}/noxus.example.com");
    s.patch("merge-patch", &path, json!({ "metadata": { "labels": { "changed": "yes" } } })).await.expect(200);
    s.delete(&path, Value::Null).await.expect(200);
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(kind, _)| *kind != WatchKind::Deleted) {
        let event = definitions.next().await.unwrap().unwrap();
        assert_eq!(event.object.meta.name, "noxus.example.com");
        seen.push((event.kind, event.object.meta.labels.contains_key("changed")));
    }
    assert_eq!(seen[0], (WatchKind::Added, false));
    assert!(seen.contains(&(WatchKind::Modified, true)), "{seen:?}");
}
