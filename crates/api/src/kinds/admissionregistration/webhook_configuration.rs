//! Mutating and validating webhook configurations: defaults, columns, validation.
//! Read by the webhook admission plugins; `client_config` has how a webhook is reached, `match_resources` what it is for.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        admissionregistration::{
            client_config::validate_client,
            match_resources::{default_rules, validate_conditions, validate_rule},
        },
        common::{
            access::{default_absent, default_to, each, existing_mut, int, items, text, texts},
            checks,
            columns::{age, age_of, integer, name, name_of},
        },
    },
    names,
};

/// Mutating and validating webhook configurations.
#[derive(Default)]
pub struct WebhookConfiguration<const MUTATING: bool>;

impl<const MUTATING: bool> Behavior for WebhookConfiguration<MUTATING> {
    fn default(&self, object: &mut Value) {
        each(object, "webhooks", |webhook| {
            default_absent(webhook, "failurePolicy", "Fail");
            default_absent(webhook, "matchPolicy", "Equivalent");
            default_to(webhook, "namespaceSelector", json!({}));
            default_to(webhook, "objectSelector", json!({}));
            default_to(webhook, "timeoutSeconds", 10);
            if MUTATING {
                default_absent(webhook, "reinvocationPolicy", "Never");
            }
            default_rules(webhook, "rules");
            if let Some(service) = existing_mut(webhook, "clientConfig").and_then(|c| existing_mut(c, "service")) {
                default_to(service, "port", 443);
            }
        });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let webhooks = items(object, "webhooks");
        for (index, webhook) in webhooks.iter().enumerate() {
            let path = Path::new("webhooks").index(index);
            validate_webhook(errors, &path, webhook, MUTATING);
            let name = text(webhook, "name");
            if !name.is_empty() && webhooks[..index].iter().any(|other| text(other, "name") == name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
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

fn validate_webhook(errors: &mut ErrorList, path: &Path, webhook: &Value, mutating: bool) {
    qualified(errors, &path.child("name"), text(webhook, "name"));
    for (index, rule) in items(webhook, "rules").iter().enumerate() {
        validate_rule(errors, &path.child("rules").index(index), rule);
    }
    checks::optional_one_of(errors, path, webhook, "failurePolicy", &["Fail", "Ignore"]);
    checks::optional_one_of(errors, path, webhook, "matchPolicy", &["Equivalent", "Exact"]);
    match text(webhook, "sideEffects") {
        "" if webhook["sideEffects"].is_null() => {
            errors.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun")
        }
        "None" | "NoneOnDryRun" => {}
        effects => errors.not_supported(&path.child("sideEffects"), effects, &["None", "NoneOnDryRun"]),
    }
    if let Some(seconds) = int(webhook, "timeoutSeconds").filter(|s| !(1..=30).contains(s)) {
        let words = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.child("timeoutSeconds"), seconds, words);
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        checks::label_selector(errors, &path.child(selector), &webhook[selector]);
    }
    if mutating {
        checks::optional_one_of(errors, path, webhook, "reinvocationPolicy", &["IfNeeded", "Never"]);
    }
    validate_client(errors, &path.child("clientConfig"), &webhook["clientConfig"]);
    validate_conditions(errors, &path.child("matchConditions"), webhook);
    let at = path.child("admissionReviewVersions");
    let versions: Vec<&str> = texts(webhook, "admissionReviewVersions").collect();
    for (index, version) in versions.iter().enumerate() {
        if versions[..index].contains(version) {
            errors.invalid(&at.index(index), *version, "duplicate version");
        } else {
            checks::complaints(errors, &at.index(index), version, names::dns1035_label(version, false));
        }
    }
    if versions.is_empty() {
        errors.required(&at, "must specify one of v1, v1beta1");
    } else if !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let shown = webhook["admissionReviewVersions"].clone();
        errors.invalid(&at, shown, "must include at least one of v1, v1beta1");
    }
}

/// A domain of three segments at least.
fn qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    let found = names::dns_subdomain(name, false);
    if name.is_empty() {
        errors.required(path, "");
    } else if !found.is_empty() {
        errors.invalid(path, name, found.join(","));
    } else if name.split('.').count() < 3 {
        errors.invalid(path, name, "should be a domain with at least three segments separated by dots");
    }
}
