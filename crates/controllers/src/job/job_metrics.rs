//! What becomes of jobs and their pods, under upstream's names.
//! Told by the controller beside it; shown at the controller manager's `/metrics`.
//! Jobs and pods never become labels.

use std::time::Duration;

use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::Pod,
};
use metrics::{Family, Metrics};

use super::{
    indexes,
    plan::{Plan, finished, tracked},
};
use crate::common::pods;

/// From four milliseconds, each twice the one before.
const SYNC_BUCKETS_SECONDS: &[f64] =
    &[0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768, 65.536];
const SYNC: &[&str] = &["completion_mode", "result", "action"];

static SYNC_SECONDS: Family = Family::histogram(
    "job_controller_job_sync_duration_seconds",
    SYNC,
    SYNC_BUCKETS_SECONDS,
    "How long it took to look at a job.",
);
static SYNCS: Family = Family::counter("job_controller_job_syncs_total", SYNC, "How often jobs were looked at.");
static FINISHED: Family = Family::counter(
    "job_controller_jobs_finished_total",
    &["completion_mode", "result", "reason"],
    "Jobs that have ended.",
);
static EXTERNAL: Family = Family::counter(
    "job_controller_jobs_by_external_controller_total",
    &["controller_name"],
    "Jobs that another controller manages.",
);
static PODS_FINISHED: Family = Family::counter(
    "job_controller_job_pods_finished_total",
    &["completion_mode", "result"],
    "Pods of jobs that have ended and are counted.",
);
static FAILURES_HANDLED: Family = Family::counter(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    &["action"],
    "Failed pods that a rule of a failure policy matched, by its action.",
);
static TRACKED_PODS: Family = Family::counter(
    "job_controller_terminated_pods_tracking_finalizer_total",
    &["event"],
    "Pods that ended with the tracking finalizer, and those of them that lost it.",
);
static INDEXES_FINISHED: Family = Family::counter(
    "job_controller_job_finished_indexes_total",
    &["status", "backoffLimit"],
    "Indexes that have ended.",
);
static PODS_CREATED: Family = Family::counter(
    "job_controller_job_pods_creation_total",
    &["reason", "status"],
    "Pods of jobs that were to be made, by why.",
);

fn completion_mode(job: &Job) -> &'static str {
    let mode = job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref());
    if mode == Some("Indexed") { "Indexed" } else { "NonIndexed" }
}

/// What a look at an unfinished job has led to.
fn action(plan: &Plan) -> &'static str {
    let conditions = plan.status.conditions.iter().flatten();
    let is_ending = conditions.clone().any(|c| {
        c.status == "True" && matches!(c.type_.as_str(), "FailureTarget" | "SuccessCriteriaMet" | "Complete" | "Failed")
    });
    let is_suspended = conditions.clone().any(|c| c.status == "True" && c.type_ == "Suspended");
    match (plan.create.is_empty(), plan.delete.is_empty()) {
        _ if is_ending => "reconciling",
        (false, _) => "pods_created",
        (_, false) => "pods_deleted",
        _ if is_suspended => "pods_deleted",
        _ => "tracking",
    }
}

pub fn synced(metrics: &Metrics, job: &Job, plan: &Plan, succeeded: bool, took: Duration) {
    let result = if succeeded { "success" } else { "error" };
    let labels = [completion_mode(job), result, action(plan)];
    metrics.observe(&SYNC_SECONDS, &labels, took.as_secs_f64());
    metrics.count(&SYNCS, &labels);
}

/// The new status is written: what it counts beyond the old one is counted here.
pub fn status_written(metrics: &Metrics, job: &Job, plan: &Plan) {
    let (mode, old, new) = (completion_mode(job), job.status.clone().unwrap_or_default(), &plan.status);
    let spec = job.spec.clone().unwrap_or_default();
    let limit = spec.completions.unwrap_or(0);
    let beyond = |of: fn(&JobStatus) -> i64| of(new) - of(&old);
    let indexes = |text: &Option<String>| indexes::parse(text.as_deref().unwrap_or_default(), limit).len() as i64;
    let succeeded = match mode {
        "Indexed" => {
            let per = if spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
            let succeeded = indexes(&new.completed_indexes) - indexes(&old.completed_indexes);
            let failed = indexes(&new.failed_indexes) - indexes(&old.failed_indexes);
            add(metrics, &INDEXES_FINISHED, &["succeeded", per], succeeded);
            add(metrics, &INDEXES_FINISHED, &["failed", per], failed);
            succeeded
        }
        _ => beyond(|status| status.succeeded.unwrap_or(0).into()),
    };
    add(metrics, &PODS_FINISHED, &[mode, "succeeded"], succeeded);
    add(metrics, &PODS_FINISHED, &[mode, "failed"], beyond(|status| status.failed.unwrap_or(0).into()));
    for action in &plan.handled {
        metrics.count(&FAILURES_HANDLED, &[action]);
    }
    let ended = Job { status: Some(new.clone()), ..Job::default() };
    if let Some(condition) = finished(&ended).filter(|_| finished(job).is_none()) {
        let result = if condition.type_ == "Complete" { "succeeded" } else { "failed" };
        metrics.count(&FINISHED, &[mode, result, condition.reason.as_deref().unwrap_or_default()]);
    }
}

fn add(metrics: &Metrics, family: &'static Family, labels: &[&str], count: i64) {
    if count > 0 {
        metrics.add(family, labels, count as f64);
    }
}

pub fn pods_created(metrics: &Metrics, job: &Job, plan: &Plan, succeeded: usize, failed: usize) {
    let policy = job.spec.as_ref().and_then(|spec| spec.pod_replacement_policy.as_deref());
    let reason = match plan.failed {
        1.. if policy == Some("Failed") => "recreate_failed",
        0 if plan.status.terminating.unwrap_or(0) == 0 => "new",
        _ => "recreate_terminating_or_failed",
    };
    add(metrics, &PODS_CREATED, &[reason, "succeeded"], succeeded as i64);
    add(metrics, &PODS_CREATED, &[reason, "failed"], failed as i64);
}

pub fn job_added(metrics: &Metrics, manager: &str) {
    metrics.count(&EXTERNAL, &[manager]);
}

pub fn pod_changed(metrics: &Metrics, old: Option<&Pod>, new: Option<&Pod>) {
    let held = |pod: Option<&Pod>| pod.is_some_and(|pod| pods::finished(pod) && tracked(pod));
    match (held(old), held(new)) {
        (false, true) => metrics.count(&TRACKED_PODS, &["add"]),
        (true, false) => metrics.count(&TRACKED_PODS, &["delete"]),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value, status: Value) -> Job {
        serde_json::from_value(json!({ "metadata": { "name": "j" }, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn what_a_status_adds_is_counted() {
        let check = |spec: Value, old: Value, new: Value, handled: &[&str], lines: &[&str]| {
            let metrics = Metrics::default();
            let plan = Plan {
                status: serde_json::from_value(new).unwrap(),
                handled: handled.iter().map(|action| action.to_string()).collect(),
                ..Plan::default()
            };
            status_written(&metrics, &job(spec, old), &plan);
            let page = metrics.page();
            let found: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("job_controller_")).collect();
            assert_eq!(found, lines, "{page}");
        };
        let plain = || json!({ "template": {}, "completions": 3 });
        check(plain(), json!({}), json!({}), &[], &[]);
        check(
            plain(),
            json!({ "succeeded": 1 }),
            json!({ "succeeded": 3, "failed": 1 }),
            &["Count"],
            &[
                "job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"failed\"} 1",
                "job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 2",
                "pod_failures_handled_by_failure_policy_total{action=\"Count\"} 1",
            ],
        );
        let indexed =
            json!({ "template": {}, "completions": 5, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
        let ended = json!([{ "type": "Failed", "status": "True", "reason": "FailedIndexes" }]);
        check(
            indexed,
            json!({ "completedIndexes": "0" }),
            json!({ "completedIndexes": "0-2", "failedIndexes": "3,4", "conditions": ended }),
            &[],
            &[
                "job_finished_indexes_total{status=\"failed\",backoffLimit=\"perIndex\"} 2",
                "job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"perIndex\"} 2",
                "job_pods_finished_total{completion_mode=\"Indexed\",result=\"succeeded\"} 2",
                "jobs_finished_total{completion_mode=\"Indexed\",result=\"failed\",reason=\"FailedIndexes\"} 1",
            ],
        );
    }

    #[test]
    fn pods_are_made_for_a_reason() {
        let check = |policy: &str, failed: i32, terminating: i32, reason: &str| {
            let metrics = Metrics::default();
            let status = JobStatus { terminating: Some(terminating), ..JobStatus::default() };
            let job = job(json!({ "template": {}, "podReplacementPolicy": policy }), json!({}));
            pods_created(&metrics, &job, &Plan { failed, status, ..Plan::default() }, 2, 1);
            for (status, count) in [("succeeded", 2), ("failed", 1)] {
                let line = format!("creation_total{{reason=\"{reason}\",status=\"{status}\"}} {count}");
                assert!(metrics.page().contains(&line), "{line}\n{}", metrics.page());
            }
        };
        check("TerminatingOrFailed", 0, 0, "new");
        check("TerminatingOrFailed", 0, 1, "recreate_terminating_or_failed");
        check("TerminatingOrFailed", 1, 0, "recreate_terminating_or_failed");
        check("Failed", 1, 0, "recreate_failed");
        check("Failed", 0, 1, "recreate_terminating_or_failed");
    }
}
