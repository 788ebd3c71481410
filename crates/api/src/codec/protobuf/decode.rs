//! Protobuf to JSON values along the schema.
//! Called by `protobuf`, which then brings the value to Go's printed form.
//! Unknown numbers are skipped; nesting is bounded; input never panics.

use serde_json::{Map, Value};

use super::{
    super::scalar,
    wire::{Item, Reader},
};
use crate::schema::{Field, Node, Schema, SchemaOr, TypeId, wire_key};

const DEPTH_MAX: usize = 128;

pub(super) struct Decoder<'s> {
    pub(super) schema: &'s Schema,
    pub(super) depth: usize,
}

impl<'s> Decoder<'s> {
    pub(super) fn message(&mut self, id: TypeId, bytes: &[u8]) -> Result<Value, String> {
        let mut map = Map::new();
        self.merge(id, bytes, &mut map)?;
        Ok(Value::Object(map))
    }

    fn merge(&mut self, id: TypeId, bytes: &[u8], map: &mut Map<String, Value>) -> Result<(), String> {
        let of = self.schema.get(id);
        self.fields(&of.fields, &of.wire_order, 0, bytes, map)
    }

    fn fields(
        &mut self,
        all: &'s [Field],
        order: &[u16],
        level: usize,
        bytes: &[u8],
        map: &mut Map<String, Value>,
    ) -> Result<(), String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("exceeded max depth".into());
        }
        let mut reader = Reader::new(bytes);
        while let Some((number, item)) = reader.next()? {
            let key = |i: &u16| wire_key(&all[*i as usize])[level];
            let start = order.partition_point(|i| key(i) < number);
            let Some(field) = order.get(start).map(|i| &all[*i as usize]).filter(|f| wire_key(f)[level] == number)
            else {
                continue;
            };
            if field.wire.inside.get(level).copied().unwrap_or(0) != 0 {
                let end = order.partition_point(|i| key(i) <= number);
                self.fields(all, &order[start..end], level + 1, bytes_of(item)?, map)?;
            } else {
                self.field(field, item, map)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(&mut self, field: &'s Field, item: Item<'_>, map: &mut Map<String, Value>) -> Result<(), String> {
        match &field.node {
            Node::List(inner, _) if field.wire.wrapped => {
                let list = self.wrapped(inner, bytes_of(item)?)?;
                map.insert(field.name.clone(), list);
            }
            Node::List(inner, _) => {
                let value = self.single(inner, item, field.wire.or)?;
                match map.get_mut(&field.name) {
                    Some(Value::Array(items)) => items.push(value),
                    _ => {
                        map.insert(field.name.clone(), Value::Array(vec![value]));
                    }
                }
            }
            Node::Map(inner, _) => {
                let (key, value) = self.entry(field, inner, bytes_of(item)?)?;
                match map.get_mut(&field.name) {
                    Some(Value::Object(entries)) => {
                        entries.insert(key, value);
                    }
                    _ => {
                        map.insert(field.name.clone(), Value::Object(Map::from_iter([(key, value)])));
                    }
                }
            }
            node => {
                let value = self.single(node, item, field.wire.or)?;
                map.insert(field.name.clone(), value);
            }
        }
        Ok(())
    }

    fn wrapped(&mut self, inner: &'s Node, bytes: &[u8]) -> Result<Value, String> {
        let (mut items, mut reader) = (Vec::new(), Reader::new(bytes));
        while let Some((number, item)) = reader.next()? {
            if number == 1 {
                items.push(self.single(inner, item, SchemaOr::Nothing)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn entry(&mut self, field: &'s Field, inner: &'s Node, bytes: &[u8]) -> Result<(String, Value), String> {
        let (mut key, mut value) = (String::new(), None);
        let mut reader = Reader::new(bytes);
        while let Some((number, item)) = reader.next()? {
            match (number, inner) {
                (1, _) => key = text(item)?,
                (2, Node::List(inner, _)) if field.wire.wrapped => value = Some(self.wrapped(inner, bytes_of(item)?)?),
                (2, _) => value = Some(self.single(inner, item, field.wire.or)?),
                _ => {}
            }
        }
        let empty = || match inner {
            Node::String | Node::Bytes => "".into(),
            Node::Struct(_) => Value::Object(Map::new()),
            Node::Quantity => "0".into(),
            _ => Value::Null,
        };
        Ok((key, value.unwrap_or_else(empty)))
    }

    fn single(&mut self, node: &'s Node, item: Item<'_>, or: SchemaOr) -> Result<Value, String> {
        Ok(match node {
            Node::Boolean => (varint(item)? != 0).into(),
            Node::Int32 => (varint(item)? as i32).into(),
            Node::Int64 => varint(item)?.into(),
            Node::Number => match item {
                Item::Fixed64(bits) => {
                    let number = f64::from_bits(bits);
                    // Go prints whole numbers without a point.
                    if number.fract() == 0.0 && number.abs() < 1e15 { (number as i64).into() } else { number.into() }
                }
                Item::Fixed32(bits) => f64::from(f32::from_bits(bits)).into(),
                _ => return Err("proto: wrong wireType for a number".into()),
            },
            Node::String => text(item)?.into(),
            Node::Bytes => scalar::encode_base64(bytes_of(item)?).into(),
            Node::Time | Node::MicroTime => {
                let (mut seconds, mut nanos, bytes) = (0, 0, bytes_of(item)?);
                numbers(bytes, |number, value| match number {
                    1 => seconds = value,
                    2 => nanos = value,
                    _ => {}
                })?;
                if bytes.is_empty() {
                    return Ok(Value::Null);
                }
                let time = jiff::Timestamp::from_nanosecond(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
                    .map_err(|_| "proto: time out of range")?;
                match node {
                    Node::Time => scalar::format_time(time).into(),
                    _ => scalar::format_micro_time(time).into(),
                }
            }
            Node::Duration => {
                let mut nanos = 0;
                numbers(bytes_of(item)?, |number, value| {
                    if number == 1 {
                        nanos = value;
                    }
                })?;
                scalar::format_duration(nanos).into()
            }
            Node::Quantity => {
                let mut value = String::new();
                let mut reader = Reader::new(bytes_of(item)?);
                while let Some((number, item)) = reader.next()? {
                    if number == 1 {
                        value = text(item)?;
                    }
                }
                let quantity = crate::quantity::Quantity::parse(if value.is_empty() { "0" } else { &value });
                quantity.map_err(|e| e.to_string())?.canonical().into()
            }
            Node::IntOrString => {
                let (mut kind, mut int, mut string) = (0, 0, String::new());
                let mut reader = Reader::new(bytes_of(item)?);
                while let Some((number, item)) = reader.next()? {
                    match number {
                        1 => kind = varint(item)?,
                        2 => int = varint(item)? as i32,
                        3 => string = text(item)?,
                        _ => {}
                    }
                }
                if kind == 1 { string.into() } else { int.into() }
            }
            Node::Any | Node::Fields => {
                let (mut raw, mut reader) = (None, Reader::new(bytes_of(item)?));
                while let Some((number, item)) = reader.next()? {
                    if number == 1 {
                        raw = Some(bytes_of(item)?);
                    }
                }
                match raw {
                    None | Some([]) => Value::Null,
                    Some(raw) if raw.starts_with(&super::MAGIC) => {
                        self.depth += 8;
                        if self.depth > DEPTH_MAX {
                            return Err("exceeded max depth".into());
                        }
                        let value = super::decode_nested(self.schema, raw, self.depth)?;
                        self.depth -= 8;
                        value
                    }
                    Some(raw) => serde_json::from_slice(raw).map_err(|e| e.to_string())?,
                }
            }
            Node::Struct(id) if or != SchemaOr::Nothing => self.schema_or(*id, bytes_of(item)?, or)?,
            Node::Struct(id) => self.message(*id, bytes_of(item)?)?,
            Node::List(..) | Node::Map(..) => return Err("a list of lists has no protobuf form".into()),
        })
    }

    fn schema_or(&mut self, id: TypeId, bytes: &[u8], or: SchemaOr) -> Result<Value, String> {
        let schema_number = if or == SchemaOr::Bool { 2 } else { 1 };
        let (mut schema, mut others, mut allows) = (None, Vec::new(), false);
        let mut reader = Reader::new(bytes);
        while let Some((number, item)) = reader.next()? {
            match (number, or) {
                (n, _) if n == schema_number => schema = Some(self.message(id, bytes_of(item)?)?),
                (1, SchemaOr::Bool) => allows = varint(item)? != 0,
                (2, SchemaOr::Array) => others.push(self.message(id, bytes_of(item)?)?),
                (2, SchemaOr::Strings) => others.push(text(item)?.into()),
                _ => {}
            }
        }
        Ok(match (schema, or) {
            (Some(schema), _) => schema,
            (None, SchemaOr::Bool) => allows.into(),
            (None, _) => Value::Array(others),
        })
    }
}

fn numbers(bytes: &[u8], mut each: impl FnMut(u32, i64)) -> Result<(), String> {
    let mut reader = Reader::new(bytes);
    while let Some((number, item)) = reader.next()? {
        each(number, varint(item)?);
    }
    Ok(())
}

fn varint(item: Item<'_>) -> Result<i64, String> {
    match item {
        Item::Varint(value) => Ok(value as i64),
        _ => Err("proto: wrong wireType for an integer".into()),
    }
}

pub(super) fn bytes_of(item: Item<'_>) -> Result<&[u8], String> {
    match item {
        Item::Bytes(bytes) => Ok(bytes),
        _ => Err("proto: wrong wireType for a message".into()),
    }
}

pub(super) fn text(item: Item<'_>) -> Result<String, String> {
    let bytes = bytes_of(item)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| "proto: invalid UTF-8 in a string".into())
}
