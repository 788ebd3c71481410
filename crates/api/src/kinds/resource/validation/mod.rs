//! What claims and classes of dynamic resource allocation may say, in upstream's words; slices are in `slices`.
//! Called by `resource`.
//! Invariant: pure; a list that is too long is refused without looking at its items (tidy: `pure_files`).

mod slices;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::LazyLock};

use regex::Regex;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        common::{
            access::{entries, flag, int_at, is_set, items, part, text},
            checks,
        },
        core::pod_spec::placement,
    },
    names,
};

pub use slices::slice_spec;

const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const SELECTORS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
const CONFIGS_MAX: usize = 32;
const TOLERATIONS_MAX: usize = 16;
const RESULTS_MAX: usize = 32;
const RESERVED_MAX: usize = 256;
const BINDING_CONDITIONS_MAX: usize = 4;
const ID_BYTES_MAX: usize = 32;
const DRIVER_BYTES_MAX: usize = 63;
const POOL_BYTES_MAX: usize = 253;
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
const PARAMETER_BYTES_MAX: usize = 10 * 1024;
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Each item of a list that is not too long, with its path.
fn each<'a>(errors: &mut ErrorList, path: &Path, owner: &'a Value, field: &str, max: usize) -> Vec<(Path, &'a Value)> {
    let (path, list) = (path.child(field), items(owner, field));
    if list.len() > max {
        errors.too_many(&path, list.len(), max);
        return Vec::new();
    }
    list.iter().enumerate().map(|(at, item)| (path.index(at), item)).collect()
}

/// The same key twice, after the items themselves.
fn unique<'a>(errors: &mut ErrorList, listed: &[(Path, &'a Value)], key: impl Fn(&'a Value) -> Value) {
    let mut seen = HashSet::new();
    for (path, item) in listed {
        let key = key(item);
        if !seen.insert(key.to_string()) {
            errors.duplicate(path, key);
        }
    }
}

fn label(name: &str) -> Vec<String> {
    names::dns_label(name, false)
}

fn driver(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let (path, name) = (path.child("driver"), text(owner, "driver"));
    driver_name(errors, &path, name);
}

fn driver_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > DRIVER_BYTES_MAX {
        errors.too_long(path, DRIVER_BYTES_MAX);
    }
    checks::complaints(errors, path, name, names::dns_subdomain(&name.to_lowercase(), false));
}

fn pool_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > POOL_BYTES_MAX {
        errors.too_long(path, POOL_BYTES_MAX);
    }
    for part in name.split('/') {
        checks::complaints(errors, path, part, names::dns_subdomain(part, false));
    }
}

pub fn claim_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let (path, devices) = (path.child("devices"), &spec["devices"]);
    let requests = each(errors, &path, devices, "requests", REQUESTS_MAX);
    for (path, request) in &requests {
        device_request(errors, path, request);
    }
    unique(errors, &requests, |r| json!(text(r, "name")));
    let known = RequestNames::new(spec);
    for (path, constraint) in each(errors, &path, devices, "constraints", CONSTRAINTS_MAX) {
        references(errors, &path, constraint, &known);
        let named = |field: &str| constraint.get(field).and_then(Value::as_str);
        match (named("matchAttribute"), named("distinctAttribute")) {
            (Some(name), _) => full_name(errors, &path.child("matchAttribute"), name),
            (None, Some(name)) => full_name(errors, &path.child("distinctAttribute"), name),
            (None, None) => errors.required(&path.child("matchAttribute"), ""),
        }
    }
    for (path, config) in each(errors, &path, devices, "config", CONFIGS_MAX) {
        references(errors, &path, config, &known);
        configuration(errors, &path, config);
    }
}

/// Requests of a claim and what each chooses from.
struct RequestNames<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> RequestNames<'a> {
    fn new(spec: &'a Value) -> Self {
        let requests = items(&spec["devices"], "requests").iter();
        let alternatives = |r: &'a Value| items(r, "firstAvailable").iter().map(|s| text(s, "name")).collect();
        Self(requests.map(|r| (text(r, "name"), alternatives(r))).collect())
    }

    fn has(&self, reference: &str) -> bool {
        let (name, alternative) = match reference.split_once('/') {
            Some((name, alternative)) => (name, Some(alternative)),
            None => (reference, None),
        };
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.is_some_and(|(_, inside)| alternative.is_none_or(|a| inside.contains(&a)))
    }
}

fn references(errors: &mut ErrorList, path: &Path, owner: &Value, known: &RequestNames<'_>) {
    let listed = each(errors, path, owner, "requests", REQUESTS_MAX);
    for (path, name) in &listed {
        reference(errors, path, name.as_str().unwrap_or_default(), known);
    }
    unique(errors, &listed, Value::clone);
}

fn reference(errors: &mut ErrorList, path: &Path, name: &str, known: &RequestNames<'_>) {
    const WORDS: &str =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    if name.matches('/').count() > 1 {
        return errors.invalid(path, name, WORDS);
    }
    for segment in name.split('/') {
        checks::complaints(errors, path, segment, label(segment));
    }
    if !known.has(name) {
        errors.invalid(path, name, WORDS);
    }
}

fn device_request(errors: &mut ErrorList, path: &Path, request: &Value) {
    let name = text(request, "name");
    checks::complaints(errors, &path.child("name"), name, label(name));
    match (part(request, "exactly"), items(request, "firstAvailable")) {
        (None, []) => errors.required(path, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), [_, ..]) => errors.invalid(
            path,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (Some(exactly), []) => wish(errors, &path.child("exactly"), exactly),
        (None, _) => {
            let alternatives = each(errors, path, request, "firstAvailable", ALTERNATIVES_MAX);
            for (path, alternative) in &alternatives {
                let name = text(alternative, "name");
                checks::complaints(errors, &path.child("name"), name, label(name));
                wish(errors, path, alternative);
            }
            unique(errors, &alternatives, |a| json!(text(a, "name")));
        }
    }
}

fn wish(errors: &mut ErrorList, path: &Path, request: &Value) {
    checks::required_name(errors, path, request, "deviceClassName", |name| names::dns_subdomain(name, false));
    selectors(errors, path, request);
    let count = int_at(request, "count");
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid(&path.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "All" => {}
        "ExactCount" if count <= 0 => errors.invalid(&path.child("count"), count, "must be greater than zero"),
        "ExactCount" => {}
        mode => errors.not_supported(&path.child("allocationMode"), mode, &["All", "ExactCount"]),
    }
    for (path, toleration) in each(errors, path, request, "tolerations", TOLERATIONS_MAX) {
        if !text(toleration, "key").is_empty() {
            checks::label_key(errors, &path.child("key"), text(toleration, "key"));
        }
        let value = text(toleration, "value");
        match text(toleration, "operator") {
            "Exists" if !value.is_empty() => {
                errors.invalid(&path.child("value"), value, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            "Equal" => checks::complaints(errors, &path.child("value"), value, names::label_value(value)),
            "" => errors.required(&path.child("operator"), ""),
            other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        let effect = text(toleration, "effect");
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.not_supported(&path.child("effect"), effect, &EFFECTS);
        }
    }
}

pub fn selectors(errors: &mut ErrorList, path: &Path, owner: &Value) {
    for (path, selector) in each(errors, path, owner, "selectors", SELECTORS_MAX) {
        let path = path.child("cel");
        match part(selector, "cel").map(|cel| text(cel, "expression")) {
            None => errors.required(&path, ""),
            Some(long) if long.len() > EXPRESSION_BYTES_MAX => {
                errors.too_long(&path.child("expression"), EXPRESSION_BYTES_MAX);
            }
            // An empty one too: it is no expression.
            Some(_) => errors.expression(&path.child("expression")),
        }
    }
}

pub fn class_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    selectors(errors, path, spec);
    for (path, config) in each(errors, path, spec, "config", CONFIGS_MAX) {
        configuration(errors, &path, config);
    }
    let name = text(spec, "extendedResourceName");
    let is_extended = || {
        let (domain, _) = name.split_once('/').unwrap_or_default();
        let ours = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") || name.starts_with("requests.");
        !domain.is_empty() && !ours && names::qualified_name(&format!("requests.{name}")).is_empty()
    };
    if !name.is_empty() && !is_extended() {
        errors.invalid(&path.child("extendedResourceName"), name, "must be a valid extended resource name");
    }
}

fn configuration(errors: &mut ErrorList, path: &Path, config: &Value) {
    let path = path.child("opaque");
    let Some(opaque) = part(config, "opaque") else { return errors.required(&path, "") };
    driver(errors, &path, opaque);
    raw(errors, &path.child("parameters"), &opaque["parameters"]);
}

fn raw(errors: &mut ErrorList, path: &Path, value: &Value) {
    match value {
        Value::Null => errors.required(path, ""),
        long if long.to_string().len() > PARAMETER_BYTES_MAX => errors.too_long(path, PARAMETER_BYTES_MAX),
        Value::Object(_) => {}
        _ => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// A name that may have a domain before it.
fn qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    let identifier = |errors: &mut ErrorList, id: &str| {
        if id.len() > ID_BYTES_MAX {
            errors.too_long(path, ID_BYTES_MAX);
        }
        checks::complaints(errors, path, id, names::c_identifier(id));
    };
    match name.split('/').collect::<Vec<_>>()[..] {
        [id] => identifier(errors, id),
        [domain, id] => {
            match domain {
                "" => errors.invalid(path, "", "the domain must not be empty"),
                domain => driver_name(errors, path, domain),
            }
            match id {
                "" => errors.invalid(path, "", "the name must not be empty"),
                id => identifier(errors, id),
            }
        }
        _ => {}
    }
}

fn full_name(errors: &mut ErrorList, path: &Path, name: &str) {
    qualified(errors, path, name);
    if !name.contains('/') {
        errors.invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

/// `old` is what became of the claim before; null for one that had no status.
pub fn claim_status(errors: &mut ErrorList, object: &Value, old: &Value) {
    let (path, status, before) = (Path::new("status"), &object["status"], &old["status"]);
    let known = RequestNames::new(&object["spec"]);
    let reserved = each(errors, &path, status, "reservedFor", RESERVED_MAX);
    for (path, user) in &reserved {
        for field in ["resource", "name", "uid"] {
            checks::required(errors, path, user, field);
        }
    }
    unique(errors, &reserved, |r| json!(text(r, "uid")));
    let allocation = part(status, "allocation");
    let results = items(&status["allocation"]["devices"], "results");
    let id = |d: &Value| ["driver", "pool", "device", "shareID"].map(|f| text(d, f).to_string());
    let devices = each(errors, &path, status, "devices", usize::MAX);
    for (path, device) in &devices {
        driver(errors, path, device);
        pool_name(errors, &path.child("pool"), text(device, "pool"));
        checks::complaints(errors, &path.child("device"), text(device, "device"), label(text(device, "device")));
        if !results.iter().any(|r| id(r) == id(device)) {
            let shown = format!("{}/{}/{}", text(device, "driver"), text(device, "pool"), text(device, "device"));
            errors.invalid(path, shown, "must be an allocated device in the claim");
        }
        if !device["data"].is_null() {
            raw(errors, &path.child("data"), &device["data"]);
        }
    }
    unique(errors, &devices, |d| json!(id(d)[..3].join("/")));
    if !reserved.is_empty() && allocation.is_none() {
        errors.forbidden(&path.child("reservedFor"), "may not be specified when `allocated` is not set");
    } else if !object["metadata"]["deletionTimestamp"].is_null() {
        let earlier = items(before, "reservedFor");
        if reserved.iter().any(|(_, r)| !earlier.contains(r)) {
            let words = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.forbidden(&path.child("reservedFor"), words);
        }
    }
    match (allocation, part(before, "allocation")) {
        (Some(_), Some(_)) => checks::immutable(errors, &path, status, before, "allocation"),
        (Some(new), None) => allocated(errors, &path.child("allocation"), new, &known),
        (None, _) => {}
    }
}

fn allocated(errors: &mut ErrorList, path: &Path, allocation: &Value, known: &RequestNames<'_>) {
    let (devices, value) = (path.child("devices"), &allocation["devices"]);
    for (path, result) in each(errors, &devices, value, "results", RESULTS_MAX) {
        reference(errors, &path.child("request"), text(result, "request"), known);
        driver(errors, &path, result);
        pool_name(errors, &path.child("pool"), text(result, "pool"));
        checks::complaints(errors, &path.child("device"), text(result, "device"), label(text(result, "device")));
        binding_conditions(errors, &path, result);
    }
    for (path, config) in each(errors, &devices, value, "config", 2 * CONFIGS_MAX) {
        match text(config, "source") {
            "" => errors.required(&path.child("source"), ""),
            "FromClaim" | "FromClass" => {}
            other => errors.not_supported(&path.child("source"), other, &["FromClaim", "FromClass"]),
        }
        references(errors, &path, config, known);
        configuration(errors, &path, config);
    }
    if let Some(selector) = part(allocation, "nodeSelector") {
        placement::node_selector(errors, &path.child("nodeSelector"), selector);
    }
}

fn binding_conditions(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let fields = ["bindingConditions", "bindingFailureConditions"];
    for field in fields {
        for (path, name) in each(errors, path, owner, field, BINDING_CONDITIONS_MAX) {
            checks::label_key(errors, &path, name.as_str().unwrap_or_default());
        }
    }
    for field in fields {
        let listed = each(&mut ErrorList::new(), path, owner, field, usize::MAX);
        unique(errors, &listed, Value::clone);
        for (path, name) in listed.iter().filter(|_| field == fields[1]) {
            if items(owner, fields[0]).contains(name) {
                let words = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(path, (*name).clone(), words);
            }
        }
    }
    let [conditions, failures] = fields.map(|f| !items(owner, f).is_empty());
    if conditions != failures {
        let (lacking, there) = if conditions { (fields[1], fields[0]) } else { (fields[0], fields[1]) };
        errors.invalid(&path.child(lacking), Value::Null, format!("{lacking} are required to use {there}"));
    }
}
