//! The shape of every type, as one table: what decoding, defaulting, patching, apply, protobuf and OpenAPI all read.
//! Built-in types come from our compact field table; a CustomResourceDefinition builds a `Schema` of its own.
//! Invariant: describes shape only; rules about values live in `kinds/*`.

use std::collections::HashMap;

use serde_json::Value;

/// A set of types that refer to each other by `TypeId`.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    pub types: Vec<Struct>,
    /// By the type's full name, e.g. `io.k8s.api.core.v1.Pod`.
    pub by_name: HashMap<String, TypeId>,
    /// Root types by group, version, kind.
    pub by_kind: HashMap<(String, String, String), TypeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

#[derive(Debug, Clone, Default)]
pub struct Struct {
    pub name: String,
    /// Sorted by name.
    pub fields: Vec<Field>,
    /// Unknown fields are kept and not reported.
    pub preserve_unknown: bool,
    /// Replaced as a whole by server-side apply (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// Indices into `fields` in the order of the wire; empty for custom resources.
    pub wire_order: Vec<u16>,
}

#[derive(Debug, Clone, Default)]
pub struct Field {
    pub name: String,
    pub node: Node,
    pub required: bool,
    pub default: Option<Value>,
    /// Strategic merge: `merge`, `retainKeys`, or neither (replace).
    pub patch_merge: bool,
    pub patch_retain_keys: bool,
    pub patch_merge_key: Option<String>,
    /// The protobuf field number; 0 where there is none (custom resources).
    pub proto: u32,
    pub nullable: bool,
    pub wire: Wire,
}

/// What the wire forms need beyond the shape: how Go holds the field. All false for custom resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wire {
    /// A pointer in Go: absent and zero differ. Otherwise zero and absent are one.
    pub pointer: bool,
    /// Left out of JSON when empty.
    pub omit_empty: bool,
    /// A list that protobuf wraps in a message of its own (`ExtraValue`, `Verbs`).
    pub wrapped: bool,
    /// The list or map says that it is atomic, rather than being so by silence (OpenAPI prints it).
    pub said_atomic: bool,
    /// JSON shows the field here, protobuf inside these messages (outermost first; 0: none): Go's inlined structs.
    pub inside: [u8; 2],
    /// A schema or something else, as in `JSONSchemaPropsOrArray`.
    pub or: Or,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Or {
    #[default]
    Nothing,
    Array,
    Bool,
    Strings,
}

/// The type of one value.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Node {
    Boolean,
    Int32,
    Int64,
    Number,
    String,
    /// Base64 in JSON, raw in protobuf.
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// Arbitrary JSON (`RawExtension`, `JSON`, preserved unknown fields).
    #[default]
    Any,
    /// `FieldsV1` of managed fields.
    Fields,
    Struct(TypeId),
    List(Box<Node>, ListType),
    /// String keys; `true`: atomic.
    Map(Box<Node>, bool),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// The keys that identify an element, for server-side apply.
    Map(Vec<String>),
}

impl Schema {
    pub fn get(&self, id: TypeId) -> &Struct {
        &self.types[id.0 as usize]
    }

    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        self.by_kind.get(&(group.to_string(), version.to_string(), kind.to_string())).copied()
    }
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|i| &self.fields[i])
    }
}
