//! Endpoints: defaults, columns, validation.
//! Neighbours: `endpoint_slice`, which replaced them.
//! Invariant: every port has a protocol.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, int_at, items, text},
    columns::{age, age_of, list_with_more, name, name_of, string},
};

#[derive(Default)]
pub struct Endpoints;

impl Behavior for Endpoints {
    fn default(&self, object: &mut Value) {
        each(object, "subsets", |subset| each(subset, "ports", |port| default_to(port, "protocol", "TCP")));
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Endpoints", "Addresses that serve."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let empty = if items(object, "subsets").is_empty() { "<none>" } else { "" };
        vec![name_of(object), json!(list_with_more(&addresses(object), empty)), age_of(object, now)]
    }
}

fn addresses(endpoints: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for subset in items(endpoints, "subsets") {
        let ips = items(subset, "addresses").iter().map(|address| text(address, "ip"));
        let ports = items(subset, "ports");
        if ports.is_empty() {
            all.extend(ips.clone().map(str::to_string));
        }
        for port in ports {
            let number = int_at(port, "port");
            all.extend(
                ips.clone()
                    .map(|ip| if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") }),
            );
        }
    }
    all
}
