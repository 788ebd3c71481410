//! CertificateSigningRequests: strategy, columns, validation.
//! Neighbours: the approval subresource and the signing controllers.
//! The request and who made it never change.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{condition_times, signer_name};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::{keep_field, status_without_generation},
        common::{
            access::{int, is_set, items, set, text, texts},
            checks,
            columns::{age, age_of, condition, name, name_of, or, string},
        },
    },
    printing,
};

#[derive(Default)]
pub struct CertificateSigningRequest;

impl Behavior for CertificateSigningRequest {
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        keep_field(object, old, "spec");
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"]);
        validate_conditions(errors, object);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        validate_decided(errors, object, old, false);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        validate_decided(errors, object, old, false);
        let certificate = |object: &Value| text(&object["status"], "certificate").to_string();
        if !certificate(old).is_empty() && certificate(old) != certificate(object) {
            errors.forbidden(
                &Path::new("status").child("certificate"),
                "updates may not modify existing certificate content",
            );
        }
    }

    fn stamp_status_update(&self, object: &mut Value, old: &Value, now: Timestamp) {
        condition_times::keep_decisions(object, old);
        condition_times::stamp(object, old, now);
    }

    /// A decision: beside the metadata only the conditions change.
    fn prepare_subresource_update(&self, subresource: &str, object: &mut Value, old: &Value) {
        if subresource != "approval" {
            return;
        }
        let conditions = object["status"].get("conditions").cloned().unwrap_or_default();
        crate::kinds::behavior::reset_to_old(object, old, &[]);
        set(object, "status", old.get("status").cloned().unwrap_or_default());
        if let Some(status) = crate::kinds::common::access::part_mut(object, "status") {
            set(status, "conditions", conditions);
        }
    }

    fn stamp_subresource_update(&self, subresource: &str, object: &mut Value, old: &Value, now: Timestamp) {
        if subresource == "approval" {
            condition_times::stamp(object, old, now);
        }
    }

    fn validate_subresource_update(&self, subresource: &str, object: &Value, old: &Value, errors: &mut ErrorList) {
        if subresource == "approval" {
            validate_approval(errors, object, old);
        }
    }

    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        Vec::new()
    }

    status_without_generation!();

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

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn validate_spec(errors: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    let request = STANDARD.decode(text(spec, "request")).unwrap_or_default();
    // The signature is checked by the signer; here it must look like a request.
    if !String::from_utf8_lossy(&request).contains("-----BEGIN CERTIFICATE REQUEST-----") {
        let words = "PEM block type must be CERTIFICATE REQUEST";
        let shown = Some(text(spec, "request")).filter(|request| !request.is_empty());
        match shown {
            // As bytes, which have no quotes of their own but JSON's.
            Some(request) => errors.invalid(&path.child("request"), request, words),
            None => errors.invalid(&path.child("request"), Value::Null, words),
        }
    }
    checks::required(errors, &path, spec, "usages");
    let usages: Vec<&str> = texts(spec, "usages").collect();
    for (index, usage) in usages.iter().enumerate() {
        let path = path.child("usages").index(index);
        if !USAGES.contains(usage) {
            errors.not_supported(&path, *usage, &USAGES);
        }
        if usages[..index].contains(usage) {
            errors.duplicate(&path, *usage);
        }
    }
    validate_signer(errors, &path.child("signerName"), text(spec, "signerName"));
    if let Some(seconds) = int(spec, "expirationSeconds").filter(|s| *s < 600) {
        errors.invalid(
            &path.child("expirationSeconds"),
            seconds,
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
}

fn validate_signer(errors: &mut ErrorList, path: &Path, signer: &str) {
    match signer {
        "kubernetes.io/legacy-unknown" => {
            errors.invalid(path, signer, "the legacy signerName is not allowed via this API version");
        }
        _ => signer_name::validate(errors, path, signer),
    }
}

fn validate_conditions(errors: &mut ErrorList, object: &Value) {
    let path = Path::new("status").child("conditions");
    let conditions = items(&object["status"], "conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        let kind = text(condition, "type");
        checks::required(errors, &at, condition, "type");
        let statuses: &[&str] = match kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        checks::one_of(errors, &at, condition, "status", statuses);
        let before = &conditions[..index];
        let seen = |wanted: &str| before.iter().any(|c| text(c, "type") == wanted);
        if (kind == "Approved" && seen("Denied")) || (kind == "Denied" && seen("Approved")) {
            errors.invalid(&path, kind, "Approved and Denied conditions are mutually exclusive");
        }
        if seen(kind) {
            errors.duplicate(&at.child("type"), kind);
        }
    }
}

/// What has been decided stays; decisions come through `approval` only.
fn validate_decided(errors: &mut ErrorList, new: &Value, old: &Value, approval: bool) {
    let path = Path::new("status").child("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        match (condition(old, kind), condition(new, kind)) {
            (Some(_), None) => {
                errors.forbidden(&path, format!("updates may not remove a condition of type {kind:?}"));
            }
            (None, Some(_)) if !approval && kind != "Failed" => {
                errors.forbidden(&path, format!("updates may not add a condition of type {kind:?}"));
            }
            (Some(before), Some(now)) if !approval && kind != "Failed" && !checks::same(before, now) => {
                errors.forbidden(&path, format!("updates may not modify a condition of type {kind:?}\n"));
            }
            _ => {}
        }
    }
}

fn validate_approval(errors: &mut ErrorList, new: &Value, old: &Value) {
    validate_spec(errors, &new["spec"]);
    validate_conditions(errors, new);
    validate_decided(errors, new, old, true);
    if text(&new["status"], "certificate") != text(&old["status"], "certificate") {
        errors.forbidden(&Path::new("status").child("certificate"), "updates may not set certificate content");
    }
}
