//! Expressions in configurations of admission and in selectors of devices must compile before they are stored.
//! Called by `registry` beside the validation of their kinds, since a broken expression would break every later request.
//! What was stored already is not refused again for an expression that did not change.

use serde_json::Value;

use api::{
    field::{ErrorList, Path},
    kinds::Resource,
};

use ::cel::admission::{check_source, policy_names, request_names};

use crate::cel::{
    device::{self, DeviceSelector},
    types::Type,
};

/// Lists below `spec` of a policy, which of their fields are expressions, and what those must evaluate to.
const POLICY: [(&str, &str, Option<&str>); 5] = [
    ("matchConditions", "expression", Some("bool")),
    ("variables", "expression", None),
    ("validations", "expression", Some("bool")),
    ("validations", "messageExpression", Some("string")),
    ("auditAnnotations", "valueExpression", Some("string")),
];

/// What is wrong with the expressions of a new object, or of one that replaces `old`.
pub fn errors(resource: &Resource, object: &Value, old: &Value) -> ErrorList {
    let groups = ["admissionregistration.k8s.io", "resource.k8s.io"];
    let mut errors = ErrorList::new();
    if !groups.contains(&resource.group.as_str()) {
        return errors;
    }
    let (object, old) = (api::kinds::as_stored(resource, object), api::kinds::as_stored(resource, old));
    let spec = || List { new: &object["spec"], old: &old["spec"], path: Path::new("spec") };
    match resource.plural.as_str() {
        "deviceclasses" => spec().check_selectors(&mut errors),
        // What cannot change is not looked at again.
        "resourceclaims" if !old.is_null() => {}
        "resourceclaims" => spec().check_requests(&mut errors),
        "resourceclaimtemplates" => spec().part("spec").check_requests(&mut errors),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            let names = request_names(Type::Dyn);
            for (at, webhook) in object["webhooks"].as_array().into_iter().flatten().enumerate() {
                let row = List { new: webhook, old: &old["webhooks"][at], path: Path::new("webhooks").index(at) };
                row.check("matchConditions", "expression", Some("bool"), &names, &mut errors);
            }
        }
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            let names = names_of_policy(&object["spec"]);
            for (name, field, result) in POLICY {
                spec().check(name, field, result, &names, &mut errors);
            }
        }
        _ => {}
    }
    errors
}

struct List<'a> {
    new: &'a Value,
    old: &'a Value,
    path: Path,
}

impl<'a> List<'a> {
    fn part(&self, name: &str) -> List<'a> {
        List { new: &self.new[name], old: &self.old[name], path: self.path.child(name) }
    }

    fn rows(&self, name: &str) -> impl Iterator<Item = List<'a>> {
        let List { new, old, path } = self.part(name);
        let items = new.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, new)| List { new, old: &old[at], path: path.index(at) })
    }

    /// The requests of a claim for devices, and those it would take instead.
    fn check_requests(&self, errors: &mut ErrorList) {
        for request in self.part("devices").rows("requests") {
            request.part("exactly").check_selectors(errors);
            request.rows("firstAvailable").for_each(|r| r.check_selectors(errors));
        }
    }

    fn check_selectors(&self, errors: &mut ErrorList) {
        for selector in self.rows("selectors").map(|s| s.part("cel")) {
            let source = selector.new["expression"].as_str().unwrap_or_default();
            // What is absent or too long has been told already.
            if !selector.new.is_object()
                || source.len() > device::EXPRESSION_BYTES_MAX
                || selector.old["expression"] == source
            {
                continue;
            }
            let path = selector.path.child("expression");
            match DeviceSelector::compile(source) {
                Err(why) => errors.invalid(&path, source, why.to_string()),
                Ok(selector) if selector.is_too_complex() => {
                    errors.forbidden(&path, "too complex, exceeds cost limit");
                }
                Ok(_) => {}
            }
        }
    }

    fn check(&self, list: &str, field: &str, result: Option<&str>, names: &[(&str, Type)], errors: &mut ErrorList) {
        for (at, item) in self.new[list].as_array().into_iter().flatten().enumerate() {
            let Some(source) = item[field].as_str().filter(|s| !s.trim().is_empty()) else { continue };
            if self.old[list][at][field] == source {
                continue;
            }
            let path = self.path.child(list).index(at).child(field);
            match (check_source(source, names), result) {
                (Err(why), _) => errors.invalid(&path, source, why.to_string()),
                // What is only known when it runs is judged then. A text may also be left out.
                (Ok(Type::Dyn), _) | (Ok(_), None) | (Ok(Type::Null), Some("string")) => {}
                (Ok(found), Some(wanted)) if found.to_string() == wanted => {}
                (Ok(_), Some(wanted)) => errors.invalid(&path, source, format!("must evaluate to {wanted}")),
            }
        }
    }
}

/// What the expressions of a policy can name, whatever objects it is asked about. So its parameters may be anything too:
/// nobody is refused for what is found out later.
fn names_of_policy(spec: &Value) -> Vec<(&'static str, Type)> {
    policy_names(spec, Type::Dyn, Type::Dyn)
}
