//! JSON merge patch (RFC 7386), and the patch between two documents.
//! Used through `patch`.
//! No null survives from the patch into the result, except inside lists.

use serde_json::{Map, Value};

use crate::ApiError;

/// Merges `patch`, which must be an object, into `doc`.
pub fn merge_patch(doc: &Value, patch: &Value) -> Result<Value, ApiError> {
    let Value::Object(patch) = patch else {
        let found = match patch {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            _ => return Err(ApiError::bad_request("Invalid JSON Patch")),
        };
        let message = "error decoding patch: json: cannot unmarshal";
        return Err(ApiError::bad_request(format!(
            "{message} {found} into Go value of type map[string]interface {{}}"
        )));
    };
    let mut result = doc.as_object().cloned().unwrap_or_default();
    merge(&mut result, patch);
    Ok(Value::Object(result))
}

fn merge(doc: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                doc.remove(key);
            }
            Value::Object(value) => match doc.get_mut(key) {
                Some(Value::Object(inner)) => merge(inner, value),
                _ => {
                    let mut fresh = Map::new();
                    merge(&mut fresh, value);
                    doc.insert(key.clone(), Value::Object(fresh));
                }
            },
            other => {
                doc.insert(key.clone(), other.clone());
            }
        }
    }
}

/// The merge patch that makes `modified` of `original`. Nulls inside `modified` cannot be said by a merge patch.
pub fn merge_diff(original: &Value, modified: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (original, modified) else {
        return modified.clone();
    };
    let mut patch = Map::new();
    for (key, _) in from.iter().filter(|(key, _)| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, new) in to {
        match from.get(key) {
            Some(old) if old == new => {}
            Some(old) => {
                patch.insert(key.clone(), merge_diff(old, new));
            }
            None => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cases_of_the_rfc() {
        let check = |doc: Value, patch: Value, result: Value| {
            assert_eq!(merge_patch(&doc, &patch).unwrap(), result, "{doc} + {patch}");
        };
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
        assert_eq!(
            merge_patch(&json!({}), &json!([])).unwrap_err().message,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
    }

    pub fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn a_diff_applied_gives_the_target(from in documents(), to in documents()) {
            prop_assert_eq!(merge_patch(&from, &merge_diff(&from, &to)).unwrap(), to);
        }
    }
}
