//! EndpointSlices: defaults, columns, validation.
//! Neighbours: the endpoint slice controller writes them, `proxy` and `dns` read them.
//! The address type never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, each, int, is_set, items, text, texts},
            checks::{self, PROTOCOLS, complaints},
            columns::{age, age_of, list_with_more, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct EndpointSlice;

impl Behavior for EndpointSlice {
    fn default(&self, object: &mut Value) {
        each(object, "ports", |port| {
            if port.get("name").is_none_or(Value::is_null) {
                port["name"] = json!("");
            }
            default_absent(port, "protocol", "TCP");
        });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_types_and_ports(errors, object);
        validate_endpoints(errors, object);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_types_and_ports(errors, object);
        if object.get("endpoints") != old.get("endpoints") {
            validate_endpoints(errors, object);
        }
        checks::immutable(errors, &Path::default(), object, old, "addressType");
    }

    fn generation_metadata(&self) -> &'static [&'static str] {
        &["labels"]
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

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const HINTS_MAX: usize = 8;

fn validate_types_and_ports(errors: &mut ErrorList, slice: &Value) {
    checks::one_of(errors, &Path::default(), slice, "addressType", &["FQDN", "IPv4", "IPv6"]);
    let path = Path::new("ports");
    let ports = items(slice, "ports");
    if ports.len() > PORTS_MAX {
        errors.too_many(&path, ports.len(), PORTS_MAX);
    }
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = text(port, "name");
        checks::optional_name(errors, &path, port, "name", |name| names::dns_label(name, false));
        if ports[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
        checks::one_of(errors, &path, port, "protocol", &PROTOCOLS);
        checks::optional_name(errors, &path, port, "appProtocol", names::qualified_name);
    }
}

fn validate_endpoints(errors: &mut ErrorList, slice: &Value) {
    let kind = text(slice, "addressType");
    let path = Path::new("endpoints");
    let endpoints = items(slice, "endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        return errors.too_many(&path, endpoints.len(), ENDPOINTS_MAX);
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = path.index(index);
        let at = path.child("addresses");
        let count = items(endpoint, "addresses").len();
        if count == 0 {
            errors.required(&at, "must contain at least 1 address");
        } else if count > ADDRESSES_MAX {
            errors.too_many(&at, count, ADDRESSES_MAX);
        }
        for (index, address) in texts(endpoint, "addresses").enumerate() {
            validate_address(errors, &at, index, address, kind);
        }
        checks::said_name(errors, &path, endpoint, "nodeName", |name| names::dns_subdomain(name, false));
        checks::said_name(errors, &path, endpoint, "hostname", |name| names::dns_label(name, false));
        if is_set(endpoint, "hints") {
            validate_hints(errors, &path.child("hints"), &endpoint["hints"]);
        }
    }
}

fn validate_address(errors: &mut ErrorList, path: &Path, index: usize, address: &str, kind: &str) {
    let at = path.index(index);
    // Of other types nothing is known.
    if !matches!(kind, "FQDN" | "IPv4" | "IPv6") {
        return;
    }
    if kind == "FQDN" {
        let name = address.strip_suffix('.').unwrap_or(address);
        complaints(errors, &at, name, names::dns_subdomain(name, false));
        if !name.contains('.') {
            errors.invalid(&at, name, "should be a domain with at least two segments separated by dots");
        }
        return;
    }
    let Some(ip) = names::parse_ip(address) else {
        return complaints(errors, &at, address, names::ip(address));
    };
    if (kind == "IPv4") != ip.is_ipv4() {
        errors.invalid(path, address, format!("must be an {kind} address"));
    }
    complaints(errors, &at, address, names::endpoint_ip(address));
}

fn validate_hints(errors: &mut ErrorList, path: &Path, hints: &Value) {
    let checks: [(&str, fn(&str) -> Vec<String>); 2] =
        [("forZones", names::label_value), ("forNodes", |name| names::dns_subdomain(name, false))];
    for (field, check) in checks {
        let path = path.child(field);
        let all = items(hints, field);
        if all.len() > HINTS_MAX {
            errors.too_many(&path, all.len(), HINTS_MAX);
        }
        for (index, hint) in all.iter().enumerate() {
            let name = text(hint, "name");
            let path = path.index(index).child("name");
            if all[..index].iter().any(|other| text(other, "name") == name) {
                errors.duplicate(&path, name);
            }
            complaints(errors, &path, name, check(name));
        }
    }
}
