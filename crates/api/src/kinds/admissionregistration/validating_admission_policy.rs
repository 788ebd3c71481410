//! ValidatingAdmissionPolicies: defaults, columns, validation.
//! Read by the admission plugin of the same name, which compiles the CEL expressions.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        admissionregistration::match_resources::{default_match, validate_conditions, validate_match},
        common::{
            access::{default_absent, existing_mut, is_set, items, part, part_mut, text},
            checks,
            columns::{age, age_of, integer, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct ValidatingAdmissionPolicy;

impl Behavior for ValidatingAdmissionPolicy {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_absent(spec, "failurePolicy", "Fail");
        if let Some(constraints) = existing_mut(spec, "matchConstraints") {
            default_match(constraints);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::optional_one_of(errors, &path, spec, "failurePolicy", &["Fail", "Ignore"]);
        if let Some(kind) = part(spec, "paramKind") {
            checks::required(errors, &path.child("paramKind"), kind, "apiVersion");
            checks::required(errors, &path.child("paramKind"), kind, "kind");
        }
        let constraints = path.child("matchConstraints");
        match part(spec, "matchConstraints") {
            None => errors.required(&constraints, ""),
            Some(resources) => {
                validate_match(errors, &constraints, resources);
                if !is_set(resources, "resourceRules") {
                    errors.required(&constraints.child("resourceRules"), "");
                }
            }
        }
        validate_conditions(errors, &path.child("matchConditions"), spec);
        let variables = items(spec, "variables");
        for (index, variable) in variables.iter().enumerate() {
            let path = path.child("variables").index(index);
            match text(variable, "name") {
                name if name.trim().is_empty() => errors.required(&path.child("name"), "name is not specified"),
                name if !names::c_identifier(name).is_empty() => {
                    errors.invalid(&path.child("name"), name, "must be a valid CEL identifier");
                }
                _ => {}
            }
            if variables[..index].iter().any(|other| text(other, "name") == text(variable, "name")) {
                errors.duplicate(&path.child("name"), text(variable, "name"));
            }
            if text(variable, "expression").trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
            errors.expression(&path.child("expression"));
        }
        if !is_set(spec, "validations") && !is_set(spec, "auditAnnotations") {
            let words = "validations or auditAnnotations must contain at least one item";
            errors.required(&path.child("validations"), words);
            errors.required(&path.child("auditAnnotations"), words);
        }
        for (index, validation) in items(spec, "validations").iter().enumerate() {
            let path = path.child("validations").index(index);
            if text(validation, "expression").trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
            errors.expression(&path.child("expression"));
            let message = text(validation, "message");
            if message.contains('\n') {
                errors.invalid(&path.child("message"), message, "message must not contain line breaks");
            }
            errors.expression(&path.child("messageExpression"));
            let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
            checks::optional_one_of(errors, &path, validation, "reason", &reasons);
        }
        for (index, _) in items(spec, "auditAnnotations").iter().enumerate() {
            errors.expression(&path.child("auditAnnotations").index(index).child("valueExpression"));
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            integer("Validations", "How many rules it has."),
            string("ParamKind", "What its parameters are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let kind = part(spec, "paramKind").map(|p| format!("{}/{}", text(p, "apiVersion"), text(p, "kind")));
        vec![
            name_of(object),
            json!(items(spec, "validations").len()),
            json!(kind.as_deref().unwrap_or("<unset>")),
            age_of(object, now),
        ]
    }
}
