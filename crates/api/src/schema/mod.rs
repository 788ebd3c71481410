//! The shape of every type, as one table: what decoding, defaulting, patching, apply, protobuf and OpenAPI all read.
//! Built-in types come from our compact field table; a CustomResourceDefinition builds a `Schema` of its own.
//! Describes shape only; rules about values live in `kinds/*`.

mod canonical;
mod defaults;
pub mod go_form;
pub(crate) mod go_order;
mod go_types;
mod parse;

use std::{collections::HashMap, sync::LazyLock};

use serde_json::Value;

pub(crate) use go_types::go_field;
pub(crate) use parse::wire_key;

/// The types of every served built-in kind, and of the machinery's own (`Status`, `DeleteOptions`, `AdmissionReview`).
pub fn builtin() -> &'static Schema {
    static BUILTIN: LazyLock<Schema> = LazyLock::new(|| parse::parse(&[include_str!("served.table")]));
    &BUILTIN
}

/// The served types and the alpha, beta and retired ones besides: for reading old objects, and for kinds that are served only
/// where they are turned on. Not loaded otherwise.
pub fn with_unserved() -> &'static Schema {
    static ALL: LazyLock<Schema> =
        LazyLock::new(|| parse::parse(&[include_str!("served.table"), include_str!("unserved.table")]));
    &ALL
}

/// The type of a built-in kind, served always or only where it is turned on, with the table that has it.
pub fn find_built_in(group: &str, version: &str, kind: &str) -> Option<(&'static Schema, TypeId)> {
    // The larger table only for kinds that the smaller one lacks: most servers never load it.
    let found = |schema: &'static Schema| schema.find_kind(group, version, kind).map(|id| (schema, id));
    found(builtin()).or_else(|| found(with_unserved()))
}

/// A set of types that refer to each other by `TypeId`.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    pub types: Vec<Struct>,
    /// By the type's full name, e.g. `io.k8s.api.core.v1.Pod`.
    pub by_name: HashMap<String, TypeId>,
    /// Root types by group, version, kind.
    pub by_kind: HashMap<(String, String, String), TypeId>,
    /// The types are Go's: decoding refuses values of another type. A custom resource leaves that to its validation.
    pub go_types: bool,
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
    /// Left out of JSON when empty (which a struct never is).
    pub omit_empty: bool,
    /// Left out of JSON when zero, structs and times too.
    pub omit_zero: bool,
    /// OpenAPI says the patch strategy `replace`, which is also what silence means.
    pub said_replace: bool,
    /// A list that protobuf wraps in a message of its own (`ExtraValue`, `Verbs`).
    pub wrapped: bool,
    /// The list or map says that it is atomic, rather than being so by silence (OpenAPI prints it).
    pub said_atomic: bool,
    /// The map says that it is granular, which is also what silence means.
    pub said_granular: bool,
    /// JSON shows the field here, protobuf inside these messages (outermost first; 0: none): Go's inlined structs.
    pub inside: [u8; 2],
    /// A schema or something else, as in `JSONSchemaPropsOrArray`.
    pub or: SchemaOr,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SchemaOr {
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

/// The type of what a schema says nothing of.
pub(crate) static ANY: Node = Node::Any;

impl Schema {
    pub fn get(&self, id: TypeId) -> &Struct {
        &self.types[id.0 as usize]
    }

    /// The field of a struct.
    pub fn field(&self, node: &Node, name: &str) -> Option<&Field> {
        match node {
            Node::Struct(id) => self.get(*id).field(name),
            _ => None,
        }
    }

    /// The type of an entry of a struct or map.
    pub fn child<'n>(&'n self, node: &'n Node, name: &str) -> &'n Node {
        match node {
            Node::Struct(_) => self.field(node, name).map_or(&ANY, |field| &field.node),
            Node::Map(value, _) => value,
            _ => &ANY,
        }
    }

    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let find = |group: &str, version: &str| {
            self.by_kind.get(&(group.to_string(), version.to_string(), kind.to_string())).copied()
        };
        // Upstream registers these with every group version.
        let shared = kind == "WatchEvent" || (kind.ends_with("Options") && !kind.starts_with("Pod"));
        find(group, version).or_else(|| if shared { find("", "v1") } else { None })
    }
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|i| &self.fields[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'s>(type_name: &str, name: &str) -> &'s Field {
        let schema = builtin();
        let id = schema.by_name[type_name];
        schema.get(id).field(name).unwrap_or_else(|| panic!("{type_name} has no {name}"))
    }

    #[test]
    fn the_table_has_the_facts() {
        let ports = field("io.k8s.api.core.v1.ServiceSpec", "ports");
        assert_eq!(ports.patch_merge_key.as_deref(), Some("port"));
        assert!(ports.patch_merge);
        let Node::List(_, ListType::Map(keys)) = &ports.node else { panic!("{:?}", ports.node) };
        assert_eq!(keys, &["port", "protocol"]);
        let protocol = field("io.k8s.api.core.v1.ContainerPort", "protocol");
        assert_eq!(protocol.default, Some("TCP".into()));
        let host_path = field("io.k8s.api.core.v1.Volume", "hostPath");
        assert_eq!((host_path.proto, host_path.wire.inside), (1, [2, 0]));
        assert!(field("io.k8s.api.apps.v1.DeploymentSpec", "strategy").patch_retain_keys);
        assert!(field("io.k8s.api.apps.v1.DeploymentSpec", "replicas").wire.pointer);
    }

    #[test]
    fn a_granular_reference_to_an_atomic_type() {
        let schema = builtin();
        let Node::Struct(id) = field("io.k8s.api.core.v1.PersistentVolumeSpec", "claimRef").node else { panic!() };
        assert!(!schema.get(id).atomic && schema.get(id).field("namespace").is_some());
        assert!(schema.get(schema.by_name["io.k8s.api.core.v1.ObjectReference"]).atomic);
    }

    #[test]
    fn every_served_kind_has_a_type() {
        for resource in crate::kinds::builtin() {
            let found = builtin().find_kind(&resource.group, &resource.version, &resource.kind);
            assert!(found.is_some(), "{resource:?}");
            if resource.supports(&crate::Verb::List) && resource.stored() {
                assert!(builtin().find_kind(&resource.group, &resource.version, &resource.list_kind).is_some());
            }
            for sub in &resource.subresources {
                assert!(builtin().find_kind(&sub.group, &sub.version, &sub.kind).is_some(), "{resource:?} {sub:?}");
            }
        }
        assert!(builtin().find_kind("apps", "v1", "DeleteOptions").is_some());
    }

    #[test]
    fn fields_are_sorted() {
        for t in &with_unserved().types {
            assert!(t.fields.is_sorted_by(|a, b| a.name < b.name), "{}", t.name);
        }
    }
}
