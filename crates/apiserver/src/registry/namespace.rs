//! What is particular about namespaces: they are emptied before they go.
//! Used by `delete`, `update` and the `finalize` subresource.
//! A namespace is never removed while `spec.finalizers` holds anything.

use serde_json::Value;

/// Whether something still has to empty it.
pub fn held(namespace: &Value) -> bool {
    namespace["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
}
