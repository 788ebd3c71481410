//! What the cost of an expression depends on in the types of its parts, and the types that calls return.
//! Used by `estimator` and `calls`.
//! `Dyn` may be anything.

use std::sync::Arc;

use kube_cel::cel::common::ast::LiteralValue;

use super::decl_type::{DeclType, Kind};
use crate::{functions::FUNCTIONS, types::Type};

impl Type {
    pub fn from_decl_type(declared: &Arc<DeclType>) -> Self {
        match &declared.kind {
            Kind::Dyn => Self::Dyn,
            Kind::Bool => Self::Bool,
            Kind::Int => Self::Int,
            Kind::Double => Self::Double,
            Kind::String => Self::String,
            Kind::Bytes => Self::Bytes,
            Kind::Duration => Self::Duration,
            Kind::Timestamp => Self::Timestamp,
            Kind::List(element) => Self::List(Box::new(Self::from_decl_type(element))),
            Kind::Map(element) => Self::Map(Box::new(Self::from_decl_type(element))),
            Kind::Object(_) => Self::Declared(declared.clone()),
        }
    }

    pub fn from_literal(literal: &LiteralValue) -> Self {
        match literal {
            LiteralValue::Boolean(_) => Self::Bool,
            LiteralValue::Bytes(_) => Self::Bytes,
            LiteralValue::Double(_) => Self::Double,
            LiteralValue::Int(_) => Self::Int,
            LiteralValue::Null => Self::Null,
            LiteralValue::String(_) => Self::String,
            LiteralValue::UInt(_) => Self::Uint,
        }
    }

    pub fn may_be_string(&self) -> bool {
        matches!(self, Self::Dyn | Self::String)
    }

    pub fn may_be_bytes(&self) -> bool {
        matches!(self, Self::Dyn | Self::Bytes)
    }

    pub fn may_be_list(&self) -> bool {
        matches!(self, Self::Dyn | Self::List(_))
    }

    pub fn may_be_map(&self) -> bool {
        matches!(self, Self::Dyn | Self::Map(_))
    }

    /// Of a size that does not depend on the value.
    pub fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Uint | Self::Double | Self::Duration | Self::Timestamp => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    pub fn optional(self) -> Self {
        match self {
            Self::Optional(_) => self,
            other => Self::Optional(Box::new(other)),
        }
    }

    /// The value of an optional one.
    pub fn unwrapped(&self) -> &Self {
        match self {
            Self::Optional(inner) => inner,
            other => other,
        }
    }

    pub fn field(&self, name: &str) -> Self {
        match self {
            Self::Declared(declared) => declared.field(name).map_or(Self::Dyn, Self::from_decl_type),
            Self::Record(_, fields) => {
                fields.iter().find(|(field, _)| field == name).map_or(Self::Dyn, |(_, kind)| kind.clone())
            }
            Self::Map(element) => (**element).clone(),
            Self::Optional(inner) => inner.field(name).optional(),
            _ => Self::Dyn,
        }
    }

    /// What an index leads to.
    pub fn element(&self) -> Self {
        match self {
            Self::List(element) | Self::Map(element) => (**element).clone(),
            Self::Optional(inner) => inner.element().optional(),
            _ => Self::Dyn,
        }
    }

    /// What a loop over it sees one by one.
    pub fn item(&self) -> Self {
        match self {
            Self::Map(_) => Self::String,
            other => other.element(),
        }
    }

    /// The type of something that is one or the other.
    pub fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Null | Self::Dyn, known) | (known, Self::Null | Self::Dyn) => known,
            (Self::List(a), Self::List(b)) => Self::List(Box::new(a.join(*b))),
            (Self::Map(a), Self::Map(b)) => Self::Map(Box::new(a.join(*b))),
            (Self::Optional(a), Self::Optional(b)) => Self::Optional(Box::new(a.join(*b))),
            (a, b) if std::mem::discriminant(&a) == std::mem::discriminant(&b) => a,
            _ => Self::Dyn,
        }
    }

    /// What a function returns.
    pub fn returned_by(name: &str, target: Option<&Self>, arguments: &[Self]) -> Self {
        let first = || target.or(arguments.first()).cloned().unwrap_or(Self::Dyn);
        match name {
            "value" | "orValue" => target
                .map_or(Self::Dyn, |t| t.unwrapped().clone())
                .join(arguments.first().cloned().unwrap_or(Self::Null)),
            "or" => first(),
            "optional.of" | "optional.ofNonZeroValue" => first().optional(),
            "optional.none" => Self::Dyn.optional(),
            "first" | "last" => first().element().optional(),
            "sum" | "min" | "max" => first().element(),
            "split" | "findAll" => Self::List(Box::new(Self::String)),
            "reverse" | "slice" | "sort" | "distinct" | "sortBy" | "sortByAssociatedKeys" => first(),
            "flatten" => match first().element() {
                list @ Self::List(_) => list,
                _ => first(),
            },
            "lists.range" => Self::List(Box::new(Self::Int)),
            "getQuery" => Self::Map(Box::new(Self::List(Box::new(Self::String)))),
            "add" | "sub" => Self::Named("kubernetes.Quantity"),
            "validate" => Self::List(Box::new(Self::String)).optional(),
            "format.named" => Self::Named("kubernetes.NamedFormat").optional(),
            "strings.quote" | "jsonpatch.escapeKey" => Self::String,
            "sets.contains" | "sets.intersects" | "sets.equivalent" | "ip.isCanonical" => Self::Bool,
            "type" => Self::TypeType,
            _ => match FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, returned)| returned) {
                Some(Type::Null) | None => Self::Dyn,
                Some(known) => known.clone(),
            },
        }
    }
}
