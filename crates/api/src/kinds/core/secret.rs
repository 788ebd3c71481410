//! Secrets: defaults, columns, validation.
//! Neighbours: `config_map`, which has the same limits.
//! `stringData` is never stored; it becomes `data`.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, entries, part_mut, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
        core::config_map,
    },
};

#[derive(Default)]
pub struct Secret;

impl Behavior for Secret {
    fn default(&self, object: &mut Value) {
        default_to(object, "type", "Opaque");
        let plain = object.as_object_mut().and_then(|map| map.remove("stringData"));
        let Some(Value::Object(plain)) = plain else { return };
        if plain.is_empty() {
            return;
        }
        let Some(data) = part_mut(object, "data") else { return };
        for (key, value) in plain {
            data[key.as_str()] = json!(STANDARD.encode(value.as_str().unwrap_or("")));
        }
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        key_pair_warning(object).into_iter().collect()
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("data");
        let total = config_map::validate_keys(errors, object, "data", config_map::decoded_length);
        if total > config_map::DATA_BYTES_MAX {
            errors.too_long(&path, config_map::DATA_BYTES_MAX);
        }
        by_type(errors, &path, object);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::default(), object, old, "type");
        config_map::validate_immutable(errors, object, old, &["data"]);
        self.validate_create(object, errors);
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] =
            [name(), string("Type", "What it is for."), string("Data", "How many keys it holds."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "type")), json!(entries(object, "data").count()), age_of(object, now)]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("type".into(), text(object, "type").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["type".into()]
    }
}

/// A certificate or a key that is none, in the words of Go's reader of key pairs.
fn key_pair_warning(object: &Value) -> Option<String> {
    if text(object, "type") != "kubernetes.io/tls" {
        return None;
    }
    let has_pem = |key: &str| {
        let bytes = STANDARD.decode(text(&object["data"], key)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains("-----BEGIN ")
    };
    let missing = [("tls.crt", "certificate"), ("tls.key", "key")].into_iter().find(|(key, _)| !has_pem(key));
    missing.map(|(_, input)| format!("tls: failed to find any PEM data in {input} input"))
}

/// Keys that a well-known type must have.
fn by_type(errors: &mut ErrorList, path: &Path, object: &Value) {
    let has = |key: &str| object["data"].get(key).is_some();
    let mut require = |keys: &[&str]| {
        for key in keys.iter().filter(|key| !has(key)) {
            errors.required(&path.key(key), "");
        }
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if text(&object["metadata"]["annotations"], ACCOUNT).is_empty() {
                errors.required(&Path::new("metadata").child("annotations").key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => docker_config(errors, path, object, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => docker_config(errors, path, object, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => require(&["username", "password"]),
        "kubernetes.io/ssh-auth" if text(&object["data"], "ssh-privatekey").is_empty() => {
            errors.required(&path.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        _ => {}
    }
}

fn docker_config(errors: &mut ErrorList, path: &Path, object: &Value, key: &str) {
    let Some(encoded) = object["data"].get(key).and_then(Value::as_str) else {
        return errors.required(&path.key(key), "");
    };
    let parsed = STANDARD
        .decode(encoded)
        .map_err(|e| e.to_string())
        .and_then(|bytes| serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes).map_err(|e| e.to_string()));
    if let Err(problem) = parsed {
        errors.invalid(&path.key(key), "<secret contents redacted>", problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_data_becomes_data() {
        let mut secret = json!({ "data": { "a": "eA==" }, "stringData": { "a": "y", "b": "z" } });
        Secret.default(&mut secret);
        assert_eq!(secret, json!({ "type": "Opaque", "data": { "a": "eQ==", "b": "eg==" } }));
    }

    #[test]
    fn types_ask_for_keys() {
        let check = |object: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            Secret.validate_create(&object, &mut errors);
            assert_eq!(errors.iter().map(|e| e.to_string()).collect::<Vec<_>>(), expected);
        };
        check(json!({ "type": "Opaque" }), &[]);
        check(
            json!({ "type": "kubernetes.io/tls" }),
            &["data[tls.crt]: Required value", "data[tls.key]: Required value"],
        );
        check(
            json!({ "type": "kubernetes.io/dockerconfigjson", "data": { ".dockerconfigjson": "eA==" } }),
            &["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": expected value at line 1 \
                 column 1"],
        );
    }
}
