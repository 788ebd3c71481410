//! Secrets: defaults, columns, validation.
//! Neighbours: `config_map`, which has the same limits.
//! Invariant: `stringData` is never stored; it becomes `data`.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, entries, part_mut, text},
    columns::{age, age_of, name, name_of, string},
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
