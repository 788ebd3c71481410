//! How deep objects may be nested: one limit for every form they come in and for what patches make of them.
//! Asked by `codec` after decoding, by `patch` before it inserts, and by whoever stores a patched object.
//! Invariant: looks no deeper than the limit, so that no input exhausts the stack (tidy: `pure_files`).

use serde_json::Value;

use crate::ApiError;

/// Objects and lists within each other. Stored objects are parsed with `serde_json`, which reads 127 levels: the rest is
/// for what the server adds around a body (`managedFields` repeat its structure four levels further in, a review shows
/// it three levels down).
pub const NESTING_DEPTH_MAX: usize = 100;

/// Go's words.
pub const TOO_DEEP: &str = "exceeded max depth";

/// Whether `value` has more than `levels` levels.
pub fn exceeds(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| exceeds(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| exceeds(item, levels - 1)),
        _ => false,
    }
}

/// 400 for an object that is nested too deeply. Its `managedFields` are the server's own and as deep as it is.
pub fn check(object: &Value) -> Result<(), ApiError> {
    let metadata = object["metadata"].as_object().into_iter().flatten().filter(|(name, _)| *name != "managedFields");
    let fields = object.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata");
    let too_deep = fields.into_iter().any(|(_, value)| exceeds(value, NESTING_DEPTH_MAX - 1))
        || metadata.into_iter().any(|(_, value)| exceeds(value, NESTING_DEPTH_MAX - 2));
    match too_deep {
        true => Err(ApiError::bad_request(format!("the object provided is unrecognized: {TOO_DEEP}"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_counted_through_lists_and_maps() {
        for (value, levels) in [(json!(1), 0), (json!({}), 1), (json!([1, [2], {"a": {}}]), 3), (json!({"a": [[]]}), 3)]
        {
            assert!(!exceeds(&value, levels), "{value}");
            assert!(levels == 0 || exceeds(&value, levels - 1), "{value}");
        }
    }
}
