//! A structural schema (`openAPIV3Schema`) as the field table everything else reads: decoding, pruning, defaults, apply.
//! Used by `definition`; rules about values are in `check`.
//! Describes shape only, with the same meaning upstream gives it.

use std::collections::HashMap;

use serde_json::Value;

use api::schema::{Field, ListType, Node, Schema, Struct, TypeId};

/// The schema of one version of a custom resource, and its root type.
pub fn build(group: &str, version: &str, kind: &str, schema: &Value) -> (Schema, TypeId) {
    let mut builder = Builder { schema: Schema::default(), copied: HashMap::new() };
    let root = builder.object(kind, schema, true);
    let key = (group.to_string(), version.to_string(), kind.to_string());
    builder.schema.by_kind.insert(key, root);
    (builder.schema, root)
}

struct Builder {
    schema: Schema,
    /// Types taken over from the built-in table, old to new.
    copied: HashMap<TypeId, TypeId>,
}

impl Builder {
    fn add(&mut self, new: Struct) -> TypeId {
        let id = TypeId(self.schema.types.len() as u32);
        self.schema.by_name.insert(new.name.clone(), id);
        self.schema.types.push(new);
        id
    }

    /// `resource`: has apiVersion, kind and metadata whether the schema says so or not.
    fn object(&mut self, name: &str, schema: &Value, resource: bool) -> TypeId {
        let mut fields: Vec<Field> = Vec::new();
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            if resource && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            fields.push(Field {
                name: key.clone(),
                node: self.node(&format!("{name}.{key}"), property),
                required: schema["required"].as_array().is_some_and(|r| r.iter().any(|r| r == key)),
                default: property.get("default").cloned(),
                nullable: property["nullable"] == true,
                ..Field::default()
            });
        }
        if resource {
            let plain = |name: &str, node: Node| Field { name: name.into(), node, ..Field::default() };
            fields.push(plain("apiVersion", Node::String));
            fields.push(plain("kind", Node::String));
            let metadata = self.metadata();
            fields.push(plain("metadata", metadata));
        }
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        self.add(Struct {
            name: name.to_string(),
            fields,
            preserve_unknown: schema["x-kubernetes-preserve-unknown-fields"] == true,
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            ..Struct::default()
        })
    }

    fn node(&mut self, name: &str, schema: &Value) -> Node {
        if schema["x-kubernetes-int-or-string"] == true {
            return Node::IntOrString;
        }
        match schema["type"].as_str().unwrap_or_default() {
            "boolean" => Node::Boolean,
            "integer" => Node::Int64,
            "number" => Node::Number,
            "string" => Node::String,
            "array" => {
                let item = self.node(&format!("{name}[]"), &schema["items"]);
                Node::List(Box::new(item), list_type(schema))
            }
            "object" if schema["x-kubernetes-embedded-resource"] == true => {
                Node::Struct(self.object(name, schema, true))
            }
            "object" if schema["additionalProperties"].is_object() => {
                let item = self.node(&format!("{name}{{}}"), &schema["additionalProperties"]);
                Node::Map(Box::new(item), schema["x-kubernetes-map-type"] == "atomic")
            }
            "object" if schema["additionalProperties"] == true => Node::Map(Box::new(Node::Any), false),
            "object" if schema["properties"].is_object() => Node::Struct(self.object(name, schema, false)),
            "object" if schema["x-kubernetes-preserve-unknown-fields"] == true => Node::Any,
            "object" => Node::Struct(self.object(name, schema, false)),
            _ => Node::Any,
        }
    }

    /// ObjectMeta and what it refers to, copied from the built-in table.
    fn metadata(&mut self) -> Node {
        let builtin = api::schema::builtin();
        match builtin.by_name.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
            Some(id) => Node::Struct(self.copy(builtin, *id)),
            None => Node::Any,
        }
    }

    fn copy(&mut self, from: &Schema, id: TypeId) -> TypeId {
        if let Some(known) = self.copied.get(&id) {
            return *known;
        }
        let mut new = from.get(id).clone();
        let place = self.add(Struct { name: new.name.clone(), ..Struct::default() });
        self.copied.insert(id, place);
        for field in &mut new.fields {
            field.node = self.copy_node(from, &field.node);
        }
        self.schema.types[place.0 as usize] = new;
        place
    }

    fn copy_node(&mut self, from: &Schema, node: &Node) -> Node {
        match node {
            Node::Struct(id) => Node::Struct(self.copy(from, *id)),
            Node::List(item, kind) => Node::List(Box::new(self.copy_node(from, item)), kind.clone()),
            Node::Map(item, atomic) => Node::Map(Box::new(self.copy_node(from, item)), *atomic),
            other => other.clone(),
        }
    }
}

fn list_type(schema: &Value) -> ListType {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            ListType::Map(keys.filter_map(|k| k.as_str().map(str::to_string)).collect())
        }
        _ => ListType::Atomic,
    }
}

/// Whether any default is declared anywhere, so that stored objects must be looked at when they are read.
pub fn has_defaults(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.contains_key("default") || map.values().any(has_defaults),
        Value::Array(items) => items.iter().any(has_defaults),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prunes_and_defaults_as_declared() {
        let schema = json!({
            "type": "object",
            "properties": {
                "spec": { "type": "object", "properties": {
                    "size": { "type": "integer", "default": 3 },
                    "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                    "port": { "x-kubernetes-int-or-string": true },
                } },
            },
        });
        let (schema, root) = build("example.com", "v1", "Widget", &schema);
        let text = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "a", "labels": { "x": "y" } },
            "spec": { "gone": 1, "free": { "kept": 1 }, "labels": { "k": "v" }, "port": "http" }, "gone": true,
        });
        let bytes = text.to_string();
        let decoded =
            api::codec::decode(bytes.as_bytes(), api::codec::ContentType::Json, Some((&schema, root))).unwrap();
        let mut value = decoded.value;
        schema.apply_defaults(root, &mut value);
        assert_eq!(value["spec"], json!({ "free": { "kept": 1 }, "labels": { "k": "v" }, "port": "http", "size": 3 }));
        assert_eq!(decoded.problems.len(), 2, "{:?}", decoded.problems);
        assert_eq!(value["metadata"]["labels"]["x"], "y");
    }
}
