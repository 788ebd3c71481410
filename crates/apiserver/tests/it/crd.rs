//! Custom resources, from definition to deletion.

use serde_json::{Value, json};

use crate::harness::{DEFINITIONS as CRDS, server};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn definition() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": { "type": "object", "required": ["size"], "properties": {
                "size": { "type": "integer", "minimum": 1 },
                "color": { "type": "string", "default": "red" },
                "replicas": { "type": "integer" },
            }, "x-kubernetes-validations": [{ "rule": "self.size < 100", "message": "too big" }] },
            "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        },
    });
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": { "openAPIV3Schema": schema },
            "subresources": {
                "status": {}, "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" },
            },
            "additionalPrinterColumns": [{ "name": "Size", "type": "integer", "jsonPath": ".spec.size" }],
            "selectableFields": [{ "jsonPath": ".spec.color" }],
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "widgets", "kind": "Widget", "shortNames": ["wd"] },
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": name }, "spec": spec })
}

#[tokio::test]
async fn custom_resources_live_like_built_in_ones() {
    let s = server().await;
    s.post(CRDS, definition()).await.expect(201);
    s.until(WIDGETS, |a| a.code == 200).await;
    let crd = s.get(&format!("{CRDS}/widgets.example.com")).await.expect(200);
    let conditions = crd["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"), "{crd}");
    assert_eq!(crd["status"]["acceptedNames"]["listKind"], "WidgetList");

    let made = s.post(WIDGETS, widget("a", json!({ "size": 2, "unknown": 1 }))).await;
    assert!(made.headers["warning"].to_str().unwrap().contains("unknown field"));
    let made = made.expect(201);
    assert_eq!(made["spec"], json!({ "size": 2, "color": "red" }));
    assert_eq!(made["metadata"]["generation"], 1);
    let invalid = s.post(WIDGETS, widget("b", json!({ "size": 0 }))).await;
    invalid.refused(422, "Invalid", "spec.size in body should be greater than or equal to 1");
    let unchecked = "spec.size: Required value, <nil>: Invalid value: null: some validation rules were not checked because \
                     the object was invalid; correct the existing errors to complete validation";
    s.post(WIDGETS, widget("b", json!({}))).await.refused(422, "Invalid", unchecked);

    s.post(WIDGETS, widget("b", json!({ "size": 100 }))).await.refused(
        422,
        "Invalid",
        "spec: Invalid value: \"object\": too big",
    );

    let other = s.get("/apis/example.com/v1beta1/namespaces/default/widgets/a").await.expect(200);
    assert_eq!(other["apiVersion"], "example.com/v1beta1");
    let status = json!({ "status": { "replicas": 3 }, "spec": { "size": 9 } });
    let status = s.patch("merge-patch", &format!("{WIDGETS}/a/status"), status).await.expect(200);
    assert_eq!((status["spec"]["size"].as_i64(), status["status"]["replicas"].as_i64()), (Some(2), Some(3)));
    let scaled = s.patch("merge-patch", &format!("{WIDGETS}/a/scale"), json!({ "spec": { "replicas": 4 } })).await;
    assert_eq!(scaled.expect(200)["spec"]["replicas"], 4);
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "a" }, "spec": { "replicas": 5 } });
    assert_eq!(s.put(&format!("{WIDGETS}/a/scale"), scale).await.expect(200)["spec"]["replicas"], 5);
    let applied = widget("c", json!({ "size": 1 }));
    s.patch("apply", &format!("{WIDGETS}/c?fieldManager=m"), applied).await.expect(201);
    let unscaled = s.get(&format!("{WIDGETS}/c/scale")).await;
    unscaled.refused(500, "InternalError", "the spec replicas field \".spec.replicas\" does not exist");
    assert_eq!(s.patch("strategic-merge-patch", &format!("{WIDGETS}/c"), json!({})).await.code, 415);
    let red = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    assert_eq!(red["items"].as_array().unwrap().len(), 2);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = s.send("GET", WIDGETS, &table, Vec::new()).await.expect(200);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 2]));

    let found = s.get("/apis/example.com").await.expect(200);
    assert_eq!(found["preferredVersion"]["version"], "v1");
    assert!(s.get("/openapi/v3").await.expect(200)["paths"]["apis/example.com/v1"].is_object());
    assert!(
        s.get("/openapi/v3/apis/example.com/v1").await.expect(200)["paths"][WIDGETS.replace("default", "{namespace}")]
            .is_object()
    );

    s.delete(&format!("{CRDS}/widgets.example.com"), Value::Null).await.expect(200);
    s.until(&format!("{CRDS}/widgets.example.com"), |a| a.code == 404).await;
    s.until(WIDGETS, |a| a.code == 404).await;
}
