//! Deployments: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `workload` for what workloads share.
//! Invariant: the selector never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, int_at, part_mut, text},
    columns::{CONTAINERS, IMAGES, SELECTOR, age, age_of, containers, name, name_of, selector_text, string},
    pod_spec,
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

    fn has_status(&self) -> bool {
        true
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
