//! What upstream's v1.35 API server refuses of custom resources, and in which words: requests and its answers as data,
//! recorded from it alone (`upstream_custom.json`), about widgets of one definition.
//! Neighbours: `upstream_refusals`, whose rows these are too.

use serde_json::{Value, json};

use crate::{
    harness::{DEFINITIONS, server},
    upstream_refusals::{Row, difference},
};

fn widgets() -> Value {
    let spec = json!({ "type": "object", "properties": {
        "n": { "type": "integer" },
        "i32": { "type": "integer", "format": "int32" },
        "e": { "type": "string", "enum": ["b", "a"] },
        "by": { "type": "string", "format": "byte" },
        "b": { "type": "boolean" },
        "f": { "type": "number" },
        "ar": { "type": "array", "maxItems": 2, "items": { "type": "string", "maxLength": 3, "pattern": "^a" } },
        "o": { "type": "object", "required": ["q"], "properties": { "q": { "type": "string", "minLength": 1 } } },
        "num": { "type": "integer", "minimum": 3, "maximum": 8 },
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {
                    "status": {}, "scale": { "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n" },
                },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } },
            }],
        },
    })
}

#[tokio::test]
async fn refusals_of_custom_resources_are_upstreams_to_the_letter() {
    let s = server().await;
    s.post(DEFINITIONS, widgets()).await.expect(201);
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    s.until(path, |answer| answer.code == 200).await;
    let widget =
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "n": 2 } });
    s.post(path, widget).await.expect(201);
    let list = s.get(path).await.expect(200);
    assert_eq!(list["metadata"]["continue"], "", "lists of custom resources have all fields of their metadata");
    let scale = s.get(&format!("{path}/w/scale")).await.expect(200);
    assert_eq!(scale["spec"], json!({ "replicas": 2 }));
    // Discovery has them in the order in which upstream makes them.
    let found = s.get("/apis/example.com/v1").await.expect(200);
    let names: Vec<_> = found["resources"].as_array().unwrap().iter().map(|found| &found["name"]).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    let verbs = json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]);
    assert_eq!(found["resources"][0]["verbs"], verbs);
    // The hash is of the version that is stored.
    let definitions = s.get("/apis/apiextensions.k8s.io/v1").await.expect(200);
    assert_eq!(definitions["resources"][0]["storageVersionHash"], "jfWCUB31mvA=");
    let rows: Vec<Row> = serde_json::from_str(include_str!("upstream_custom.json")).unwrap();
    let mut differences = Vec::new();
    for row in &rows {
        differences.extend(difference(&s, row).await);
    }
    assert!(differences.is_empty(), "{} of {} differ:\n{}", differences.len(), rows.len(), differences.join("\n"));
}
