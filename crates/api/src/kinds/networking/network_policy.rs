//! NetworkPolicies: defaults, columns, validation.
//! Neighbours: `proxy`, which enforces them.
//! Every policy names its types.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, each, int, is_set, items, part, part_mut, text, texts},
            checks::{self, complaints},
            columns::{age, age_of, name, name_of, selector, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct NetworkPolicy;

impl Behavior for NetworkPolicy {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        if !is_set(spec, "policyTypes") {
            let egress = is_set(spec, "egress");
            spec["policyTypes"] = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        }
        for direction in ["ingress", "egress"] {
            each(spec, direction, |rule| each(rule, "ports", |port| default_absent(port, "protocol", "TCP")));
        }
    }

    /// Upstream looks at the spec twice, and lists each cause as often.
    fn validate_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        self.validate_create(object, errors);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::label_selector(errors, &path.child("podSelector"), &spec["podSelector"]);
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            for (index, rule) in items(spec, direction).iter().enumerate() {
                let path = path.child(direction).index(index);
                for (index, port) in items(rule, "ports").iter().enumerate() {
                    validate_port(errors, &path.child("ports").index(index), port);
                }
                for (index, peer) in items(rule, peers).iter().enumerate() {
                    validate_peer(errors, &path.child(peers).index(index), peer);
                }
            }
        }
        let at = path.child("policyTypes");
        if items(spec, "policyTypes").len() > 2 {
            errors.invalid(&at, spec["policyTypes"].clone(), "may not specify more than two policyTypes");
        }
        for (index, kind) in texts(spec, "policyTypes").enumerate() {
            if !matches!(kind, "Ingress" | "Egress") {
                errors.not_supported_as_listed(&at.index(index), kind, &["Ingress", "Egress"]);
            }
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Pod-Selector", "Which pods it holds for."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), selector(&object["spec"], "podSelector"), age_of(object, now)]
    }
}

fn validate_port(errors: &mut ErrorList, path: &Path, port: &Value) {
    checks::optional_one_of(errors, path, port, "protocol", &["TCP", "UDP", "SCTP"]);
    let end = int(port, "endPort");
    let at = path.child("endPort");
    match &port["port"] {
        Value::Null => {
            if let Some(end) = end {
                errors.invalid(&at, end, "may not be specified when `port` is not specified");
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                errors.invalid(&at, end, "may not be specified when `port` is non-numeric");
            }
            complaints(errors, &path.child("port"), name, names::port_name(name));
        }
        number => {
            let number = number.as_i64().unwrap_or(0);
            checks::port_number(errors, &path.child("port"), number);
            if let Some(end) = end {
                if end < number {
                    errors.invalid(&at, number, "must be greater than or equal to `port`");
                }
                checks::port_number(errors, &at, end);
            }
        }
    }
}

fn validate_peer(errors: &mut ErrorList, path: &Path, peer: &Value) {
    let mut selectors = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = part(peer, field) {
            selectors += 1;
            checks::label_selector(errors, &path.child(field), selector);
        }
    }
    match (part(peer, "ipBlock"), selectors) {
        (None, 0) => errors.required(path, "must specify a peer"),
        (None, _) => {}
        (Some(block), selectors) => {
            validate_block(errors, &path.child("ipBlock"), block);
            if selectors > 0 {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
    }
}

fn validate_block(errors: &mut ErrorList, path: &Path, block: &Value) {
    let range = text(block, "cidr");
    if range.is_empty() {
        return errors.required(&path.child("cidr"), "");
    }
    let Some((address, length)) = names::parse_cidr(range) else {
        return complaints(errors, &path.child("cidr"), range, names::cidr(range));
    };
    for (index, except) in texts(block, "except").enumerate() {
        let path = path.child("except").index(index);
        match names::parse_cidr(except) {
            None => complaints(errors, &path, except, names::cidr(except)),
            Some((inner, inner_length)) if inner_length <= length || !contains(address, length, inner) => {
                errors.invalid(&path, except, "must be a strict subset of `cidr`");
            }
            Some(_) => {}
        }
    }
}

fn contains(network: IpAddr, length: u8, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    network.is_ipv4() == address.is_ipv4() && bits(network) & mask == bits(address) & mask
}
