//! StatefulSets: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `persistent_volume_claim` for the claim templates.
//! Invariant: only a few fields of the spec may change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, existing_mut, int_at, is_set, part_mut, text},
    columns::{CONTAINERS, IMAGES, age, age_of, containers, name, name_of, string},
    pod_spec,
};

#[derive(Default)]
pub struct StatefulSet;

impl Behavior for StatefulSet {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "podManagementPolicy", "OrderedReady");
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = part_mut(spec, "updateStrategy") {
            if !is_set(strategy, "type") {
                strategy["type"] = json!("RollingUpdate");
                default_to(strategy, "rollingUpdate", json!({}));
            }
            if text(strategy, "type") == "RollingUpdate"
                && let Some(rolling) = existing_mut(strategy, "rollingUpdate")
            {
                default_to(rolling, "partition", 0);
            }
        }
        if let Some(retention) = part_mut(spec, "persistentVolumeClaimRetentionPolicy") {
            default_to(retention, "whenDeleted", "Retain");
            default_to(retention, "whenScaled", "Retain");
        }
        each(spec, "volumeClaimTemplates", |claim| {
            default_to(claim, "apiVersion", "v1");
            default_to(claim, "kind", "PersistentVolumeClaim");
            super::persistent_volume_claim::PersistentVolumeClaim.default(claim);
        });
        pod_spec::defaults::template(spec);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] =
            [name(), string("Ready", "Ready replicas of those wanted."), age(), CONTAINERS, IMAGES];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let (names, images) = containers(&spec["template"]["spec"]);
        vec![
            name_of(object),
            json!(format!("{}/{}", int_at(status, "readyReplicas"), int_at(spec, "replicas"))),
            age_of(object, now),
            names,
            images,
        ]
    }
}
