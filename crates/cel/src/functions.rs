//! The functions and operators of expressions, as `types` knows them: their names, and what they take and return.
//! Used by `types`.
//! Invariant: pure tables; a function missing here is refused when a policy is written, so none may be (tidy:
//! `pure_files`).

use super::types::Type;

/// Every name the functions of the language and of Kubernetes go by, with what they return.
pub const FUNCTIONS: &[(&str, Type)] = &[
    ("size", Type::Int),
    ("contains", Type::Bool),
    ("startsWith", Type::Bool),
    ("endsWith", Type::Bool),
    ("matches", Type::Bool),
    ("string", Type::String),
    ("bytes", Type::Bytes),
    ("double", Type::Double),
    ("int", Type::Int),
    ("uint", Type::Uint),
    ("bool", Type::Bool),
    ("dyn", Type::Dyn),
    ("type", Type::Dyn),
    ("duration", Type::Duration),
    ("timestamp", Type::Timestamp),
    ("getFullYear", Type::Int),
    ("getMonth", Type::Int),
    ("getDayOfYear", Type::Int),
    ("getDayOfMonth", Type::Int),
    ("getDate", Type::Int),
    ("getDayOfWeek", Type::Int),
    ("getHours", Type::Int),
    ("getMinutes", Type::Int),
    ("getSeconds", Type::Int),
    ("getMilliseconds", Type::Int),
    ("value", Type::Dyn),
    ("hasValue", Type::Bool),
    ("or", Type::Dyn),
    ("orValue", Type::Dyn),
    ("charAt", Type::String),
    ("indexOf", Type::Int),
    ("lastIndexOf", Type::Int),
    ("lowerAscii", Type::String),
    ("upperAscii", Type::String),
    ("replace", Type::String),
    ("split", Type::Dyn),
    ("join", Type::String),
    ("substring", Type::String),
    ("trim", Type::String),
    ("format", Type::String),
    ("reverse", Type::Dyn),
    ("find", Type::String),
    ("findAll", Type::Dyn),
    ("isSorted", Type::Bool),
    ("sum", Type::Dyn),
    ("min", Type::Dyn),
    ("max", Type::Dyn),
    ("distinct", Type::Dyn),
    ("first", Type::Dyn),
    ("last", Type::Dyn),
    ("flatten", Type::Dyn),
    ("slice", Type::Dyn),
    ("sort", Type::Dyn),
    ("quantity", Type::Named("kubernetes.Quantity")),
    ("isQuantity", Type::Bool),
    ("isInteger", Type::Bool),
    ("asInteger", Type::Int),
    ("asApproximateFloat", Type::Double),
    ("sign", Type::Int),
    ("add", Type::Dyn),
    ("sub", Type::Dyn),
    ("compareTo", Type::Int),
    ("isGreaterThan", Type::Bool),
    ("isLessThan", Type::Bool),
    ("url", Type::Named("kubernetes.URL")),
    ("isURL", Type::Bool),
    ("getScheme", Type::String),
    ("getHost", Type::String),
    ("getHostname", Type::String),
    ("getPort", Type::String),
    ("getEscapedPath", Type::String),
    ("getQuery", Type::Dyn),
    ("ip", Type::Named("net.IP")),
    ("isIP", Type::Bool),
    ("family", Type::Int),
    ("isUnspecified", Type::Bool),
    ("isLoopback", Type::Bool),
    ("isLinkLocalMulticast", Type::Bool),
    ("isLinkLocalUnicast", Type::Bool),
    ("isGlobalUnicast", Type::Bool),
    ("cidr", Type::Named("net.CIDR")),
    ("isCIDR", Type::Bool),
    ("containsIP", Type::Bool),
    ("containsCIDR", Type::Bool),
    ("masked", Type::Named("net.CIDR")),
    ("prefixLength", Type::Int),
    ("semver", Type::Named("kubernetes.Semver")),
    ("isSemver", Type::Bool),
    ("major", Type::Int),
    ("minor", Type::Int),
    ("patch", Type::Int),
    ("validate", Type::Dyn),
    ("path", Type::Named("kubernetes.authorization.PathCheck")),
    ("group", Type::Named("kubernetes.authorization.GroupCheck")),
    ("serviceAccount", Type::Named("kubernetes.authorization.Authorizer")),
    ("resource", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("subresource", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("namespace", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("name", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("fieldSelector", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("labelSelector", Type::Named("kubernetes.authorization.ResourceCheck")),
    ("check", Type::Named("kubernetes.authorization.Decision")),
    ("allowed", Type::Bool),
    ("denied", Type::Bool),
    ("reason", Type::String),
    ("errored", Type::Bool),
    ("error", Type::String),
];

/// Functions whose target can only be a string.
pub const STRING_FUNCTIONS: [&str; 10] =
    ["startsWith", "endsWith", "matches", "charAt", "lowerAscii", "upperAscii", "trim", "substring", "split", "find"];

/// The types that expressions can name.
pub const TYPE_NAMES: [&str; 10] =
    ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];

/// First words of functions with two: `math.greatest(…)`.
pub const LIBRARIES: [&str; 12] =
    ["math", "sets", "optional", "base64", "jsonpatch", "strings", "ip", "cidr", "format", "semver", "lists", "cel"];

/// The sign of an operator in the source.
pub fn operator(name: &str) -> Option<&'static str> {
    Some(match name {
        "_?_:_" => "?",
        "_&&_" => "&&",
        "_||_" => "||",
        "!_" => "!",
        "_-_" | "-_" => "-",
        "_+_" => "+",
        "_*_" => "*",
        "_/_" => "/",
        "_%_" => "%",
        "_==_" => "==",
        "_!=_" => "!=",
        "_>=_" => ">=",
        "_<=_" => "<=",
        "_>_" => ">",
        "_<_" => "<",
        "_[_]" => "[",
        "@in" => "in",
        _ => return None,
    })
}

pub fn unary(name: &str, operand: &Type) -> Option<Type> {
    match name {
        "!_" if operand.fits(&Type::Bool) => Some(Type::Bool),
        "-_" if operand.is_dyn() || matches!(operand, Type::Int | Type::Double | Type::Duration) => {
            Some(operand.clone())
        }
        _ => None,
    }
}

pub fn binary(name: &str, left: &Type, right: &Type) -> Option<Type> {
    use Type::{Bool, Bytes, Duration, Dyn, Int, List, String, Timestamp};
    let either_dyn = left.is_dyn() || right.is_dyn();
    let same = left.fits(right);
    let known = if left.is_dyn() { right } else { left };
    match name {
        "_&&_" | "_||_" => (left.fits(&Bool) && right.fits(&Bool)).then_some(Bool),
        "_==_" | "_!=_" => same.then_some(Bool),
        "_<_" | "_<=_" | "_>_" | "_>=_" => {
            let ordered = known.is_number() || matches!(known, Dyn | Bool | String | Bytes | Timestamp | Duration);
            (ordered && (same || (left.is_number() && right.is_number()))).then_some(Bool)
        }
        "_+_" => match (left, right) {
            (List(a), List(b)) => a.fits(b).then(|| List(if a.is_dyn() { b.clone() } else { a.clone() })),
            (Timestamp, Duration) | (Duration, Timestamp) => Some(Timestamp),
            _ if either_dyn => {
                let adds = known.is_number() || matches!(known, Dyn | String | Bytes | List(_) | Timestamp | Duration);
                // With a duration on the one side, the other may still be a time.
                adds.then(|| if matches!(known, Duration) { Dyn } else { known.clone() })
            }
            _ => (same && (left.is_number() || matches!(left, String | Bytes | Duration))).then(|| left.clone()),
        },
        "_-_" => match (left, right) {
            (Timestamp, Timestamp) => Some(Duration),
            (Timestamp, Duration) => Some(Timestamp),
            _ if either_dyn => (known.is_number() || matches!(known, Dyn | Timestamp | Duration)).then_some(Dyn),
            _ => (same && (left.is_number() || matches!(left, Duration))).then(|| left.clone()),
        },
        "_*_" | "_/_" => (same && (known.is_number() || known.is_dyn())).then(|| known.clone()),
        "_%_" => (same && matches!(known, Int | Type::Uint | Dyn)).then(|| known.clone()),
        "_[_]" => match left {
            List(item) => right.fits(&Int).then(|| (**item).clone()),
            Type::Map(item) => right.fits(&String).then(|| (**item).clone()),
            Dyn | Type::Struct(..) | Type::Record(..) | Type::Named(_) => Some(Dyn),
            _ => None,
        },
        "@in" => match right {
            List(item) => left.fits(item).then_some(Bool),
            Type::Map(_) => left.fits(&String).then_some(Bool),
            Dyn | Type::Struct(..) | Type::Record(..) => Some(Bool),
            _ => None,
        },
        _ => Some(Dyn),
    }
}
