//! A small schema for the tests of ownership: a Deployment in miniature.
//! Used by `apply_tests` and `update_tests`.
//! Held as Go would hold it, so that ownership looks as it does upstream.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Options;
use crate::schema::{Field, ListType, Node, Schema, Struct, TypeId, Wire};

pub const ROOT: TypeId = TypeId(0);

fn field(name: &str, node: Node) -> Field {
    Field { name: name.into(), node, proto: 1, wire: Wire { omit_empty: true, ..Wire::default() }, ..Field::default() }
}

fn held(name: &str, node: Node) -> Field {
    Field { wire: Wire::default(), ..field(name, node) }
}

fn pointer(name: &str, node: Node) -> Field {
    Field { wire: Wire { pointer: true, omit_empty: true, ..Wire::default() }, ..field(name, node) }
}

fn list(element: Node, kind: ListType) -> Node {
    Node::List(Box::new(element), kind)
}

fn keys(names: &[&str]) -> ListType {
    ListType::Map(names.iter().map(ToString::to_string).collect())
}

fn map(value: Node) -> Node {
    Node::Map(Box::new(value), false)
}

fn structure(name: &str, mut fields: Vec<Field>) -> Struct {
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    Struct { name: name.into(), fields, ..Struct::default() }
}

pub fn schema() -> Schema {
    let id = |n: u32| Node::Struct(TypeId(n));
    let protocol = Field { default: Some(json!("TCP")), ..field("protocol", Node::String) };
    let typed = |name: &str| Field { proto: 0, ..field(name, Node::String) };
    let types = vec![
        structure(
            "Thing",
            vec![
                typed("apiVersion"),
                typed("kind"),
                field("metadata", id(1)),
                field("spec", id(2)),
                field("status", id(5)),
            ],
        ),
        structure(
            "Meta",
            vec![
                field("annotations", map(Node::String)),
                field("labels", map(Node::String)),
                field("finalizers", list(Node::String, ListType::Set)),
                field("name", Node::String),
                field("namespace", Node::String),
                field("uid", Node::String),
                field("resourceVersion", Node::String),
                field("managedFields", list(Node::Any, ListType::Atomic)),
            ],
        ),
        structure(
            "Spec",
            vec![
                pointer("replicas", Node::Int32),
                held("containers", list(id(3), keys(&["name"]))),
                field("args", list(Node::String, ListType::Atomic)),
                field("owners", list(id(9), keys(&["uid"]))),
                pointer("selector", id(6)),
                field("strategy", id(7)),
                field("free", Node::Any),
            ],
        ),
        structure(
            "Container",
            vec![
                held("name", Node::String),
                field("image", Node::String),
                field("ports", list(id(4), keys(&["containerPort", "protocol"]))),
                field("env", map(Node::String)),
            ],
        ),
        structure("Port", vec![held("containerPort", Node::Int32), protocol, field("name", Node::String)]),
        structure("Status", vec![field("ready", Node::Int32)]),
        Struct { atomic: true, ..structure("Selector", vec![field("matchLabels", map(Node::String))]) },
        structure("Strategy", vec![field("type", Node::String), pointer("rolling", id(8))]),
        structure("Rolling", vec![pointer("maxSurge", Node::IntOrString)]),
        structure("Owner", vec![field("uid", Node::String), field("name", Node::String)]),
    ];
    Schema { types, ..Schema::default() }
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

pub fn options(manager: &str, second: i64) -> Options<'_> {
    Options { manager, force: false, subresource: "", api_version: "test/v1", now: at(second), reset: None }
}

/// A Thing with this spec.
pub fn thing(spec: Value) -> Value {
    json!({"apiVersion": "test/v1", "kind": "Thing", "metadata": {"name": "web"}, "spec": spec})
}

/// `manager operation fields`, one per entry.
pub fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let short = |e: &Value| {
        let subresource = e["subresource"].as_str().map(|s| format!("/{s}")).unwrap_or_default();
        format!("{} {}{subresource}", e["manager"].as_str().unwrap_or("?"), e["operation"].as_str().unwrap_or("?"))
    };
    entries.iter().map(|e| (short(e), e["fieldsV1"].clone())).collect()
}
