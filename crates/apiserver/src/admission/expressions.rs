//! Expressions in configurations of admission and in selectors of devices must compile before they are stored.
//! Called by `registry` beside the validation of their kinds, since a broken expression would break every later request.
//! What was stored already is not refused again for an expression that did not change.

use std::sync::Arc;

use serde_json::Value;

use api::{
    field::{ErrorList, Path},
    kinds::Resource,
};

use crate::{
    cel::{
        CelError, Expression, authorizer,
        device::{self, DeviceSelector},
        types::Type,
    },
    discovery::served::Set,
    handlers::codec,
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
pub fn errors(set: &Set, resource: &Resource, object: &Value, old: &Value) -> ErrorList {
    let groups = ["admissionregistration.k8s.io", "resource.k8s.io"];
    let mut errors = ErrorList::new();
    if !groups.contains(&resource.group.as_str()) {
        return errors;
    }
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
            let names = policy_names(set, &object["spec"], Type::Dyn);
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

pub fn check_source(source: &str, names: &[(&str, Type)]) -> Result<Type, CelError> {
    Expression::compile(source)?.check(names)
}

/// What every expression of admission can name.
fn request_names(object: Type) -> Vec<(&'static str, Type)> {
    vec![
        ("object", object.clone()),
        ("oldObject", object),
        ("request", Type::request()),
        (authorizer::NAME, Type::Named("kubernetes.authorization.Authorizer")),
        (authorizer::REQUEST_RESOURCE, Type::Named("kubernetes.authorization.ResourceCheck")),
    ]
}

/// What the expressions of a policy can name, with the types of its variables as far as they are known.
pub fn policy_names(set: &Set, spec: &Value, object: Type) -> Vec<(&'static str, Type)> {
    // Where the object may be anything, so may the parameters: nobody is refused for what is found out later.
    let known = !matches!(object, Type::Dyn);
    let mut names = request_names(object);
    let schema = codec::builtin_schema();
    let namespace = schema.find_kind("", "v1", "Namespace");
    names.push(("namespaceObject", namespace.map_or(Type::Dyn, |id| Type::Struct(schema, id))));
    if spec["paramKind"].is_object() {
        let (version, kind) = (&spec["paramKind"]["apiVersion"], &spec["paramKind"]["kind"]);
        let served = set.resources.iter().find(|r| *kind == r.kind.as_str() && *version == r.api_version());
        let typed = served.filter(|_| known).and_then(|s| s.schema.clone());
        names.push(("params", typed.map_or(Type::Dyn, |(schema, id)| Type::Struct(schema, id))));
    }
    let mut variables: Vec<(String, Type)> = Vec::new();
    for variable in spec["variables"].as_array().into_iter().flatten() {
        let mut inside = names.clone();
        inside.push(("variables", Type::Record("kubernetes.variables", Arc::new(variables.clone()))));
        let found = check_source(variable["expression"].as_str().unwrap_or_default(), &inside).unwrap_or(Type::Dyn);
        variables.push((variable["name"].as_str().unwrap_or_default().to_string(), found));
    }
    names.push(("variables", Type::Record("kubernetes.variables", Arc::new(variables))));
    names
}
