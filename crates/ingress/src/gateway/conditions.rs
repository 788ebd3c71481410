//! Conditions as they should be, and how they become those of a status.
//! Made by the pure parts of `gateway`, written by `status_writer`.
//! Pure (tidy: `pure_files`). A condition that says the same as before keeps the time of its last transition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub const ACCEPTED: &str = "Accepted";
pub const PROGRAMMED: &str = "Programmed";
pub const RESOLVED_REFS: &str = "ResolvedRefs";
pub const CONFLICTED: &str = "Conflicted";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredCondition {
    pub kind: &'static str,
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
}

/// True, with the reason that says no more than that.
pub fn holds(kind: &'static str, reason: &'static str) -> DesiredCondition {
    DesiredCondition { kind, status: true, reason, message: String::new() }
}

pub fn fails(kind: &'static str, reason: &'static str, message: impl Into<String>) -> DesiredCondition {
    DesiredCondition { kind, status: false, reason, message: message.into() }
}

pub fn conditions(
    desired: &[DesiredCondition],
    present: &[Condition],
    generation: Option<i64>,
    now: Time,
) -> Vec<Condition> {
    let condition = |wanted: &DesiredCondition| {
        let status = if wanted.status { "True" } else { "False" };
        let former = present.iter().find(|former| former.type_ == wanted.kind && former.status == status);
        Condition {
            type_: wanted.kind.into(),
            status: status.into(),
            reason: wanted.reason.into(),
            message: wanted.message.clone(),
            observed_generation: generation,
            last_transition_time: former.map_or_else(|| now.clone(), |former| former.last_transition_time.clone()),
        }
    };
    desired.iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transition_is_kept_until_there_is_one() {
        let at = |second: i64| Time(jiff::Timestamp::from_second(second).unwrap());
        let first = conditions(&[holds(ACCEPTED, "Accepted"), fails(PROGRAMMED, "Invalid", "a")], &[], Some(1), at(1));
        let second =
            conditions(&[holds(ACCEPTED, "Accepted"), holds(PROGRAMMED, "Programmed")], &first, Some(2), at(2));
        let found: Vec<_> =
            second.iter().map(|c| (c.type_.as_str(), c.last_transition_time.clone(), c.observed_generation)).collect();
        assert_eq!(found, [("Accepted", at(1), Some(2)), ("Programmed", at(2), Some(2))]);
    }
}
