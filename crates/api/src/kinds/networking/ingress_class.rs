//! IngressClasses: defaults, columns, validation.
//! Named by Ingresses; `ingress` checks references the same way.
//! The controller of a class never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, existing_mut, part, part_mut, text},
            checks::{self, complaints},
            columns::{age, age_of, name, name_of, string},
        },
        networking::ingress::validate_reference,
    },
    names,
};

#[derive(Default)]
pub struct IngressClass;

impl Behavior for IngressClass {
    fn default(&self, object: &mut Value) {
        if let Some(parameters) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "parameters")) {
            default_absent(parameters, "scope", "Cluster");
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let controller = text(spec, "controller");
        if controller.len() > 250 {
            errors.too_long(&path.child("controller"), 250);
        }
        validate_controller(errors, &path.child("controller"), controller);
        if let Some(parameters) = part(spec, "parameters") {
            validate_parameters(errors, &path.child("parameters"), parameters);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        // A text that is not there is an empty one.
        let controller = |of: &Value| json!({ "controller": text(&of["spec"], "controller") });
        checks::immutable(errors, &Path::new("spec"), &controller(object), &controller(old), "controller");
        self.validate_create(object, errors);
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Controller", "Who serves this class."),
            string("Parameters", "Where its settings are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let parameters = part(spec, "parameters").map(|p| {
            let group = p["apiGroup"].as_str().map(|group| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", text(p, "kind"), text(p, "name"))
        });
        vec![
            name_of(object),
            json!(text(spec, "controller")),
            json!(parameters.as_deref().unwrap_or("<none>")),
            age_of(object, now),
        ]
    }
}

fn validate_parameters(errors: &mut ErrorList, path: &Path, parameters: &Value) {
    validate_reference(errors, path, parameters);
    let namespace = text(parameters, "namespace");
    match (text(parameters, "scope"), namespace) {
        ("", _) => errors.required(&path.child("scope"), ""),
        ("Namespace", "") => {
            errors.required(&path.child("namespace"), "`parameters.scope` is set to 'Namespace'");
        }
        ("Namespace", namespace) => {
            complaints(errors, &path.child("namespace"), namespace, names::dns_label(namespace, false));
        }
        ("Cluster", "") => {}
        ("Cluster", _) => errors.forbidden(&path.child("namespace"), "`parameters.scope` is set to 'Cluster'"),
        (scope, _) => errors.not_supported(&path.child("scope"), scope, &["Cluster", "Namespace"]),
    }
}

/// `acme.io/controller`.
fn validate_controller(errors: &mut ErrorList, path: &Path, controller: &str) {
    if controller.is_empty() {
        return errors.required(path, "");
    }
    match controller.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            complaints(errors, path, domain, names::dns_subdomain(domain, false));
        }
        _ => errors.invalid(path, controller, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}
