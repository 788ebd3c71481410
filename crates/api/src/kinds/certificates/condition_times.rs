//! Conditions of a CertificateSigningRequest: when they came, and those that stay as they were.
//! Used by `certificate_signing_request`.
//! Fills in what the client left out, and changes no time that it gave.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::common::access::{items, text};

fn is_unset(time: &Value) -> bool {
    time.as_str().is_none_or(str::is_empty)
}

/// A condition with a new status gets the time; one that keeps its status keeps when it came to it.
pub(super) fn stamp(object: &mut Value, old: &Value, now: Timestamp) {
    let now = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let Some(conditions) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else { return };
    for condition in conditions.iter_mut().filter(|condition| condition.is_object()) {
        if is_unset(&condition["lastUpdateTime"]) {
            condition["lastUpdateTime"] = now.clone();
        }
        if is_unset(&condition["lastTransitionTime"]) {
            let same = |known: &&Value| known["type"] == condition["type"] && known["status"] == condition["status"];
            let mut since = items(&old["status"], "conditions").iter().filter(same).map(|c| &c["lastTransitionTime"]);
            let since = since.find(|time| !is_unset(time)).unwrap_or(&now).clone();
            condition["lastTransitionTime"] = since;
        }
    }
}

/// What was decided is no business of whoever writes the status. Where decisions came or went, validation says so.
pub(super) fn keep_decisions(object: &mut Value, old: &Value) {
    let Some(conditions) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else { return };
    for kind in ["Approved", "Denied"] {
        let known: Vec<&Value> =
            items(&old["status"], "conditions").iter().filter(|condition| text(condition, "type") == kind).collect();
        let new = conditions.iter_mut().filter(|condition| text(condition, "type") == kind);
        let new: Vec<&mut Value> = new.collect();
        if new.len() == known.len() {
            new.into_iter().zip(known).for_each(|(new, known)| *new = known.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn of(conditions: Value) -> Value {
        json!({ "status": { "conditions": conditions } })
    }

    #[test]
    fn conditions_get_the_times_they_lack() {
        let check = |new: Value, old: Value, wanted: Value| {
            let mut object = of(json!([new]));
            stamp(&mut object, &of(old), NOW.parse().unwrap());
            assert_eq!(object["status"]["conditions"][0], wanted);
        };
        let at = |update: Value, transition: Value| json!({ "type": "Denied", "status": "True", "lastUpdateTime": update, "lastTransitionTime": transition });
        // As kubectl sends it.
        check(at(json!(NOW), Value::Null), json!([]), at(json!(NOW), json!(NOW)));
        check(json!({ "type": "Denied", "status": "True" }), json!([]), at(json!(NOW), json!(NOW)));
        let early = at(json!("2025-01-01T00:00:00Z"), json!("2025-01-01T00:00:00Z"));
        check(at(Value::Null, Value::Null), json!([early]), at(json!(NOW), json!("2025-01-01T00:00:00Z")));
        check(early.clone(), json!([]), early);
    }

    #[test]
    fn decisions_stay_as_they_were() {
        let (old, new) =
            (json!([{ "type": "Approved", "reason": "Old" }]), json!([{ "type": "Approved", "reason": "New" }]));
        let mut object = of(new);
        keep_decisions(&mut object, &of(old));
        assert_eq!(object["status"]["conditions"][0]["reason"], "Old");
        keep_decisions(&mut object, &of(json!([])));
        assert_eq!(object["status"]["conditions"][0]["reason"], "Old", "added: refused later");
    }
}
