//! The hash that `--append-hash` and kustomize's generators put behind a name.
//! Used by `config` and `kustomize`.
//! The same contents give the same ten characters as upstream.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::template::go_format;

/// The hash that kustomize's generators use: whatever the object is called, and whether it can be changed.
pub fn hash_of_contents(object: &Value) -> String {
    let mut nameless = object.clone();
    nameless["metadata"]["name"] = "".into();
    if let Some(fields) = nameless.as_object_mut() {
        fields.remove("immutable");
    }
    hash(&nameless)
}

/// The hash of a ConfigMap or Secret; other kinds are hashed as a whole.
pub fn hash(object: &Value) -> String {
    let field = |name: &str| match &object[name] {
        Value::Null => Value::from(""),
        value => value.clone(),
    };
    let mut hashed = match object["kind"].as_str() {
        Some("ConfigMap") => json!({ "kind": "ConfigMap", "name": object["metadata"]["name"], "data": field("data") }),
        Some("Secret") => {
            json!({ "kind": "Secret", "type": field("type"), "name": object["metadata"]["name"], "data": field("data") })
        }
        _ => object.clone(),
    };
    for optional in ["binaryData", "immutable", "stringData"] {
        let given = &object[optional];
        if !given.is_null() && *given != Value::Object(Map::new()) && hashed.get("data").is_some() {
            hashed[optional] = given.clone();
        }
    }
    let digest = Sha256::digest(go_format::json(&hashed).as_bytes());
    let hex: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    // Without vowels and with nothing that looks like something else.
    hex.chars()
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            c => c,
        })
        .collect()
}
