//! The three patches of the API: JSON patch, merge patch and strategic merge patch.
//! Used by `apiserver` (PATCH) and `cli`; server-side apply is in `managed_fields`.
//! Invariant: pure; the document that comes in is never half-patched, an error leaves nothing behind (tidy:
//! `pure_files`).

mod json;
mod merge;
mod order;
mod restore;
mod shown;
mod strategic;

pub use json::{JSON_PATCH_OPERATIONS_MAX, json_patch};
pub use merge::{merge_diff, merge_patch};
pub use restore::restore_error;
pub use shown::{places, shown};
pub use strategic::strategic;

use serde_json::{Value, json};

use crate::{ApiError, Reason};

/// 422, as upstream answers a patch that does not fit its document: it never says why.
fn unprocessable() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(json!({}))
}

/// A value as Go's `%v` prints it, because some messages carry one.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect();
            pairs.sort_unstable();
            format!("map[{}]", pairs.join(" "))
        }
        // Whole ones without a point.
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

/// The Go type of a decoded value, as `%T` prints it.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
