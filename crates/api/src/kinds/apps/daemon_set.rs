//! DaemonSets: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `workload` for what workloads share.
//! The selector never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::{keep_field, reset_to_old},
        common::{
            access::{default_to, int_at, part, part_mut, set, text},
            checks,
            columns::{
                CONTAINERS, IMAGES, SELECTOR, age, age_of, containers, integer, labels, name, name_of, selector, string,
            },
            workload,
        },
        core::pod_spec,
    },
};

#[derive(Default)]
pub struct DaemonSet;

/// What was `spec.templateGeneration` before apps/v1: counts changes of the template, and its pods bear it as a label.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    if let Some(annotations) = part_mut(object, "metadata").and_then(|metadata| part_mut(metadata, "annotations")) {
        annotations[TEMPLATE_GENERATION] = json!(generation.to_string());
    }
}

impl Behavior for DaemonSet {
    fn default(&self, object: &mut Value) {
        // It was a number in the spec, and a number that nobody gave is zero.
        set_template_generation(object, template_generation(object));
        let Some(spec) = part_mut(object, "spec") else { return };
        if let Some(strategy) = part_mut(spec, "updateStrategy") {
            default_to(strategy, "type", "RollingUpdate");
            if text(strategy, "type") == "RollingUpdate"
                && let Some(rolling) = part_mut(strategy, "rollingUpdate")
            {
                default_to(rolling, "maxUnavailable", 1);
                default_to(rolling, "maxSurge", 0);
            }
        }
        default_to(spec, "revisionHistoryLimit", 10);
        pod_spec::defaults::template(spec);
    }

    fn annotations_hidden_in_rows(&self) -> &'static [&'static str] {
        &[TEMPLATE_GENERATION]
    }

    fn prepare_create(&self, object: &mut Value) {
        set(object, "status", self.initial_status());
        set_template_generation(object, template_generation(object).max(1));
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        let changed = !checks::same(&object["spec"]["template"], &old["spec"]["template"]);
        set_template_generation(object, template_generation(old).max(1) + i64::from(changed));
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        reset_to_old(object, old, self.status_update_resets());
        set_template_generation(object, template_generation(old).max(1));
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::label_selector(errors, &path.child("selector"), &spec["selector"]);
        if workload::has_readable_selector(&mut ErrorList::new(), &path, spec, "") {
            workload::template_matches(errors, &path, spec);
        }
        if spec["selector"].is_object() && checks::selector_is_empty(&spec["selector"]) {
            errors.invalid(&path.child("selector"), json!({}), "empty selector is invalid for daemonset");
        }
        workload::running_template(errors, &path, spec, "DaemonSet");
        checks::not_negative(errors, &path, spec, &["minReadySeconds"]);
        update_strategy(errors, &path.child("updateStrategy"), &spec["updateStrategy"]);
        checks::not_negative(errors, &path, spec, &["revisionHistoryLimit"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "selector");
        self.validate_create(object, errors);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let counts = [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ];
        checks::not_negative(errors, &Path::new("status"), &object["status"], &counts);
        workload::collision_count(errors, object, old);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let generation = |object: &Value| object["metadata"]["annotations"][TEMPLATE_GENERATION].clone();
        match old {
            Some(old) if generation(object) == generation(old) => Vec::new(),
            _ => pod_spec::warnings::template("spec.template", &object["spec"]["template"]),
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({ "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0 })
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 11] = [
            name(),
            integer("Desired", "Nodes that should run it."),
            integer("Current", "Nodes that run it."),
            integer("Ready", "Nodes where it is ready."),
            integer("Up-to-date", "Nodes that run the current template."),
            integer("Available", "Nodes where it serves."),
            string("Node Selector", "Which nodes run it."),
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
            json!(int_at(status, "desiredNumberScheduled")),
            json!(int_at(status, "currentNumberScheduled")),
            json!(int_at(status, "numberReady")),
            json!(int_at(status, "updatedNumberScheduled")),
            json!(int_at(status, "numberAvailable")),
            labels(&spec["template"]["spec"], "nodeSelector"),
            age_of(object, now),
            names,
            images,
            selector(spec, "selector"),
        ]
    }
}

fn update_strategy(errors: &mut ErrorList, path: &Path, strategy: &Value) {
    let at = path.child("rollingUpdate");
    match (text(strategy, "type"), part(strategy, "rollingUpdate")) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(&at, ""),
        ("RollingUpdate", Some(rolling)) => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            for (field, value) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                checks::int_or_percent(errors, &at.child(field), value);
                checks::at_most_100_percent(errors, &at.child(field), value);
            }
            match (checks::is_zero(unavailable), checks::is_zero(surge)) {
                (false, false) => errors.invalid(
                    &at.child("maxSurge"),
                    surge.clone(),
                    "may not be set when maxUnavailable is non-zero",
                ),
                (true, true) => {
                    errors.required(&at.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
                }
                _ => {}
            }
        }
        _ => errors.not_supported_shown(path, workload::shown_strategy(strategy), &["RollingUpdate", "OnDelete"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_generation_counts_changes_of_the_template() {
        let mut set = json!({ "metadata": { "name": "d" }, "spec": { "template": { "spec": {} } } });
        DaemonSet.prepare_create(&mut set);
        assert_eq!(template_generation(&set), 1);
        let check = |change: &dyn Fn(&mut Value), expected: i64| {
            let mut new = set.clone();
            change(&mut new);
            DaemonSet.prepare_update(&mut new, &set);
            assert_eq!(template_generation(&new), expected, "{new}");
        };
        check(&|_| {}, 1);
        check(&|new| new["spec"]["minReadySeconds"] = json!(3), 1);
        check(&|new| new["spec"]["template"]["spec"]["hostNetwork"] = json!(true), 2);
        check(&|new| set_template_generation(new, 9), 1);
        check(&|new| new["metadata"]["annotations"] = Value::Null, 1);
    }
}
