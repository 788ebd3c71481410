//! FlowSchemas and PriorityLevelConfigurations: defaults, strategy, columns, validation.
//! Neighbours: the API server's flow control, which reads them.
//! Invariant: the exempt level stays exempt.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, default_zero_to, existing_mut, int_at, part, part_mut, text},
    columns::{age, age_of, condition, name, name_of, string},
};

#[derive(Default)]
pub struct FlowSchema;

impl Behavior for FlowSchema {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_zero_to(spec, "matchingPrecedence", 1000);
        }
    }

    fn has_status(&self) -> bool {
        true
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

    fn has_status(&self) -> bool {
        true
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
