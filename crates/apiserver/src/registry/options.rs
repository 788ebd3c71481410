//! The options of writes and deletions, from the query and from the body.
//! Read by every verb that changes something.
//! An unknown value is refused, never guessed.

use http::header;
use serde_json::{Value, json};

use api::{
    ApiError,
    field::{ErrorList, Path},
};

use crate::{
    audit,
    handlers::{codec, negotiate},
    request::call::Call,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: bool,
}

impl WriteOptions {
    pub fn from_query(call: &Call, kind: &str) -> Result<Self, ApiError> {
        let mut errors = ErrorList::new();
        let dry_run = dry_run(call.query.all("dryRun"), &mut errors);
        let field_validation = match call.query.text("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                errors.not_supported(&Path::new("fieldValidation"), other, &["", "Ignore", "Strict", "Warn"]);
                FieldValidation::Ignore
            }
        };
        let manager = call.query.text("fieldManager");
        if let Some(manager) = manager {
            if manager.len() > 128 {
                errors.too_long(&Path::new("fieldManager"), 128);
            }
            if manager.chars().any(|c| c.is_control()) {
                errors.invalid(&Path::new("fieldManager"), manager, "should only contain printable characters");
            }
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", kind, "", errors));
        }
        let field_manager = match manager {
            Some(manager) => manager.to_string(),
            None => agent_manager(call.header(header::USER_AGENT)),
        };
        Ok(Self { dry_run, field_manager, field_validation, force: call.query.flag("force") })
    }

    pub fn to_value(&self, kind: &str) -> Value {
        let mut options = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1", "fieldManager": self.field_manager });
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        options
    }
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut ErrorList) -> bool {
    let values: Vec<&str> = values.filter(|v| !v.is_empty()).collect();
    if values.iter().any(|value| *value != "All") {
        // All of them are shown, as upstream does.
        errors.not_supported(&Path::new("dryRun"), values.clone(), &["All"]);
    }
    !values.is_empty()
}

/// Clients that name no manager are known by the first word of their user agent.
fn agent_manager(agent: &str) -> String {
    let name = agent.split('/').next().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "unknown".into() } else { name }
}

pub use api::kinds::Propagation;

#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
    pub orphan_dependents: Option<bool>,
    /// Admission was asked about what leads to the deletion (an eviction), and not about the deletion itself.
    pub admitted: bool,
}

impl DeleteOptions {
    /// The body wins over the query, as upstream has it.
    pub fn from_request(call: &Call, bytes: &[u8]) -> Result<Self, ApiError> {
        let value = match bytes.is_empty() {
            true => Self::query_value(call)?,
            false => {
                let schema = codec::builtin_schema();
                let options = schema.find_kind("", "v1", "DeleteOptions").map(|id| (&*schema, id));
                let value = codec::decode(bytes, negotiate::input(&call.headers)?, options)?.value;
                audit::request_object(&value, "meta.k8s.io/v1", "DeleteOptions");
                match value["kind"].as_str() {
                    Some("DeleteOptions" | "") | None => value,
                    Some(_) => Self::query_value(call)?,
                }
            }
        };
        Self::from_value(&value)
    }

    fn query_value(call: &Call) -> Result<Value, ApiError> {
        let mut value = json!({ "dryRun": call.query.all("dryRun").collect::<Vec<_>>() });
        if let Some(seconds) = call.query.number("gracePeriodSeconds")? {
            value["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(policy) = call.query.text("propagationPolicy") {
            value["propagationPolicy"] = policy.into();
        }
        if let Some(orphan) = call.query.optional_flag("orphanDependents") {
            value["orphanDependents"] = orphan.into();
        }
        Ok(value)
    }

    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        let mut errors = ErrorList::new();
        let text = |v: &Value| v.as_str().map(str::to_string);
        let dry_runs = value["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let dry_run = dry_run(dry_runs, &mut errors);
        let propagation = match value["propagationPolicy"].as_str() {
            None => None,
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.not_supported_as_listed(&Path::new("propagationPolicy"), other, &supported);
                None
            }
        };
        let orphan_dependents = value["orphanDependents"].as_bool();
        if propagation.is_some() && orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.invalid(&Path::new("propagationPolicy"), value["propagationPolicy"].clone(), detail);
        }
        // Less than nothing counts as one second, as upstream has it.
        let grace_period_seconds = value["gracePeriodSeconds"].as_i64().map(|s| if s < 0 { 1 } else { s });
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", errors));
        }
        Ok(Self {
            dry_run,
            grace_period_seconds,
            uid: text(&value["preconditions"]["uid"]),
            resource_version: text(&value["preconditions"]["resourceVersion"]),
            propagation,
            orphan_dependents,
            admitted: false,
        })
    }

    pub fn to_value(&self) -> Value {
        let mut value = json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" });
        if let Some(seconds) = self.grace_period_seconds {
            value["gracePeriodSeconds"] = seconds.into();
        }
        if self.dry_run {
            value["dryRun"] = json!(["All"]);
        }
        value
    }
}
