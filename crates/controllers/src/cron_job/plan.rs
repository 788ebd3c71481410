//! The core: whether a cron job's time has come, and what to do about jobs that still run.
//! Called by the controller beside it; `schedule` knows the times.
//! Of many missed times only the latest is made up for.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::{CronJob, Job};

use super::schedule::Schedule;
use crate::{
    common::{meta::Object, pods::until},
    job::finished,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Start {
        at: Timestamp,
    },
    /// Replace: what runs makes way.
    Delete(Box<Job>),
    Event {
        warning: bool,
        reason: &'static str,
        message: String,
    },
}

#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub again: Option<Duration>,
}

/// More missed times than this, and a clock is probably wrong.
const MISSED_SCHEDULES_MAX: usize = 100;

pub fn zone(cron: &CronJob) -> Result<TimeZone, String> {
    match cron.spec.as_ref().and_then(|s| s.time_zone.as_deref()) {
        None => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name).map_err(|e| format!("invalid timeZone: {name:?}: {e}")),
    }
}

/// Minutes, as upstream names them: a time has one job, whoever starts it.
pub fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.name(), at.as_second() / 60)
}

/// `running` are the unfinished jobs of this cron job.
pub fn plan(cron: &CronJob, running: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let spec = cron.spec.clone().unwrap_or_default();
    if cron.deleting() {
        return plan;
    }
    let warn = |reason, message| Action::Event { warning: true, reason, message };
    let zone = match zone(cron) {
        Ok(zone) => zone,
        Err(message) => {
            plan.actions.push(warn("UnknownTimeZone", message));
            return plan;
        }
    };
    if spec.suspend == Some(true) {
        return plan;
    }
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            plan.actions.push(warn("UnparseableSchedule", message));
            return plan;
        }
    };
    let next = schedule.next(now, &zone);
    if next.is_none() {
        // Upstream sees the same moment twice where none comes.
        let why = "time difference between two schedules is less than 1 second";
        plan.actions.push(warn("InvalidSchedule", format!("invalid schedule: {} : {why}", spec.schedule)));
        return plan;
    }
    plan.again = next.map(|at| until(now, at) + Duration::from_millis(100));
    let (Some(due), missed) = latest_due(cron, &schedule, &zone, now) else { return plan };
    if missed > MISSED_SCHEDULES_MAX {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.actions.push(warn("TooManyMissedTimes", message.into()));
    }
    // The job of this very time is no obstacle: it was started by somebody who could not yet write that down.
    let name = job_name(cron, due);
    let mut others = running.iter().filter(|job| job.name() != name).peekable();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if others.peek().is_some() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.actions.push(Action::Event { warning: false, reason: "JobAlreadyActive", message: message.into() });
            return plan;
        }
        Some("Replace") => plan.actions.extend(others.map(|job| Action::Delete(Box::new((**job).clone())))),
        _ => {}
    }
    plan.actions.push(Action::Start { at: due });
    plan
}

/// The latest time that has come since the last start, and how many have. Those past their deadline are as if they
/// had never been.
fn latest_due(cron: &CronJob, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> (Option<Timestamp>, usize) {
    let last = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref()).map(|t| t.0);
    let Some(from) = last.or(cron.created()) else { return (None, 0) };
    let deadline = cron.spec.as_ref().and_then(|s| s.starting_deadline_seconds);
    let earliest = deadline.and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds.max(0))).ok());
    let earliest = earliest.map_or(from, |earliest| earliest.max(from));
    if let Schedule::Every(period) = schedule {
        // Counted from the last start, not from the deadline: a period longer than that would never begin.
        let periods = |until: Timestamp| (until.as_second() - from.as_second()).max(0) as u64 / period.as_secs();
        let (all, gone) = (periods(now), periods(earliest));
        let due = (all > gone).then(|| from + Duration::from_secs(all * period.as_secs()));
        return (due, (all - gone) as usize);
    }
    let (mut due, mut count) = (None, 0);
    let mut at = earliest;
    while let Some(next) = schedule.next(at, zone).filter(|next| *next <= now) {
        (due, at, count) = (Some(next), next, count + 1);
        if count > 10 * MISSED_SCHEDULES_MAX {
            // Far behind: go on from near the present.
            let near = now - Duration::from_secs(3600 * 24 * 366);
            at = at.max(near);
            if let Some(recent) = recent(schedule, zone, now) {
                return (Some(recent), count);
            }
        }
    }
    (due, count)
}

/// The latest time before `now`, searched in growing steps backward.
fn recent(schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    let mut back = Duration::from_secs(60);
    while back < Duration::from_secs(3600 * 24 * 366 * 5) {
        let mut found = None;
        let mut at = now - back;
        while let Some(next) = schedule.next(at, zone).filter(|next| *next <= now) {
            (found, at) = (Some(next), next);
        }
        if found.is_some() {
            return found;
        }
        back *= 8;
    }
    None
}

/// Finished jobs beyond the limits, oldest first.
pub fn surplus(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let spec = cron.spec.clone().unwrap_or_default();
    let mut gone = Vec::new();
    for (kind, limit) in [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ] {
        let mut ended: Vec<_> =
            jobs.iter().filter(|j| finished(j).is_some_and(|c| c.type_ == kind) && !j.deleting()).cloned().collect();
        ended.sort_by_key(|job| (job.status.as_ref().and_then(|s| s.start_time.clone()), job.name().to_string()));
        let count = ended.len().saturating_sub(limit.max(0) as usize);
        gone.extend(ended.into_iter().take(count));
    }
    gone
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cron(change: serde_json::Value) -> CronJob {
        let mut cron = json!({
            "metadata": { "name": "c", "namespace": "d", "creationTimestamp": "2026-01-01T00:00:30Z" },
            "spec": { "schedule": "*/10 * * * *", "jobTemplate": {} },
        });
        for (key, value) in change.as_object().unwrap() {
            cron["spec"][key] = value.clone();
        }
        serde_json::from_value(cron).unwrap()
    }

    #[test]
    fn when_to_start() {
        let job =
            |name: &str| Arc::new(serde_json::from_value::<Job>(json!({ "metadata": { "name": name } })).unwrap());
        let running = [job("c-1")];
        let restarted = [job("c-1"), job("c-29453770")];
        let check = |change: serde_json::Value, now: &str, running: &[Arc<Job>], expected: &[&str]| {
            let plan = plan(&cron(change), running, now.parse().unwrap());
            let words: Vec<String> = plan
                .actions
                .iter()
                .map(|action| match action {
                    Action::Start { at } => at.to_string(),
                    Action::Delete(job) => format!("-{}", job.name()),
                    Action::Event { reason, .. } => reason.to_string(),
                })
                .collect();
            assert_eq!(words, expected);
        };
        check(json!({}), "2026-01-01T00:05:00Z", &[], &[]);
        check(json!({}), "2026-01-01T00:10:00Z", &[], &["2026-01-01T00:10:00Z"]);
        check(json!({}), "2026-01-01T00:35:00Z", &[], &["2026-01-01T00:30:00Z"]);
        check(json!({ "suspend": true }), "2026-01-01T00:10:00Z", &[], &[]);
        check(json!({ "startingDeadlineSeconds": 60 }), "2026-01-01T00:15:00Z", &[], &[]);
        check(json!({ "startingDeadlineSeconds": 60 }), "2026-01-01T00:10:30Z", &[], &["2026-01-01T00:10:00Z"]);
        check(json!({ "concurrencyPolicy": "Forbid" }), "2026-01-01T00:10:00Z", &running, &["JobAlreadyActive"]);
        check(
            json!({ "concurrencyPolicy": "Replace" }),
            "2026-01-01T00:10:00Z",
            &running,
            &["-c-1", "2026-01-01T00:10:00Z"],
        );
        check(
            json!({ "concurrencyPolicy": "Replace" }),
            "2026-01-01T00:10:00Z",
            &restarted,
            &["-c-1", "2026-01-01T00:10:00Z"],
        );
        check(
            json!({ "concurrencyPolicy": "Forbid" }),
            "2026-01-01T00:10:00Z",
            &restarted[1..],
            &["2026-01-01T00:10:00Z"],
        );
        check(json!({ "timeZone": "Nowhere/Land" }), "2026-01-01T00:10:00Z", &[], &["UnknownTimeZone"]);
        let nowhere = json!({ "timeZone": "Nowhere/Land", "suspend": true });
        check(nowhere, "2026-01-01T00:10:00Z", &[], &["UnknownTimeZone"]);
        check(json!({ "schedule": "bad" }), "2026-01-01T00:10:00Z", &[], &["UnparseableSchedule"]);
        check(json!({ "schedule": "59 23 31 2 *" }), "2026-01-01T00:10:00Z", &[], &["InvalidSchedule"]);
        check(
            json!({ "schedule": "* * * * *" }),
            "2026-01-03T00:00:00Z",
            &[],
            &["TooManyMissedTimes", "2026-01-03T00:00:00Z"],
        );
        let minutely = json!({ "schedule": "* * * * *", "startingDeadlineSeconds": 200 });
        check(minutely, "2026-01-03T00:00:30Z", &[], &["2026-01-03T00:00:00Z"]);
        let every = |period: &str| json!({ "schedule": format!("@every {period}"), "startingDeadlineSeconds": 60 });
        check(every("10m"), "2026-01-01T00:11:00Z", &[], &["2026-01-01T00:10:30Z"]);
        check(every("10m"), "2026-01-01T00:15:00Z", &[], &[]);
        check(every("1s"), "2026-01-03T00:00:00Z", &[], &["2026-01-03T00:00:00Z"]);
        let forever = json!({ "startingDeadlineSeconds": i64::MAX });
        check(forever, "2026-01-01T00:35:00Z", &[], &["2026-01-01T00:30:00Z"]);
    }

    #[test]
    fn next_look() {
        let plan = plan(&cron(json!({})), &[], "2026-01-01T00:05:00Z".parse().unwrap());
        assert_eq!(plan.again.map(|d| d.as_secs()), Some(300));
    }
}
