//! How the schema divides a value for ownership: what is one piece, what has parts, and how parts are named.
//! Read by `extract`, `compare` and `merge`.
//! A value that does not fit its type is one piece; nothing here fails on odd input.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use super::path::PathElement;
use crate::schema::{Field, ListType, Node, Schema};

/// A schema, seen as ownership sees it.
#[derive(Clone, Copy)]
pub struct Typed<'a> {
    pub schema: &'a Schema,
}

/// What a value is, by its type.
pub enum Shape<'n> {
    /// Owned as a whole: scalars, and lists and maps that are atomic.
    Leaf,
    /// A struct or map whose entries are owned one by one.
    Map,
    /// A list whose elements are owned one by one.
    List(&'n Node, &'n ListType),
}

impl Typed<'_> {
    pub fn shape<'n>(&self, node: &'n Node, value: &Value) -> Shape<'n> {
        match (node, value) {
            (Node::Struct(id), Value::Object(_) | Value::Null) if !self.schema.get(*id).atomic => Shape::Map,
            (Node::Map(_, false), Value::Object(_) | Value::Null) => Shape::Map,
            (Node::List(element, kind), Value::Array(_) | Value::Null) if *kind != ListType::Atomic => {
                Shape::List(element, kind)
            }
            // A raw extension of Go's is one piece; what a custom resource says nothing of is told by its value.
            (Node::Any, Value::Object(_)) if !self.schema.go_types => Shape::Map,
            _ => Shape::Leaf,
        }
    }

    /// The name of a list's element.
    pub fn element(&self, node: &Node, kind: &ListType, item: &Value) -> Result<PathElement, String> {
        match kind {
            ListType::Map(keys) => {
                let item = match item {
                    Value::Object(item) => item,
                    Value::Null => return Err("associative list with keys may not have a null element".into()),
                    _ => return Err("associative list with keys may not have non-map elements".into()),
                };
                let mut fields = Vec::with_capacity(keys.len());
                for key in keys {
                    // Of Go's types a key that is always printed has its zero as default.
                    let default = || {
                        let field = self.schema.field(node, key);
                        let zero = || self.implied(field).filter(|zero| !zero.is_null() && !zero.is_object());
                        field.and_then(|field| field.default.as_ref()).or_else(zero)
                    };
                    if let Some(value) = item.get(key).or_else(default) {
                        fields.push((key.clone(), value.clone()));
                    }
                }
                if fields.is_empty() {
                    return Err(format!(
                        "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
                         default values for any key fields)",
                        keys.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join(" ")
                    ));
                }
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(PathElement::Key(fields.into()))
            }
            ListType::Set => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
                scalar => Ok(PathElement::Value(Arc::new(scalar.clone()))),
            },
            ListType::Atomic => Err("invalid indexing of non-associative list".into()),
        }
    }

    /// What stands for a field that JSON leaves out but Go always holds: its zero. Ownership of built-in types is
    /// computed over Go's structs, so a Deployment's `spec` is never "added", only its parts are.
    pub fn implied(&self, field: Option<&Field>) -> Option<&'static Value> {
        static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
        static TEXT: LazyLock<Value> = LazyLock::new(|| Value::String(String::new()));
        static ZERO: LazyLock<Value> = LazyLock::new(|| Value::from(0));
        static FALSE: Value = Value::Bool(false);
        static NULL: Value = Value::Null;
        let field = field.filter(|f| f.proto != 0 && !f.wire.pointer)?;
        match &field.node {
            Node::Struct(_) => Some(&EMPTY),
            _ if field.wire.omit_empty => None,
            Node::String => Some(&TEXT),
            Node::Boolean => Some(&FALSE),
            Node::Int32 | Node::Int64 | Node::Number => Some(&ZERO),
            _ => Some(&NULL),
        }
    }
}

/// Null, or a list or map without entries.
pub fn is_void(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// The elements of a list, with their names; those without a name are left out.
pub fn named<'v>(
    typed: &Typed,
    node: &Node,
    kind: &ListType,
    list: Option<&'v Value>,
) -> Vec<(PathElement, &'v Value)> {
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| typed.element(node, kind, item).ok().map(|name| (name, item))).collect()
}
