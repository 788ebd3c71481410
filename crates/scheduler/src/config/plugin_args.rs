//! What plugins' arguments in a KubeSchedulerConfiguration may say, in upstream's words where they say something else.
//! Asked by `profiles` before any plugin is built; the registry says which check is whose.
//! A value that can't be meant is an error, never replaced by a default.

use std::collections::BTreeSet;

use api::{
    field::{ErrorList, Path},
    names,
};
use serde_json::Value;

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// A whole number within bounds; `nothing` where none is given. Anything else is told as upstream tells it.
fn number(errors: &mut ErrorList, path: &Path, value: &Value, nothing: i64, valid: fn(i64) -> bool, why: &str) {
    let found = if value.is_null() { Some(nothing) } else { value.as_i64() };
    if !found.is_some_and(valid) {
        errors.invalid(path, value.clone(), why);
    }
}

fn label_name(errors: &mut ErrorList, path: &Path, name: &str) {
    names::qualified_name(name).into_iter().for_each(|complaint| errors.invalid(path, name, complaint));
}

pub fn inter_pod_affinity(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    let weight = path.child("hardPodAffinityWeight");
    let valid = |weight| (0..=100).contains(&weight);
    number(errors, &weight, &arguments["hardPodAffinityWeight"], 1, valid, "not in valid range [0, 100]");
    let ignore = &arguments["ignorePreferredTermsOfExistingPods"];
    if !ignore.is_null() && !ignore.is_boolean() {
        errors.invalid(&path.child("ignorePreferredTermsOfExistingPods"), ignore.clone(), "must be a boolean");
    }
}

pub fn node_affinity(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    let (added, path) = (&arguments["addedAffinity"], path.child("addedAffinity"));
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = path.child(required).child("nodeSelectorTerms");
    for (at, term) in items(&added[required], "nodeSelectorTerms") {
        node_selector_term(errors, &terms.index(at), term);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (at, term) in items(added, preferred) {
        node_selector_term(errors, &path.child(preferred).index(at), &term["preference"]);
    }
}

fn node_selector_term(errors: &mut ErrorList, path: &Path, term: &Value) {
    for (field, operators) in [
        ("matchExpressions", &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"][..]),
        ("matchFields", &["In", "NotIn"][..]),
    ] {
        for (at, requirement) in items(term, field) {
            let path = path.child(field).index(at);
            let operator = text(requirement, "operator");
            if !operators.contains(&operator) {
                errors.not_supported(&path.child("operator"), operator, operators);
            }
            match field {
                "matchFields" if text(requirement, "key") != "metadata.name" => {
                    errors.invalid(&path.child("key"), text(requirement, "key"), "not a valid field selector key");
                }
                "matchFields" => {}
                _ => label_name(errors, &path.child("key"), text(requirement, "key")),
            }
        }
    }
}

pub fn node_resources_fit(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    for (at, name) in items(arguments, "ignoredResources") {
        label_name(errors, &path.child("ignoredResources").index(at), name.as_str().unwrap_or_default());
    }
    for (at, group) in items(arguments, "ignoredResourceGroups") {
        let (group, path) = (group.as_str().unwrap_or_default(), path.child("ignoredResourceGroups").index(at));
        if group.contains('/') {
            errors.invalid(&path, group, "resource group name can't contain '/'");
        }
        label_name(errors, &path, group);
    }
    let (strategy, path) = (&arguments["scoringStrategy"], path.child("scoringStrategy"));
    if strategy.is_null() {
        return;
    }
    let kind = text(strategy, "type");
    const KINDS: [&str; 3] = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
    if !KINDS.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, &KINDS);
    }
    for (at, resource) in items(strategy, "resources") {
        let why = format!("resource weight of {} not in valid range (0, 100]", text(resource, "name"));
        let path = path.child("resources").index(at).child("weight");
        // None given, or zero, is one.
        number(errors, &path, &resource["weight"], 1, |weight| (0..=100).contains(&weight), &why);
    }
    if kind == "RequestedToCapacityRatio" || !strategy["requestedToCapacityRatio"].is_null() {
        shape(errors, &strategy["requestedToCapacityRatio"], &path.child("shape"));
    }
}

fn shape(errors: &mut ErrorList, ratio: &Value, path: &Path) {
    let points: Vec<_> = items(ratio, "shape").collect();
    if points.is_empty() {
        return errors.required(path, "at least one point must be specified");
    }
    let utilization = |point: &Value| point["utilization"].as_i64().unwrap_or(0);
    if let Some(pair) = points.windows(2).find(|pair| utilization(pair[0].1) >= utilization(pair[1].1)) {
        let path = path.index(pair[1].0).child("utilization");
        errors.invalid(&path, utilization(pair[1].1), "values must be sorted in increasing order");
    }
    for (at, point) in points {
        let path = path.index(at);
        let percent = |value| (0..=100).contains(&value);
        let why = "not in valid range [0, 100]";
        number(errors, &path.child("utilization"), &point["utilization"], 0, percent, why);
        let ten = |value| (0..=10).contains(&value);
        number(errors, &path.child("score"), &point["score"], 0, ten, "not in valid range [0, 10]");
    }
}

pub fn balanced_allocation(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (at, resource) in items(arguments, "resources") {
        let path = path.child("resources").index(at);
        if !seen.insert(text(resource, "name")) {
            errors.duplicate(&path.child("name"), text(resource, "name"));
        }
        number(errors, &path.child("weight"), &resource["weight"], 1, |weight| (0..=1).contains(&weight), "must be 1");
    }
}

pub fn pod_topology_spread(errors: &mut ErrorList, arguments: &Value, path: &Path) {
    let kind = arguments["defaultingType"].as_str().unwrap_or("System");
    let given = arguments["defaultConstraints"].as_array().is_some_and(|list| !list.is_empty());
    match kind {
        "List" => {}
        "System" if given => {
            errors.invalid(&path.child("defaultingType"), kind, "when .defaultConstraints are not empty");
        }
        "System" => {}
        other => errors.not_supported(&path.child("defaultingType"), other, &["List", "System"]),
    }
    let list = path.child("defaultConstraints");
    let mut seen = BTreeSet::new();
    for (at, constraint) in items(arguments, "defaultConstraints") {
        let path = list.index(at);
        let why = "not in valid range (0, inf)";
        number(errors, &path.child("maxSkew"), &constraint["maxSkew"], 0, |skew| skew > 0, why);
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        match key {
            "" => errors.required(&path.child("topologyKey"), "can not be empty"),
            key => label_name(errors, &path.child("topologyKey"), key),
        }
        let place = path.child("whenUnsatisfiable");
        match action {
            "" => errors.required(&place, "can not be empty"),
            "DoNotSchedule" | "ScheduleAnyway" => {}
            other => errors.not_supported(&place, other, &["DoNotSchedule", "ScheduleAnyway"]),
        }
        if !constraint["labelSelector"].is_null() {
            let why = "constraint must not define a selector, as they deduced for each pod";
            errors.forbidden(&path.child("labelSelector"), why);
        }
        if !seen.insert((key, action)) {
            errors.duplicate(&path, format!("{{{key}, {action}}}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::registry::Registry;

    fn complaints(name: &str, arguments: Value, wanted: &[&str]) {
        let mut errors = ErrorList::new();
        if let Some(check) = Registry::default().find(name).unwrap().check_arguments {
            check(&mut errors, &arguments, &Path::new("args"));
        }
        let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted, "{arguments}");
    }

    #[test]
    fn arguments_are_told_as_upstream_tells_them() {
        complaints("NodePorts", json!(null), &[]);
        complaints("InterPodAffinity", json!({ "hardPodAffinityWeight": 100 }), &[]);
        complaints(
            "InterPodAffinity",
            json!({ "hardPodAffinityWeight": "much", "ignorePreferredTermsOfExistingPods": 1 }),
            &[
                "args.hardPodAffinityWeight: Invalid value: \"much\": not in valid range [0, 100]",
                "args.ignorePreferredTermsOfExistingPods: Invalid value: 1: must be a boolean",
            ],
        );
        let required = |requirement: Value| {
            let terms = json!([{ "matchExpressions": [requirement] }]);
            json!({ "addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } })
        };
        complaints("NodeAffinity", required(json!({ "key": "disk", "operator": "In", "values": ["ssd"] })), &[]);
        complaints(
            "NodeAffinity",
            required(json!({ "key": "disk", "operator": "Like" })),
            &["args.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].\
               matchExpressions[0].operator: Unsupported value: \"Like\": supported values: \"DoesNotExist\", \
               \"Exists\", \"Gt\", \"In\", \"Lt\", \"NotIn\""],
        );
    }

    #[test]
    fn ways_of_scoring_have_bounds() {
        let weighed = |weight: i64| {
            let resources = json!([{ "name": "cpu", "weight": weight }]);
            json!({ "scoringStrategy": { "type": "MostAllocated", "resources": resources } })
        };
        complaints("NodeResourcesFit", weighed(100), &[]);
        complaints(
            "NodeResourcesFit",
            weighed(101),
            &[
                "args.scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range \
               (0, 100]",
            ],
        );
        complaints(
            "NodeResourcesFit",
            json!({ "ignoredResourceGroups": ["a/b"], "scoringStrategy": { "type": "RequestedToCapacityRatio" } }),
            &[
                "args.ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'",
                "args.scoringStrategy.shape: Required value: at least one point must be specified",
            ],
        );
        let points = json!([{ "utilization": 50, "score": 11 }, { "utilization": 20, "score": 1 }]);
        complaints(
            "NodeResourcesFit",
            json!({ "scoringStrategy":
                { "type": "RequestedToCapacityRatio", "requestedToCapacityRatio": { "shape": points } } }),
            &[
                "args.scoringStrategy.shape[1].utilization: Invalid value: 20: values must be sorted in increasing order",
                "args.scoringStrategy.shape[0].score: Invalid value: 11: not in valid range [0, 10]",
            ],
        );
        complaints(
            "NodeResourcesBalancedAllocation",
            json!({ "resources": [{ "name": "cpu" }, { "name": "cpu", "weight": 2 }] }),
            &[
                "args.resources[1].name: Duplicate value: \"cpu\"",
                "args.resources[1].weight: Invalid value: 2: must be 1",
            ],
        );
    }

    #[test]
    fn default_constraints_must_make_sense() {
        let spread = |kind: &str, constraints: Value, wanted: &[&str]| {
            let arguments = json!({ "defaultingType": kind, "defaultConstraints": constraints });
            complaints("PodTopologySpread", arguments, wanted);
        };
        let good = json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway" });
        spread("List", json!([good]), &[]);
        spread(
            "Best",
            json!([]),
            &["args.defaultingType: Unsupported value: \"Best\": supported values: \"List\", \"System\""],
        );
        spread(
            "System",
            json!([good]),
            &["args.defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty"],
        );
        spread(
            "List",
            json!([good, good]),
            &["args.defaultConstraints[1]: Duplicate value: \"{zone, ScheduleAnyway}\""],
        );
        let bad = json!({ "maxSkew": 0, "whenUnsatisfiable": "Never", "labelSelector": {} });
        spread(
            "List",
            json!([bad]),
            &[
                "args.defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)",
                "args.defaultConstraints[0].topologyKey: Required value: can not be empty",
                "args.defaultConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \
             \"DoNotSchedule\", \"ScheduleAnyway\"",
                "args.defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced \
             for each pod",
            ],
        );
    }
}
