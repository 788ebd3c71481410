//! What decides where a pod runs: validation of affinity, tolerations, topology spread and gates; what keys of labels mean.
//! Neighbours: `validation`; nodes have taints, volumes and CSI objects have node selectors.
//! A weight is between 1 and 100.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{existing_mut, int, items, items_mut, part, text, texts},
        checks::{complaints, label_key, label_selector, optional_one_of, positive},
    },
    names,
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub fn affinity(errors: &mut ErrorList, path: &Path, affinity: &Value) {
    if let Some(node) = part(affinity, "nodeAffinity") {
        let path = path.child("nodeAffinity");
        if let Some(selector) = part(node, REQUIRED) {
            node_selector(errors, &path.child(REQUIRED), selector);
        }
        for (index, term) in items(node, PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(errors, &path, term);
            node_selector_term(errors, &path.child("preference"), &term["preference"], false);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(found) = part(affinity, kind) else { continue };
        let path = path.child(kind);
        for (index, term) in items(found, REQUIRED).iter().enumerate() {
            pod_term(errors, &path.child(REQUIRED).index(index), term);
        }
        for (index, term) in items(found, PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(errors, &path, term);
            pod_term(errors, &path.child("podAffinityTerm"), &term["podAffinityTerm"]);
        }
    }
}

fn weight(errors: &mut ErrorList, path: &Path, term: &Value) {
    let weight = int(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

pub fn node_selector(errors: &mut ErrorList, path: &Path, selector: &Value) {
    let path = path.child("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_selector_term(errors, &path.index(index), term, true);
    }
}

fn node_selector_term(errors: &mut ErrorList, path: &Path, term: &Value, check_values: bool) {
    for (index, requirement) in items(term, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let count = items(requirement, "values").len();
        match text(requirement, "operator") {
            "In" | "NotIn" if count == 0 => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if count > 0 => errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Gt" | "Lt" if count != 1 => {
                let path = path.child("values");
                errors.required(&path, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            operator => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
        }
        label_key(errors, &path.child("key"), text(requirement, "key"));
        if check_values {
            for (index, value) in texts(requirement, "values").enumerate() {
                complaints(errors, &path.child("values").index(index), value, names::label_value(value));
            }
        }
    }
    for (index, requirement) in items(term, "matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(index);
        match text(requirement, "operator") {
            "In" | "NotIn" if items(requirement, "values").len() != 1 => errors.required(
                &path.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            "In" | "NotIn" => {}
            operator => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
        }
        if text(requirement, "key") != "metadata.name" {
            errors.invalid(&path.child("key"), text(requirement, "key"), "not a valid field selector key");
            continue;
        }
        for (index, value) in texts(requirement, "values").enumerate() {
            complaints(errors, &path.child("values").index(index), value, names::dns_subdomain(value, false));
        }
    }
}

fn pod_term(errors: &mut ErrorList, path: &Path, term: &Value) {
    label_selector(errors, &path.child("labelSelector"), &term["labelSelector"]);
    label_selector(errors, &path.child("namespaceSelector"), &term["namespaceSelector"]);
    for namespace in texts(term, "namespaces") {
        complaints(errors, &path.child("namespace"), namespace, names::dns_label(namespace, false));
    }
    match_label_keys(errors, path, term);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    label_key(errors, &path.child("topologyKey"), key);
}

/// Writes into a new pod's selectors what `matchLabelKeys` and `mismatchLabelKeys` stand for: the values that its own
/// labels have now. Labels that change later change nothing.
pub fn merge_label_keys(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec.get_mut("affinity").and_then(|affinity| affinity.get_mut(kind)) else { continue };
        for term in items_mut(affinity, REQUIRED) {
            merge_into_selector(term, &labels);
        }
        for weighted in items_mut(affinity, PREFERRED) {
            if let Some(term) = existing_mut(weighted, "podAffinityTerm") {
                merge_into_selector(term, &labels);
            }
        }
    }
    for constraint in items_mut(spec, "topologySpreadConstraints") {
        merge_into_selector(constraint, &labels);
    }
}

fn merge_into_selector(term: &mut Value, labels: &Value) {
    let mut expressions = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let values = texts(term, field).filter_map(|key| Some((key, labels.get(key)?)));
        expressions.extend(values.map(|(key, value)| json!({ "key": key, "operator": operator, "values": [value] })));
    }
    // Without a selector nothing is selected, so there is nothing to narrow.
    let Some(selector) = existing_mut(term, "labelSelector").filter(|_| !expressions.is_empty()) else { return };
    match &mut selector["matchExpressions"] {
        Value::Array(known) => known.extend(expressions),
        absent => *absent = expressions.into(),
    }
}

/// A key that both the selector and `matchLabelKeys` name; by now the selector has what the keys stand for.
fn keys_named_twice(errors: &mut ErrorList, path: &Path, term: &Value) {
    let selector = &term["labelSelector"];
    let mut seen: BTreeSet<&str> =
        selector["matchLabels"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    for expression in items(selector, "matchExpressions") {
        let key = text(expression, "key");
        let place = texts(term, "matchLabelKeys").position(|named| named == key);
        if let Some(place) = place.filter(|_| seen.contains(key)) {
            errors.invalid(&path.index(place), key, "exists in both matchLabelKeys and labelSelector");
        }
        seen.insert(key);
    }
}

fn match_label_keys(errors: &mut ErrorList, path: &Path, term: &Value) {
    keys_named_twice(errors, path, term);
    let mut matched = BTreeSet::new();
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        for (index, key) in texts(term, field).enumerate() {
            let path = path.child(field).index(index);
            if part(term, "labelSelector").is_none() {
                errors.forbidden(&path, "must not be specified when labelSelector is not set");
            }
            label_key(errors, &path, key);
            if !matched.insert(key) {
                errors.invalid(&path, key, "exists in both matchLabelKeys and mismatchLabelKeys");
            }
        }
    }
}

pub fn scheduling_gates(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let mut seen = BTreeSet::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        label_key(errors, &path.index(index), name);
        if !seen.insert(name) {
            errors.duplicate(&path.index(index), name);
        }
    }
}

pub fn tolerations(errors: &mut ErrorList, path: &Path, spec: &Value) {
    for (index, toleration) in items(spec, "tolerations").iter().enumerate() {
        let path = path.index(index);
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        if !key.is_empty() {
            label_key(errors, &path.child("key"), key);
        } else if operator != "Exists" {
            errors.invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if int(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            errors.invalid(&path.child("effect"), effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "Equal" | "" => {
                let found = names::label_value(value);
                if !found.is_empty() {
                    errors.invalid(&path.child("operator"), value, found.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(&path.child("operator"), value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            _ => errors.not_supported(&path.child("operator"), operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.not_supported_as_listed(&path.child("effect"), effect, &EFFECTS);
        }
    }
}

/// `spec.taints` of a node; upstream reports them under `metadata.taints`.
pub fn taints(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let mut seen = BTreeSet::new();
    for (index, taint) in items(spec, "taints").iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        label_key(errors, &path.child("key"), key);
        let found = names::label_value(value);
        if !found.is_empty() {
            errors.invalid(&path.child("value"), value, found.join(";"));
        }
        match effect {
            "" => errors.required(&path.child("effect"), ""),
            effect if !EFFECTS.contains(&effect) => {
                errors.not_supported_as_listed(&path.child("effect"), effect, &EFFECTS)
            }
            _ => {}
        }
        if !seen.insert((key, effect)) {
            errors.push(
                crate::field::ErrorType::Duplicate,
                &path,
                taint.clone(),
                "taints must be unique by key and effect pair",
            );
        }
    }
}

pub fn topology_spread(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let constraints = items(spec, "topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.index(index);
        positive(errors, &path, constraint, "maxSkew");
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            let path = path.child("whenUnsatisfiable");
            errors.not_supported(&path, action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let same = |other: &&Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action;
        if constraints[index + 1..].iter().any(|other| same(&other)) {
            errors.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), format!("{{{key}, {action}}}"));
        }
        if let Some(domains) = int(constraint, "minDomains") {
            positive(errors, &path, constraint, "minDomains");
            if action != "DoNotSchedule" {
                errors.invalid(
                    &path.child("minDomains"),
                    domains,
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"),
                );
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            optional_one_of(errors, &path, constraint, field, &["Honor", "Ignore"]);
        }
        match_label_keys(errors, &path, constraint);
        label_selector(errors, &path.child("labelSelector"), &constraint["labelSelector"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_become_part_of_the_selectors() {
        let term = |keys: &str| json!({ "topologyKey": "zone", keys: ["v", "absent"], "labelSelector": { "matchLabels": { "app": "a" } } });
        let mut pod = json!({ "metadata": { "labels": { "app": "a", "v": "1" } }, "spec": {
            "affinity": {
                "podAffinity": { REQUIRED: [term("matchLabelKeys"), { "topologyKey": "zone", "matchLabelKeys": ["v"] }] },
                "podAntiAffinity": { PREFERRED: [{ "weight": 1, "podAffinityTerm": term("mismatchLabelKeys") }] },
            },
            "topologySpreadConstraints": [term("matchLabelKeys")],
        } });
        merge_label_keys(&mut pod);
        let expected = |operator: &str| json!([{ "key": "v", "operator": operator, "values": ["1"] }]);
        let affinity = &pod["spec"]["affinity"];
        let required = &affinity["podAffinity"][REQUIRED];
        assert_eq!(required[0]["labelSelector"]["matchExpressions"], expected("In"));
        assert!(required[1].get("labelSelector").is_none());
        let preferred = &affinity["podAntiAffinity"][PREFERRED][0]["podAffinityTerm"];
        assert_eq!(preferred["labelSelector"]["matchExpressions"], expected("NotIn"));
        let spread = &pod["spec"]["topologySpreadConstraints"][0];
        assert_eq!(spread["labelSelector"]["matchExpressions"], expected("In"));
        let complaints = |term: &Value| {
            let mut errors = ErrorList::new();
            match_label_keys(&mut errors, &Path::new("term"), term);
            errors.iter().map(|e| e.to_string()).collect::<Vec<_>>()
        };
        assert!(complaints(spread).is_empty());
        let mut twice = spread.clone();
        twice["labelSelector"]["matchLabels"]["v"] = "1".into();
        assert_eq!(
            complaints(&twice),
            ["term[0]: Invalid value: \"v\": exists in both matchLabelKeys and labelSelector"]
        );
    }
}
