//! Validation of both kinds of flow control, as tables.

use serde_json::{Value, json};

use super::{
    bootstrap::{mandatory_spec, objects},
    flow_schema::FlowSchema,
    priority_level_configuration::PriorityLevelConfiguration,
};
use crate::{
    field::ErrorList,
    kinds::{
        Behavior,
        common::access::{text, text_at},
    },
};

fn check(kind: &dyn Behavior, name: &str, spec: Value, expected: &[&str]) {
    let mut errors = ErrorList::new();
    kind.validate_create(&json!({ "metadata": { "name": name }, "spec": spec }), &mut errors);
    let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn schemas() {
    let check = |rule: Value, expected: &[&str]| {
        let spec = json!({
            "matchingPrecedence": 5, "priorityLevelConfiguration": { "name": "l" }, "rules": [rule],
        });
        check(&FlowSchema, "s", spec, expected);
    };
    let user = json!({ "kind": "User", "user": { "name": "u" } });
    let resource = json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["d"] });
    check(json!({ "subjects": [user], "resourceRules": [resource] }), &[]);
    check(
        json!({ "subjects": [user, { "kind": "Team" }, { "kind": "Group", "user": { "name": "u" } }],
            "resourceRules": [{ "verbs": ["get", "*"], "resources": ["*"], "namespaces": ["A", "b"] }] }),
        &[
            "spec.rules[0].subjects[1].kind: Unsupported value: \"Team\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
            "spec.rules[0].subjects[2].group: Required value: group is required when subject kind is 'Group'",
            "spec.rules[0].subjects[2].user: Forbidden: user is forbidden when subject kind is not 'User'",
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"get\",\"*\"]: if '*' is present, must not specify other verbs",
            "spec.rules[0].resourceRules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: \"A\": each member of this list must be '*' or a DNS-1123 label; a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ],
    );
    check(
        json!({ "subjects": [{ "kind": "ServiceAccount", "serviceAccount": { "name": "*" } }],
            "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/ok/*", "x", "/a//b", "/*/c"] }] }),
        &[
            "spec.rules[0].subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[1]: Invalid value: \"x\": must start with slash",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[2]: Invalid value: \"/a//b\": must not contain double slash",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[3]: Invalid value: \"/*/c\": wildcard can only do suffix matching",
        ],
    );
}

#[test]
fn mandatory_ones_are_as_they_are() {
    for (_, object) in objects() {
        let name = text_at(&object, "metadata.name");
        let kind: &dyn Behavior = match text(&object, "kind") {
            "FlowSchema" => &FlowSchema,
            _ => &PriorityLevelConfiguration,
        };
        check(kind, name, object["spec"].clone(), &[]);
    }
    let spec = |kind: &str, name: &str| mandatory_spec(kind, name).unwrap();
    let mut schema = spec("FlowSchema", "catch-all");
    schema["matchingPrecedence"] = 9999.into();
    let found = format!("spec: Invalid value: {schema}: spec of 'catch-all' must equal the fixed value");
    check(&FlowSchema, "catch-all", schema, &[&found]);
    let mut level = spec("PriorityLevelConfiguration", "catch-all");
    level["limited"]["nominalConcurrencyShares"] = 6.into();
    let found = format!("spec: Invalid value: {level}: spec of 'catch-all' must equal the fixed value");
    check(&PriorityLevelConfiguration, "catch-all", level, &[&found]);
    let lending = json!({ "type": "Exempt", "exempt": { "nominalConcurrencyShares": 7, "lendablePercent": 50 } });
    check(&PriorityLevelConfiguration, "exempt", lending, &[]);
}

#[test]
fn levels() {
    let limited = |more: Value| {
        let mut limited = json!({ "limitResponse": { "type": "Reject" } });
        more.as_object().unwrap().iter().for_each(|(k, v)| limited[k] = v.clone());
        json!({ "type": "Limited", "limited": limited })
    };
    check(&PriorityLevelConfiguration, "l", limited(json!({})), &[]);
    check(
        &PriorityLevelConfiguration,
        "l",
        json!({ "type": "Exempt" }),
        &["spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'"],
    );
    check(
        &PriorityLevelConfiguration,
        "exempt",
        json!({ "type": "Exempt", "exempt": { "lendablePercent": 101 } }),
        &["spec.exempt.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive"],
    );
    check(
        &PriorityLevelConfiguration,
        "l",
        limited(json!({ "nominalConcurrencyShares": -1, "borrowingLimitPercent": -2, "limitResponse": {
            "type": "Queue", "queuing": { "queues": 4, "handSize": 8, "queueLengthLimit": 0 } } })),
        &[
            "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
            "spec.limited.borrowingLimitPercent: Invalid value: -2: if specified, must be a non-negative integer",
            "spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: 0: must be positive",
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: should not be greater than queues (4)",
        ],
    );
}
