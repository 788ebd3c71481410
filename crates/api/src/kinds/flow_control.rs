//! FlowSchemas and PriorityLevelConfigurations: defaults, strategy, columns, validation.
//! Neighbours: the API server's flow control, which reads them.
//! Invariant: the exempt level stays exempt.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, default_zero_to, existing_mut, int, int_at, is_set, items, part, part_mut, text, text_at},
    checks,
    columns::{age, age_of, condition, name, name_of, string},
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
            if !is_set(rule, "subjects") {
                errors.required(&path.child("subjects"), "subjects must contain at least one value");
            }
            if !is_set(rule, "resourceRules") && !is_set(rule, "nonResourceRules") {
                errors.required(&path, "at least one of resourceRules and nonResourceRules has to be non-empty");
            }
        }
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
        match (text(spec, "type"), part(spec, "limited"), part(spec, "exempt")) {
            ("Exempt", Some(_), _) => {
                errors.forbidden(&path.child("limited"), "must be nil if the type is not Limited");
            }
            ("Limited", _, Some(_)) => errors.forbidden(&path.child("exempt"), "must be nil if the type is Limited"),
            ("Limited", None, _) => errors.required(&path.child("limited"), "must not be empty when type is Limited"),
            ("Limited", Some(limited), _) => validate_limited(errors, &path.child("limited"), limited),
            ("Exempt", None, _) => {}
            (kind, ..) => errors.not_supported(&path.child("type"), kind, &["Exempt", "Limited"]),
        }
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

fn validate_limited(errors: &mut ErrorList, path: &Path, limited: &Value) {
    if let Some(shares) = int(limited, "nominalConcurrencyShares").filter(|n| *n < 0) {
        errors.invalid(&path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer");
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
            if hand > queues {
                let words = format!("should not be greater than queues ({queues})");
                errors.invalid(&path.child("handSize"), hand, words);
            }
        }
        ("", _) => errors.required(&path.child("type"), ""),
        (kind, _) => errors.not_supported(&path.child("type"), kind, &["Queue", "Reject"]),
    }
}
