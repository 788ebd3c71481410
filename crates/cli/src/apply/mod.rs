//! What `apply` sends: the last applied configuration, and the patch between it, the file and the live object.
//! Used by `apply`, `diff`, `create --save-config` and others.
//! Pure.

mod three_way;

pub use three_way::{merge_three_way, strategic_three_way, strategic_two_way};

use serde_json::{Value, json};

pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The configuration that was applied before.
pub fn last_applied(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][LAST_APPLIED].as_str().filter(|text| !text.is_empty())
}

/// The object with itself as its last applied configuration.
pub fn annotated(object: &Value) -> Value {
    let mut bare = object.clone();
    if !bare["metadata"].is_object() {
        bare["metadata"] = json!({});
    }
    if !bare["metadata"]["annotations"].is_object() {
        bare["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = bare["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{}\n", crate::template::go_format::json(&bare));
    bare["metadata"]["annotations"][LAST_APPLIED] = text.into();
    bare
}
