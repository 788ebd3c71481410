//! Validation of what decides where a pod runs: affinity, tolerations, topology spread, gates.
//! Neighbours: `validation`; nodes have taints, volumes and CSI objects have node selectors.
//! A weight is between 1 and 100.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{int, items, part, text, texts},
        checks::{complaints, label_key, label_selector, optional_one_of, positive},
    },
    names,
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];

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

fn match_label_keys(errors: &mut ErrorList, path: &Path, term: &Value) {
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
            errors.not_supported(&path.child("effect"), effect, &EFFECTS);
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
            effect if !EFFECTS.contains(&effect) => errors.not_supported(&path.child("effect"), effect, &EFFECTS),
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
