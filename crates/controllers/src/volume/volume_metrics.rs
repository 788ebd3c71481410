//! How many volumes and claims there are, and how long it takes to attach one: upstream's metrics.
//! Fed by `binder` with every change, and by `attach_detach` with what it asks for and sees.
//! A new term counts from the beginning: what another one left is taken away.

use std::{collections::HashMap, time::Duration};

use api::csi;
use client::Change;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use metrics::{Family, Metrics};
use parking_lot::Mutex;

use super::matching::{class_of_claim, class_of_volume};
use crate::common::meta::Object;

static VOLUMES: Family = Family::gauge(
    "pv_collector_total_pv_count",
    &["plugin_name", "volume_mode"],
    "PersistentVolumes, by type and mode.",
);
static BOUND_VOLUMES: Family =
    Family::gauge("pv_collector_bound_pv_count", &["storage_class"], "PersistentVolumes that have a claim.");
static UNBOUND_VOLUMES: Family =
    Family::gauge("pv_collector_unbound_pv_count", &["storage_class"], "PersistentVolumes without a claim.");
const CLAIM: &[&str] = &["namespace", "storage_class", "volume_attributes_class"];
static BOUND_CLAIMS: Family = Family::gauge("pv_collector_bound_pvc_count", CLAIM, "Claims that have a volume.");
static UNBOUND_CLAIMS: Family = Family::gauge("pv_collector_unbound_pvc_count", CLAIM, "Claims without a volume.");
static OPERATION_DURATION: Family = Family::histogram(
    "storage_operation_duration_seconds",
    &["volume_plugin", "operation_name", "status", "migrated"],
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0],
    "How long work on a volume took.",
);

static CLASSES_ASSIGNED: Family = Family::counter(
    "retroactive_storageclass_total",
    &[],
    "Claims that were to get the default class after they had been made.",
);
static CLASSES_NOT_ASSIGNED: Family =
    Family::counter("retroactive_storageclass_errors_total", &[], "Claims that could not be given the default class.");

/// A claim older than the default class was to get it.
pub fn class_assigned(metrics: &Metrics, succeeded: bool) {
    metrics.count(&CLASSES_ASSIGNED, &[]);
    if !succeeded {
        metrics.count(&CLASSES_NOT_ASSIGNED, &[]);
    }
}

/// A gauge of a family with these labels.
type Counted = (&'static Family, Vec<String>);

pub struct Counts {
    metrics: Metrics,
    /// As what each object is counted: a missed change must not count against another. Keys of claims have a slash.
    objects: HashMap<String, Vec<Counted>>,
    counts: HashMap<(&'static str, Vec<String>), i64>,
}

impl Counts {
    pub fn new(metrics: Metrics) -> Self {
        for family in [&VOLUMES, &BOUND_VOLUMES, &UNBOUND_VOLUMES, &BOUND_CLAIMS, &UNBOUND_CLAIMS] {
            metrics.retain(family, |_| false);
        }
        Self { metrics, objects: HashMap::new(), counts: HashMap::new() }
    }

    pub fn volume_changed(&mut self, change: &Change<PersistentVolume>) {
        self.replace(&change.key, change.new.as_deref().map(counted_volume));
    }

    pub fn claim_changed(&mut self, change: &Change<PersistentVolumeClaim>) {
        self.replace(&change.key, change.new.as_deref().map(|claim| vec![counted_claim(claim)]));
    }

    fn replace(&mut self, key: &str, counted: Option<Vec<Counted>>) {
        let was = match counted.clone() {
            Some(counted) => self.objects.insert(key.into(), counted),
            None => self.objects.remove(key),
        };
        was.into_iter().flatten().for_each(|counted| self.add(counted, -1));
        counted.into_iter().flatten().for_each(|counted| self.add(counted, 1));
    }

    fn add(&mut self, (family, labels): Counted, by: i64) {
        let count = self.counts.entry((family.name, labels.clone())).or_default();
        *count += by;
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        self.metrics.set(family, &labels, *count as f64);
    }
}

fn counted_volume(volume: &PersistentVolume) -> Vec<Counted> {
    let is_bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let family = if is_bound { &BOUND_VOLUMES } else { &UNBOUND_VOLUMES };
    let mode = volume.spec.as_ref().and_then(|s| s.volume_mode.clone()).unwrap_or_else(|| "Filesystem".into());
    vec![(family, vec![class_of_volume(volume)]), (&VOLUMES, vec![plugin_name(volume), mode])]
}

fn counted_claim(claim: &PersistentVolumeClaim) -> Counted {
    let is_bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let attributes = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone()).unwrap_or_default();
    let family = if is_bound { &BOUND_CLAIMS } else { &UNBOUND_CLAIMS };
    (family, vec![claim.namespace().into(), class_of_claim(claim), attributes])
}

fn plugin_name(volume: &PersistentVolume) -> String {
    let Some(spec) = &volume.spec else { return "N/A".into() };
    if let Some(csi) = &spec.csi {
        return csi::plugin_name(&csi.driver);
    }
    let known = [
        (spec.local.is_some(), "local-volume"),
        (spec.host_path.is_some(), "host-path"),
        (spec.nfs.is_some(), "nfs"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.fc.is_some(), "fc"),
    ];
    let found = known.into_iter().find(|(is_it, _)| *is_it);
    found.map_or_else(|| "N/A".into(), |(_, name)| format!("kubernetes.io/{name}"))
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    Attach,
    Detach,
}

struct Begun {
    operation: Operation,
    node: String,
    driver: String,
    at: Duration,
}

/// Attachments and detachments that were asked for and are not done, by the names of VolumeAttachments.
#[derive(Default)]
pub struct Operations(Mutex<HashMap<String, Begun>>);

impl Operations {
    pub fn begin(&self, operation: Operation, attachment: &str, node: &str, driver: &str, at: Duration) {
        let begun = Begun { operation, node: node.into(), driver: driver.into(), at };
        self.0.lock().insert(attachment.into(), begun);
    }

    /// Counts what has ended on the node; `state` tells how far an attachment is.
    pub fn observe(&self, metrics: &Metrics, node: &str, now: Duration, state: impl Fn(&str) -> AttachmentState) {
        self.0.lock().retain(|attachment, begun| {
            if begun.node != node {
                return true;
            }
            let status = match (begun.operation, state(attachment)) {
                (Operation::Attach, AttachmentState::Attached) | (Operation::Detach, AttachmentState::Gone) => {
                    "success"
                }
                (_, AttachmentState::Failed) | (Operation::Attach, AttachmentState::Gone) => "fail-unknown",
                _ => return true,
            };
            let name = if begun.operation == Operation::Attach { "volume_attach" } else { "volume_detach" };
            let labels = [csi::plugin_name(&begun.driver), name.into(), status.into(), "false".into()];
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            metrics.observe(&OPERATION_DURATION, &labels, now.saturating_sub(begun.at).as_secs_f64());
            false
        });
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttachmentState {
    Gone,
    Waiting,
    Attached,
    Failed,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_and_claims_are_counted_as_they_change() {
        let metrics = Metrics::default();
        let mut counts = Counts::new(metrics.clone());
        let volume = |phase: &str| -> Arc<PersistentVolume> {
            let spec = json!({ "storageClassName": "fast", "csi": { "driver": "d", "volumeHandle": "h" } });
            let object = json!({ "metadata": { "name": "pv" }, "spec": spec, "status": { "phase": phase } });
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let change = |old: Option<&str>, new: Option<&str>| Change {
            key: "pv".into(),
            old: old.map(volume),
            new: new.map(volume),
        };
        let check = |line: &str| assert!(metrics.page().contains(line), "{line}\n{}", metrics.page());
        counts.volume_changed(&change(None, Some("Available")));
        check("pv_collector_unbound_pv_count{storage_class=\"fast\"} 1");
        counts.volume_changed(&change(Some("Available"), Some("Bound")));
        check("pv_collector_unbound_pv_count{storage_class=\"fast\"} 0");
        check("pv_collector_bound_pv_count{storage_class=\"fast\"} 1");
        check("pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d\",volume_mode=\"Filesystem\"} 1");
        counts.volume_changed(&change(Some("Bound"), None));
        check("pv_collector_bound_pv_count{storage_class=\"fast\"} 0");
        let claim: Value = json!({ "metadata": { "namespace": "n" }, "spec": { "storageClassName": "fast" } });
        let claim = Some(Arc::new(serde_json::from_value(claim).unwrap()));
        counts.claim_changed(&Change { key: "n/c".into(), old: None, new: claim });
        let labels = "namespace=\"n\",storage_class=\"fast\",volume_attributes_class=\"\"";
        check(&format!("pv_collector_unbound_pvc_count{{{labels}}} 1"));
    }

    #[test]
    fn operations_are_measured_when_they_end() {
        let (metrics, operations) = (Metrics::default(), Operations::default());
        let at = Duration::from_secs;
        operations.begin(Operation::Attach, "a", "n", "d", at(1));
        operations.begin(Operation::Detach, "b", "n", "d", at(1));
        operations.observe(&metrics, "other", at(2), |_| AttachmentState::Gone);
        operations.observe(&metrics, "n", at(2), |_| AttachmentState::Waiting);
        assert_eq!(operations.0.lock().len(), 2);
        operations.observe(&metrics, "n", at(4), |name| match name {
            "a" => AttachmentState::Attached,
            _ => AttachmentState::Gone,
        });
        assert!(operations.0.lock().is_empty());
        for operation in ["volume_attach", "volume_detach"] {
            let labels =
                format!("volume_plugin=\"kubernetes.io/csi:d\",operation_name=\"{operation}\",status=\"success\"");
            assert!(metrics.page().contains(&labels), "{}", metrics.page());
        }
    }
}
