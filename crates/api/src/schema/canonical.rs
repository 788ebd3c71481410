//! Brings a value of a Go-typed schema to the form Go would print: empty optional fields gone, always-printed ones there.
//! Called by `apiserver` before an object is stored, and by `codec::protobuf` after decoding.
//! Does nothing to types of custom resources; doing it twice changes nothing.

use serde_json::{Map, Value};

use super::{Field, Node, Schema, TypeId};

impl Schema {
    pub fn canonicalize(&self, id: TypeId, value: &mut Value) {
        Canonical { schema: self, stored: true }.object(id, value);
    }

    /// As Go prints what it has just read, where an empty list is not nil yet.
    pub fn canonicalize_sent(&self, id: TypeId, value: &mut Value) {
        Canonical { schema: self, stored: false }.object(id, value);
    }
}

struct Canonical<'s> {
    schema: &'s Schema,
    /// As it comes back from the store.
    stored: bool,
}

impl Canonical<'_> {
    fn object(&self, id: TypeId, value: &mut Value) {
        if !self.schema.go_types {
            return;
        }
        if let Value::Object(map) = value {
            self.canonical_fields(id, map);
        }
    }

    /// Protobuf, which upstream stores these kinds as, knows no empty lists.
    fn empties_become_null(&self, id: TypeId) -> bool {
        let name = &self.schema.get(id).name;
        self.stored && !name.contains("apiextensions") && !name.contains("apiregistration")
    }

    fn canonical_fields(&self, id: TypeId, map: &mut Map<String, Value>) {
        for field in &self.schema.get(id).fields {
            match map.get_mut(&field.name) {
                Some(value) if !value.is_null() => {
                    self.canonical_node(&field.node, value);
                    if omitted(field, value) {
                        map.remove(&field.name);
                    } else if !field.wire.omit_empty
                        && is_empty_collection(field, value)
                        && self.empties_become_null(id)
                    {
                        *value = Value::Null;
                    }
                }
                _ => match self.absent(field) {
                    Some(value) => {
                        map.insert(field.name.clone(), value);
                    }
                    None => {
                        map.remove(&field.name);
                    }
                },
            }
        }
    }

    fn canonical_node(&self, node: &Node, value: &mut Value) {
        match (node, value) {
            (Node::Struct(id), Value::Object(map)) => self.canonical_fields(*id, map),
            // `items` of a JSON schema may be several schemas.
            (Node::Struct(_), Value::Array(items)) => items.iter_mut().for_each(|v| self.canonical_node(node, v)),
            (Node::List(item, _), Value::Array(items)) if matches!(**item, Node::Struct(_)) => {
                items.iter_mut().for_each(|v| self.canonical_node(item, v));
            }
            (Node::Map(item, _), Value::Object(map)) if matches!(**item, Node::Struct(_)) => {
                map.values_mut().for_each(|v| self.canonical_node(item, v));
            }
            (Node::Map(item, _), Value::Object(map)) if matches!(**item, Node::Bytes) => {
                // Bytes may come as a list, and none are no bytes.
                let is_void = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
                map.values_mut().filter(|v| is_void(v)).for_each(|v| *v = "".into());
            }
            _ => {}
        }
    }

    /// What Go prints for a field that was never set.
    fn absent(&self, field: &Field) -> Option<Value> {
        if field.wire.omit_zero || (field.wire.omit_empty && field.wire.pointer) {
            return None;
        }
        if field.wire.pointer {
            return Some(Value::Null);
        }
        // Go's omitempty never leaves out a struct.
        match &field.node {
            Node::Struct(id) => {
                let mut map = Map::new();
                self.canonical_fields(*id, &mut map);
                Some(Value::Object(map))
            }
            Node::Time | Node::MicroTime | Node::Any | Node::Fields => Some(Value::Null),
            Node::Quantity => Some("0".into()),
            Node::Duration => Some("0s".into()),
            Node::IntOrString => Some(0.into()),
            _ if field.wire.omit_empty => None,
            Node::Boolean => Some(false.into()),
            Node::Int32 | Node::Int64 | Node::Number => Some(0.into()),
            Node::String => Some("".into()),
            Node::Bytes | Node::List(..) | Node::Map(..) => Some(Value::Null),
        }
    }
}

fn is_empty_collection(field: &Field, value: &Value) -> bool {
    match (&field.node, value) {
        (Node::List(..), Value::Array(items)) => items.is_empty(),
        (Node::Map(..), Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

fn omitted(field: &Field, value: &Value) -> bool {
    if !field.wire.omit_empty || field.wire.pointer {
        return false;
    }
    match (&field.node, value) {
        (Node::Struct(_) | Node::Quantity | Node::IntOrString | Node::Any | Node::Fields, _) => false,
        (_, Value::Bool(set)) => !set,
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(map)) => map.is_empty(),
        (_, Value::Null) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(kind: &str, mut object: Value, wanted: Value) {
        let schema = super::super::builtin();
        let id = schema.find_kind("", "v1", kind).unwrap();
        schema.canonicalize(id, &mut object);
        assert_eq!(object, wanted);
        schema.canonicalize(id, &mut object);
        assert_eq!(object, wanted, "the second time");
    }

    #[test]
    fn as_go_prints_it() {
        check(
            "Pod",
            json!({"kind": "Pod", "metadata": {"labels": {}, "name": "a"}, "spec": {
                "hostNetwork": false, "nodeName": "", "enableServiceLinks": false,
                "containers": [{"name": "c", "ports": []}]}}),
            json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {
                "enableServiceLinks": false, "containers": [{"name": "c", "resources": {}}]}, "status": {}}),
        );
        check("ConfigMap", json!({"data": {}, "immutable": false}), json!({"metadata": {}, "immutable": false}));
        check(
            "Event",
            json!({}),
            json!({"metadata": {}, "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                "eventTime": null, "reportingComponent": "", "reportingInstance": ""}),
        );
    }
}
