//! Reads any serde format into a JSON value along a schema, in one pass: unknown and duplicate fields are noted, types
//! checked, numbers and times normalized.
//! Driven by `json` and `yaml` in `codec`.
//! A value of a Go-typed schema that comes out has the shape the schema says; input never panics.

use std::cell::{Cell, RefCell};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::scalar;
use crate::{
    quantity,
    schema::{self, Field, Node, Schema, SchemaOr, Struct, TypeId},
};

/// Upstream stops counting here too.
const PROBLEMS_MAX: usize = 100;

const NO_SCHEMA_OR_BOOL: &str = "boolean or JSON schema expected";

/// One decoding: where we are, and what was noticed.
pub(super) struct Walk<'s> {
    schema: &'s Schema,
    path: RefCell<Vec<Segment<'s>>>,
    problems: RefCell<Vec<String>>,
    /// The error in Go's words; serde's own carries a position that clients do not expect.
    failure: RefCell<Option<String>>,
    /// From YAML, which upstream turns into JSON first: there `1e3` and `08` have become whole numbers.
    from_yaml: bool,
    /// How many values deep we are in what Go has readers of its own for, which notice no unknown fields.
    unnoticed: Cell<usize>,
}

enum Segment<'s> {
    Field(&'s Struct, &'s Field),
    Index(usize),
    Key(String),
}

impl<'s> Walk<'s> {
    pub(super) fn new(schema: &'s Schema) -> Self {
        let (path, problems, failure) = Default::default();
        Self { schema, path, problems, failure, from_yaml: false, unnoticed: Cell::new(0) }
    }

    pub(super) fn of_yaml(schema: &'s Schema) -> Self {
        Self { from_yaml: true, ..Self::new(schema) }
    }

    pub(super) fn root(&self, id: TypeId) -> NodeSeed<'_, 's> {
        NodeSeed { walk: self, node: Cursor::Struct(id), or: SchemaOr::Nothing, root: true }
    }

    pub(super) fn any(&self) -> NodeSeed<'_, 's> {
        NodeSeed { walk: self, node: Cursor::Any, or: SchemaOr::Nothing, root: true }
    }

    pub(super) fn into_parts(self) -> (Vec<String>, Option<String>) {
        (self.problems.into_inner(), self.failure.into_inner())
    }

    fn problem(&self, what: &str, name: &str) {
        if self.unnoticed.get() > 0 {
            return;
        }
        let mut path = String::new();
        for segment in self.path.borrow().iter() {
            match segment {
                Segment::Field(_, field) => push_key(&mut path, &field.name),
                Segment::Key(key) => push_key(&mut path, key),
                Segment::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        push_key(&mut path, name);
        let text = format!("{what} field {path:?}");
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX && !problems.contains(&text) {
            problems.push(text);
        }
    }

    fn fail<E: Error>(&self, message: String) -> E {
        let error = E::custom(&message);
        *self.failure.borrow_mut() = Some(message);
        error
    }

    /// `json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32`.
    fn mismatch<E: Error>(&self, found: &str, node: Cursor<'s>) -> E {
        let path = self.path.borrow();
        let mut owner = None;
        let mut names = Vec::new();
        // Of what was named by Go's source: the type of the field, then of its items.
        let mut named: Option<&'static str> = None;
        for segment in path.iter() {
            match segment {
                Segment::Field(of, field) => {
                    let go = schema::go_field(&of.name, &field.name);
                    owner = Some(*of);
                    names.extend(go.inlined);
                    names.push(field.name.as_str());
                    named = go.type_name;
                }
                _ => named = named.and_then(item_type),
            }
        }
        let wanted = named.map_or_else(|| self.go_type(node), Into::into);
        let message = match owner {
            Some(of) => format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
                of.name.rsplit('.').next().unwrap_or_default(),
                names.join(".")
            ),
            None => format!("json: cannot unmarshal {found} into Go value of type {wanted}"),
        };
        drop(path);
        self.fail(message)
    }

    fn go_type(&self, node: Cursor<'s>) -> String {
        match node {
            Cursor::Struct(id) => {
                let mut parts = self.schema.get(id).name.rsplit('.');
                let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("{version}.{name}")
            }
            Cursor::Any => "interface {}".into(),
            Cursor::Node(node) => match node {
                Node::Boolean => "bool".into(),
                // Go reads what is no string as a number there.
                Node::Int32 | Node::IntOrString => "int32".into(),
                Node::Int64 => "int64".into(),
                Node::Number => "float64".into(),
                Node::Bytes => "[]uint8".into(),
                Node::List(item, _) => format!("[]{}", self.go_type(Cursor::Node(item))),
                Node::Map(item, _) => format!("map[string]{}", self.go_type(Cursor::Node(item))),
                Node::Struct(id) => self.go_type(Cursor::Struct(*id)),
                Node::Any | Node::Fields => "interface {}".into(),
                Node::String | Node::Time | Node::MicroTime | Node::Duration | Node::Quantity => "string".into(),
            },
        }
    }
}

/// The type of what a list or a map of this type has in it, where its name tells.
fn item_type(of: &'static str) -> Option<&'static str> {
    of.strip_prefix("[]")
        .or_else(|| of.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map(|(_, item)| item))
}

fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// A node of the schema, or one of the two that have no node to point at.
#[derive(Clone, Copy)]
enum Cursor<'s> {
    Struct(TypeId),
    Node(&'s Node),
    Any,
}

pub(super) struct NodeSeed<'w, 's> {
    walk: &'w Walk<'s>,
    node: Cursor<'s>,
    or: SchemaOr,
    root: bool,
}

impl<'w, 's> NodeSeed<'w, 's> {
    fn below(&self, node: Cursor<'s>, or: SchemaOr) -> Self {
        Self { walk: self.walk, node, or, root: false }
    }

    /// Whether a value of another type is an error here, rather than something a custom resource's validation reports.
    fn checked(&self) -> bool {
        self.walk.schema.go_types
    }

    fn node(&self) -> Option<&'s Node> {
        match self.node {
            Cursor::Node(node) => Some(node),
            _ => None,
        }
    }

    fn number<E: Error>(&self, number: Number, text: impl Fn() -> String) -> Result<Value, E> {
        if !self.checked() {
            return Ok(Value::Number(number));
        }
        let whole = number.as_i64();
        match (self.node(), whole) {
            (None, _) if matches!(self.node, Cursor::Any) => Ok(Value::Number(number)),
            (Some(Node::Any | Node::Fields | Node::Number | Node::Int64), Some(_)) => Ok(Value::Number(number)),
            (Some(Node::Any | Node::Fields | Node::Number), None) => Ok(Value::Number(number)),
            (Some(Node::Int32), Some(n)) if i32::try_from(n).is_ok() => Ok(Value::Number(number)),
            (Some(Node::IntOrString), Some(n)) if i32::try_from(n).is_ok() => Ok(Value::Number(number)),
            (Some(Node::Int32 | Node::Int64 | Node::IntOrString), _) => {
                Err(self.walk.mismatch(&format!("number {}", text()), self.node))
            }
            (Some(Node::Quantity), _) => self.text(&text()),
            (Some(Node::Struct(_)), _) if self.or == SchemaOr::Bool => Err(self.walk.fail(NO_SCHEMA_OR_BOOL.into())),
            _ => Err(self.walk.mismatch("number", self.node)),
        }
    }

    fn text<E: Error>(&self, text: &str) -> Result<Value, E> {
        if !self.checked() {
            return Ok(Value::String(text.into()));
        }
        let normal = match self.node {
            Cursor::Any => Ok(text.into()),
            Cursor::Struct(_) => return Err(self.walk.mismatch("string", self.node)),
            Cursor::Node(node) => match node {
                Node::String | Node::Any | Node::IntOrString => Ok(text.into()),
                Node::Bytes => scalar::decode_base64(text).map(|_| text.into()),
                Node::Time => scalar::parse_time(text).map(scalar::format_time),
                Node::MicroTime => scalar::parse_micro_time(text).map(scalar::format_micro_time),
                Node::Duration => scalar::parse_duration(text).map(scalar::format_duration),
                Node::Quantity => canonical_quantity(text),
                Node::Struct(_) if self.or == SchemaOr::Bool => Err(NO_SCHEMA_OR_BOOL.into()),
                _ => return Err(self.walk.mismatch("string", self.node)),
            },
        };
        normal.map(Value::String).map_err(|message| self.walk.fail(message))
    }
}

fn canonical_quantity(text: &str) -> Result<String, String> {
    crate::quantity::Quantity::parse(text.trim()).map(|q| q.canonical()).map_err(|e| e.to_string())
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        match self.node {
            _ if !self.checked() => Ok(value.into()),
            Cursor::Any | Cursor::Node(Node::Boolean | Node::Any) => Ok(value.into()),
            Cursor::Node(Node::Quantity) => Err(self.walk.fail(quantity::FORMAT_WRONG.into())),
            Cursor::Node(Node::Struct(_)) if self.or == SchemaOr::Bool => Ok(value.into()),
            _ => Err(self.walk.mismatch("bool", self.node)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into(), || value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.number(value.into(), || value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        if self.walk.from_yaml && value.fract() == 0.0 && value.abs() < 1e15 {
            return self.visit_i64(value as i64);
        }
        match Number::from_f64(value) {
            Some(number) => self.number(number, || value.to_string()),
            None => Err(self.walk.fail(format!("json: unsupported value: {value}"))),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.text(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        match self.node {
            Cursor::Any | Cursor::Node(Node::String | Node::Any | Node::IntOrString) => Ok(Value::String(value)),
            _ => self.text(&value),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let (item, or) = match self.node {
            Cursor::Any | Cursor::Node(Node::Any) => (Cursor::Any, SchemaOr::Nothing),
            Cursor::Node(Node::List(item, _)) => (Cursor::Node(item), self.or),
            Cursor::Node(node @ Node::Struct(_)) if self.or == SchemaOr::Array => {
                (Cursor::Node(node), SchemaOr::Nothing)
            }
            Cursor::Node(Node::Struct(_)) if self.or == SchemaOr::Strings => {
                (Cursor::Node(&Node::String), SchemaOr::Nothing)
            }
            // Judged by the validation of the custom resource; nothing declares fields of what is in it.
            _ if !self.checked() => (Cursor::Node(&Node::String), SchemaOr::Nothing),
            Cursor::Node(Node::Bytes) => (Cursor::Node(&Node::Int32), SchemaOr::Nothing),
            Cursor::Node(Node::Quantity) => return Err(self.walk.fail(quantity::FORMAT_WRONG.into())),
            Cursor::Node(Node::Struct(_)) if self.or == SchemaOr::Bool => {
                return Err(self.walk.fail(NO_SCHEMA_OR_BOOL.into()));
            }
            _ => return Err(self.walk.mismatch("array", self.node)),
        };
        let mut items = Vec::new();
        loop {
            self.walk.path.borrow_mut().push(Segment::Index(items.len()));
            let next = seq.next_element_seed(self.below(item, or));
            self.walk.path.borrow_mut().pop();
            match next? {
                // Go makes a null element of a typed list its zero value.
                Some(Value::Null) if self.checked() => items.push(zero(item)),
                Some(value) => items.push(value),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        match self.node {
            Cursor::Struct(id) => self.fields(id, map),
            Cursor::Node(Node::Struct(id)) => self.fields(*id, map),
            Cursor::Node(Node::Map(item, _)) => self.entries(Cursor::Node(item), map),
            Cursor::Any | Cursor::Node(Node::Any | Node::Fields) => self.entries(Cursor::Any, map),
            _ if !self.checked() => self.undeclared(map),
            Cursor::Node(Node::Quantity) => Err(self.walk.fail(quantity::FORMAT_WRONG.into())),
            _ => Err(self.walk.mismatch("object", self.node)),
        }
    }
}

impl<'w, 's> NodeSeed<'w, 's> {
    /// An object where a custom resource declares something else: none of its fields is known.
    fn undeclared<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.walk.problem("unknown", &name);
            map.next_value::<IgnoredAny>()?;
        }
        Ok(Value::Object(Map::new()))
    }

    fn fields<'de, A: MapAccess<'de>>(self, id: TypeId, mut map: A) -> Result<Value, A::Error> {
        let of = self.walk.schema.get(id);
        let mut out = Map::new();
        let mut seen = Seen::default();
        while let Some(key) = map.next_key_seed(KeySeed(of))? {
            match key {
                Key::Known(index) => {
                    let field = &of.fields[index];
                    if !seen.first(index) {
                        self.walk.problem("duplicate", &field.name);
                    }
                    let value = self.field(of, field, &mut map)?;
                    let keep = !value.is_null() || (!self.checked() && field.nullable);
                    if keep {
                        out.insert(field.name.clone(), value);
                    } else {
                        out.remove(&field.name);
                    }
                }
                Key::Unknown(name) if of.preserve_unknown => {
                    if out.contains_key(&name) {
                        self.walk.problem("duplicate", &name);
                    }
                    let (name, value) = self.keyed(name, Cursor::Any, &mut map)?;
                    out.insert(name, value);
                }
                Key::Unknown(name) => {
                    self.walk.problem("unknown", &name);
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(out))
    }

    fn field<'de, A: MapAccess<'de>>(&self, of: &'s Struct, field: &'s Field, map: &mut A) -> Result<Value, A::Error> {
        self.walk.path.borrow_mut().push(Segment::Field(of, field));
        let value = if self.root && !self.checked() && field.name == "metadata" {
            self.metadata(map)
        } else {
            let own_reader = usize::from(field.wire.or != SchemaOr::Nothing);
            self.walk.unnoticed.update(|depth| depth + own_reader);
            let value = map.next_value_seed(self.below(Cursor::Node(&field.node), field.wire.or));
            self.walk.unnoticed.update(|depth| depth - own_reader);
            value
        };
        self.walk.path.borrow_mut().pop();
        value
    }

    /// The metadata of a custom resource is Go's `ObjectMeta`, whatever its own schema says.
    fn metadata<'de, A: MapAccess<'de>>(&self, map: &mut A) -> Result<Value, A::Error> {
        let builtin = schema::builtin();
        let Some(id) = builtin.by_name.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") else {
            return map.next_value_seed(self.below(Cursor::Any, SchemaOr::Nothing));
        };
        let inner = Walk::new(builtin);
        inner.path.borrow_mut().push(Segment::Key("metadata".into()));
        let seed = NodeSeed { walk: &inner, node: Cursor::Struct(*id), or: SchemaOr::Nothing, root: false };
        let value = map.next_value_seed(seed);
        let (problems, failure) = inner.into_parts();
        self.walk.problems.borrow_mut().extend(problems);
        if failure.is_some() {
            *self.walk.failure.borrow_mut() = failure;
        }
        value
    }

    fn entries<'de, A: MapAccess<'de>>(self, item: Cursor<'s>, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(name) = map.next_key_seed(TextKey)? {
            if out.contains_key(&name) {
                self.walk.problem("duplicate", &name);
            }
            let (name, value) = self.keyed(name, item, &mut map)?;
            let value = if value.is_null() && self.checked() { zero(item) } else { value };
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }

    /// Lends the key to the path while its value is read, so that labels cost no second allocation.
    fn keyed<'de, A: MapAccess<'de>>(
        &self,
        name: String,
        item: Cursor<'s>,
        map: &mut A,
    ) -> Result<(String, Value), A::Error> {
        self.walk.path.borrow_mut().push(Segment::Key(name));
        let value = map.next_value_seed(self.below(item, self.or));
        match self.walk.path.borrow_mut().pop() {
            Some(Segment::Key(name)) => Ok((name, value?)),
            _ => Err(A::Error::custom("the path lost its key")),
        }
    }
}

/// Go's zero value where a null stands for one: in typed lists and maps.
fn zero(node: Cursor<'_>) -> Value {
    match node {
        Cursor::Any => Value::Null,
        Cursor::Struct(_) => Value::Object(Map::new()),
        Cursor::Node(node) => match node {
            Node::Boolean => false.into(),
            Node::Int32 | Node::Int64 | Node::Number | Node::IntOrString => 0.into(),
            Node::String => "".into(),
            Node::Quantity => "0".into(),
            Node::Duration => "0s".into(),
            Node::Struct(_) => Value::Object(Map::new()),
            Node::Bytes | Node::Time | Node::MicroTime | Node::Any | Node::Fields | Node::List(..) | Node::Map(..) => {
                Value::Null
            }
        },
    }
}

/// Which fields of a struct have come: bits, and a list for the few structs with more fields.
#[derive(Default)]
struct Seen {
    low: u128,
    high: Vec<usize>,
}

impl Seen {
    fn first(&mut self, index: usize) -> bool {
        match 1u128.checked_shl(index as u32) {
            Some(bit) => {
                let first = self.low & bit == 0;
                self.low |= bit;
                first
            }
            None if self.high.contains(&index) => false,
            None => {
                self.high.push(index);
                true
            }
        }
    }
}

enum Key {
    Known(usize),
    Unknown(String),
}

struct KeySeed<'s>(&'s Struct);

impl KeySeed<'_> {
    fn find(&self, name: &str) -> Result<usize, ()> {
        self.0.fields.binary_search_by(|f| f.name.as_str().cmp(name)).map_err(|_| ())
    }
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
        Ok(self.find(name).map_or_else(|()| Key::Unknown(name.into()), Key::Known))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Key, E> {
        self.visit_str(if value { "true" } else { "false" })
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Key, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Key, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Key, E> {
        self.visit_str(&value.to_string())
    }
}

/// A key of a map. YAML has keys that are not text; JSON made of it has their text.
struct TextKey;

impl<'de> DeserializeSeed<'de> for TextKey {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextKey {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        Ok(key.into())
    }

    fn visit_string<E: Error>(self, key: String) -> Result<String, E> {
        Ok(key)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}
