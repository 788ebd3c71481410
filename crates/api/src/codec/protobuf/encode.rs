//! JSON values to protobuf, byte for byte as Go's generated code writes them.
//! Called by `protobuf`.
//! Fields in the order of their numbers, map keys sorted; Go's plain values are written even when zero.

use serde_json::{Map, Value};

use super::{
    super::scalar,
    wire::{BYTES, Writer},
};
use crate::schema::{Field, Node, Schema, SchemaOr, TypeId, wire_key};

/// A value that does not fit its type; says where.
type Misfit = String;

pub(super) struct Encoder<'s> {
    pub(super) schema: &'s Schema,
    pub(super) out: Writer,
    /// A field was met that its message does not have.
    pub(super) unknown: bool,
}

impl<'s> Encoder<'s> {
    pub(super) fn message(&mut self, id: TypeId, value: &Value) -> Result<(), Misfit> {
        let empty = Map::new();
        let map = match value {
            Value::Object(map) => map,
            Value::Null => &empty,
            other => return Err(format!("{} cannot be {other}", self.schema.get(id).name)),
        };
        let of = self.schema.get(id);
        // `kind` and `apiVersion` of an object are in its envelope.
        self.unknown |= map.keys().any(|name| of.field(name).is_none());
        self.fields(&of.fields, &of.wire_order, 0, map)
    }

    /// Fields that share a number at `depth` are those of one inlined message.
    fn fields(
        &mut self,
        all: &'s [Field],
        order: &[u16],
        depth: usize,
        map: &Map<String, Value>,
    ) -> Result<(), Misfit> {
        let mut end = order.len();
        while end > 0 {
            let field = &all[order[end - 1] as usize];
            let inlined = field.wire.inside.get(depth).copied().unwrap_or(0) != 0;
            if !inlined {
                self.field(field, map.get(&field.name).filter(|v| !v.is_null()))
                    .map_err(|e| if e.starts_with('.') { e } else { format!(".{}: {e}", field.name) })?;
                end -= 1;
                continue;
            }
            let number = wire_key(field)[depth];
            let start = order[..end].partition_point(|i| wire_key(&all[*i as usize])[depth] < number);
            let before = self.out.len();
            self.fields(all, &order[start..end], depth + 1, map)?;
            self.out.close(number, before);
            end = start;
        }
        Ok(())
    }

    fn field(&mut self, field: &'s Field, value: Option<&Value>) -> Result<(), Misfit> {
        let number = field.proto;
        match (&field.node, value) {
            (Node::List(item, _), Some(Value::Array(items))) if field.wire.wrapped => {
                let before = self.out.len();
                self.list(item, 1, items, SchemaOr::Nothing)?;
                self.out.close(number, before);
                Ok(())
            }
            (Node::List(item, _), Some(Value::Array(items))) => self.list(item, number, items, field.wire.or),
            (Node::Map(item, _), Some(Value::Object(map))) => self.map(field, item, map),
            (Node::List(..) | Node::Map(..) | Node::Bytes, None) => Ok(()),
            (_, None) if field.wire.pointer => Ok(()),
            (node, value) => self.single(node, number, value.unwrap_or(&Value::Null), field.wire.or),
        }
    }

    fn list(&mut self, item: &'s Node, number: u32, items: &[Value], or: SchemaOr) -> Result<(), Misfit> {
        items.iter().rev().try_for_each(|value| self.single(item, number, value, or))
    }

    fn map(&mut self, field: &'s Field, item: &'s Node, map: &Map<String, Value>) -> Result<(), Misfit> {
        // Sorted here rather than trusted: the map may keep the order of its input.
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by(|a, b| b.0.cmp(a.0));
        for (key, value) in entries {
            let before = self.out.len();
            match (item, value) {
                (Node::List(inner, _), Value::Array(items)) if field.wire.wrapped => {
                    let start = self.out.len();
                    self.list(inner, 1, items, SchemaOr::Nothing)?;
                    self.out.close(2, start);
                }
                (Node::List(..), Value::Null) if field.wire.wrapped => self.out.bytes(2, b""),
                _ => self.single(item, 2, value, field.wire.or)?,
            }
            self.out.bytes(1, key.as_bytes());
            self.out.close(field.proto, before);
        }
        Ok(())
    }

    /// One value, zero when null.
    fn single(&mut self, node: &'s Node, number: u32, value: &Value, or: SchemaOr) -> Result<(), Misfit> {
        let before = self.out.len();
        match node {
            Node::Boolean => self.out.integer(number, i64::from(boolean(value)?)),
            Node::Int32 | Node::Int64 => self.out.integer(number, integer(value)?),
            Node::Number => {
                self.out.double(number, if value.is_null() { 0.0 } else { value.as_f64().ok_or("not a number")? })
            }
            Node::String => self.out.bytes(number, text(value)?.as_bytes()),
            Node::Bytes => self.out.bytes(number, &scalar::decode_base64(text(value)?)?),
            Node::Time | Node::MicroTime => {
                if !value.is_null() {
                    let time = scalar::parse_time(text(value)?)?;
                    // Before 1970 the fraction still counts forward, as in Go.
                    let nanos = time.as_nanosecond();
                    let seconds = nanos.div_euclid(1_000_000_000) as i64;
                    let fraction = nanos.rem_euclid(1_000_000_000) as i64;
                    let fraction = if *node == Node::Time { 0 } else { fraction / 1_000 * 1_000 };
                    self.out.integer(2, fraction);
                    self.out.integer(1, seconds);
                }
                self.out.close(number, before);
            }
            Node::Duration => {
                let nanos = if value.is_null() { 0 } else { scalar::parse_duration(text(value)?)? };
                self.out.integer(1, nanos);
                self.out.close(number, before);
            }
            Node::Quantity => {
                let text = match value {
                    Value::Null => "0".into(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                self.out.bytes(1, text.as_bytes());
                self.out.close(number, before);
            }
            Node::IntOrString => {
                let (kind, int, text) = match value {
                    Value::String(text) => (1, 0, text.as_str()),
                    other => (0, integer(other)?, ""),
                };
                self.out.bytes(3, text.as_bytes());
                self.out.integer(2, int);
                self.out.integer(1, kind);
                self.out.close(number, before);
            }
            Node::Any | Node::Fields => {
                if !value.is_null() {
                    let raw = serde_json::to_vec(value).map_err(|e| e.to_string())?;
                    self.out.bytes(1, &raw);
                }
                self.out.close(number, before);
            }
            Node::Struct(id) if or != SchemaOr::Nothing => {
                self.schema_or(*id, value, or)?;
                self.out.close(number, before);
            }
            Node::Struct(id) => {
                self.message(*id, value)?;
                self.out.close(number, before);
            }
            Node::List(..) | Node::Map(..) => return Err("a list of lists has no protobuf form".into()),
        }
        Ok(())
    }

    /// `JSONSchemaPropsOrArray` and its like: a schema, or what may stand in its place.
    fn schema_or(&mut self, id: TypeId, value: &Value, or: SchemaOr) -> Result<(), Misfit> {
        let schema_number = if or == SchemaOr::Bool { 2 } else { 1 };
        let start = self.out.len();
        match (value, or) {
            (Value::Object(_), _) => {
                self.message(id, value)?;
                self.out.close(schema_number, start);
                if or == SchemaOr::Bool {
                    self.out.integer(1, 1);
                }
            }
            (Value::Bool(allows), SchemaOr::Bool) => self.out.integer(1, i64::from(*allows)),
            (Value::Array(items), SchemaOr::Array) => {
                for item in items.iter().rev() {
                    let start = self.out.len();
                    self.message(id, item)?;
                    self.out.close(2, start);
                }
            }
            (Value::Array(items), SchemaOr::Strings) => {
                for item in items.iter().rev() {
                    self.out.raw(text(item)?.as_bytes());
                    self.out.varint(text(item)?.len() as u64);
                    self.out.tag(2, BYTES);
                }
            }
            (Value::Null, SchemaOr::Bool) => self.out.integer(1, 0),
            (Value::Null, _) => {}
            (other, _) => return Err(format!("cannot be {other}")),
        }
        Ok(())
    }
}

fn text(value: &Value) -> Result<&str, Misfit> {
    match value {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text),
        other => Err(format!("{other} is not a string")),
    }
}

fn integer(value: &Value) -> Result<i64, Misfit> {
    match value {
        Value::Null => Ok(0),
        other => other.as_i64().ok_or_else(|| format!("{other} is not an integer")),
    }
}

fn boolean(value: &Value) -> Result<bool, Misfit> {
    match value {
        Value::Null => Ok(false),
        other => other.as_bool().ok_or_else(|| format!("{other} is not a boolean")),
    }
}
