//! What claims, classes and slices of dynamic resource allocation may say, in upstream's words.
//! Called by `resource`.
//! Invariant: pure; a list that is too long is refused without looking at its items.

use std::{collections::HashSet, sync::LazyLock};

use regex::Regex;
use serde_json::{Value, json};

use super::{
    access::{entries, flag, int_at, is_set, items, part, text},
    checks,
    pod_spec::placement,
};
use crate::{
    field::{ErrorList, Path},
    names,
};

const MAX_DEVICES: usize = 128;
const MAX_DEVICES_WITH_TAINTS_OR_COUNTERS: usize = 64;
const MAX_REQUESTS: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const MAX_SELECTORS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_TOLERATIONS: usize = 16;
const MAX_TAINTS: usize = 16;
const MAX_RESULTS: usize = 32;
const MAX_RESERVED: usize = 256;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_CONSUMPTIONS: usize = 2;
const MAX_BINDING_CONDITIONS: usize = 4;
const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_ATTRIBUTE_BYTES: usize = 64;
const MAX_ID_BYTES: usize = 32;
const MAX_DRIVER_BYTES: usize = 63;
const MAX_POOL_BYTES: usize = 253;
const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
const MAX_PARAMETER_BYTES: usize = 10 * 1024;
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
    if name.len() > MAX_DRIVER_BYTES {
        errors.too_long(path, MAX_DRIVER_BYTES);
    }
    checks::complaints(errors, path, name, names::dns_subdomain(&name.to_lowercase(), false));
}

fn pool_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > MAX_POOL_BYTES {
        errors.too_long(path, MAX_POOL_BYTES);
    }
    for part in name.split('/') {
        checks::complaints(errors, path, part, names::dns_subdomain(part, false));
    }
}

pub fn claim_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let (path, devices) = (path.child("devices"), &spec["devices"]);
    let requests = each(errors, &path, devices, "requests", MAX_REQUESTS);
    for (path, request) in &requests {
        device_request(errors, path, request);
    }
    unique(errors, &requests, |r| json!(text(r, "name")));
    let known = RequestNames::new(spec);
    for (path, constraint) in each(errors, &path, devices, "constraints", MAX_CONSTRAINTS) {
        references(errors, &path, constraint, &known);
        let named = |field: &str| constraint.get(field).and_then(Value::as_str);
        match (named("matchAttribute"), named("distinctAttribute")) {
            (Some(name), _) => full_name(errors, &path.child("matchAttribute"), name),
            (None, Some(name)) => full_name(errors, &path.child("distinctAttribute"), name),
            (None, None) => errors.required(&path.child("matchAttribute"), ""),
        }
    }
    for (path, config) in each(errors, &path, devices, "config", MAX_CONFIGS) {
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
    let listed = each(errors, path, owner, "requests", MAX_REQUESTS);
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
            let alternatives = each(errors, path, request, "firstAvailable", MAX_ALTERNATIVES);
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
    for (path, toleration) in each(errors, path, request, "tolerations", MAX_TOLERATIONS) {
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
    for (path, selector) in each(errors, path, owner, "selectors", MAX_SELECTORS) {
        let path = path.child("cel");
        match part(selector, "cel").map(|cel| text(cel, "expression")) {
            None => errors.required(&path, ""),
            Some("") => errors.required(&path.child("expression"), ""),
            Some(long) if long.len() > MAX_EXPRESSION_BYTES => {
                errors.too_long(&path.child("expression"), MAX_EXPRESSION_BYTES);
            }
            Some(_) => {}
        }
    }
}

pub fn class_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    selectors(errors, path, spec);
    for (path, config) in each(errors, path, spec, "config", MAX_CONFIGS) {
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
        long if long.to_string().len() > MAX_PARAMETER_BYTES => errors.too_long(path, MAX_PARAMETER_BYTES),
        Value::Object(_) => {}
        _ => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// A name that may have a domain before it.
fn qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    let identifier = |errors: &mut ErrorList, id: &str| {
        if id.len() > MAX_ID_BYTES {
            errors.too_long(path, MAX_ID_BYTES);
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
    let reserved = each(errors, &path, status, "reservedFor", MAX_RESERVED);
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
    for (path, result) in each(errors, &devices, value, "results", MAX_RESULTS) {
        reference(errors, &path.child("request"), text(result, "request"), known);
        driver(errors, &path, result);
        pool_name(errors, &path.child("pool"), text(result, "pool"));
        checks::complaints(errors, &path.child("device"), text(result, "device"), label(text(result, "device")));
        binding_conditions(errors, &path, result);
    }
    for (path, config) in each(errors, &devices, value, "config", 2 * MAX_CONFIGS) {
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
        for (path, name) in each(errors, path, owner, field, MAX_BINDING_CONDITIONS) {
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

pub fn slice_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    driver(errors, path, spec);
    let (pool, value) = (path.child("pool"), &spec["pool"]);
    pool_name(errors, &pool.child("name"), text(value, "name"));
    if int_at(value, "resourceSliceCount") <= 0 {
        let count = int_at(value, "resourceSliceCount");
        errors.invalid(&pool.child("resourceSliceCount"), count, "must be greater than zero");
    }
    if int_at(value, "generation") < 0 {
        errors.invalid(&pool.child("generation"), int_at(value, "generation"), "must be greater than or equal to zero");
    }
    let set = places(errors, path, spec, true);
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.required(path, ONE),
        1 => {}
        _ => errors.invalid(path, format!("{{{}}}", set.join(", ")), format!("{ONE}, but multiple fields are set")),
    }
    if is_set(spec, "sharedCounters") && is_set(spec, "devices") {
        errors.invalid(path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let costly = |d: &Value| is_set(d, "taints") || is_set(d, "consumesCounters");
    let any_costly = items(spec, "devices").iter().any(costly);
    let max = if any_costly { MAX_DEVICES_WITH_TAINTS_OR_COUNTERS } else { MAX_DEVICES };
    let devices = each(errors, path, spec, "devices", max);
    for (path, item) in &devices {
        device(errors, path, item, flag(spec, "perDeviceNodeSelection"));
    }
    unique(errors, &devices, |d| json!(text(d, "name")));
    let sets = each(errors, path, spec, "sharedCounters", MAX_COUNTER_SETS);
    for (path, set) in &sets {
        checks::required_name(errors, path, set, "name", label);
        counters(errors, path, set);
    }
    unique(errors, &sets, |s| json!(text(s, "name")));
}

/// Which of the fields about nodes are set, and what is wrong with each.
fn places(errors: &mut ErrorList, path: &Path, owner: &Value, of_slice: bool) -> Vec<&'static str> {
    let mut set = Vec::new();
    if let Some(name) = owner.get("nodeName").and_then(Value::as_str) {
        let path = path.child("nodeName");
        if name.is_empty() {
            let words =
                if of_slice { "must be either unset or set to a non-empty string" } else { "must not be empty" };
            errors.invalid(&path, name, words);
        } else {
            set.push("`nodeName`");
            checks::complaints(errors, &path, name, names::dns_subdomain(name, false));
        }
    }
    if let Some(selector) = part(owner, "nodeSelector") {
        let path = path.child("nodeSelector");
        set.push("`nodeSelector`");
        placement::node_selector(errors, &path, selector);
        let terms = items(selector, "nodeSelectorTerms");
        if of_slice && terms.len() != 1 {
            let words = "must have exactly one node selector term";
            errors.invalid(&path.child("nodeSelectorTerms"), Value::from(terms.to_vec()), words);
        }
    }
    let flags: &[(&str, &str)] = match of_slice {
        true => &[("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")],
        false => &[("allNodes", "`allNodes`")],
    };
    for (field, shown) in flags {
        match owner.get(*field).and_then(Value::as_bool) {
            Some(true) => set.push(shown),
            Some(false) => errors.invalid(&path.child(field), false, "must be either unset or set to true"),
            None => {}
        }
    }
    set
}

fn device(errors: &mut ErrorList, path: &Path, device: &Value, per_device: bool) {
    checks::complaints(errors, &path.child("name"), text(device, "name"), label(text(device, "name")));
    let total = entries(device, "attributes").count() + entries(device, "capacity").count();
    if total > MAX_ATTRIBUTES_AND_CAPACITIES {
        let words = "the total number of attributes and capacities must not exceed";
        errors.invalid(path, total, format!("{words} {MAX_ATTRIBUTES_AND_CAPACITIES}"));
    }
    for (name, value) in entries(device, "attributes") {
        let path = path.child("attributes").key(name);
        qualified(errors, &path, name);
        attribute(errors, &path, value);
    }
    for (name, value) in entries(device, "capacity") {
        let path = path.child("capacity").key(name);
        qualified(errors, &path, name);
        if is_set(value, "requestPolicy") && !flag(device, "allowMultipleAllocations") {
            errors.forbidden(&path.child("requestPolicy"), "allowMultipleAllocations must be true");
        }
    }
    for (path, taint) in each(errors, path, device, "taints", MAX_TAINTS) {
        checks::label_key(errors, &path.child("key"), text(taint, "key"));
        let value = text(taint, "value");
        checks::complaints(errors, &path.child("value"), value, names::label_value(value));
        match text(taint, "effect") {
            "" => errors.required(&path.child("effect"), ""),
            effect if !EFFECTS.contains(&effect) => errors.not_supported(&path.child("effect"), effect, &EFFECTS),
            _ => {}
        }
    }
    let consumed = each(errors, path, device, "consumesCounters", MAX_CONSUMPTIONS);
    for (path, item) in &consumed {
        checks::required_name(errors, path, item, "counterSet", label);
        counters(errors, path, item);
    }
    unique(errors, &consumed, |c| json!(text(c, "counterSet")));
    let fields = ["nodeName", "nodeSelector", "allNodes"];
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                       `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    if per_device {
        let set = places(errors, path, device, false);
        match set.len() {
            0 => errors.required(path, ONE),
            1 => {}
            _ => errors.invalid(path, format!("{{{}}}", set.join(", ")), ONE),
        }
    } else if fields.iter().any(|f| !device[*f].is_null()) {
        let words = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                     true in the ResourceSlice spec";
        errors.invalid(path, Value::Null, words);
    }
    binding_conditions(errors, path, device);
}

fn counters(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let path = path.child("counters");
    let found = entries(owner, "counters").count();
    match found {
        0 => return errors.required(&path, ""),
        n if n > MAX_COUNTERS => return errors.too_many(&path, n, MAX_COUNTERS),
        _ => {}
    }
    for (name, _) in entries(owner, "counters") {
        checks::complaints(errors, &path.key(name), name, label(name));
    }
}

/// As semver.org writes them.
static VERSION: LazyLock<Regex> = LazyLock::new(|| {
    let numbers = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)";
    let part = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)";
    let build = r"[0-9a-zA-Z-]+";
    let pattern = format!(r"^{numbers}(-{part}(\.{part})*)?(\+{build}(\.{build})*)?$");
    Regex::new(&pattern).expect("a constant pattern")
});

fn attribute(errors: &mut ErrorList, path: &Path, value: &Value) {
    const ONE: &str = "exactly one value must be specified";
    for field in ["string", "version"] {
        let Some(held) = value.get(field).and_then(Value::as_str) else { continue };
        let path = path.child(field);
        if field == "version" && !VERSION.is_match(held) {
            errors.invalid(&path, held, "must be a string compatible with semver.org spec 2.0.0");
        }
        if held.len() > MAX_ATTRIBUTE_BYTES {
            errors.too_long(&path, MAX_ATTRIBUTE_BYTES);
        }
    }
    match ["bool", "int", "string", "version"].iter().filter(|f| !value[**f].is_null()).count() {
        0 => errors.invalid(path, "", ONE),
        1 => {}
        _ => errors.invalid(path, value.clone(), ONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(check: impl FnOnce(&mut ErrorList)) -> Vec<String> {
        let mut errors = ErrorList::new();
        check(&mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn claims() {
        let check = |devices: Value, expected: &[&str]| {
            let spec = json!({ "devices": devices });
            assert_eq!(shown(|e| claim_spec(e, &Path::new("spec"), &spec)), expected, "{spec}");
        };
        let exactly = |name: &str, more: Value| {
            let mut exactly = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
            more.as_object().unwrap().iter().for_each(|(k, v)| exactly[k] = v.clone());
            json!({ "name": name, "exactly": exactly })
        };
        check(json!({ "requests": [exactly("a", json!({}))] }), &[]);
        check(
            json!({ "requests": [exactly("a", json!({})), exactly("a", json!({}))] }),
            &["spec.devices.requests[1]: Duplicate value: \"a\""],
        );
        check(
            json!({ "requests": [exactly("a", json!({ "tolerations": [
                { "key": "k", "operator": "Exists", "value": "v" }, { "operator": "Is", "effect": "Some" },
            ] }))] }),
            &[
                "spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: \"v\": must be empty for operator `Exists`",
                "spec.devices.requests[0].exactly.tolerations[1].operator: Unsupported value: \"Is\": supported values: \"Equal\", \"Exists\"",
                "spec.devices.requests[0].exactly.tolerations[1].effect: Unsupported value: \"Some\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
            ],
        );
        check(
            json!({ "requests": [exactly("a", json!({}))], "constraints": [
                { "requests": ["b"], "matchAttribute": "model" }, { "requests": ["a"] },
            ] }),
            &[
                "spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
                "spec.devices.constraints[0].matchAttribute: Invalid value: \"model\": a fully qualified name must be a domain and a name separated by a slash",
                "spec.devices.constraints[1].matchAttribute: Required value",
            ],
        );
        check(
            json!({ "requests": [], "config": [{}, { "opaque": { "driver": "d.example.com", "parameters": [1] } }] }),
            &[
                "spec.devices.config[0].opaque: Required value",
                "spec.devices.config[1].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
            ],
        );
        let many: Vec<_> = (0..33).map(|i| exactly(&format!("r{i}"), json!({}))).collect();
        check(json!({ "requests": many }), &["spec.devices.requests: Too many: 33: must have at most 32 items"]);
    }

    #[test]
    fn slices() {
        let check = |more: Value, expected: &[&str]| {
            let mut spec = json!({
                "driver": "d.example.com", "nodeName": "n", "pool": { "name": "p", "resourceSliceCount": 1, "generation": 1 },
            });
            more.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
            assert_eq!(shown(|e| slice_spec(e, &Path::new("spec"), &spec)), expected, "{spec}");
        };
        check(json!({}), &[]);
        check(
            json!({ "allNodes": false, "pool": { "name": "P", "resourceSliceCount": 0, "generation": -1 } }),
            &[
                "spec.pool.name: Invalid value: \"P\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
                "spec.allNodes: Invalid value: false: must be either unset or set to true",
            ],
        );
        check(
            json!({ "allNodes": true }),
            &[
                "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set",
            ],
        );
        check(
            json!({ "devices": [{ "name": "d", "attributes": { "a": {}, "b": { "version": "1" } },
                "capacity": { "c": { "value": "1", "requestPolicy": { "default": "1" } } },
                "taints": [{ "key": "k" }], "bindingConditions": ["x"] }] }),
            &[
                "spec.devices[0].attributes[a]: Invalid value: \"\": exactly one value must be specified",
                "spec.devices[0].attributes[b].version: Invalid value: \"1\": must be a string compatible with semver.org spec 2.0.0",
                "spec.devices[0].capacity[c].requestPolicy: Forbidden: allowMultipleAllocations must be true",
                "spec.devices[0].taints[0].effect: Required value",
                "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
            ],
        );
        check(
            json!({ "sharedCounters": [{ "name": "s" }], "devices": [{ "name": "d", "nodeName": "x" }] }),
            &[
                "spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed",
                "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                "spec.sharedCounters[0].counters: Required value",
            ],
        );
    }

    #[test]
    fn statuses() {
        let request = json!({ "name": "a", "exactly": { "deviceClassName": "gpu" } });
        let claim = |status: Value| json!({ "metadata": {}, "spec": { "devices": { "requests": [request] } }, "status": status });
        let check = |status: Value, old: Value, expected: &[&str]| {
            let found = shown(|e| claim_status(e, &claim(status.clone()), &claim(old)));
            assert_eq!(found, expected, "{status}");
        };
        let user = json!({ "resource": "pods", "name": "p", "uid": "u" });
        let result =
            |request: &str| json!({ "request": request, "driver": "d.example.com", "pool": "p", "device": "d0" });
        let allocation = |request: &str| json!({ "devices": { "results": [result(request)] } });
        check(json!({ "allocation": allocation("a"), "reservedFor": [user] }), json!({}), &[]);
        check(
            json!({ "reservedFor": [user, user] }),
            json!({}),
            &[
                "status.reservedFor[1]: Duplicate value: \"u\"",
                "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
            ],
        );
        check(
            json!({ "allocation": allocation("b") }),
            json!({}),
            &[
                "status.allocation.devices.results[0].request: Invalid value: \"b\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            ],
        );
        check(
            json!({ "allocation": allocation("a"), "devices": [{ "driver": "d.example.com", "pool": "p", "device": "d1" }] }),
            json!({ "allocation": allocation("a") }),
            &["status.devices[0]: Invalid value: \"d.example.com/p/d1\": must be an allocated device in the claim"],
        );
    }
}
