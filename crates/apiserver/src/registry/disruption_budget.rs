//! Whether a disruption budget lets one more pod go, and what it says where it does not.
//! Asked by `eviction`.
//! Invariant: pure; a budget that refuses is as it was (tidy: `pure_files`).

use api::{ApiError, Reason};
use serde_json::{Value, json};

use super::object_meta;

/// The status of a budget remembers evicted pods only so long as it has fewer than this many.
const DISRUPTED_PODS_MAX: usize = 2000;
/// How long clients are to wait for the controller to look at a budget.
const PROCESSING_SECONDS: u32 = 10;
const ALLOWED: &str = "DisruptionAllowed";

/// A pod that is not ready disrupts nobody while the budget is healthy, or always if the budget says so.
pub fn must_charge(pod: &Value, budget: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    if ready {
        return true;
    }
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let healthy = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    budget["spec"]["unhealthyPodEvictionPolicy"] != "AlwaysAllow" && !healthy
}

/// Clients try again by themselves after the seconds they are told; nobody knows when a budget allows the next one.
fn refused(why: String, retry_after_seconds: Option<u32>) -> ApiError {
    let mut details = json!({ "causes": [{ "reason": "DisruptionBudget", "message": why }] });
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::new(Reason::TooManyRequests, message);
    if let Some(seconds) = retry_after_seconds {
        details["retryAfterSeconds"] = seconds.into();
        error = error.with_retry_after(seconds);
    }
    error.with_details(details)
}

/// What the budget allows is not known at the moment.
pub fn still_processed(name: &str) -> ApiError {
    refused(format!("The disruption budget {name} is still being processed by the server."), Some(PROCESSING_SECONDS))
}

/// Why a budget with nothing left to give has nothing.
fn nothing_left(budget: &Value, name: &str) -> String {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let (needed, healthy) = (number("desiredHealthy"), number("currentHealthy"));
    let text = |field: &Value| field.as_str().unwrap_or_default().to_string();
    let conditions = budget["status"]["conditions"].as_array();
    let said = conditions.and_then(|list| list.iter().find(|c| c["type"] == ALLOWED && c["status"] == "False"));
    let said = said.map(|c| (text(&c["reason"]), text(&c["message"]))).filter(|(_, message)| !message.is_empty());
    let not_now = format!("The disruption budget {name} does not allow evicting pods currently");
    match said {
        // Its numbers are of no use then.
        Some((reason, message)) if reason == "SyncFailed" => format!("{not_now} because it failed sync: {message}"),
        _ if healthy <= needed => {
            format!("The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
        }
        Some((reason, message)) => format!("{not_now} ({reason}): {message}"),
        None => not_now,
    }
}

/// Takes one allowed disruption from the budget for `pod`.
pub fn take_one(budget: &mut Value, pod: &str, now: &str) -> Result<(), ApiError> {
    let number = |v: &Value, field: &str| v["status"][field].as_i64().unwrap_or(0);
    let name = object_meta::text(budget, "name").to_string();
    if number(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(still_processed(&name));
    }
    let forbidden = |why: &str| Err(ApiError::forbidden("policy", "poddisruptionbudget", &name, why));
    let allowed = number(budget, "disruptionsAllowed");
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if budget["status"]["disruptedPods"].as_object().map_or(0, |d| d.len()) > DISRUPTED_PODS_MAX {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        return Err(refused(nothing_left(budget, &name), None));
    }
    budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
    budget["status"]["disruptedPods"][pod] = now.into();
    if allowed == 1 {
        tell_exhausted(&mut budget["status"], now);
    }
    Ok(())
}

/// The last disruption that was allowed is taken.
fn tell_exhausted(status: &mut Value, now: &str) {
    let generation = status["observedGeneration"].clone();
    let known = status["conditions"].as_array_mut().and_then(|list| list.iter_mut().find(|c| c["type"] == ALLOWED));
    if let Some(condition) = known {
        if condition["status"] != "False" {
            condition["lastTransitionTime"] = now.into();
        }
        condition["status"] = "False".into();
        condition["reason"] = "InsufficientPods".into();
        condition["observedGeneration"] = generation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_not_ready_go_as_their_budget_says() {
        let check = |policy: Value, ready: &str, healthy: (i64, i64), expected: bool| {
            let pod = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
            let status = json!({ "currentHealthy": healthy.0, "desiredHealthy": healthy.1 });
            let budget = json!({ "spec": { "unhealthyPodEvictionPolicy": policy }, "status": status });
            assert_eq!(must_charge(&pod, &budget), expected, "{budget} {ready}");
        };
        for policy in [Value::Null, json!("IfHealthyBudget")] {
            check(policy.clone(), "True", (3, 2), true);
            check(policy.clone(), "False", (2, 2), false);
            check(policy.clone(), "False", (1, 2), true);
            check(policy, "False", (0, 0), true);
        }
        check(json!("AlwaysAllow"), "True", (3, 2), true);
        check(json!("AlwaysAllow"), "False", (2, 2), false);
        check(json!("AlwaysAllow"), "False", (1, 2), false);
        check(json!("AlwaysAllow"), "Unknown", (0, 2), false);
    }

    #[test]
    fn budgets_say_why_they_refuse_and_when_to_ask_again() {
        let check = |status: Value, code: u16, retry: Option<u32>, text: &str| {
            let mut budget =
                json!({ "metadata": { "name": "b", "generation": 2 }, "status": { "observedGeneration": 2 } });
            for (field, value) in status.as_object().unwrap() {
                budget["status"][field] = value.clone();
            }
            let error = take_one(&mut budget, "p", "2026-01-01T00:00:00Z").unwrap_err();
            let said = error.to_status();
            assert_eq!((error.code, error.retry_after_seconds), (code, retry), "{said}");
            assert_eq!(said["details"]["retryAfterSeconds"].as_u64(), retry.map(u64::from), "{said}");
            let cause = said["details"]["causes"][0]["message"].as_str();
            assert_eq!(cause.unwrap_or(&error.message), text, "{said}");
        };
        let said = |reason: &str, message: &str| json!([{ "type": "DisruptionAllowed", "status": "False", "reason": reason, "message": message }]);
        let numbers = |healthy: i64, conditions: Value| json!({ "desiredHealthy": 2, "currentHealthy": healthy, "conditions": conditions });
        let processed = "The disruption budget b is still being processed by the server.";
        check(json!({ "observedGeneration": 1, "disruptionsAllowed": 1 }), 429, Some(10), processed);
        let needs = "The disruption budget b needs 2 healthy pods and has 2 currently";
        check(numbers(2, json!([])), 429, None, needs);
        check(numbers(2, said("InsufficientPods", "few")), 429, None, needs);
        let not_now = "The disruption budget b does not allow evicting pods currently";
        check(numbers(3, json!([])), 429, None, not_now);
        check(numbers(3, said("Held", "by hand")), 429, None, &format!("{not_now} (Held): by hand"));
        let failed = format!("{not_now} because it failed sync: no scale");
        check(numbers(2, said("SyncFailed", "no scale")), 429, None, &failed);
        let forbidden = "poddisruptionbudget.policy \"b\" is forbidden: ";
        check(
            json!({ "disruptionsAllowed": -1 }),
            403,
            None,
            &format!("{forbidden}pdb disruptions allowed is negative"),
        );
        let many: serde_json::Map<String, Value> =
            (0..=DISRUPTED_PODS_MAX).map(|n| (n.to_string(), "2026-01-01T00:00:00Z".into())).collect();
        let crowded = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        check(json!({ "disruptionsAllowed": 1, "disruptedPods": many }), 403, None, &format!("{forbidden}{crowded}"));
    }

    #[test]
    fn the_last_allowed_disruption_is_told() {
        let allowed = json!([{ "type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "lastTransitionTime": "2025-01-01T00:00:00Z" }]);
        let mut budget =
            json!({ "metadata": { "name": "b" }, "status": { "disruptionsAllowed": 2, "conditions": allowed } });
        take_one(&mut budget, "p", "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(budget["status"]["conditions"], allowed);
        take_one(&mut budget, "q", "2026-01-01T00:00:01Z").unwrap();
        let condition = &budget["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("InsufficientPods")));
        assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:01Z");
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    }
}
