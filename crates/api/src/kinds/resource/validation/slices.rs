//! What a driver may publish about its devices in a ResourceSlice.
//! Called by `resource` through the module above, which has the pieces that claims share.
//! Invariant: pure; a list that is too long is refused without looking at its items (tidy: `pure_files`).

use super::*;

const DEVICES_MAX: usize = 128;
const DEVICES_WITH_TAINTS_OR_COUNTERS_MAX: usize = 64;
const TAINTS_MAX: usize = 16;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMPTIONS_MAX: usize = 2;
const ATTRIBUTES_AND_CAPACITIES_MAX: usize = 32;
const ATTRIBUTE_BYTES_MAX: usize = 64;

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
    let max = if any_costly { DEVICES_WITH_TAINTS_OR_COUNTERS_MAX } else { DEVICES_MAX };
    let devices = each(errors, path, spec, "devices", max);
    for (path, item) in &devices {
        device(errors, path, item, flag(spec, "perDeviceNodeSelection"));
    }
    unique(errors, &devices, |d| json!(text(d, "name")));
    let sets = each(errors, path, spec, "sharedCounters", COUNTER_SETS_MAX);
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
    if total > ATTRIBUTES_AND_CAPACITIES_MAX {
        let words = "the total number of attributes and capacities must not exceed";
        errors.invalid(path, total, format!("{words} {ATTRIBUTES_AND_CAPACITIES_MAX}"));
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
    for (path, taint) in each(errors, path, device, "taints", TAINTS_MAX) {
        checks::label_key(errors, &path.child("key"), text(taint, "key"));
        let value = text(taint, "value");
        checks::complaints(errors, &path.child("value"), value, names::label_value(value));
        match text(taint, "effect") {
            "" => errors.required(&path.child("effect"), ""),
            effect if !EFFECTS.contains(&effect) => errors.not_supported(&path.child("effect"), effect, &EFFECTS),
            _ => {}
        }
    }
    let consumed = each(errors, path, device, "consumesCounters", CONSUMPTIONS_MAX);
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
        n if n > COUNTERS_MAX => return errors.too_many(&path, n, COUNTERS_MAX),
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
        if held.len() > ATTRIBUTE_BYTES_MAX {
            errors.too_long(&path, ATTRIBUTE_BYTES_MAX);
        }
    }
    match ["bool", "int", "string", "version"].iter().filter(|f| !value[**f].is_null()).count() {
        0 => errors.invalid(path, "", ONE),
        1 => {}
        _ => errors.invalid(path, value.clone(), ONE),
    }
}
