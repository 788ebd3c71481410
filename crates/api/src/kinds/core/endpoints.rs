//! Endpoints: defaults, columns, validation.
//! Neighbours: `endpoint_slice`, which replaced them.
//! Every port has a protocol.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, each, int_at, is_set, items, text},
            checks::{self, PROTOCOLS, complaints},
            columns::{age, age_of, list_with_more, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct Endpoints;

impl Behavior for Endpoints {
    fn default(&self, object: &mut Value) {
        each(object, "subsets", |subset| each(subset, "ports", |port| default_to(port, "protocol", "TCP")));
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("subsets");
        for (index, subset) in items(object, "subsets").iter().enumerate() {
            validate_subset(errors, &path.index(index), subset);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        if object.get("subsets") != old.get("subsets") {
            self.validate_create(object, errors);
        }
    }

    fn deprecation(&self) -> Option<&'static str> {
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
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

fn validate_subset(errors: &mut ErrorList, path: &Path, subset: &Value) {
    if !is_set(subset, "addresses") && !is_set(subset, "notReadyAddresses") {
        errors.required(path, "must specify `addresses` or `notReadyAddresses`");
    }
    for list in ["addresses", "notReadyAddresses"] {
        for (index, address) in items(subset, list).iter().enumerate() {
            let path = path.child(list).index(index);
            let ip = text(address, "ip");
            complaints(errors, &path.child("ip"), ip, names::ip(ip));
            checks::optional_name(errors, &path, address, "hostname", |name| names::dns_label(name, false));
            checks::optional_name(errors, &path, address, "nodeName", |name| names::dns_subdomain(name, false));
            complaints(errors, &path.child("ip"), ip, names::endpoint_ip(ip));
        }
    }
    let ports = items(subset, "ports");
    for (index, port) in ports.iter().enumerate() {
        let path = path.child("ports").index(index);
        if ports.len() > 1 && !is_set(port, "name") {
            errors.required(&path.child("name"), "");
        }
        checks::optional_name(errors, &path, port, "name", |name| names::dns_label(name, false));
        checks::port_number(errors, &path.child("port"), int_at(port, "port"));
        checks::one_of(errors, &path, port, "protocol", &PROTOCOLS);
        checks::optional_name(errors, &path, port, "appProtocol", names::qualified_name);
    }
}
