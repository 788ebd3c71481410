//! The schemas of custom resources in `/openapi/v2` and `/openapi/v3`: there with the definition, changed and gone with it.
//! What kubectl makes of them is in `kubectl_custom`.

use serde_json::{Value, json};

use crate::harness::{DEFINITIONS, Server, definition, server};

pub fn foo() -> Value {
    let text = |about: &str| json!({ "description": about, "type": "string" });
    let bar = json!({ "type": "object", "required": ["name"], "properties": {
        "name": text("Name of Bar."), "age": text("Age of Bar."),
        "feeling": { "description": "Whether Bar is feeling great.", "type": "string", "enum": ["Great", "Down"] },
        "bazs": { "description": "List of Bazs.", "type": "array", "items": { "type": "string" } },
    } });
    let seen = json!({ "type": "object", "properties": {
        "name": text("Name of Bar."), "available": { "description": "Whether it is installed.", "type": "boolean" },
        "quxType": { "description": "Whose qux it is.", "type": "string", "pattern": "in-tree|out-of-tree" },
    } });
    let bars = |about: &str, item: &Value| json!({ "description": about, "type": "array", "items": item });
    json!({ "description": "Foo CRD for Testing", "type": "object", "properties": {
        "spec": { "description": "Specification of Foo", "type": "object",
            "properties": { "bars": bars("List of Bars and their specs.", &bar) } },
        "status": { "description": "Status of Foo", "type": "object",
            "properties": { "bars": bars("List of Bars and their statuses.", &seen) } },
    } })
}

/// With `x-kubernetes-preserve-unknown-fields` at the places named.
pub fn waldo(preserved: &[&str]) -> Value {
    let mut schema = json!({ "description": "Waldo CRD for Testing", "type": "object", "properties": {
        "spec": { "description": "Specification of Waldo", "type": "object",
            "properties": { "dummy": { "description": "Dummy property.", "type": "object" } } },
        "status": { "description": "Status of Waldo", "type": "object", "properties": {
            "bars": { "description": "List of Bars and their statuses.", "type": "array",
                "items": { "type": "object" } } } },
    } });
    for place in preserved {
        schema.pointer_mut(place).unwrap()["x-kubernetes-preserve-unknown-fields"] = json!(true);
    }
    schema
}

/// The name of a definition: the group's parts the other way round.
fn name(group: &str, version: &str, kind: &str) -> String {
    let group: Vec<_> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", group.join("."))
}

/// Without what the server adds to every schema.
fn own(mut schema: Value) -> Value {
    let all = schema.as_object_mut().expect("a schema");
    assert!(all.remove("x-kubernetes-group-version-kind").is_some());
    if let Some(properties) = all.get_mut("properties").and_then(Value::as_object_mut) {
        for field in ["metadata", "apiVersion", "kind"] {
            assert!(properties.remove(field).is_some(), "{field} is published");
        }
    }
    schema
}

/// What version 2 can say of it: readers of that take properties for all there are.
fn in_v2(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return json!({ "type": "object" });
    }
    let spec = &mut schema["properties"]["spec"];
    if spec["x-kubernetes-preserve-unknown-fields"] == true {
        *spec = json!({ "description": spec["description"], "x-kubernetes-preserve-unknown-fields": true });
    }
    schema
}

/// Both documents have exactly this schema for it, and paths to it.
async fn is_published(s: &Server, group: &str, version: &str, kind: &str, schema: &Value) {
    let name = name(group, version, kind);
    let v2 = s.get("/openapi/v2").await.expect(200);
    assert_eq!(own(v2["definitions"][&name].clone()), in_v2(schema), "{name} in v2");
    let plural = format!("{}s", kind.to_lowercase());
    let path = format!("/apis/{group}/{version}/namespaces/{{namespace}}/{plural}/{{name}}");
    assert!(v2["paths"][&path].is_object(), "{path} in v2");
    let index = s.get("/openapi/v3").await.expect(200);
    let address = index["paths"][format!("apis/{group}/{version}")]["serverRelativeURL"].as_str().unwrap().to_string();
    let v3 = s.get(&address).await.expect(200);
    assert_eq!(own(v3["components"]["schemas"][&name].clone()), *schema, "{name} in v3");
    assert!(v3["paths"][&path].is_object(), "{path} in v3");
}

async fn is_gone(s: &Server, group: &str, version: &str, kind: &str) {
    let name = name(group, version, kind);
    s.until("/openapi/v2", |a| a.value["definitions"][&name].is_null()).await;
    let v3 = s.get(&format!("/openapi/v3/apis/{group}/{version}")).await;
    assert!(v3.code == 404 || v3.value["components"]["schemas"][&name].is_null(), "{name} in v3");
}

async fn remove(s: &Server, name: &str) {
    let path = format!("{DEFINITIONS}/{name}");
    s.delete(&path, Value::Null).await.expect(200);
    s.until(&path, |a| a.code == 404).await;
}

#[tokio::test]
async fn schemas_come_and_go_with_their_definitions() {
    let s = server().await;
    // Different groups; one group with two versions and two kinds of one of them.
    let (one, two) = ("foo.example.com", "waldo.example.com");
    s.define(&definition(one, "Foo", "Namespaced", &["v1"], &foo())).await;
    s.define(&definition(two, "Waldo", "Namespaced", &["v1beta1"], &waldo(&[]))).await;
    s.define(&definition("many.example.com", "Foo", "Namespaced", &["v2", "v3"], &foo())).await;
    s.define(&definition("many.example.com", "Waldo", "Namespaced", &["v3"], &waldo(&[]))).await;
    for (kind, preserved) in [("Corge", "/properties/spec"), ("Grault", "")] {
        s.define(&definition("many.example.com", kind, "Namespaced", &["v4"], &waldo(&[preserved]))).await;
    }
    is_published(&s, one, "v1", "Foo", &foo()).await;
    is_published(&s, two, "v1beta1", "Waldo", &waldo(&[])).await;
    for version in ["v2", "v3"] {
        is_published(&s, "many.example.com", version, "Foo", &foo()).await;
    }
    is_published(&s, "many.example.com", "v3", "Waldo", &waldo(&[])).await;
    is_published(&s, "many.example.com", "v4", "Corge", &waldo(&["/properties/spec"])).await;
    is_published(&s, "many.example.com", "v4", "Grault", &waldo(&[""])).await;
    remove(&s, "foos.foo.example.com").await;
    is_gone(&s, one, "v1", "Foo").await;
    remove(&s, "foos.many.example.com").await;
    for version in ["v2", "v3"] {
        is_gone(&s, "many.example.com", version, "Foo").await;
    }
    is_published(&s, "many.example.com", "v3", "Waldo", &waldo(&[])).await;
    is_published(&s, two, "v1beta1", "Waldo", &waldo(&[])).await;
}

#[tokio::test]
async fn schemas_follow_the_versions_of_their_definition() {
    let s = server().await;
    let group = "versions.example.com";
    s.define(&definition(group, "Foo", "Namespaced", &["v2", "v3"], &foo())).await;
    for version in ["v2", "v3"] {
        is_published(&s, group, version, "Foo", &foo()).await;
    }
    let path = format!("{DEFINITIONS}/foos.{group}");
    let rename = json!([{ "op": "test", "path": "/spec/versions/1/name", "value": "v3" },
        { "op": "replace", "path": "/spec/versions/1/name", "value": "v4" }]);
    s.patch("json-patch", &path, rename).await.expect(200);
    s.until(&format!("/apis/{group}/v4"), |a| a.code == 200).await;
    is_published(&s, group, "v4", "Foo", &foo()).await;
    is_gone(&s, group, "v3", "Foo").await;
    is_published(&s, group, "v2", "Foo", &foo()).await;
    // No longer served: gone too, and the other stays.
    let mut crd = s.get(&path).await.expect(200);
    crd["spec"]["versions"][1]["served"] = false.into();
    s.put(&path, crd).await.expect(200);
    is_gone(&s, group, "v4", "Foo").await;
    is_published(&s, group, "v2", "Foo", &foo()).await;
}
