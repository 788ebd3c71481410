//! Leases: columns and validation.
//! Neighbours: leader election and node heartbeats.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{int, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
};

/// Where kubelets keep the leases that are their heartbeats.
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

#[derive(Default)]
pub struct Lease;

impl Behavior for Lease {
    /// The kubelets' leases.
    fn is_heartbeat(&self, namespace: &str) -> bool {
        namespace == NODE_LEASE_NAMESPACE
    }

    fn is_counted_by_quota(&self) -> bool {
        false
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|s| *s <= 0) {
            errors.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
        }
        checks::not_negative(errors, &path, spec, &["leaseTransitions"]);
        if !text(spec, "preferredHolder").is_empty() && text(spec, "strategy").is_empty() {
            errors.forbidden(&path.child("preferredHolder"), "may only be specified if `strategy` is defined");
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Holder", "Who holds it."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(&object["spec"], "holderIdentity")), age_of(object, now)]
    }
}
