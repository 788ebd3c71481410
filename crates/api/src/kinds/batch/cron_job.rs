//! CronJobs: defaults, strategy, columns, validation.
//! Neighbours: `job`, whose spec is the template here.
//! The schedule is only parsed here, never evaluated.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        batch::job::{self, validation},
        common::{
            access::{default_to, is_set, items, part_mut, text, text_at},
            checks,
            columns::{
                CONTAINERS, IMAGES, SELECTOR, age, age_of, boolean, containers, integer, name, name_of, selector,
                string,
            },
        },
        core::pod_spec,
    },
    printing,
};

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

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, object, None);
        let name = text_at(object, "metadata.name");
        if name.len() > 52 {
            errors.invalid(&Path::new("metadata").child("name"), name, "must be no more than 52 characters");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_spec(errors, object, Some(old));
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let template = &object["spec"]["jobTemplate"]["spec"]["template"];
        let mut warnings = pod_spec::warnings::pod_owner("spec.jobTemplate.spec.template", object, template, old);
        if old.is_some() && text(&object["spec"], "schedule").contains("TZ") {
            warnings.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .into(),
            );
        }
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
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

fn validate_spec(errors: &mut ErrorList, object: &Value, old: Option<&Value>) {
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    let schedule = text(spec, "schedule");
    let at = path.child("schedule");
    if schedule.is_empty() {
        errors.required(&at, "");
    } else {
        if let Err(problem) = check_schedule(schedule) {
            errors.invalid(&at, schedule, problem);
        }
        let zone_was_there = old.is_some_and(|old| text(&old["spec"], "schedule").contains("TZ"));
        if schedule.contains("TZ") && zone_was_there && is_set(spec, "timeZone") {
            errors.invalid(&at, schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
        } else if schedule.contains("TZ") && !zone_was_there {
            errors.invalid(&at, schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
        }
    }
    checks::not_negative(errors, &path, spec, &["startingDeadlineSeconds"]);
    if old.is_none_or(|old| old["spec"]["timeZone"] != spec["timeZone"]) {
        time_zone(errors, &path.child("timeZone"), spec);
    }
    checks::one_of(errors, &path, spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"]);
    let template = path.child("jobTemplate");
    // Its metadata is looked at when a Job is made of it.
    let job_spec = &spec["jobTemplate"]["spec"];
    validation::spec(errors, &template.child("spec"), job_spec);
    if job_spec["manualSelector"] == json!(true) {
        errors.not_supported_as_listed(&template.child("spec").child("manualSelector"), true, &["nil", "false"]);
    }
    if is_set(job_spec, "selector") {
        let at = template.child("spec").child("selector");
        errors.invalid(&at, job_spec["selector"].clone(), "`selector` will be auto-generated");
    }
    checks::not_negative(errors, &path, spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
}

fn time_zone(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(zone) = spec.get("timeZone").and_then(Value::as_str) else { return };
    if zone.is_empty() {
        errors.invalid(path, zone, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("local") {
        let words = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(path, zone, words);
    } else if zone != "UTC" && jiff::tz::TimeZone::get(zone).is_err() {
        // The zone database is as good as a constant; nothing else here is looked up.
        errors.invalid(path, zone, format!("unknown time zone {zone}"));
    }
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Whether a text is a schedule: five fields, or a shorthand.
fn check_schedule(text: &str) -> Result<(), String> {
    let text = match text.split_once(char::is_whitespace) {
        Some((zone, rest)) if zone.starts_with("TZ=") || zone.starts_with("CRON_TZ=") => rest.trim_start(),
        _ => text,
    };
    if text.starts_with('@') {
        let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
        let every = text.strip_prefix("@every ").is_some_and(is_duration);
        return if known.contains(&text) || every { Ok(()) } else { Err(format!("unrecognized descriptor: {text}")) };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    };
    check_field(minute, 0, 59, &[])?;
    check_field(hour, 0, 23, &[])?;
    check_field(day, 1, 31, &[])?;
    check_field(month, 1, 12, &MONTHS)?;
    check_field(weekday, 0, 6, &DAYS)
}

/// Go's notation: `1h30m`.
fn is_duration(text: &str) -> bool {
    let text = text.trim();
    let units = text.trim_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | 'h' | 'm' | 's' | 'u' | 'n' | 'µ'));
    !text.is_empty()
        && units.is_empty()
        && text.starts_with(|c: char| c.is_ascii_digit())
        && !text.ends_with(|c: char| c.is_ascii_digit())
}

fn check_field(field: &str, least: u32, most: u32, names: &[&str]) -> Result<(), String> {
    let number = |text: &str| -> Result<u32, String> {
        if let Some(index) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            // Months count from one, days of the week from zero.
            return Ok(index as u32 + least);
        }
        text.parse()
            .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
    };
    for part in field.split(',').filter(|part| !part.is_empty()) {
        let mut pieces = part.split('/');
        let (range, step) = (pieces.next().unwrap_or(""), pieces.next());
        if pieces.next().is_some() {
            return Err(format!("too many slashes: {part}"));
        }
        let (low, high) = match range {
            "*" | "?" => (least, most),
            _ => match range.split_once('-') {
                Some((_, high)) if high.contains('-') => return Err(format!("too many hyphens: {part}")),
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(range)?, if step.is_some() { most } else { number(range)? }),
            },
        };
        if low < least {
            return Err(format!("beginning of range ({low}) below minimum ({least}): {part}"));
        }
        if high > most {
            return Err(format!("end of range ({high}) above maximum ({most}): {part}"));
        }
        if low > high {
            return Err(format!("beginning of range ({low}) beyond end of range ({high}): {part}"));
        }
        if step.map(number).transpose()? == Some(0) {
            return Err(format!("step of range should be a positive number: {part}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_schedule;

    #[test]
    fn schedules() {
        for good in ["* * * * *", "*/5 0-6,12 1 jan-mar MON", "@hourly", "@every 1h30m", "0 0 ? * 0"] {
            assert_eq!(check_schedule(good), Ok(()), "{good}");
        }
        for (bad, words) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@often", "unrecognized descriptor: @often"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ] {
            assert_eq!(check_schedule(bad), Err(words.to_string()));
        }
    }
}
