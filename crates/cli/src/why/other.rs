//! What any other object says about itself in its conditions and events.
//! Neighbours: the files of the kinds that are known better.
//! An object that says nothing is not called healthy.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, condition_line, namespace_flag};
use crate::{
    describe::fields::{list, name, string, text},
    object_reader::ObjectReader,
};

/// Conditions that mean trouble when they are not True.
const GOOD_WHEN_TRUE: &[&str] = &[
    "Ready",
    "Available",
    "Established",
    "NamesAccepted",
    "Synced",
    "Healthy",
    "AbleToScale",
    "ScalingActive",
    "Accepted",
];

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, object: &Value) -> Verdict {
    let conditions = list(&object["status"]["conditions"]);
    let troubled = conditions
        .iter()
        .find(|found| GOOD_WHEN_TRUE.contains(&string(&found["type"])) && string(&found["status"]) != "True")
        .or_else(|| {
            let bad = ["Failed", "Stalled", "Degraded"];
            conditions.iter().find(|found| bad.contains(&string(&found["type"])) && string(&found["status"]) == "True")
        });
    let events = inquiry.events(object).await;
    let warnings: Vec<&Value> = events.iter().filter(|event| string(&event["type"]) == "Warning").collect();
    let kind = string(&object["kind"]).to_lowercase();
    if let Some(found) = troubled {
        let said = match clause(string(&found["message"])) {
            "" => text(&found["reason"]),
            message => message.to_string(),
        };
        let cause = format!("Its condition {} is {}: {said}.", text(&found["type"]), text(&found["status"]));
        return Verdict::wrong(string(&found["type"]), cause)
            .because(condition_line(found, inquiry.now))
            .with_events(warnings, inquiry.now)
            .try_command(format!("kubectl describe {kind} {}{}", name(object), namespace_flag(object)));
    }
    if let Some(first) = warnings.first() {
        let cause = format!("Its last warning says: {}.", clause(string(&first["message"])));
        return Verdict::wrong(string(&first["reason"]), cause).with_events(warnings, inquiry.now);
    }
    let cause = match conditions.is_empty() {
        true => "Nothing in the cluster says that anything is wrong with it: it has no conditions and no warnings.",
        false => "Nothing is wrong as far as its conditions and events tell.",
    };
    Verdict::fine("NothingFound", cause)
}
