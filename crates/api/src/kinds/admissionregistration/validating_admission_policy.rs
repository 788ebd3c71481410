//! ValidatingAdmissionPolicies: defaults, columns, validation.
//! Read by the admission plugin of the same name, which compiles the CEL expressions.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admission_policy::{default_policy, param_kind, validate_constraints, validate_variables},
    match_resources::validate_conditions,
};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{is_set, items, text},
            checks,
            columns::{age, age_of, integer, name, name_of, string},
        },
    },
};

#[derive(Default)]
pub struct ValidatingAdmissionPolicy;

impl Behavior for ValidatingAdmissionPolicy {
    fn default(&self, object: &mut Value) {
        default_policy(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_constraints(errors, &path, spec);
        validate_conditions(errors, &path.child("matchConditions"), spec);
        validate_variables(errors, &path, spec);
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
        vec![name_of(object), json!(items(spec, "validations").len()), param_kind(spec), age_of(object, now)]
    }
}
