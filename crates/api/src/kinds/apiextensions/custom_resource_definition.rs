//! CustomResourceDefinitions: defaults, strategy, validation.
//! Neighbours: the API server's custom resources, which serve what these define.
//! A name is `plural.group`.

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior,
        admissionregistration::client_config,
        apiextensions::{
            internal_form::{internal_spec, shown_versions},
            schema_properties, structural_schema,
        },
        common::{
            access::{default_to, existing_mut, flag, is_set, items, part, part_mut, set, text, text_at, texts},
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

    fn prepare_deletion(&self, object: &mut Value, now: &str) {
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        set_condition(object, "Terminating", ("True", "InstanceDeletionPending", message), now);
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
        if !is_present(spec, "conversion") {
            spec["conversion"] = json!({ "strategy": "None" });
        }
        let webhook = existing_mut(spec, "conversion").and_then(|conversion| existing_mut(conversion, "webhook"));
        let config = webhook.and_then(|webhook| existing_mut(webhook, "clientConfig"));
        if let Some(service) = config.and_then(|config| existing_mut(config, "service")) {
            default_to(service, "port", 443);
        }
        let stored = stored_version(spec);
        if let Some(status) = part_mut(object, "status")
            && !is_set(status, "storedVersions")
        {
            set(status, "storedVersions", stored);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        let stored = stored_version(&object["spec"]);
        object["status"] = json!({});
        set(&mut object["status"], "storedVersions", stored);
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
        if !name.is_empty() && name != required {
            errors.invalid(&Path::new("metadata").child("name"), name, "must be spec.names.plural+\".\"+spec.group");
        }
        validate_spec(errors, &internal_spec(spec));
        validate_stored_versions(errors, object);
        validate_approval(errors, object, None);
        validate_pruning(errors, spec);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &internal_spec(&object["spec"]));
        let (path, new, before) = (Path::new("spec"), &object["spec"], &old["spec"]);
        if condition_is_true(old, "Established") {
            checks::immutable(errors, &path, new, before, "scope");
            checks::immutable(errors, &path.child("names"), &new["names"], &before["names"], "kind");
        }
        checks::immutable(errors, &path, new, before, "group");
        checks::immutable(errors, &path.child("names"), &new["names"], &before["names"], "plural");
        validate_stored_versions(errors, object);
        validate_approval(errors, object, Some(old));
        if !flag(before, "preserveUnknownFields") {
            validate_pruning(errors, new);
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

/// Sets a condition by its type; the time stays unless the status changes.
pub fn set_condition(object: &mut Value, kind: &str, (status, reason, message): (&str, &str, &str), now: &str) {
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = object["status"]["conditions"].as_array_mut() else { return };
    let new = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    });
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(found) if found["status"] == status => {
            found["reason"] = reason.into();
            found["message"] = message.into();
        }
        Some(found) => *found = new,
        None => conditions.push(new),
    }
}

/// The list of the one version that is stored, if there is one.
fn stored_version(spec: &Value) -> Value {
    match items(spec, "versions").iter().find(|version| flag(version, "storage")) {
        Some(version) => json!([text(version, "name")]),
        None => Value::Null,
    }
}

fn is_present(value: &Value, field: &str) -> bool {
    value.get(field).is_some_and(|found| !found.is_null())
}

fn validate_stored_versions(errors: &mut ErrorList, object: &Value) {
    let at = Path::new("status").child("storedVersions");
    let (stored, versions) = (&object["status"]["storedVersions"], items(&object["spec"], "versions"));
    let names: Vec<&str> = texts(&object["status"], "storedVersions").collect();
    if names.is_empty() {
        return errors.invalid(&at, stored.clone(), "must have at least one stored version");
    }
    for version in versions.iter().filter(|version| flag(version, "storage")) {
        let name = text(version, "name");
        if !names.contains(&name) {
            errors.invalid(&at, stored.clone(), format!("must have the storage version {name}"));
        }
    }
    for (index, stored) in names.into_iter().enumerate() {
        if !versions.iter().any(|version| text(version, "name") == stored) {
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

fn validate_pruning(errors: &mut ErrorList, spec: &Value) {
    if flag(spec, "preserveUnknownFields") {
        let words = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                     spec.versions[*].schema instead";
        errors.invalid(&Path::new("spec").child("preserveUnknownFields"), true, words);
    }
}

const APPROVED: &str = "api-approved.kubernetes.io";

/// What the annotation of a definition in a group of the community's says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalState {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

/// Groups whose definitions say who has approved them.
pub fn is_protected_group(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")))
}

/// The state of a definition's approval, and why.
pub fn approval_state(object: &Value) -> (ApprovalState, String) {
    let annotation = object["metadata"]["annotations"][APPROVED].as_str().unwrap_or_default();
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/') && !annotation.contains(' ')
    });
    match annotation {
        "" => (ApprovalState::Missing, format!("protected groups must have approval annotation {APPROVED:?}, {see}")),
        _ if annotation.starts_with("unapproved") => (ApprovalState::Bypassed, format!("not approved: {annotation:?}")),
        _ if is_url => (ApprovalState::Approved, format!("approved in {annotation}")),
        _ => (
            ApprovalState::Invalid,
            format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting \
                 with \"unapproved\", {see}"
            ),
        ),
    }
}

fn validate_approval(errors: &mut ErrorList, object: &Value, old: Option<&Value>) {
    if !is_protected_group(text(&object["spec"], "group")) {
        return;
    }
    let (state, reason) = approval_state(object);
    if old.is_some_and(|old| approval_state(old).0 == state) {
        return;
    }
    let path = Path::new("metadata").child("annotations").key(APPROVED);
    match state {
        ApprovalState::Missing => errors.required(&path, &reason),
        ApprovalState::Invalid => {
            errors.invalid(&path, object["metadata"]["annotations"][APPROVED].clone(), reason);
        }
        ApprovalState::Approved | ApprovalState::Bypassed => {}
    }
}

/// `spec` is in the internal form, whose paths upstream names.
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
    let versions = items(spec, "versions");
    if part(&spec["validation"], "openAPIV3Schema").is_none() {
        for (index, version) in versions.iter().enumerate() {
            if part(&version["schema"], "openAPIV3Schema").is_none() {
                errors.required(&path.child("versions").index(index).child("schema").child("openAPIV3Schema"), "");
            }
        }
    }
    validate_versions(errors, &path.child("versions"), spec);
    for field in ["plural", "singular", "kind", "listKind"] {
        checks::required(errors, &path.child("names"), &spec["names"], field);
    }
    validate_names(errors, &path.child("names"), &spec["names"]);
    validate_version_parts(errors, &path, spec, "validation");
    if !items(spec, "selectableFields").is_empty() && part(spec, "validation").is_none() {
        let words = "may only be set when validations.schema is included";
        errors.invalid(&path.child("selectableFields"), "", words);
    }
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
        if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
            let path = path.child("deprecationWarning");
            for complaint in deprecation_warning_complaints(warning, flag(version, "deprecated")) {
                errors.invalid(&path, warning, complaint);
            }
        }
        validate_version_parts(errors, &path, version, "schema");
        let has_schema = part(&version["schema"], "openAPIV3Schema").is_some();
        if !items(version, "selectableFields").is_empty() && !has_schema {
            let words = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.invalid(&path.child("selectableFields"), "", words);
        }
    }
    let unique: std::collections::BTreeSet<&str> = versions.iter().map(|v| text(v, "name")).collect();
    if unique.len() != versions.len() {
        errors.invalid_shown(path, shown_versions(spec), "must contain unique version names");
    }
    if versions.iter().filter(|version| flag(version, "storage")).count() != 1 {
        let words = "must have exactly one version marked as storage version";
        errors.invalid_shown(path, shown_versions(spec), words);
    }
    let first = text(spec, "version");
    let found = names::dns1035_label(first, false);
    if !first.is_empty() && !found.is_empty() {
        errors.invalid(&Path::new("spec").child("version"), first, found.join(","));
    }
}

fn deprecation_warning_complaints(warning: &str, deprecated: bool) -> Vec<String> {
    if !deprecated {
        return vec!["can only be set for deprecated versions".into()];
    }
    let mut found = Vec::new();
    if warning.len() > 256 {
        found.push("must be <= 256 characters long".to_string());
    }
    if warning.is_empty() {
        found.push("must not be an empty string".to_string());
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        let what = "must only contain printable UTF-8 characters; non-printable character found at index";
        found.push(format!("{what} {index}"));
    }
    found
}

/// What a version has, or all versions have alike: its schema, subresources and columns.
fn validate_version_parts(errors: &mut ErrorList, path: &Path, owner: &Value, schema_field: &str) {
    if let Some(schema) = part(&owner[schema_field], "openAPIV3Schema") {
        let path = path.child(schema_field).child("openAPIV3Schema");
        if flag(schema, "nullable") {
            errors.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
        }
        structural_schema::validate(errors, &path, schema);
        schema_properties::validate(errors, &path, schema);
    }
    if let Some(scale) = part(&owner["subresources"], "scale") {
        validate_scale(errors, &path.child("subresources").child("scale"), scale);
    }
    for (index, column) in items(owner, "additionalPrinterColumns").iter().enumerate() {
        validate_column(errors, &path.child("additionalPrinterColumns").index(index), column);
    }
}

fn validate_column(errors: &mut ErrorList, path: &Path, column: &Value) {
    const TYPES: &str = "must be one of boolean,date,integer,number,string";
    const FORMATS: &str = "must be one of byte,date,date-time,double,float,int32,int64,password";
    let known = |list: &str, word: &str| list.trim_start_matches("must be one of ").split(',').any(|w| w == word);
    checks::required(errors, path, column, "name");
    match text(column, "type") {
        "" => errors.required(&path.child("type"), TYPES),
        kind if !known(TYPES, kind) => errors.invalid(&path.child("type"), kind, TYPES),
        _ => {}
    }
    let format = text(column, "format");
    if !format.is_empty() && !known(FORMATS, format) {
        errors.invalid(&path.child("format"), format, FORMATS);
    }
    let path = path.child("JSONPath");
    match text(column, "jsonPath") {
        "" => errors.required(&path, ""),
        found => simple_json_path(errors, &path, found),
    }
}

fn simple_json_path(errors: &mut ErrorList, path: &Path, found: &str) {
    if !found.starts_with('.') {
        errors.invalid(path, found, "must be a simple json path starting with .");
    }
}

fn validate_scale(errors: &mut ErrorList, path: &Path, scale: &Value) {
    for (field, prefixes, words) in [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ] {
        let path = path.child(field);
        match text(scale, field) {
            "" if field == "labelSelectorPath" => {}
            "" => errors.required(&path, ""),
            value if !value.starts_with('.') => simple_json_path(errors, &path, value),
            value if !prefixes.iter().any(|prefix| value.starts_with(prefix)) => errors.invalid(&path, value, words),
            _ => {}
        }
    }
}

fn validate_names(errors: &mut ErrorList, path: &Path, resource: &Value) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(resource, field);
        let (checked, prefix) = match field {
            "plural" | "singular" => (value.to_string(), ""),
            _ => (value.to_lowercase(), "may have mixed case, but should otherwise match: "),
        };
        let found = names::dns1035_label(&checked, false);
        if !value.is_empty() && !found.is_empty() {
            errors.invalid(&path.child(field), value, format!("{prefix}{}", found.join(",")));
        }
    }
    let labels = |errors: &mut ErrorList, field: &str| {
        for (index, value) in texts(resource, field).enumerate() {
            let found = names::dns1035_label(value, false);
            if !found.is_empty() {
                errors.invalid(&path.child(field).index(index), value, found.join(","));
            }
        }
    };
    labels(errors, "shortNames");
    if is_set(resource, "kind") && text(resource, "kind") == text(resource, "listKind") {
        errors.invalid(&path.child("listKind"), text(resource, "listKind"), "kind and listKind may not be the same");
    }
    labels(errors, "categories");
}

fn validate_conversion(errors: &mut ErrorList, path: &Path, conversion: &Value) {
    if !conversion.is_object() {
        return;
    }
    let strategy = text(conversion, "strategy");
    match strategy {
        "" => errors.required(&path.child("strategy"), ""),
        "None" | "Webhook" => {}
        _ => errors.not_supported(&path.child("strategy"), strategy, &["None", "Webhook"]),
    }
    let client_path = path.child("webhookClientConfig");
    let client = part(conversion, "webhookClientConfig");
    if strategy != "Webhook" {
        let words = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.forbidden(&client_path, words);
        }
        if is_set(conversion, "conversionReviewVersions") {
            errors.forbidden(&path.child("conversionReviewVersions"), words);
        }
        return;
    }
    match client {
        None => errors.required(&client_path, "required when strategy is set to Webhook"),
        Some(client) => client_config::validate_client(errors, &client_path, client),
    }
    validate_review_versions(errors, &path.child("conversionReviewVersions"), conversion);
}

fn validate_review_versions(errors: &mut ErrorList, path: &Path, conversion: &Value) {
    let versions: Vec<&str> = texts(conversion, "conversionReviewVersions").collect();
    if versions.is_empty() {
        return errors.required(path, "");
    }
    for (index, version) in versions.iter().enumerate() {
        if versions[..index].contains(version) {
            errors.invalid(&path.index(index), *version, "duplicate version");
            continue;
        }
        checks::complaints(errors, &path.index(index), version, names::dns1035_label(version, false));
    }
    if !versions.iter().any(|version| ["v1", "v1beta1"].contains(version)) {
        errors.invalid(
            path,
            conversion["conversionReviewVersions"].clone(),
            "must include at least one of v1, v1beta1",
        );
    }
}
