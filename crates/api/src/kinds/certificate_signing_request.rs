//! CertificateSigningRequests: strategy, columns, validation.
//! Neighbours: the approval subresource and the signing controllers.
//! Invariant: the request and who made it never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{int, is_set, text},
    behavior::{drop_field, keep_field},
    columns::{age, age_of, condition, name, name_of, or, string},
};
use crate::printing;

#[derive(Default)]
pub struct CertificateSigningRequest;

impl Behavior for CertificateSigningRequest {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = super::access::part_mut(object, "spec")
            && !is_set(spec, "usages")
        {
            spec["usages"] = json!(["digital signature", "key encipherment"]);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        drop_field(object, "status");
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        keep_field(object, old, "spec");
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            age(),
            string("SignerName", "Who should sign it."),
            string("Requestor", "Who asked."),
            string("RequestedDuration", "How long it should hold."),
            string("Condition", "What became of it."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let duration = int(spec, "expirationSeconds").map(printing::human_duration);
        vec![
            name_of(object),
            age_of(object, now),
            json!(or(text(spec, "signerName"), "<none>")),
            json!(text(spec, "username")),
            json!(duration.as_deref().unwrap_or("<none>")),
            json!(progress(object)),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("spec.signerName".into(), text(&object["spec"], "signerName").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.signerName".into()]
    }
}

fn progress(request: &Value) -> String {
    let mut shown = if condition(request, "Denied").is_some() {
        "Denied"
    } else if condition(request, "Approved").is_some() {
        "Approved"
    } else {
        "Pending"
    }
    .to_string();
    if condition(request, "Failed").is_some() {
        shown.push_str(",Failed");
    }
    if is_set(&request["status"], "certificate") {
        shown.push_str(",Issued");
    }
    shown
}
