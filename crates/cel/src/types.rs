//! The types of expressions, for the checker and for the cost estimator.
//! Declared by `functions`, by admission (built-in kinds) and by custom resources (OpenAPI schemas).
//! What is not known for sure is `Dyn`, and `Dyn` fits everywhere.

use std::{fmt, ops::Deref, sync::Arc};

use api::schema::{Node, Schema, TypeId};

use super::cost_estimate::DeclType;

/// The schema of built-in kinds, or one that a custom resource brought.
#[derive(Clone)]
pub enum SchemaRef {
    Builtin(&'static Schema),
    Custom(Arc<Schema>),
}

impl Deref for SchemaRef {
    type Target = Schema;

    fn deref(&self) -> &Schema {
        match self {
            SchemaRef::Builtin(schema) => schema,
            SchemaRef::Custom(schema) => schema,
        }
    }
}

pub fn builtin_schema() -> SchemaRef {
    SchemaRef::Builtin(api::schema::builtin())
}

#[derive(Clone)]
pub enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    /// What `type()` returns.
    TypeType,
    /// Of Kubernetes' own libraries, with functions of its own; not looked into.
    Named(&'static str),
    Optional(Box<Type>),
    List(Box<Type>),
    /// With keys that are strings.
    Map(Box<Type>),
    /// Of a built-in kind.
    Struct(SchemaRef, TypeId),
    /// Declared by an OpenAPI schema, with sizes.
    Declared(Arc<DeclType>),
    Record(&'static str, Arc<Vec<(String, Type)>>),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::Named(name) | Type::Record(name, _) => f.write_str(name),
            Type::TypeType => f.write_str("type"),
            Type::Declared(_) => f.write_str("object"),
            Type::Optional(item) => write!(f, "optional_type({item})"),
            Type::List(item) => write!(f, "list({item})"),
            Type::Map(item) => write!(f, "map(string, {item})"),
            Type::Struct(schema, id) => f.write_str(schema.get(*id).name.rsplit('.').next().unwrap_or("object")),
        }
    }
}

impl Type {
    pub fn from_schema_node(schema: &SchemaRef, node: &Node) -> Self {
        match node {
            Node::Boolean => Type::Bool,
            Node::Int32 | Node::Int64 => Type::Int,
            Node::Number => Type::Double,
            Node::String | Node::Duration => Type::String,
            Node::Bytes => Type::Bytes,
            Node::Time | Node::MicroTime => Type::Timestamp,
            Node::Quantity | Node::IntOrString | Node::Any | Node::Fields => Type::Dyn,
            Node::Struct(id) => Type::Struct(schema.clone(), *id),
            Node::List(item, _) => Type::List(Box::new(Self::from_schema_node(schema, item))),
            Node::Map(item, _) => Type::Map(Box::new(Self::from_schema_node(schema, item))),
        }
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn)
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }

    /// Whether a value of the one may stand for the other.
    pub fn fits(&self, other: &Type) -> bool {
        let nullable = |t: &Type| {
            matches!(t, Type::Struct(..) | Type::Record(..) | Type::Named(_) | Type::Timestamp | Type::Duration)
        };
        match (self, other) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::Null, Type::Null) => true,
            (Type::Null, other) | (other, Type::Null) => nullable(other),
            (Type::List(a), Type::List(b)) | (Type::Map(a), Type::Map(b)) => a.fits(b),
            (Type::Struct(_, a), Type::Struct(_, b)) => a == b,
            (Type::Named(a), Type::Named(b)) | (Type::Record(a, _), Type::Record(b, _)) => a == b,
            // A literal map may be meant as an object.
            (Type::Map(_), Type::Struct(..)) | (Type::Struct(..), Type::Map(_)) => true,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// What a condition with these two outcomes gives, as the checker tells it.
    pub fn either(self, other: Type) -> Type {
        if other.is_dyn() || matches!(self, Type::Null) { other } else { self }
    }

    /// What a request is, as expressions of admission see it.
    pub fn request() -> Self {
        let record = |name, fields: Vec<(&str, Type)>| {
            Type::Record(name, Arc::new(fields.into_iter().map(|(n, t)| (n.to_string(), t)).collect()))
        };
        let texts = |names: [&'static str; 3]| names.map(|n| (n, Type::String)).to_vec();
        let kind = || record("kubernetes.GroupVersionKind", texts(["group", "version", "kind"]));
        let resource = || record("kubernetes.GroupVersionResource", texts(["group", "version", "resource"]));
        let list = || Type::List(Box::new(Type::String));
        let user = vec![
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", list()),
            ("extra", Type::Map(Box::new(list()))),
        ];
        record(
            "kubernetes.AdmissionRequest",
            vec![
                ("kind", kind()),
                ("resource", resource()),
                ("subResource", Type::String),
                ("requestKind", kind()),
                ("requestResource", resource()),
                ("requestSubResource", Type::String),
                ("name", Type::String),
                ("namespace", Type::String),
                ("operation", Type::String),
                ("userInfo", record("kubernetes.UserInfo", user)),
                ("dryRun", Type::Bool),
                ("options", Type::Dyn),
            ],
        )
    }
}
