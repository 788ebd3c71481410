//! The component schemas of a document: our field table, written as OpenAPI.
//! Called by `documents` for every type that operations refer to, and for what those refer to.
//! Says nothing that the table does not hold; texts come from `descriptions`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Dialect, descriptions::Descriptions, operations::META};
use crate::{
    kinds,
    schema::{Field, ListType, Node, Schema, SchemaOr, Struct},
};

const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

pub(super) struct Components<'d> {
    pub(super) dialect: Dialect,
    schema: &'static Schema,
    descriptions: &'d Descriptions,
    /// The kind of each type that is one, as `x-kubernetes-group-version-kind` wants it.
    kinds: BTreeMap<&'static str, Value>,
    wanted: BTreeSet<String>,
    done: Map<String, Value>,
}

impl<'d> Components<'d> {
    pub(super) fn new(
        dialect: Dialect,
        schema: &'static Schema,
        descriptions: &'d Descriptions,
        group_versions: &BTreeSet<(String, String)>,
    ) -> Self {
        let mut kinds: BTreeMap<&'static str, Value> = BTreeMap::new();
        for ((group, version, kind), id) in &schema.by_kind {
            let one = json!({"group": group, "kind": kind, "version": version});
            kinds.insert(&schema.get(*id).name, json!([one]));
        }
        for kind in ["DeleteOptions", "WatchEvent"] {
            let all =
                group_versions.iter().map(|(group, version)| json!({"group": group, "kind": kind, "version": version}));
            if let Some(id) = schema.find_kind("", "v1", kind) {
                kinds.insert(&schema.get(id).name, all.collect());
            }
        }
        Self { dialect, schema, descriptions, kinds, wanted: BTreeSet::new(), done: Map::new() }
    }

    /// A reference to a type, which then becomes part of the document.
    pub(super) fn reference(&mut self, name: &str) -> Value {
        if !self.done.contains_key(name) {
            self.wanted.insert(name.into());
        }
        json!({"$ref": format!("{}{name}", self.dialect.prefix())})
    }

    /// Adds a schema that is not in the table: a custom resource's.
    pub(super) fn add(&mut self, name: String, schema: Value) {
        self.wanted.remove(&name);
        self.done.insert(name, schema);
    }

    pub(super) fn finish(mut self) -> Map<String, Value> {
        while let Some(name) = self.wanted.pop_first() {
            let schema = self.component(&name);
            self.done.insert(name, schema);
        }
        self.done
    }

    fn component(&mut self, name: &str) -> Value {
        let mut out = match self.schema.by_name.get(name) {
            Some(id) => self.structure(self.schema.get(*id)),
            None => self.scalar(name),
        };
        if let (Some(text), Some(map)) = (self.descriptions.of_type(name), out.as_object_mut()) {
            map.insert("description".into(), text.into());
        }
        out
    }

    fn structure(&mut self, of: &'static Struct) -> Value {
        let mut properties = Map::new();
        for field in &of.fields {
            properties.insert(field.name.clone(), self.field(of, field));
        }
        let mut out = json!({"type": "object"});
        let short = of.name.rsplit('.').next().unwrap_or_default();
        if let Some(item) = short.strip_suffix("List").filter(|_| of.field("items").is_some()) {
            out["description"] = format!("{short} is a list of {item} objects.").into();
        }
        if !properties.is_empty() {
            out["properties"] = properties.into();
        }
        let required: Vec<&str> = of.fields.iter().filter(|f| f.required).map(|f| f.name.as_str()).collect();
        if !required.is_empty() {
            out["required"] = json!(required);
        }
        if of.atomic {
            out["x-kubernetes-map-type"] = "atomic".into();
        }
        if let Some(kinds) = self.kinds.get(of.name.as_str()) {
            out["x-kubernetes-group-version-kind"] = kinds.clone();
        }
        out
    }

    fn field(&mut self, of: &Struct, field: &'static Field) -> Value {
        let mut out = self.node(of, field, &field.node);
        let description = self.descriptions.of_field(&of.name, &field.name).or_else(|| self.common(of, field));
        let default = match &field.default {
            Some(default) => Some(default.clone()),
            None if field.wire.pointer => None,
            None => match &field.node {
                Node::Struct(_) if field.wire.or == SchemaOr::Nothing => Some(json!({})),
                _ if field.wire.omit_empty => None,
                node => zero(node),
            },
        };
        let default = default.filter(|_| self.dialect == Dialect::V3);
        let mut beside = json!({});
        if let Some(description) = description {
            beside["description"] = description.into();
        }
        if let Some(default) = default {
            beside["default"] = default;
        }
        self.extensions(field, &mut beside);
        let Value::Object(beside) = beside else { return out };
        // A reference stands alone in OpenAPI v3, so anything beside it makes it a part.
        if self.dialect == Dialect::V3 && out.get("$ref").is_some() && !beside.is_empty() {
            out = json!({"allOf": [out]});
        }
        if let Value::Object(map) = &mut out {
            map.extend(beside);
        }
        out
    }

    /// Lists have no descriptions of their own in the dependency, but their fields are those of every list.
    fn common(&self, of: &Struct, field: &Field) -> Option<String> {
        let list = of.field("items").is_some();
        match field.name.as_str() {
            "apiVersion" | "kind" if field.proto == 0 => self.type_meta(&field.name),
            "metadata" if list => Some("Standard list metadata.".into()),
            "object" if field.node == Node::Any => Some("The object it is about; for an error, a Status.".into()),
            "items" if field.required => Some(self.items_of(of)),
            _ => None,
        }
    }

    fn items_of(&self, list: &Struct) -> String {
        let kind = list.name.strip_suffix("List").and_then(|item| self.kinds.get(item)).map(|kinds| &kinds[0]);
        let text = |kind: &Value, field: &str| kind[field].as_str().unwrap_or_default().to_string();
        let resource =
            kind.and_then(|kind| kinds::find_kind(&text(kind, "group"), &text(kind, "version"), &text(kind, "kind")));
        resource.map_or_else(|| "The objects of this list.".into(), |found| format!("List of {}.", found.plural))
    }

    /// What every kind says about its `apiVersion` and `kind`.
    pub(super) fn type_meta(&self, field: &str) -> Option<String> {
        self.descriptions.of_field("io.k8s.api.core.v1.Pod", field)
    }

    fn extensions(&self, field: &Field, out: &mut Value) {
        match &field.node {
            Node::List(_, ListType::Set) => out["x-kubernetes-list-type"] = "set".into(),
            Node::List(_, ListType::Map(keys)) => {
                out["x-kubernetes-list-map-keys"] = json!(keys);
                out["x-kubernetes-list-type"] = "map".into();
            }
            Node::List(_, ListType::Atomic) | Node::Bytes if field.wire.said_atomic => {
                out["x-kubernetes-list-type"] = "atomic".into();
            }
            Node::Map(..) if field.wire.said_granular => out["x-kubernetes-map-type"] = "granular".into(),
            Node::Map(_, true) => out["x-kubernetes-map-type"] = "atomic".into(),
            Node::Struct(id) => {
                let used = self.schema.get(*id);
                let named = self.schema.by_name.get(&used.name).map(|id| self.schema.get(*id));
                if named.is_some_and(|named| named.atomic && !used.atomic) {
                    out["x-kubernetes-map-type"] = "granular".into();
                }
            }
            _ => {}
        }
        if let Some(key) = &field.patch_merge_key {
            out["x-kubernetes-patch-merge-key"] = key.as_str().into();
        }
        let strategy = match (field.patch_merge, field.patch_retain_keys, field.wire.said_replace) {
            (true, true, _) => "merge,retainKeys",
            (true, false, _) => "merge",
            (false, true, _) => "retainKeys",
            (false, false, true) => "replace",
            _ => return,
        };
        out["x-kubernetes-patch-strategy"] = strategy.into();
    }

    fn node(&mut self, of: &Struct, field: &Field, node: &Node) -> Value {
        let meta = |name: &str| format!("{META}.{name}");
        match node {
            Node::Boolean => json!({"type": "boolean"}),
            Node::Int32 => json!({"type": "integer", "format": "int32"}),
            Node::Int64 => json!({"type": "integer", "format": "int64"}),
            Node::Number => json!({"type": "number", "format": "double"}),
            Node::String => json!({"type": "string"}),
            Node::Bytes => json!({"type": "string", "format": "byte"}),
            Node::Time => self.reference(&meta("Time")),
            Node::MicroTime => self.reference(&meta("MicroTime")),
            Node::Duration => self.reference(&meta("Duration")),
            Node::Quantity => self.reference("io.k8s.apimachinery.pkg.api.resource.Quantity"),
            Node::IntOrString => self.reference("io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
            Node::Fields => self.reference(&meta("FieldsV1")),
            Node::Any if of.name.starts_with(APIEXTENSIONS) => self.reference(&format!("{APIEXTENSIONS}.JSON")),
            Node::Any => self.reference("io.k8s.apimachinery.pkg.runtime.RawExtension"),
            Node::Struct(id) => match field.wire.or {
                SchemaOr::Nothing => {
                    let name = self.schema.get(*id).name.clone();
                    self.reference(&name)
                }
                SchemaOr::Array => self.reference(&format!("{APIEXTENSIONS}.JSONSchemaPropsOrArray")),
                SchemaOr::Bool => self.reference(&format!("{APIEXTENSIONS}.JSONSchemaPropsOrBool")),
                SchemaOr::Strings => self.reference(&format!("{APIEXTENSIONS}.JSONSchemaPropsOrStringArray")),
            },
            Node::List(item, _) => json!({"type": "array", "items": self.item(of, field, item)}),
            Node::Map(item, _) => json!({"type": "object", "additionalProperties": self.item(of, field, item)}),
        }
    }

    fn item(&mut self, of: &Struct, field: &Field, node: &Node) -> Value {
        let item = self.node(of, field, node);
        match (self.dialect, node) {
            (Dialect::V3, Node::Struct(_)) if field.wire.or == SchemaOr::Nothing => {
                json!({"allOf": [item], "default": {}})
            }
            (Dialect::V3, node) => match zero(node) {
                Some(zero) => {
                    let mut item = item;
                    item["default"] = zero;
                    item
                }
                None => item,
            },
            _ => item,
        }
    }

    /// Types that are structs in Go and something simpler in JSON.
    fn scalar(&self, name: &str) -> Value {
        let v3 = self.dialect == Dialect::V3;
        match name.rsplit('.').next().unwrap_or_default() {
            "Time" | "MicroTime" => json!({"type": "string", "format": "date-time"}),
            "Duration" => json!({"type": "string"}),
            "Quantity" if v3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            "Quantity" => json!({"type": "string"}),
            "IntOrString" if v3 => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            "IntOrString" => json!({"type": "string", "format": "int-or-string"}),
            "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => json!({}),
            _ => json!({"type": "object"}),
        }
    }
}

fn zero(node: &Node) -> Option<Value> {
    match node {
        Node::String => Some("".into()),
        Node::Int32 | Node::Int64 | Node::Number => Some(0.into()),
        Node::Boolean => Some(false.into()),
        _ => None,
    }
}
