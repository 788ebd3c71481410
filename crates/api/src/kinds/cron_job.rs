//! CronJobs: defaults, strategy, columns, validation.
//! Neighbours: `job`, whose spec is the template here.
//! Invariant: the schedule is only parsed here, never evaluated.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, items, part_mut, text},
    columns::{
        CONTAINERS, IMAGES, SELECTOR, age, age_of, boolean, containers, integer, name, name_of, selector, string,
    },
    job,
};
use crate::printing;

#[derive(Default)]
pub struct CronJob;

impl Behavior for CronJob {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "concurrencyPolicy", "Allow");
        default_to(spec, "suspend", false);
        default_to(spec, "successfulJobsHistoryLimit", 3);
        default_to(spec, "failedJobsHistoryLimit", 1);
        if let Some(job_spec) = part_mut(spec, "jobTemplate").and_then(|template| part_mut(template, "spec")) {
            job::default_template_spec(job_spec);
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 10] = [
            name(),
            string("Schedule", "When it runs, in cron's notation."),
            string("Timezone", "Time zone of the schedule."),
            boolean("Suspend", "Whether new runs are held back."),
            integer("Active", "Jobs that run now."),
            string("Last Schedule", "Time since the last run was due."),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let job_spec = &spec["jobTemplate"]["spec"];
        let (names, images) = containers(&job_spec["template"]["spec"]);
        let suspend = match spec["suspend"].as_bool() {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        };
        let last = match status["lastScheduleTime"].as_str() {
            Some(time) => printing::age(Some(time), now),
            None => "<none>".to_string(),
        };
        vec![
            name_of(object),
            json!(text(spec, "schedule")),
            json!(spec["timeZone"].as_str().unwrap_or("<none>")),
            json!(suspend),
            json!(items(status, "active").len()),
            json!(last),
            age_of(object, now),
            names,
            images,
            selector(job_spec, "selector"),
        ]
    }
}
