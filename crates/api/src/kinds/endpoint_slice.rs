//! EndpointSlices: defaults, columns, validation.
//! Neighbours: the endpoint slice controller writes them, `proxy` and `dns` read them.
//! Invariant: the address type never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, int, items, text, texts},
    columns::{age, age_of, list_with_more, name, name_of, string},
};

#[derive(Default)]
pub struct EndpointSlice;

impl Behavior for EndpointSlice {
    fn default(&self, object: &mut Value) {
        each(object, "ports", |port| {
            if port.get("name").is_none_or(Value::is_null) {
                port["name"] = json!("");
            }
            default_to(port, "protocol", "TCP");
        });
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            name(),
            string("AddressType", "What its addresses are."),
            string("Ports", "Ports that serve."),
            string("Endpoints", "Addresses that serve."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = items(object, "ports")
            .iter()
            .map(|port| match (int(port, "port"), port["name"].as_str()) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.to_string(),
                (None, None) => "*".to_string(),
            })
            .collect();
        let addresses: Vec<String> =
            items(object, "endpoints").iter().flat_map(|e| texts(e, "addresses")).map(str::to_string).collect();
        vec![
            name_of(object),
            json!(text(object, "addressType")),
            json!(list_with_more(&ports, "<unset>")),
            json!(list_with_more(&addresses, "<unset>")),
            age_of(object, now),
        ]
    }
}
