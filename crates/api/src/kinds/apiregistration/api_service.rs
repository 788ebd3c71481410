//! APIServices: defaults, strategy, columns, validation.
//! Neighbours: the aggregation layer, which proxies to their services.
//! A name is `version.group`.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, existing_mut, flag, int_at, is_set, items, part, part_mut, text},
            checks,
            columns::{age, age_of, condition, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct ApiService;

impl Behavior for ApiService {
    fn default(&self, object: &mut Value) {
        if let Some(service) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "service")) {
            default_to(service, "port", 443);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let (group, version) = (text(spec, "group"), text(spec, "version"));
        let required = format!("{version}.{group}");
        for field in ["generateName", "name"] {
            let name = text(&object["metadata"], field);
            if !name.is_empty() && name != required && names::path_segment(name, false).is_empty() {
                errors.invalid(
                    &Path::new("metadata").child(field),
                    name,
                    format!("must be `spec.version+\".\"+spec.group`: {required:?}"),
                );
            }
        }
        if group.is_empty() && version != "v1" {
            errors.required(&path.child("group"), "only v1 may have an empty group and it better be legacy kube");
        }
        checks::optional_name(errors, &path, spec, "group", |name| names::dns_subdomain(name, false));
        checks::complaints(errors, &path.child("version"), version, names::dns1035_label(version, false));
        for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
            let number = int_at(spec, field);
            if number <= 0 || number > most {
                errors.invalid(&path.child(field), number, format!("must be positive and less than {most}"));
            }
        }
        let insecure = path.child("insecureSkipTLSVerify");
        match part(spec, "service") {
            None => {
                if is_set(spec, "caBundle") {
                    let shown = format!("{} bytes", text(spec, "caBundle").len());
                    errors.invalid(&path.child("caBundle"), shown, "local APIServices may not have a caBundle");
                }
                if flag(spec, "insecureSkipTLSVerify") {
                    errors.invalid(&insecure, true, "local APIServices may not have insecureSkipTLSVerify");
                }
            }
            Some(service) => {
                let at = path.child("service");
                checks::required(errors, &at, service, "namespace");
                checks::required(errors, &at, service, "name");
                let port = int_at(service, "port");
                for complaint in names::port_number(port) {
                    errors.invalid(&at.child("port"), port, format!("port is not valid: {complaint}"));
                }
                if flag(spec, "insecureSkipTLSVerify") && is_set(spec, "caBundle") {
                    errors.invalid(&insecure, true, "may not be true if caBundle is present");
                }
            }
        }
    }

    /// Checked against the spec when the whole object is.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let path = Path::new("status").child("conditions");
        for (index, condition) in items(&object["status"], "conditions").iter().enumerate() {
            let statuses = ["True", "False", "Unknown"];
            if !statuses.contains(&text(condition, "status")) {
                let at = path.index(index).child("status");
                errors.not_supported_as_listed(&at, text(condition, "status"), &statuses);
            }
        }
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] =
            [name(), string("Service", "Who serves the group."), string("Available", "Whether it answers."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let service = part(&object["spec"], "service")
            .map(|service| format!("{}/{}", text(service, "namespace"), text(service, "name")));
        let available = match condition(object, "Available") {
            None => "Unknown".to_string(),
            Some(c) if text(c, "status") == "True" => "True".to_string(),
            Some(c) => format!("{} ({})", text(c, "status"), text(c, "reason")),
        };
        vec![name_of(object), json!(service.as_deref().unwrap_or("Local")), json!(available), age_of(object, now)]
    }
}
