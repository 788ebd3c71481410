//! Fills in the defaults that a schema declares.
//! Called by `apiserver` after decoding, before a kind's own `Behavior` defaults what depends on other fields.
//! Never replaces a value that is there; `null` counts as absent unless the field is nullable.

use serde_json::Value;

use super::{Field, Node, Schema, TypeId};

impl Schema {
    pub fn apply_defaults(&self, id: TypeId, value: &mut Value) {
        let Value::Object(map) = value else { return };
        let fields = &self.get(id).fields;
        for field in fields {
            if let Some(default) = &field.default {
                let absent = match map.get(&field.name) {
                    None => true,
                    Some(Value::Null) => !keeps_null(field),
                    // Where Go has no pointer, the zero value is absence.
                    Some(Value::String(text)) => text.is_empty() && field.proto != 0 && !field.wire.pointer,
                    Some(_) => false,
                };
                // A default that is the zero value is only for documentation: Go cannot tell it from absence.
                let said = field.proto == 0 || field.wire.pointer || *default != Value::String(String::new());
                if absent && said {
                    map.insert(field.name.clone(), default.clone());
                }
            }
            if let Some(inner) = map.get_mut(&field.name) {
                self.node_defaults(&field.node, inner);
            }
        }
    }

    fn node_defaults(&self, node: &Node, value: &mut Value) {
        match (node, value) {
            (Node::Struct(id), value) => self.apply_defaults(*id, value),
            (Node::List(item, _), Value::Array(items)) if nested(item) => {
                items.iter_mut().for_each(|v| self.node_defaults(item, v));
            }
            (Node::Map(item, _), Value::Object(map)) if nested(item) => {
                map.values_mut().for_each(|v| self.node_defaults(item, v));
            }
            _ => {}
        }
    }
}

fn nested(node: &Node) -> bool {
    matches!(node, Node::Struct(_) | Node::List(..) | Node::Map(..))
}

/// A custom resource may declare `null` to be a value; for built-in types it is Go's nil.
fn keeps_null(field: &Field) -> bool {
    field.nullable && field.proto == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(kind: &str, mut object: Value, pointer: &str, wanted: Value) {
        let schema = super::super::builtin();
        let id = schema.find_kind("", "v1", kind).unwrap();
        schema.apply_defaults(id, &mut object);
        assert_eq!(object.pointer(pointer).cloned().unwrap_or_default(), wanted);
    }

    #[test]
    fn defaults() {
        let pod = |port: Value| json!({"spec": {"containers": [{"ports": [port]}]}});
        check("Pod", pod(json!({})), "/spec/containers/0/ports/0/protocol", json!("TCP"));
        check("Pod", pod(json!({"protocol": "UDP"})), "/spec/containers/0/ports/0/protocol", json!("UDP"));
        check("Pod", pod(json!({"protocol": null})), "/spec/containers/0/ports/0/protocol", json!("TCP"));
        check("Pod", pod(json!({"protocol": ""})), "/spec/containers/0/ports/0/protocol", json!("TCP"));
        let source = json!({"spec": {"imagePullSecrets": [{}]}});
        check("Pod", source, "/spec/imagePullSecrets/0", json!({}));
    }
}
