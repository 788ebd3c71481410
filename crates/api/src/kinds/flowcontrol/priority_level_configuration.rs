//! PriorityLevelConfigurations: defaults, strategy, columns, validation.
//! `bootstrap` has those of every cluster; the API server's flow control maintains them.
//! The exempt level stays exempt, and the catch-all level is as every cluster has it.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, default_zero_to, existing_mut, int, int_at, part, part_mut, text, text_at},
            columns::{age, age_of, name, name_of, string},
        },
        flowcontrol::{
            bootstrap::{alike, mandatory_spec},
            flow_schema::validate_conditions,
        },
    },
};

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

const QUEUES_MAX: i64 = 10_000_000;

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
            if queues > QUEUES_MAX {
                errors.invalid(&path.child("queues"), queues, format!("must not be greater than {QUEUES_MAX}"));
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
