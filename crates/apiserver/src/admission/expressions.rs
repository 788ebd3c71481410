//! Expressions in configurations of admission must compile before they are stored.
//! Part of the chain in `admission`; not a plugin, because a broken expression would break every later request.
//! Invariant: what was stored already is not refused again for an expression that did not change.

use serde_json::Value;

use api::{
    ApiError,
    field::{ErrorList, Path},
};

use super::{Attributes, Operation};
use crate::cel::Expression;

/// Lists below `spec` of a policy, and which of their fields are expressions.
const POLICY: [(&str, &[&str]); 4] = [
    ("matchConditions", &["expression"]),
    ("variables", &["expression"]),
    ("validations", &["expression", "messageExpression"]),
    ("auditAnnotations", &["valueExpression"]),
];

pub fn check(a: &Attributes<'_>) -> Result<(), ApiError> {
    let writes = matches!(a.operation, Operation::Create | Operation::Update) && a.subresource.is_empty();
    if a.resource.group != "admissionregistration.k8s.io" || !writes {
        return Ok(());
    }
    let mut errors = ErrorList::new();
    match a.resource.plural.as_str() {
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            for (at, webhook) in a.object["webhooks"].as_array().into_iter().flatten().enumerate() {
                let path = Path::new("webhooks").index(at);
                let old = &a.old["webhooks"][at];
                list(webhook, old, "matchConditions", &["expression"], &path, &mut errors);
            }
        }
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            for (name, fields) in POLICY {
                list(&a.object["spec"], &a.old["spec"], name, fields, &Path::new("spec"), &mut errors);
            }
        }
        _ => {}
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid(&a.resource.group, &a.resource.kind, a.name, errors)),
    }
}

fn list(new: &Value, old: &Value, name: &str, fields: &[&str], path: &Path, errors: &mut ErrorList) {
    for (at, item) in new[name].as_array().into_iter().flatten().enumerate() {
        for field in fields {
            let Some(source) = item[*field].as_str().filter(|s| !s.is_empty()) else { continue };
            if old[name][at][*field] == source {
                continue;
            }
            if let Err(why) = Expression::compile(source) {
                errors.invalid(&path.child(name).index(at).child(field), source, &why);
            }
        }
    }
}
