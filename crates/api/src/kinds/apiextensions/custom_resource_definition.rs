//! CustomResourceDefinitions: defaults, strategy, validation.
//! Neighbours: the API server's custom resources, which serve what these define.
//! A name is `plural.group`.

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior,
        admissionregistration::client_config,
        apiextensions::structural_schema,
        common::{
            access::{default_to, existing_mut, flag, is_set, items, part, part_mut, text, text_at, texts},
            checks,
            columns::condition_is_true,
        },
    },
    names,
};

/// Keeps a deleted definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

#[derive(Default)]
pub struct CustomResourceDefinition;

impl Behavior for CustomResourceDefinition {
    /// The objects of the definition go first.
    fn deletion_finalizer(&self) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        if let Some(names) = part_mut(spec, "names") {
            let kind = text(names, "kind").to_string();
            default_to(names, "singular", kind.to_lowercase());
            if !kind.is_empty() {
                default_to(names, "listKind", format!("{kind}List"));
            }
        }
        if let Some(conversion) = part_mut(spec, "conversion") {
            default_to(conversion, "strategy", "None");
            if let Some(service) = existing_mut(conversion, "webhook")
                .and_then(|webhook| existing_mut(webhook, "clientConfig"))
                .and_then(|config| existing_mut(config, "service"))
            {
                default_to(service, "port", 443);
            }
        }
        let stored: Vec<Value> = items(spec, "versions")
            .iter()
            .filter(|version| flag(version, "storage"))
            .map(|version| json!(text(version, "name")))
            .collect();
        if let Some(status) = part_mut(object, "status")
            && !is_set(status, "storedVersions")
        {
            status["storedVersions"] = Value::Array(stored);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        let stored: Vec<Value> = items(&object["spec"], "versions")
            .iter()
            .filter(|version| flag(version, "storage"))
            .map(|version| json!(text(version, "name")))
            .collect();
        object["status"] = json!({ "storedVersions": stored });
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        crate::kinds::behavior::keep_field(object, old, "status");
        let Some(stored) = items(&object["spec"], "versions").iter().find(|v| flag(v, "storage")) else { return };
        let stored = json!(text(stored, "name"));
        if let Some(status) = part_mut(object, "status") {
            let mut all = items(status, "storedVersions").to_vec();
            if !all.contains(&stored) {
                all.push(stored);
                status["storedVersions"] = Value::Array(all);
            }
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let spec = &object["spec"];
        let required = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
        let name = text_at(object, "metadata.name");
        if name != required {
            errors.invalid(&Path::new("metadata").child("name"), name, "must be spec.names.plural+\".\"+spec.group");
        }
        validate_spec(errors, spec);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"]);
        let (path, new, before) = (Path::new("spec"), &object["spec"], &old["spec"]);
        if condition_is_true(old, "Established") {
            checks::immutable(errors, &path, new, before, "scope");
            checks::immutable(errors, &path.child("names"), &new["names"], &before["names"], "kind");
        }
        checks::immutable(errors, &path, new, before, "group");
        checks::immutable(errors, &path.child("names"), &new["names"], &before["names"], "plural");
        let at = Path::new("status").child("storedVersions");
        for (index, stored) in texts(&object["status"], "storedVersions").enumerate() {
            if !items(new, "versions").iter().any(|version| text(version, "name") == stored) {
                errors.invalid(
                    &at.index(index),
                    stored,
                    format!(
                        "missing from spec.versions; {stored} was previously a storage version, and must remain in \
                         spec.versions until a storage migration ensures no data remains persisted in {stored} and \
                         removes {stored} from status.storedVersions"
                    ),
                );
            }
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn validate_spec(errors: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    let group = text(spec, "group");
    let found = names::dns_subdomain(group, false);
    if group.is_empty() {
        errors.required(&path.child("group"), "");
    } else if !found.is_empty() {
        errors.invalid(&path.child("group"), group, found.join(","));
    } else if !group.contains('.') {
        errors.invalid(&path.child("group"), group, "should be a domain with at least one dot");
    }
    checks::one_of(errors, &path, spec, "scope", &["Cluster", "Namespaced"]);
    if flag(spec, "preserveUnknownFields") {
        let words = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                     spec.versions[*].schema instead";
        errors.invalid(&path.child("preserveUnknownFields"), true, words);
    }
    validate_versions(errors, &path.child("versions"), spec);
    validate_names(errors, &path.child("names"), &spec["names"]);
    validate_conversion(errors, &path.child("conversion"), &spec["conversion"]);
}

fn validate_versions(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let versions = items(spec, "versions");
    for (index, version) in versions.iter().enumerate() {
        let path = path.index(index);
        let name = text(version, "name");
        let found = names::dns1035_label(name, false);
        if !found.is_empty() {
            errors.invalid(&path.child("name"), name, found.join(","));
        }
        let at = path.child("schema").child("openAPIV3Schema");
        match part(&version["schema"], "openAPIV3Schema") {
            None => errors.required(&at, ""),
            Some(schema) => structural_schema::validate(errors, &at, schema),
        }
        if let Some(scale) = part(&version["subresources"], "scale") {
            validate_scale(errors, &path.child("subresources").child("scale"), scale);
        }
        for (index, column) in items(version, "additionalPrinterColumns").iter().enumerate() {
            let path = path.child("additionalPrinterColumns").index(index);
            checks::required(errors, &path, column, "name");
            checks::one_of(errors, &path, column, "type", &["boolean", "date", "integer", "number", "string"]);
            checks::required(errors, &path, column, "jsonPath");
        }
    }
    let unique: std::collections::BTreeSet<&str> = versions.iter().map(|v| text(v, "name")).collect();
    if unique.len() != versions.len() {
        errors.invalid(path, spec["versions"].clone(), "must contain unique version names");
    }
    if versions.iter().filter(|version| flag(version, "storage")).count() != 1 {
        let words = "must have exactly one version marked as storage version";
        errors.invalid(path, spec.get("versions").cloned().unwrap_or_default(), words);
    }
}

fn validate_scale(errors: &mut ErrorList, path: &Path, scale: &Value) {
    for (field, prefix, required) in
        [("specReplicasPath", ".spec", true), ("statusReplicasPath", ".status", true), ("labelSelectorPath", "", false)]
    {
        let value = text(scale, field);
        if value.is_empty() {
            if required {
                errors.required(&path.child(field), "");
            }
        } else if !value.starts_with(&format!("{prefix}.")) {
            errors.invalid(&path.child(field), value, format!("should be a json path under {prefix}"));
        }
    }
}

fn validate_names(errors: &mut ErrorList, path: &Path, resource: &Value) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(resource, field);
        if value.is_empty() {
            errors.required(&path.child(field), "");
            continue;
        }
        let found = names::dns1035_label(&value.to_lowercase(), false);
        if !found.is_empty() {
            errors.invalid(&path.child(field), value, found.join(","));
        } else if matches!(field, "plural" | "singular") && value.to_lowercase() != value {
            checks::complaints(errors, &path.child(field), value, names::dns1035_label(value, false));
        }
    }
    for field in ["shortNames", "categories"] {
        for (index, value) in texts(resource, field).enumerate() {
            let found = names::dns1035_label(value, false);
            if !found.is_empty() {
                errors.invalid(&path.child(field).index(index), value, found.join(","));
            }
        }
    }
    if is_set(resource, "kind") && text(resource, "kind") == text(resource, "listKind") {
        errors.invalid(&path.child("listKind"), text(resource, "listKind"), "kind and listKind may not be the same");
    }
}

fn validate_conversion(errors: &mut ErrorList, path: &Path, conversion: &Value) {
    match (text(conversion, "strategy"), part(conversion, "webhook")) {
        ("None", None) => {}
        ("None", Some(_)) => {
            errors.forbidden(&path.child("webhook"), "should not be set when strategy is not set to Webhook");
        }
        ("Webhook", None) => {
            errors.required(&path.child("webhook").child("clientConfig"), "required when strategy is set to Webhook");
        }
        ("Webhook", Some(webhook)) => {
            let path = path.child("webhook");
            client_config::validate_client(errors, &path.child("clientConfig"), &webhook["clientConfig"]);
            checks::required(errors, &path, webhook, "conversionReviewVersions");
        }
        ("", _) => errors.required(&path.child("strategy"), ""),
        (strategy, _) => errors.not_supported(&path.child("strategy"), strategy, &["None", "Webhook"]),
    }
}
