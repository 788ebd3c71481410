//! Upstream's words for a document that is none of its type after a strategic merge patch.
//! Used by `apiserver` (PATCH): there such a document never was JSON, so Go's JSON reader has no say.
//! Invariant: pure; a message of another shape stays as it is (tidy: `pure_files`).

use crate::schema::{Node, Schema};

/// `json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string` as
/// `cannot restore map from string`.
pub fn restore_error(schema: &Schema, why: &str) -> String {
    let parts = why.strip_prefix("json: cannot unmarshal ").and_then(|rest| rest.rsplit_once(" of type "));
    let Some((found, place, wanted)) = parts.and_then(|(head, wanted)| {
        let (found, place) = head.split_once(" into ")?;
        Some((found, place, wanted))
    }) else {
        return why.to_string();
    };
    if wanted == "int32" && is_int_or_string(schema, place) {
        return format!("json: cannot unmarshal {found} into Go value of type int32");
    }
    let found = match found.split_once(' ').unwrap_or((found, "")) {
        ("array", _) => "slice",
        ("object", _) => "map",
        ("number", digits) if digits.contains(['.', 'e', 'E']) => "float64",
        ("number", _) => "int64",
        (other, _) => other,
    };
    if wanted.starts_with("map[") {
        return format!("cannot restore map from {found}");
    }
    if wanted.starts_with("[]") {
        return format!("cannot restore slice from {found}");
    }
    let named = format!(".{wanted}");
    if wanted.contains('.') && schema.by_name.keys().any(|name| name.ends_with(&named)) {
        return format!("cannot restore struct from: {found}");
    }
    // A named type that is no struct is a string.
    let kind = if wanted.contains('.') { "string" } else { wanted };
    match (found, kind) {
        // Go has conversions for these, which the restoring refuses.
        ("int64", "string") | ("float64", "int32" | "int64") => format!("cannot convert {found} to {wanted}"),
        _ => format!("unrecognized type: {kind}"),
    }
}

/// Whether the place, such as `Go struct field ServicePort.spec.ports.targetPort`, is one that Go has a reader for, which
/// is asked here as well.
fn is_int_or_string(schema: &Schema, place: &str) -> bool {
    let names = place
        .strip_prefix("Go struct field ")
        .and_then(|path| Some((path.split_once('.')?.0, path.rsplit_once('.')?.1)));
    names.is_some_and(|(of, field)| {
        let mut types = schema.types.iter().filter(|found| found.name.rsplit('.').next() == Some(of));
        types.any(|found| found.field(field).is_some_and(|field| matches!(field.node, Node::IntOrString)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_could_not_be_restored() {
        let check = |found: &str, wanted: &str, told: &str| {
            let why = format!("json: cannot unmarshal {found} into Go struct field X.a.b of type {wanted}");
            assert_eq!(restore_error(crate::schema::builtin(), &why), told, "{why}");
        };
        check("string", "map[string]string", "cannot restore map from string");
        check("object", "[]string", "cannot restore slice from map");
        check("array", "v1.DeploymentSpec", "cannot restore struct from: slice");
        check("number", "string", "cannot convert int64 to string");
        check("number 1.5", "int32", "cannot convert float64 to int32");
        check("string", "int32", "unrecognized type: int32");
        check("bool", "v1.RestartPolicy", "unrecognized type: string");
        let why = "json: cannot unmarshal bool into Go struct field RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge of type int32";
        let told = "json: cannot unmarshal bool into Go value of type int32";
        assert_eq!(restore_error(crate::schema::builtin(), why), told);
        let other = "quantities must match the regular expression";
        assert_eq!(restore_error(crate::schema::builtin(), other), other);
    }
}
