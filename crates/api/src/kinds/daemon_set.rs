//! DaemonSets: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `workload` for what workloads share.
//! Invariant: the selector never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, int_at, part_mut, text},
    columns::{
        CONTAINERS, IMAGES, SELECTOR, age, age_of, containers, integer, labels, name, name_of, selector, string,
    },
    pod_spec,
};

#[derive(Default)]
pub struct DaemonSet;

impl Behavior for DaemonSet {
    fn default(&self, object: &mut Value) {
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

    fn has_status(&self) -> bool {
        true
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
