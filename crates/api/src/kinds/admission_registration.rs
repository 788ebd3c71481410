//! Webhook configurations and validating admission policies: defaults, columns, validation.
//! Neighbours: the admission plugins that read them. CEL expressions are compiled there.
//! Invariant: an update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, existing_mut, items, part, part_mut, text},
    columns::{age, age_of, integer, name, name_of, selector_text, string},
};

/// Mutating and validating webhook configurations.
#[derive(Default)]
pub struct WebhookConfiguration<const MUTATING: bool>;

fn default_rules(owner: &mut Value, field: &str) {
    each(owner, field, |rule| default_to(rule, "scope", "*"));
}

impl<const MUTATING: bool> Behavior for WebhookConfiguration<MUTATING> {
    fn default(&self, object: &mut Value) {
        each(object, "webhooks", |webhook| {
            default_to(webhook, "failurePolicy", "Fail");
            default_to(webhook, "matchPolicy", "Equivalent");
            default_to(webhook, "namespaceSelector", json!({}));
            default_to(webhook, "objectSelector", json!({}));
            default_to(webhook, "timeoutSeconds", 10);
            if MUTATING {
                default_to(webhook, "reinvocationPolicy", "Never");
            }
            default_rules(webhook, "rules");
            if let Some(service) = existing_mut(webhook, "clientConfig").and_then(|c| existing_mut(c, "service")) {
                default_to(service, "port", 443);
            }
        });
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), integer("Webhooks", "How many it holds."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(items(object, "webhooks").len()), age_of(object, now)]
    }
}

fn default_match(resources: &mut Value) {
    default_to(resources, "matchPolicy", "Equivalent");
    default_to(resources, "namespaceSelector", json!({}));
    default_to(resources, "objectSelector", json!({}));
    default_rules(resources, "resourceRules");
    default_rules(resources, "excludeResourceRules");
}

#[derive(Default)]
pub struct ValidatingAdmissionPolicy;

impl Behavior for ValidatingAdmissionPolicy {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "failurePolicy", "Fail");
        if let Some(constraints) = existing_mut(spec, "matchConstraints") {
            default_match(constraints);
        }
    }

    fn has_status(&self) -> bool {
        true
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

#[derive(Default)]
pub struct ValidatingAdmissionPolicyBinding;

impl Behavior for ValidatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Value) {
        if let Some(resources) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "matchResources")) {
            default_match(resources);
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("PolicyName", "The policy that is bound."),
            string("ParamRef", "Where its parameters are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let parameters = part(spec, "paramRef").and_then(|p| match (text(p, "namespace"), text(p, "name")) {
            (_, "") => part(p, "selector").map(selector_text),
            ("", name) => Some(format!("*/{name}")),
            (namespace, name) => Some(format!("{namespace}/{name}")),
        });
        vec![
            name_of(object),
            json!(text(spec, "policyName")),
            json!(parameters.as_deref().unwrap_or("<unset>")),
            age_of(object, now),
        ]
    }
}
