//! Describes Jobs and CronJobs.
//! Neighbours: `pod::template`; `workloads` has the other controllers.
//! Reads nothing but the object.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, number, rfc1123, selector_text, string, text, timestamp},
    is_empty, pod,
    sections::{controlled_by, labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};

/// Completed indexes are cut at the first comma behind this many bytes.
const INDEXES_LENGTH_SOFT_MAX: usize = 50;

pub fn job(w: &mut Writer, job: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&job["spec"], &job["status"]);
    name_and_namespace(w, job);
    put!(w, 0, "Selector:\t{}\n", selector_text(&spec["selector"]));
    labels_and_annotations(w, job);
    controlled_by(w, job);
    if !spec["parallelism"].is_null() {
        put!(w, 0, "Parallelism:\t{}\n", text(&spec["parallelism"]));
    }
    put!(w, 0, "Completions:\t{}\n", or_unset(&spec["completions"], ""));
    let optional = [
        ("Completion Mode", "completionMode"),
        ("Suspend", "suspend"),
        ("Backoff Limit", "backoffLimit"),
        ("TTL Seconds After Finished", "ttlSecondsAfterFinished"),
    ];
    for (title, field) in optional {
        if !spec[field].is_null() {
            put!(w, 0, "{title}:\t{}\n", text(&spec[field]));
        }
    }
    for (title, field) in [("Start Time", "startTime"), ("Completed At", "completionTime")] {
        if !status[field].is_null() {
            put!(w, 0, "{title}:\t{}\n", rfc1123(&status[field], &context.zone));
        }
    }
    if let (Some(start), Some(end)) = (timestamp(&status["startTime"]), timestamp(&status["completionTime"])) {
        let seconds = end.as_second() - start.as_second();
        put!(w, 0, "Duration:\t{}\n", api::printing::human_duration(seconds));
    }
    if !spec["activeDeadlineSeconds"].is_null() {
        put!(w, 0, "Active Deadline Seconds:\t{}s\n", number(&spec["activeDeadlineSeconds"]));
    }
    let ready = match status["ready"].as_i64() {
        Some(ready) => format!(" ({ready} Ready)"),
        None => String::new(),
    };
    let (active, succeeded, failed) =
        (number(&status["active"]), number(&status["succeeded"]), number(&status["failed"]));
    put!(w, 0, "Pods Statuses:\t{active} Active{ready} / {succeeded} Succeeded / {failed} Failed\n");
    if string(&spec["completionMode"]) == "Indexed" {
        put!(w, 0, "Completed Indexes:\t{}\n", capped_indexes(string(&status["completedIndexes"])));
    }
    pod::template(w, &spec["template"], context);
    Ok(())
}

fn capped_indexes(indexes: &str) -> String {
    if indexes.is_empty() {
        return "<none>".to_string();
    }
    match indexes.get(INDEXES_LENGTH_SOFT_MAX..).and_then(|rest| rest.find(',')) {
        Some(at) => format!("{}...", &indexes[..INDEXES_LENGTH_SOFT_MAX + at + 1]),
        None => indexes.to_string(),
    }
}

fn or_unset(value: &Value, unit: &str) -> String {
    if value.is_null() { "<unset>".to_string() } else { format!("{}{unit}", text(value)) }
}

pub fn cron_job(w: &mut Writer, cron_job: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&cron_job["spec"], &cron_job["status"]);
    name_and_namespace(w, cron_job);
    labels_and_annotations(w, cron_job);
    put!(w, 0, "Schedule:\t{}\n", text(&spec["schedule"]));
    put!(w, 0, "Concurrency Policy:\t{}\n", text(&spec["concurrencyPolicy"]));
    put!(w, 0, "Suspend:\t{}\n", bool_or_unset(&spec["suspend"]));
    put!(w, 0, "Successful Job History Limit:\t{}\n", or_unset(&spec["successfulJobsHistoryLimit"], ""));
    put!(w, 0, "Failed Job History Limit:\t{}\n", or_unset(&spec["failedJobsHistoryLimit"], ""));
    put!(w, 0, "Starting Deadline Seconds:\t{}\n", or_unset(&spec["startingDeadlineSeconds"], "s"));
    let job = &spec["jobTemplate"]["spec"];
    let selector = if job["selector"].is_null() { "<unset>".to_string() } else { selector_text(&job["selector"]) };
    put!(w, 0, "Selector:\t{selector}\n");
    put!(w, 0, "Parallelism:\t{}\n", or_unset(&job["parallelism"], ""));
    put!(w, 0, "Completions:\t{}\n", or_unset(&job["completions"], ""));
    if !job["activeDeadlineSeconds"].is_null() {
        put!(w, 0, "Active Deadline Seconds:\t{}s\n", number(&job["activeDeadlineSeconds"]));
    }
    pod::template(w, &job["template"], context);
    let last = match &status["lastScheduleTime"] {
        Value::Null => "<unset>".to_string(),
        time => rfc1123(time, &context.zone),
    };
    put!(w, 0, "Last Schedule Time:\t{last}\n");
    let active: Vec<String> = list(&status["active"]).iter().map(|job| text(&job["name"])).collect();
    let active = if is_empty(&status["active"]) { "<none>".to_string() } else { active.join(", ") };
    put!(w, 0, "Active Jobs:\t{active}\n");
    Ok(())
}

pub fn bool_or_unset(value: &Value) -> &'static str {
    match value.as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}
