//! `fieldValidation=Strict`: what is unknown or said twice, in built-in and custom objects.
//! `writes` has the other two ways.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, any_object, definition, server};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(metadata: &str, spec: &str) -> String {
    format!(
        r#"{{ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {{ "name": "web", {metadata} "labels": {{ "app": "web" }} }},
        "spec": {{ {spec} "selector": {{ "matchLabels": {{ "app": "web" }} }},
            "template": {{ "metadata": {{ "labels": {{ "app": "web" }} }},
                "spec": {{ "containers": [{{ "name": "c", "image": "i" }}] }} }} }} }}"#
    )
}

#[tokio::test]
async fn built_in_objects_are_read_strictly() {
    let s = server().await;
    let replicas = r#""unknownField": "x", "replicas": 2, "replicas": 3,"#;
    for (metadata, spec, words) in [
        ("", replicas, r#"strict decoding error: unknown field "spec.unknownField", duplicate field "spec.replicas""#),
        (r#""unknownMeta": "x","#, "", r#"strict decoding error: unknown field "metadata.unknownMeta""#),
    ] {
        let (path, body) = (format!("{DEPLOYMENTS}?fieldValidation=Strict"), deployment(metadata, spec));
        let headers = [("content-type", "application/json")];
        s.send("POST", &path, &headers, body.clone().into_bytes()).await.refused(400, "BadRequest", words);
        let headers = [("content-type", "application/yaml")];
        let refused = s.send("POST", &path, &headers, body.into_bytes()).await;
        assert_eq!(refused.code, 400, "{}", refused.value);
    }
    assert_eq!(s.get(&format!("{DEPLOYMENTS}/web")).await.code, 404, "nothing is made of it");
    let headers = [("content-type", "application/json")];
    let path = format!("{DEPLOYMENTS}?fieldValidation=Strict");
    s.send("POST", &path, &headers, deployment("", "").into_bytes()).await.expect(201);
}

/// The schema of a custom resource, whose `spec` has `more` beside its fields.
fn schema(more: &[(&str, Value)]) -> Value {
    let port = json!({ "type": "object", "required": ["containerPort", "protocol"], "properties": {
        "containerPort": { "type": "integer", "format": "int32" }, "hostIP": { "type": "string" },
        "hostPort": { "type": "integer", "format": "int32" }, "name": { "type": "string" }, "protocol": { "type": "string" },
    } });
    let mut spec = json!({ "type": "object", "properties": {
        "foo": { "type": "string" },
        "cronSpec": { "type": "string", "pattern": r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$" },
        "ports": { "type": "array", "items": port, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"] },
    } });
    for (pointer, value) in more {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    json!({ "type": "object", "properties": { "spec": spec } })
}

const SPEC: &str = r#"  cronSpec: "* * * * */5"
  ports:
  - name: x
    containerPort: 80
    protocol: TCP
"#;

/// Applies an object with lines of its own before those above.
async fn apply(s: &Server, path: &str, metadata: &str, lines: &str) -> Answer {
    let group = path.split('/').nth(2).unwrap();
    let text = format!("apiVersion: {group}/v1\nkind: Noxu\nmetadata:\n  name: mytest\n{metadata}spec:\n{lines}{SPEC}");
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}/mytest?fieldManager=tests&fieldValidation=Strict");
    s.send("PATCH", &path, &headers, text.into_bytes()).await
}

async fn noxus(s: &Server, name: &str, schema: &Value) -> String {
    s.define(&definition(&format!("{name}.example.com"), "Noxu", "Cluster", &["v1", "v1beta1"], schema)).await
}

#[tokio::test]
async fn custom_objects_are_read_strictly() {
    let s = server().await;
    let known = noxus(&s, "known", &schema(&[])).await;
    let refused = apply(&s, &known, "  labels: {}\n", "  foo: foo1\n  unknown: x\n").await;
    refused.refused(500, "", ".spec.unknown: field not declared in schema");
    let unknown_at_root = "\napiVersion: known.example.com/v1\nkind: Noxu\nmetadata: {name: mytest}\nunknownField: x\n";
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{known}/mytest?fieldManager=tests&fieldValidation=Strict");
    let refused = s.send("PATCH", &path, &headers, unknown_at_root.into()).await;
    refused.refused(500, "", ".unknownField: field not declared in schema");
    let made = apply(&s, &known, "", "  foo: foo1\n").await.expect(201);
    assert_eq!((&made["spec"]["foo"], &made["spec"]["ports"][0]["containerPort"]), (&json!("foo1"), &json!(80)));
    // A create says it another way.
    let other = json!({ "apiVersion": "known.example.com/v1", "kind": "Noxu", "metadata": { "name": "other" },
        "spec": { "unknown": "x" } });
    let refused = s.post(&format!("{known}?fieldValidation=Strict"), other.clone()).await;
    refused.refused(400, "BadRequest", r#"strict decoding error: unknown field "spec.unknown""#);
    let mut valid = other;
    valid["spec"] = json!({ "foo": "x" });
    s.post(&format!("{known}?fieldValidation=Strict"), valid).await.expect(201);

    let anything = noxus(&s, "anything", &any_object()).await;
    let made = apply(&s, &anything, "", "  unknown: uk1\n").await.expect(201);
    assert_eq!(made["spec"]["unknown"], "uk1");
}

#[tokio::test]
async fn fields_said_twice_are_refused_also_where_unknown_ones_are_kept() {
    let s = server().await;
    let preserving = schema(&[("/x-kubernetes-preserve-unknown-fields", json!(true))]);
    let path = noxus(&s, "preserving", &preserving).await;
    let refused = apply(&s, &path, "", "  unknown: uk1\n  foo: foo1\n  foo: foo2\n").await;
    refused.refused(400, "BadRequest", "line 8: key \"foo\" already set in map");
    s.get(&format!("{path}/mytest")).await.refused(404, "NotFound", "");
    let made = apply(&s, &path, "", "  unknown: uk1\n  foo: foo2\n").await.expect(201);
    assert_eq!((&made["spec"]["unknown"], &made["spec"]["foo"]), (&json!("uk1"), &json!("foo2")));
    let twice = r#"{ "apiVersion": "preserving.example.com/v1", "kind": "Noxu", "metadata": { "name": "other" },
        "spec": { "unknown": 1, "unknown": 2 } }"#;
    let headers = [("content-type", "application/json")];
    let refused = s.send("POST", &format!("{path}?fieldValidation=Strict"), &headers, twice.into()).await;
    refused.refused(400, "BadRequest", r#"duplicate field "spec.unknown""#);
}

#[tokio::test]
async fn metadata_holds_nothing_unknown_at_the_root_or_inside() {
    let s = server().await;
    let inner = json!({ "type": "object", "x-kubernetes-embedded-resource": true, "properties": {
        "metadata": { "type": "object", "properties": { "name": { "type": "string" } } },
        "spec": { "type": "object" },
    } });
    let embedding = schema(&[("/x-kubernetes-preserve-unknown-fields", json!(true)), ("/properties/template", inner)]);
    let path = noxus(&s, "embedding", &embedding).await;
    let template = |more: &str| {
        format!("  template:\n    apiVersion: foo/v1\n    kind: Sub\n    metadata:\n      name: inner\n{more}")
    };
    let unknown = template("      unknownSubMeta: unknown\n");
    let root = apply(&s, &path, "  unknownMeta: unknown\n", &template("")).await;
    root.refused(500, "", ".metadata.unknownMeta: field not declared in schema");
    let inside = apply(&s, &path, "", &unknown).await;
    inside.refused(500, "", ".spec.template.metadata.unknownSubMeta: field not declared in schema");
    // As a create sees it, both at once.
    let create = |root: Value, inner: Value| {
        json!({ "apiVersion": "embedding.example.com/v1", "kind": "Noxu", "metadata": root,
            "spec": { "template": { "apiVersion": "foo/v1", "kind": "Sub", "metadata": inner } } })
    };
    let both =
        create(json!({ "name": "mytest", "unknownMeta": "x" }), json!({ "name": "inner", "unknownSubMeta": "x" }));
    let refused = s.post(&format!("{path}?fieldValidation=Strict"), both).await;
    let message = refused.value["message"].as_str().unwrap_or_default().to_string();
    assert_eq!(refused.code, 400, "{message}");
    for field in ["\"metadata.unknownMeta\"", "\"spec.template.metadata.unknownSubMeta\""] {
        assert!(message.contains(&format!("unknown field {field}")), "{message}");
    }
    apply(&s, &path, "", &template("")).await.expect(201);
    s.post(&format!("{path}?fieldValidation=Strict"), create(json!({ "name": "other" }), json!({ "name": "inner" })))
        .await
        .expect(201);
}
