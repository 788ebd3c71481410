//! Jobs: defaults, strategy, columns, validation.
//! Neighbours: `cron_job`, which holds a job as its template.
//! The selector is the server's own (by the job's uid) unless `manualSelector` is set.

pub mod validation;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column, Propagation,
        common::{
            access::{default_absent, default_to, each, existing_mut, int, int_at, is_set, part_mut, text, text_at},
            columns::{
                CONTAINERS, IMAGES, SELECTOR, age, age_of, condition_is_true, containers, deleting, name, name_of,
                selector, string,
            },
        },
        core::pod_spec,
    },
    names, printing,
};

#[derive(Default)]
pub struct Job;

/// `spec` of a job or of a cron job's template.
pub fn default_spec(spec: &mut Value) {
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        default_to(spec, "completions", 1);
    }
    default_to(spec, "parallelism", 1);
    let per_index = is_set(spec, "backoffLimitPerIndex");
    default_to(spec, "backoffLimit", if per_index { i64::from(i32::MAX) } else { 6 });
    default_absent(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    default_to(spec, "manualSelector", false);
    let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default_absent(spec, "podReplacementPolicy", replacement);
    pod_spec::defaults::template(spec);
    default_failure_policy(spec);
}

/// All that a cron job's template gets; the job itself takes the rest when it is made.
pub fn default_template_spec(spec: &mut Value) {
    pod_spec::defaults::template(spec);
    default_failure_policy(spec);
}

fn default_failure_policy(spec: &mut Value) {
    if let Some(policy) = existing_mut(spec, "podFailurePolicy") {
        each(policy, "rules", |rule| {
            each(rule, "onPodConditions", |pattern| default_to(pattern, "status", "True"));
        });
    }
}

const PODS_ARE_ORPHANED: &str = "child pods are preserved by default when jobs are deleted; set \
    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
pub const LEGACY_CONTROLLER_UID: &str = "controller-uid";
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
pub const LEGACY_JOB_NAME: &str = "job-name";

/// Selector and template labels by the job's uid. Needs `metadata.uid` and `metadata.name` to be in place.
fn generate_selector(object: &mut Value) {
    let uid = text_at(object, "metadata.uid").to_string();
    let name = text_at(object, "metadata.name").to_string();
    let manual = object["spec"]["manualSelector"] == json!(true);
    if manual || uid.is_empty() {
        return;
    }
    let Some(spec) = part_mut(object, "spec") else { return };
    if let Some(labels) = part_mut(spec, "template")
        .and_then(|template| part_mut(template, "metadata"))
        .and_then(|metadata| part_mut(metadata, "labels"))
    {
        for (key, value) in
            [(LEGACY_JOB_NAME, &name), (JOB_NAME, &name), (LEGACY_CONTROLLER_UID, &uid), (CONTROLLER_UID, &uid)]
        {
            default_to(labels, key, value.as_str());
        }
    }
    if let Some(labels) = part_mut(spec, "selector").and_then(|selector| part_mut(selector, "matchLabels")) {
        default_to(labels, CONTROLLER_UID, uid);
    }
}

/// Those of the template, for a job that has none of its own.
fn default_labels(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"].get("labels").filter(|l| l.is_object()).cloned();
    if let (Some(labels), Some(metadata)) = (labels, part_mut(object, "metadata"))
        && !is_set(metadata, "labels")
    {
        metadata["labels"] = labels;
    }
}

impl Behavior for Job {
    /// As before there was a garbage collector.
    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn unsaid_propagation_warning(&self) -> Option<&'static str> {
        Some(PODS_ARE_ORPHANED)
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_spec(spec);
        default_labels(object);
    }

    /// Upstream defaults the labels to those of the template without copying them, and then adds to the template's.
    fn shares_template_labels(&self, object: &Value) -> bool {
        let labels = |metadata: &Value| metadata["labels"].as_object().is_some_and(|labels| !labels.is_empty());
        !labels(&object["metadata"]) && labels(&object["spec"]["template"]["metadata"])
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
        generate_selector(object);
        // Again, as upstream when it reads what it stored: the template may have got its first labels just now.
        default_labels(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validation::generated_selector(errors, object);
        let spec = &object["spec"];
        validation::spec_with_selector(errors, &Path::new("spec"), spec);
        if let (Some(completions @ 1..), "Indexed") = (int(spec, "completions"), text(spec, "completionMode")) {
            let name = text_at(object, "metadata.name");
            let pod = format!("{name}-{}", completions - 1);
            if !names::dns_label(&pod, false).is_empty() {
                errors.invalid(
                    &Path::new("metadata").child("name"),
                    name,
                    format!("will not able to create pod with invalid DNS label: {pod}"),
                );
            }
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        // Upstream looks at the whole spec once as at a new one's, and once more among what may change.
        (0..2).for_each(|_| validation::spec_with_selector(errors, &Path::new("spec"), &object["spec"]));
        validation::update(errors, object, old);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validation::status(errors, object, old);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        pod_spec::warnings::pod_owner("spec.template", object, &object["spec"]["template"], old)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 8] = [
            name(),
            string("Status", "How far the job is."),
            string("Completions", "Pods that succeeded of those wanted."),
            string("Duration", "How long it ran."),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let (names, images) = containers(&spec["template"]["spec"]);
        vec![
            name_of(object),
            json!(progress(object)),
            json!(completions(object)),
            json!(duration(object, now)),
            age_of(object, now),
            names,
            images,
            selector(spec, "selector"),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("status.successful".into(), int_at(&object["status"], "succeeded").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["status.successful".into()]
    }
}

fn progress(job: &Value) -> &'static str {
    match job {
        _ if condition_is_true(job, "Complete") => "Complete",
        _ if condition_is_true(job, "Failed") => "Failed",
        _ if deleting(job) => "Terminating",
        _ if condition_is_true(job, "Suspended") => "Suspended",
        _ if condition_is_true(job, "FailureTarget") => "FailureTarget",
        _ if condition_is_true(job, "SuccessCriteriaMet") => "SuccessCriteriaMet",
        _ => "Running",
    }
}

fn completions(job: &Value) -> String {
    let succeeded = int_at(&job["status"], "succeeded");
    match (int(&job["spec"], "completions"), int_at(&job["spec"], "parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    let time = |field: &str| job["status"][field].as_str().and_then(|t| t.parse::<Timestamp>().ok());
    match time("startTime") {
        None => String::new(),
        Some(start) => printing::human_duration(time("completionTime").unwrap_or(now).as_second() - start.as_second()),
    }
}
