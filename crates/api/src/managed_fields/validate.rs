//! Whether an applied configuration fits the schema, in upstream's words.
//! Used by `apply`.
//! Reports, changes nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use super::typed::Typed;
use crate::{
    patch::go_type,
    schema::{ListType, Node, SchemaOr},
};

#[derive(Default)]
struct Errors(Vec<String>);

impl Typed<'_> {
    /// `Err` with every complaint.
    pub fn validate(&self, node: &Node, value: &Value) -> Result<(), String> {
        let mut errors = Errors::default();
        self.check(node, value, "", &mut errors);
        match &errors.0[..] {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("errors:\n{}", many.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))),
        }
    }

    fn check(&self, node: &Node, value: &Value, path: &str, errors: &mut Errors) {
        let mut complain = |message: String| {
            errors.0.push(if path.is_empty() { message } else { format!("{path}: {message}") });
        };
        match (node, value) {
            (_, Value::Null) | (Node::Any | Node::Fields, _) => {}
            (Node::Struct(id), Value::Object(map)) => {
                let open = self.schema.get(*id).preserve_unknown;
                for (key, value) in map {
                    let path = format!("{path}.{key}");
                    let field = self.schema.field(node, key);
                    if !open && field.is_none() {
                        errors.0.push(format!("{path}: field not declared in schema"));
                        return;
                    }
                    // What may be a schema or something else is of no type.
                    if field.is_some_and(|field| field.wire.or != SchemaOr::Nothing) {
                        continue;
                    }
                    self.check(self.schema.child(node, key), value, &path, errors);
                }
            }
            (Node::Map(element, _), Value::Object(map)) => {
                for (key, value) in map {
                    self.check(element, value, &format!("{path}.{key}"), errors);
                }
            }
            (Node::Struct(_) | Node::Map(..), other) => complain(format!("expected map, got &{{{}}}", shown(other))),
            (Node::List(element, kind), Value::Array(items)) => self.check_list(element, kind, items, path, errors),
            (Node::List(..), other) => complain(format!("expected list, got &{{{}}}", shown(other))),
            (Node::Int32 | Node::Int64 | Node::Number, Value::Number(_)) => {}
            (Node::Int32 | Node::Int64 | Node::Number, other) => {
                complain(format!("expected numeric (int or float), got {}", go_type(other)));
            }
            (Node::Boolean, Value::Bool(_)) => {}
            (Node::Boolean, other) => complain(format!("expected boolean, got &{{{}}}", shown(other))),
            (Node::String | Node::Bytes, Value::String(_)) => {}
            (Node::String | Node::Bytes, other) => {
                complain(format!("expected string, got &value.valueUnstructured{{Value:{}}}", shown(other)));
            }
            (_, Value::Object(_) | Value::Array(_)) => {
                complain(format!("expected any scalar, got &{{{}}}", shown(value)));
            }
            _ => {}
        }
    }

    fn check_list(&self, element: &Node, kind: &ListType, items: &[Value], path: &str, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for (i, item) in items.iter().enumerate() {
            let step = match kind {
                ListType::Atomic => format!("[{i}]"),
                _ => match self.element(element, kind, item) {
                    Ok(name) => {
                        let step = name.to_string();
                        if !seen.insert(name) {
                            errors.0.push(format!("{path}: duplicate entries for key {step}"));
                        }
                        step
                    }
                    Err(error) => {
                        errors.0.push(format!("{path}: element {i}: {error}"));
                        return;
                    }
                },
            };
            self.check(element, item, &format!("{path}{step}"), errors);
        }
    }
}

/// Roughly as Go prints the value; clients only ever show it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
