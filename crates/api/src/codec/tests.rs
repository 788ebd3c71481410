//! What upstream's clients would notice of the decoders: values, complaints, refusals.

use serde_json::json;

use super::*;

fn deployment() -> (&'static Schema, TypeId) {
    let schema = schema::builtin();
    (schema, schema.find_kind("apps", "v1", "Deployment").unwrap())
}

const HEAD: &str = r#""apiVersion":"apps/v1","kind":"Deployment""#;

fn check(json: &str, wanted: Value, problems: &[&str]) {
    let decoded = decode(json.as_bytes(), ContentType::Json, Some(deployment())).unwrap();
    assert_eq!(decoded.value, wanted, "{json}");
    assert_eq!(decoded.problems, problems, "{json}");
}

fn refuse(body: &[u8], content: ContentType, message: &str) {
    let error = decode(body, content, Some(deployment())).unwrap_err();
    assert_eq!(error.code, 400);
    assert!(error.message.contains(message), "{}", error.message);
}

#[test]
fn unknown_and_duplicate_fields() {
    check(r#"{"spec":{"replicas":3}}"#, json!({"spec": {"replicas": 3}}), &[]);
    check(
        r#"{"spec":{"foo":1,"replicas":1,"replicas":2,"Replicas":7}}"#,
        json!({"spec": {"replicas": 2}}),
        &["unknown field \"spec.foo\"", "duplicate field \"spec.replicas\"", "unknown field \"spec.Replicas\""],
    );
    check(
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"a"},{"nam":"b","env":[{"nme":1}]}]}}}}"#,
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"env": [{}]}]}}}}),
        &[
            "unknown field \"spec.template.spec.containers[1].nam\"",
            "unknown field \"spec.template.spec.containers[1].env[0].nme\"",
        ],
    );
    check(
        r#"{"metadata":{"labels":{"a":"1","a":"2"}}}"#,
        json!({"metadata": {"labels": {"a": "2"}}}),
        &["duplicate field \"metadata.labels.a\""],
    );
}

#[test]
fn nulls_are_gos_zero_values() {
    check(
        r#"{"metadata":{"creationTimestamp":null,"labels":{"a":null},"finalizers":["x",null]},"spec":{"replicas":null}}"#,
        json!({"metadata": {"labels": {"a": ""}, "finalizers": ["x", ""]}, "spec": {}}),
        &[],
    );
}

#[test]
fn values_are_normalized() {
    check(
        r#"{"metadata":{"creationTimestamp":"2024-01-01T02:00:00.5+02:00"}}"#,
        json!({"metadata": {"creationTimestamp": "2024-01-01T00:00:00Z"}}),
        &[],
    );
    let limits =
        |cpu: Value| json!({"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": cpu}}}]}}}});
    check(&limits(json!("0.5")).to_string(), limits(json!("500m")), &[]);
    check(&limits(json!(2)).to_string(), limits(json!("2")), &[]);
}

#[test]
fn types_are_checked_in_gos_words() {
    let json = |rest: &str| format!("{{{HEAD},{rest}}}").into_bytes();
    let head = "Deployment in version \"v1\" cannot be handled as a Deployment: ";
    for (rest, message) in [
        (
            r#""spec":{"replicas":"3"}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            r#""spec":{"replicas":1.5}"#,
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            r#""spec":{"replicas":99999999999}"#,
            "number 99999999999 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (r#""spec":[]"#, "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec"),
        (
            r#""spec":{"paused":"yes"}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.paused of type bool",
        ),
        (
            r#""metadata":{"labels":{"a":1}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (r#""metadata":{"labels":"x"}"#, "into Go struct field ObjectMeta.metadata.labels of type map[string]string"),
        (r#""metadata":{"creationTimestamp":"x"}"#, "parsing time \"x\" as"),
        (
            r#""spec":{"strategy":{"rollingUpdate":{"maxSurge":true}}}"#,
            "json: cannot unmarshal bool into Go struct field \
             RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge of type int32",
        ),
        (
            r#""spec":{"template":{"spec":{"containers":[{"imagePullPolicy":1}]}}}"#,
            "into Go struct field Container.spec.template.spec.containers.imagePullPolicy of type v1.PullPolicy",
        ),
        (
            r#""spec":{"template":{"spec":{"volumes":[{"hostPath":"/"}]}}}"#,
            "json: cannot unmarshal string into Go struct field \
             Volume.spec.template.spec.volumes.VolumeSource.hostPath of type v1.HostPathVolumeSource",
        ),
        (
            r#""spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":[]}}}]}}}"#,
            "quantities must match the regular expression",
        ),
    ] {
        refuse(&json(rest), ContentType::Json, message);
        refuse(&json(rest), ContentType::Json, head);
        refuse(&json(rest), ContentType::Yaml, message);
    }
}

#[test]
fn type_and_version_come_first() {
    for body in [r#"{"apiVersion":-1,"spec":[]}"#, r#"{"spec":[],"apiVersion":-1}"#] {
        let head = "the object provided is unrecognized (must be of type Deployment): couldn't get version/kind; ";
        let why = "json parse error: json: cannot unmarshal number into Go struct field .apiVersion of type string";
        refuse(body.as_bytes(), ContentType::Json, &format!("{head}{why}"));
    }
}

#[test]
fn what_is_no_document() {
    refuse(b"", ContentType::Json, "json parse error: unexpected end of JSON input (<empty>)");
    refuse(
        b"{",
        ContentType::Json,
        "the object provided is unrecognized (must be of type Deployment): couldn't get version/kind",
    );
    refuse(b"{} x", ContentType::Json, "trailing characters");
    refuse(b"{\"kind\":\"\xff\"}", ContentType::Json, "json parse error");
    refuse("[".repeat(100_000).as_bytes(), ContentType::Json, "");
    let deep = format!(
        "{{\"metadata\":{{\"managedFields\":[{{\"fieldsV1\":{}1{}}}]}}}}",
        "{\"a\":".repeat(500),
        "}".repeat(500)
    );
    refuse(deep.as_bytes(), ContentType::Json, "recursion limit exceeded");
    refuse(b"\xff\xfe: [", ContentType::Yaml, "yaml: ");
    refuse(b"a: b: c", ContentType::Yaml, "yaml: ");
    refuse("[".repeat(10_000).as_bytes(), ContentType::Yaml, "");
    refuse(b"not protobuf", ContentType::Protobuf, "does not appear to be a protobuf message");
}

#[test]
fn yaml() {
    let body = "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 3\n  foo: bar\n  template:\n    spec:\n      volumes:\n      - name: v\n        configMap: {defaultMode: 0644}\n";
    let decoded = decode(body.as_bytes(), ContentType::Yaml, Some(deployment())).unwrap();
    assert_eq!(decoded.value["spec"]["template"]["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
    assert_eq!(decoded.problems, ["unknown field \"spec.foo\""]);
    let whole = "spec: {replicas: 1e3, revisionHistoryLimit: 08}";
    let decoded = decode(whole.as_bytes(), ContentType::Yaml, Some(deployment())).unwrap();
    assert_eq!(decoded.value, json!({"spec": {"replicas": 1000, "revisionHistoryLimit": 8}}));
    let twice = "kind: Deployment\nspec:\n  replicas: 3\n  replicas: 4\n";
    let decoded = decode(twice.as_bytes(), ContentType::Yaml, Some(deployment())).unwrap();
    assert_eq!(decoded.value["spec"]["replicas"], 4);
    assert_eq!(decoded.problems, ["yaml: unmarshal errors:\n  line 4: key \"replicas\" already set in map"]);
    let value = json!({"a": "yes", "b": "1", "c": [1, 2.5, null, true], "d": {"e": "x: y\n# z"}, "f": "0644", "g": ""});
    let text = encode(&value, ContentType::Yaml).unwrap();
    assert_eq!(decode(&text, ContentType::Yaml, None).unwrap().value, value);
}

#[test]
fn values_are_read_again() {
    let (schema, id) = deployment();
    let value =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1, "foo": 2, "paused": null}});
    let decoded = decode_value(value, schema, id).unwrap();
    assert_eq!(decoded.value["spec"], json!({"replicas": 1}));
    assert_eq!(decoded.problems, ["unknown field \"spec.foo\""]);
    let error = decode_value(json!({"kind": "Deployment", "spec": 1}), schema, id).unwrap_err();
    assert!(
        error
            .message
            .contains("cannot unmarshal number into Go struct field Deployment.spec of type v1.DeploymentSpec")
    );
}

#[test]
fn strict() {
    let body = format!("{{{HEAD},\"spec\":{{\"foo\":1,\"bar\":1}}}}");
    let error = decode(body.as_bytes(), ContentType::Json, Some(deployment())).unwrap().strict().unwrap_err();
    assert_eq!(
        error.message,
        "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: \
         unknown field \"spec.foo\", unknown field \"spec.bar\""
    );
}

#[test]
fn custom_resources_are_not_type_checked() {
    use crate::schema::{Field, Node, Struct};
    let field = |name: &str, node: Node| Field { name: name.into(), node, ..Field::default() };
    let spec = Struct { name: "spec".into(), fields: vec![field("size", Node::Int32)], ..Struct::default() };
    let root = Struct {
        name: "Widget".into(),
        fields: vec![
            field("apiVersion", Node::String),
            field("kind", Node::String),
            field("metadata", Node::Any),
            field("spec", Node::Struct(TypeId(0))),
        ],
        ..Struct::default()
    };
    let schema = Schema { types: vec![spec, root], ..Schema::default() };
    let body = br#"{"kind":"Widget","metadata":{"name":"a","nme":1},"spec":{"size":"big","foo":{"x":1}}}"#;
    let decoded = decode(body, ContentType::Json, Some((&schema, TypeId(1)))).unwrap();
    assert_eq!(decoded.value, json!({"kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": "big"}}));
    assert_eq!(decoded.problems, ["unknown field \"metadata.nme\"", "unknown field \"spec.foo\""]);
    let wrong = br#"{"kind":"Widget","metadata":{"labels":{"a":1}}}"#;
    assert!(decode(wrong, ContentType::Json, Some((&schema, TypeId(1)))).is_err());
}
