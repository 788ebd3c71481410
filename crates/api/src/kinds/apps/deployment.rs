//! Deployments: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `workload` for what workloads share.
//! The selector never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, int, int_at, part, part_mut, text},
            checks,
            columns::{CONTAINERS, IMAGES, SELECTOR, age, age_of, containers, name, name_of, selector_text, string},
            workload,
        },
        core::pod_spec,
    },
};

#[derive(Default)]
pub struct Deployment;

impl Behavior for Deployment {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        default_to(spec, "progressDeadlineSeconds", 600);
        if let Some(strategy) = part_mut(spec, "strategy") {
            default_to(strategy, "type", "RollingUpdate");
            if text(strategy, "type") == "RollingUpdate"
                && let Some(rolling) = part_mut(strategy, "rollingUpdate")
            {
                default_to(rolling, "maxUnavailable", "25%");
                default_to(rolling, "maxSurge", "25%");
            }
        }
        pod_spec::defaults::template(spec);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::not_negative(errors, &path, spec, &["replicas"]);
        workload::selector(errors, &path, spec, "deployment");
        if workload::has_readable_selector(errors, &path, spec, "invalid label selector") {
            workload::template_matches(errors, &path, spec);
            workload::running_template(errors, &path, spec, "ReplicaSet");
        }
        strategy(errors, &path.child("strategy"), &spec["strategy"]);
        let rest = ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"];
        checks::not_negative(errors, &path, spec, &rest);
        if let Some(deadline) = int(spec, "progressDeadlineSeconds").filter(|d| *d <= int_at(spec, "minReadySeconds")) {
            errors.invalid(&path.child("progressDeadlineSeconds"), deadline, "must be greater than minReadySeconds");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "selector");
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let status = &object["status"];
        checks::not_negative(errors, &Path::new("status"), status, &["unavailableReplicas"]);
        let counts = ["updatedReplicas", "readyReplicas", "availableReplicas"];
        checks::replica_counts(errors, status, "readyReplicas", &counts);
        workload::collision_count(errors, object, old);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        pod_spec::warnings::pod_owner("spec.template", object, &object["spec"]["template"], old)
    }

    fn generation_metadata(&self) -> &'static [&'static str] {
        &["annotations"]
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &["labels"]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 8] = [
            name(),
            string("Ready", "Ready replicas of those wanted."),
            string("Up-to-date", "Replicas of the current template."),
            string("Available", "Replicas that serve."),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let (names, images) = containers(&spec["template"]["spec"]);
        vec![
            name_of(object),
            json!(format!("{}/{}", int_at(status, "readyReplicas"), int_at(spec, "replicas"))),
            json!(int_at(status, "updatedReplicas")),
            json!(int_at(status, "availableReplicas")),
            age_of(object, now),
            names,
            images,
            json!(selector_text(&spec["selector"])),
        ]
    }
}

fn strategy(errors: &mut ErrorList, path: &Path, strategy: &Value) {
    let rolling = part(strategy, "rollingUpdate");
    let at = path.child("rollingUpdate");
    match (text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => {
            errors.forbidden(&at, "may not be specified when strategy `type` is 'Recreate'");
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => errors.required(&at, "this should be defaulted and never be nil"),
        ("RollingUpdate", Some(rolling)) => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            checks::int_or_percent(errors, &at.child("maxUnavailable"), unavailable);
            checks::int_or_percent(errors, &at.child("maxSurge"), surge);
            if checks::is_zero(unavailable) && checks::is_zero(surge) {
                errors.invalid(&at.child("maxUnavailable"), unavailable.clone(), "may not be 0 when `maxSurge` is 0");
            }
            checks::at_most_100_percent(errors, &at.child("maxUnavailable"), unavailable);
        }
        _ => errors.not_supported_shown(path, workload::shown_strategy(strategy), &["Recreate", "RollingUpdate"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(change: impl Fn(&mut Value)) -> Value {
        let mut object = json!({
            "metadata": { "name": "d", "namespace": "n" },
            "spec": {
                "selector": { "matchLabels": { "a": "b" } },
                "template": {
                    "metadata": { "labels": { "a": "b" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] },
                },
            },
        });
        change(&mut object);
        Deployment.default(&mut object);
        object
    }

    #[test]
    fn defaults() {
        let spec = deployment(|_| ())["spec"].clone();
        assert_eq!(spec["replicas"], 1);
        assert_eq!(
            spec["strategy"],
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "25%", "maxSurge": "25%" } })
        );
        assert_eq!((&spec["revisionHistoryLimit"], &spec["progressDeadlineSeconds"]), (&json!(10), &json!(600)));
        assert_eq!(spec["template"]["spec"]["schedulerName"], "default-scheduler");
    }

    #[test]
    fn validation() {
        let check = |change: fn(&mut Value), expected: &[&str]| {
            let mut errors = ErrorList::new();
            Deployment.validate_create(&deployment(change), &mut errors);
            let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            assert_eq!(found, expected);
        };
        check(|_| (), &[]);
        check(
            |d| d["spec"]["selector"] = Value::Null,
            &[
                "spec.selector: Required value",
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
            ],
        );
        check(
            |d| d["spec"]["selector"]["matchLabels"]["a"] = json!("x"),
            &[
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
            ],
        );
        check(
            |d| d["spec"]["template"]["spec"] = json!({ "restartPolicy": "Never" }),
            &[
                "spec.template.spec.containers: Required value",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ],
        );
        check(
            |d| d["spec"]["strategy"] = json!({ "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "0%" } }),
            &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
        );
        check(
            |d| d["spec"]["replicas"] = json!(-1),
            &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
        );
    }
}
