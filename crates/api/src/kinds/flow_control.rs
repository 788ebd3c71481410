//! FlowSchemas and PriorityLevelConfigurations: defaults, strategy, columns, validation.
//! Neighbours: `flow_control_founding` has those of every cluster; the API server's flow control keeps them.
//! Invariant: the exempt level stays exempt, and what covers everything else is as every cluster has it.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{
        default_to, default_zero_to, existing_mut, flag, int, int_at, is_set, items, part, part_mut, text, text_at,
        texts,
    },
    checks,
    columns::{age, age_of, condition, name, name_of, string},
    flow_control_founding::mandatory_spec,
};
use crate::{
    field::{ErrorList, Path},
    names,
};

#[derive(Default)]
pub struct FlowSchema;

impl Behavior for FlowSchema {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_zero_to(spec, "matchingPrecedence", 1000);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let precedence = int_at(spec, "matchingPrecedence");
        if precedence <= 0 {
            errors.invalid(&path.child("matchingPrecedence"), precedence, "must be a positive value");
        }
        if precedence > 10_000 {
            let words = "must not be greater than 10000";
            errors.invalid(&path.child("matchingPrecedence"), precedence, words);
        }
        if precedence == 1 && text_at(object, "metadata.name") != "exempt" {
            let words = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.invalid(&path.child("matchingPrecedence"), precedence, words);
        }
        if let Some(method) = part(spec, "distinguisherMethod") {
            let path = path.child("distinguisherMethod");
            checks::one_of(errors, &path, method, "type", &["ByNamespace", "ByUser"]);
        }
        let level = path.child("priorityLevelConfiguration");
        match text(&spec["priorityLevelConfiguration"], "name") {
            "" => errors.required(&level.child("name"), "must reference a priority level"),
            name => checks::complaints(errors, &level.child("name"), name, names::dns_subdomain(name, false)),
        }
        for (index, rule) in items(spec, "rules").iter().enumerate() {
            let path = path.child("rules").index(index);
            validate_rule(errors, &path, rule);
        }
        let name = text_at(object, "metadata.name");
        if mandatory_spec("FlowSchema", name).is_some_and(|fixed| !alike(spec, &fixed)) {
            errors.invalid(&path, spec.clone(), format!("spec of '{name}' must equal the fixed value"));
        }
    }

    fn validate_status_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        validate_conditions(errors, object);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("PriorityLevel", "Where its requests go."),
            string("MatchingPrecedence", "Lower is tried first."),
            string("DistinguisherMethod", "What keeps flows apart."),
            age(),
            string("MissingPL", "Whether that level is missing."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(&spec["priorityLevelConfiguration"], "name")),
            json!(int_at(spec, "matchingPrecedence")),
            json!(part(spec, "distinguisherMethod").map_or("<none>", |d| text(d, "type"))),
            age_of(object, now),
            json!(condition(object, "Dangling").map_or("?", |c| text(c, "status"))),
        ]
    }
}

/// Equal, where nothing and an empty thing are the same.
fn alike(left: &Value, right: &Value) -> bool {
    let is_empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match (left, right) {
        (l, r) if is_empty(l) || is_empty(r) => is_empty(l) && is_empty(r),
        (Value::Object(l), Value::Object(r)) => {
            l.keys().chain(r.keys()).all(|key| alike(&left[key.as_str()], &right[key.as_str()]))
        }
        (Value::Array(l), Value::Array(r)) => l.len() == r.len() && l.iter().zip(r).all(|(l, r)| alike(l, r)),
        (l, r) => l == r,
    }
}

#[derive(Default)]
pub struct PriorityLevelConfiguration;

impl Behavior for PriorityLevelConfiguration {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        if let Some(limited) = existing_mut(spec, "limited") {
            default_to(limited, "nominalConcurrencyShares", 30);
            default_to(limited, "lendablePercent", 0);
            if let Some(queuing) = existing_mut(limited, "limitResponse").and_then(|r| existing_mut(r, "queuing")) {
                default_zero_to(queuing, "queues", 64);
                default_zero_to(queuing, "handSize", 8);
                default_zero_to(queuing, "queueLengthLimit", 50);
            }
        }
        if let Some(exempt) = existing_mut(spec, "exempt") {
            default_to(exempt, "nominalConcurrencyShares", 0);
            default_to(exempt, "lendablePercent", 0);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let kind = text(spec, "type");
        if (text_at(object, "metadata.name") == "exempt") != (kind == "Exempt") {
            errors.invalid(&path.child("type"), kind, "must be 'Exempt' if and only if `name` is 'exempt'");
        }
        match (kind, part(spec, "limited"), part(spec, "exempt")) {
            ("Exempt", Some(_), _) => {
                errors.forbidden(&path.child("limited"), "must be nil if the type is not Limited");
            }
            ("Exempt", None, Some(exempt)) => validate_shares(errors, &path.child("exempt"), exempt),
            ("Limited", _, Some(_)) => errors.forbidden(&path.child("exempt"), "must be nil if the type is Limited"),
            ("Limited", None, _) => errors.required(&path.child("limited"), "must not be empty when type is Limited"),
            ("Limited", Some(limited), _) => validate_limited(errors, &path.child("limited"), limited),
            ("Exempt", None, None) => {}
            (kind, ..) => errors.not_supported(&path.child("type"), kind, &["Exempt", "Limited"]),
        }
        let name = text_at(object, "metadata.name");
        let Some(mut fixed) = mandatory_spec("PriorityLevelConfiguration", name) else { return };
        let mut except = "";
        if name == "exempt" {
            // How much it lends is for administrators to say.
            fixed["exempt"] = spec["exempt"].clone();
            except = " except the 'spec.exempt' field";
        }
        if !alike(spec, &fixed) {
            errors.invalid(&path, spec.clone(), format!("spec of '{name}'{except} must equal the fixed value"));
        }
    }

    fn validate_status_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        validate_conditions(errors, object);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 7] = [
            name(),
            string("Type", "Limited, or Exempt."),
            string("NominalConcurrencyShares", "Its share of the server."),
            string("Queues", "How many queues it has."),
            string("HandSize", "Queues that one flow may use."),
            string("QueueLengthLimit", "Requests that one queue holds."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let limited = &spec["limited"];
        let queuing = &limited["limitResponse"]["queuing"];
        let shown = |value: &Value| if value.is_null() { json!("<none>") } else { value.clone() };
        vec![
            name_of(object),
            json!(text(spec, "type")),
            shown(&limited["nominalConcurrencyShares"]),
            shown(&queuing["queues"]),
            shown(&queuing["handSize"]),
            shown(&queuing["queueLengthLimit"]),
            age_of(object, now),
        ]
    }
}

const MAX_QUEUES: i64 = 10_000_000;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &Value) {
    if !is_set(rule, "subjects") {
        errors.required(&path.child("subjects"), "subjects must contain at least one value");
    }
    for (index, subject) in items(rule, "subjects").iter().enumerate() {
        validate_subject(errors, &path.child("subjects").index(index), subject);
    }
    if !is_set(rule, "resourceRules") && !is_set(rule, "nonResourceRules") {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (index, rule) in items(rule, "resourceRules").iter().enumerate() {
        let path = path.child("resourceRules").index(index);
        validate_verbs(errors, &path, rule);
        star_alone(errors, &path, rule, "apiGroups", "api groups", "resource rules must supply at least one api group");
        star_alone(errors, &path, rule, "resources", "resources", "resource rules must supply at least one resource");
        validate_namespaces(errors, &path, rule);
    }
    for (index, rule) in items(rule, "nonResourceRules").iter().enumerate() {
        let path = path.child("nonResourceRules").index(index);
        validate_verbs(errors, &path, rule);
        let needed = "nonResourceURLs must contain at least one value";
        if star_alone(errors, &path, rule, "nonResourceURLs", "non-resource URLs", needed) {
            for (index, url) in texts(rule, "nonResourceURLs").enumerate() {
                validate_url(errors, &path.child("nonResourceURLs").index(index), url);
            }
        }
    }
}

/// `true`: the list holds plain values, which are to be looked at.
fn star_alone(errors: &mut ErrorList, path: &Path, rule: &Value, field: &str, what: &str, needed: &str) -> bool {
    let (path, list) = (path.child(field), items(rule, field));
    if list.is_empty() {
        errors.required(&path, needed);
        return false;
    }
    let starred = list.iter().any(|item| item == "*");
    if starred && list.len() > 1 {
        errors.invalid(&path, list.to_vec(), format!("if '*' is present, must not specify other {what}"));
    }
    !starred
}

fn validate_verbs(errors: &mut ErrorList, path: &Path, rule: &Value) {
    let plain = star_alone(errors, path, rule, "verbs", "verbs", "verbs must contain at least one value");
    if plain && texts(rule, "verbs").any(|verb| !VERBS.contains(&verb)) {
        errors.not_supported(&path.child("verbs"), rule["verbs"].clone(), &VERBS);
    }
}

fn validate_namespaces(errors: &mut ErrorList, path: &Path, rule: &Value) {
    let needed = "resource rules that are not cluster scoped must supply at least one namespace";
    if flag(rule, "clusterScope") && !is_set(rule, "namespaces") {
        return;
    }
    if star_alone(errors, path, rule, "namespaces", "namespaces", needed) {
        for (index, namespace) in texts(rule, "namespaces").enumerate() {
            let path = path.child("namespaces").index(index);
            for complaint in names::dns_label(namespace, false) {
                let words = format!("each member of this list must be '*' or a DNS-1123 label; {complaint}");
                errors.invalid(&path, namespace, words);
            }
        }
    }
}

fn validate_url(errors: &mut ErrorList, path: &Path, url: &str) {
    let stars = url.matches('*').count();
    let complaint = match url {
        "" => "must not be empty",
        "/" => return,
        url if !url.starts_with('/') => "must start with slash",
        url if url.contains(' ') => "must not contain white-space",
        url if url.contains("//") => "must not contain double slash",
        url if stars > 1 || (stars == 1 && !url.ends_with("/*")) => "wildcard can only do suffix matching",
        _ => return,
    };
    errors.invalid(path, url, complaint);
}

fn validate_subject(errors: &mut ErrorList, path: &Path, subject: &Value) {
    const PARTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = text(subject, "kind");
    let Some((_, own)) = PARTS.iter().find(|(k, _)| *k == kind) else {
        return errors.not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]);
    };
    match part(subject, own) {
        None => errors.required(&path.child(own), &format!("{own} is required when subject kind is '{kind}'")),
        Some(found) => {
            let path = path.child(own);
            match text(found, "name") {
                "" => errors.required(&path.child("name"), ""),
                name if kind == "ServiceAccount" && name != "*" => {
                    checks::complaints(errors, &path.child("name"), name, names::dns_subdomain(name, false));
                }
                _ => {}
            }
            let namespace = text(found, "namespace");
            match (kind, namespace) {
                ("ServiceAccount", "") => {
                    errors.required(&path.child("namespace"), "must specify namespace for service account");
                }
                ("ServiceAccount", _) => {
                    let complaints = names::dns_label(namespace, false);
                    checks::complaints(errors, &path.child("namespace"), namespace, complaints);
                }
                _ => {}
            }
        }
    }
    for (other, field) in PARTS.iter().filter(|(_, field)| field != own) {
        if is_set(subject, field) {
            let words = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.forbidden(&path.child(field), words);
        }
    }
}

fn validate_conditions(errors: &mut ErrorList, object: &Value) {
    let path = Path::new("status").child("conditions");
    let conditions = items(&object["status"], "conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let (path, kind) = (path.index(index).child("type"), text(condition, "type"));
        if conditions[..index].iter().any(|other| text(other, "type") == kind) {
            errors.duplicate(&path, kind);
        }
        if kind.is_empty() {
            errors.required(&path, "");
        }
    }
}

/// What limited and exempt levels have in common.
fn validate_shares(errors: &mut ErrorList, path: &Path, level: &Value) {
    if let Some(shares) = int(level, "nominalConcurrencyShares").filter(|n| *n < 0) {
        errors.invalid(&path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer");
    }
    if let Some(percent) = int(level, "lendablePercent").filter(|n| !(0..=100).contains(n)) {
        errors.invalid(&path.child("lendablePercent"), percent, "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(errors: &mut ErrorList, path: &Path, limited: &Value) {
    validate_shares(errors, path, limited);
    if let Some(percent) = int(limited, "borrowingLimitPercent").filter(|n| *n < 0) {
        errors.invalid(&path.child("borrowingLimitPercent"), percent, "if specified, must be a non-negative integer");
    }
    let response = &limited["limitResponse"];
    let path = path.child("limitResponse");
    match (text(response, "type"), part(response, "queuing")) {
        ("Reject", None) => {}
        ("Reject", Some(_)) => {
            errors.forbidden(&path.child("queuing"), "must be nil if limited.limitResponse.type is not Limited");
        }
        ("Queue", None) => {
            let words = "must not be empty if limited.limitResponse.type is Limited";
            errors.required(&path.child("queuing"), words);
        }
        ("Queue", Some(queuing)) => {
            let path = path.child("queuing");
            for field in ["queueLengthLimit", "queues", "handSize"] {
                let number = int_at(queuing, field);
                if number <= 0 {
                    errors.invalid(&path.child(field), number, "must be positive");
                }
            }
            let (hand, queues) = (int_at(queuing, "handSize"), int_at(queuing, "queues"));
            if queues > MAX_QUEUES {
                errors.invalid(&path.child("queues"), queues, format!("must not be greater than {MAX_QUEUES}"));
            }
            if hand > queues {
                let words = format!("should not be greater than queues ({queues})");
                errors.invalid(&path.child("handSize"), hand, words);
            }
        }
        ("", _) => errors.required(&path.child("type"), ""),
        (kind, _) => errors.not_supported(&path.child("type"), kind, &["Queue", "Reject"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        use super::super::flow_control_founding::objects;
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
}
