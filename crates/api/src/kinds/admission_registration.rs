//! Webhook configurations and validating admission policies: defaults, columns, validation.
//! Neighbours: the admission plugins that read them. CEL expressions are compiled there.
//! Invariant: an update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, existing_mut, int, int_at, is_set, items, part, part_mut, text, texts},
    checks,
    columns::{age, age_of, integer, name, name_of, selector_text, string},
};
use crate::{
    field::{ErrorList, Path},
    names,
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

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let webhooks = items(object, "webhooks");
        for (index, webhook) in webhooks.iter().enumerate() {
            let path = Path::new("webhooks").index(index);
            validate_webhook(errors, &path, webhook);
            if MUTATING {
                let policies = ["IfNeeded", "Never"];
                checks::optional_one_of(errors, &path, webhook, "reinvocationPolicy", &policies);
            }
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
        if !is_set(spec, "validations") && !is_set(spec, "auditAnnotations") {
            let words = "validations or auditAnnotations must be non-empty";
            errors.required(&path.child("validations"), &format!("{words}; both are empty"));
        }
        for (index, validation) in items(spec, "validations").iter().enumerate() {
            let path = path.child("validations").index(index);
            if text(validation, "expression").trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
            let message = text(validation, "message");
            if message.contains('\n') {
                errors.invalid(&path.child("message"), message, "message must not contain line breaks");
            }
            let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
            checks::optional_one_of(errors, &path, validation, "reason", &reasons);
        }
        let variables = items(spec, "variables");
        for (index, variable) in variables.iter().enumerate() {
            let path = path.child("variables").index(index);
            checks::required_name(errors, &path, variable, "name", names::c_identifier);
            if variables[..index].iter().any(|other| text(other, "name") == text(variable, "name")) {
                errors.duplicate(&path.child("name"), text(variable, "name"));
            }
            if text(variable, "expression").trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
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

#[derive(Default)]
pub struct ValidatingAdmissionPolicyBinding;

impl Behavior for ValidatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Value) {
        if let Some(resources) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "matchResources")) {
            default_match(resources);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::required_name(errors, &path, spec, "policyName", |name| names::dns_subdomain(name, false));
        if let Some(parameters) = part(spec, "paramRef") {
            let path = path.child("paramRef");
            match (is_set(parameters, "name"), part(parameters, "selector")) {
                (true, Some(_)) => {
                    errors.forbidden(&path.child("name"), "name and selector are mutually exclusive");
                }
                (false, None) => errors.required(&path, "one of name or selector must be specified"),
                _ => {}
            }
            checks::one_of(errors, &path, parameters, "parameterNotFoundAction", &["Allow", "Deny"]);
        }
        if let Some(resources) = part(spec, "matchResources") {
            validate_match(errors, &path.child("matchResources"), resources);
        }
        let actions: Vec<&str> = texts(spec, "validationActions").collect();
        let at = path.child("validationActions");
        if actions.is_empty() {
            errors.required(&at, "at least one validation action is required");
        }
        for (index, action) in actions.iter().enumerate() {
            if !matches!(*action, "Audit" | "Deny" | "Warn") {
                errors.not_supported(&at.index(index), *action, &["Audit", "Deny", "Warn"]);
            }
            if actions[..index].contains(action) {
                errors.duplicate(&at.index(index), *action);
            }
        }
        if actions.contains(&"Deny") && actions.contains(&"Warn") {
            errors.invalid(
                &at,
                spec["validationActions"].clone(),
                "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                 response and headers serves no purpose)",
            );
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

fn validate_webhook(errors: &mut ErrorList, path: &Path, webhook: &Value) {
    qualified(errors, &path.child("name"), text(webhook, "name"));
    for (index, rule) in items(webhook, "rules").iter().enumerate() {
        validate_rule(errors, &path.child("rules").index(index), rule);
    }
    checks::optional_one_of(errors, path, webhook, "failurePolicy", &["Fail", "Ignore"]);
    checks::optional_one_of(errors, path, webhook, "matchPolicy", &["Equivalent", "Exact"]);
    match text(webhook, "sideEffects") {
        "" => errors.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun"),
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
    validate_client(errors, &path.child("clientConfig"), &webhook["clientConfig"]);
    validate_conditions(errors, &path.child("matchConditions"), webhook);
    let at = path.child("admissionReviewVersions");
    let versions: Vec<&str> = texts(webhook, "admissionReviewVersions").collect();
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

fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &Value) {
    const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (field, called) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let values: Vec<&str> = texts(rule, field).collect();
        if values.is_empty() {
            errors.required(&path.child(field), "");
        }
        if values.len() > 1 && values.contains(&"*") {
            let words = format!("if '*' is present, must not specify other {called}");
            errors.invalid(&path.child(field), rule[field].clone(), words);
        }
    }
    for (index, operation) in texts(rule, "operations").enumerate().filter(|(_, o)| !OPERATIONS.contains(o)) {
        errors.not_supported(&path.child("operations").index(index), operation, &OPERATIONS);
    }
    let resources: Vec<&str> = texts(rule, "resources").collect();
    let at = path.child("resources");
    if resources.is_empty() {
        errors.required(&at, "");
    }
    for (index, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.required(&at.index(index), "");
        }
    }
    if resources.contains(&"*/*") && resources.len() > 1 {
        let words = "if '*/*' is present, must not specify other resources";
        errors.invalid(&at, rule["resources"].clone(), words);
    }
    checks::optional_one_of(errors, path, rule, "scope", &["*", "Cluster", "Namespaced"]);
}

fn validate_match(errors: &mut ErrorList, path: &Path, resources: &Value) {
    checks::optional_one_of(errors, path, resources, "matchPolicy", &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"] {
        checks::label_selector(errors, &path.child(selector), &resources[selector]);
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(resources, field).iter().enumerate() {
            validate_rule(errors, &path.child(field).index(index), rule);
        }
    }
}

const MAX_MATCH_CONDITIONS: usize = 64;

fn validate_conditions(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let conditions = items(owner, "matchConditions");
    if conditions.len() > MAX_MATCH_CONDITIONS {
        errors.too_many(path, conditions.len(), MAX_MATCH_CONDITIONS);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if text(condition, "expression").trim().is_empty() {
            errors.required(&path.child("expression"), "");
        }
        let name = text(condition, "name");
        checks::required_name(errors, &path, condition, "name", names::qualified_name);
        if !name.is_empty() && conditions[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

/// Where a webhook is called: a URL or a service. Conversion webhooks have the same.
pub fn validate_client(errors: &mut ErrorList, path: &Path, client: &Value) {
    const FORM: &str = "; desired format: https://host[/path]";
    match (client.get("url").and_then(Value::as_str), part(client, "service")) {
        (None, None) | (Some(_), Some(_)) => errors.required(path, "exactly one of url or service is required"),
        (Some(url), None) => {
            let path = path.child("url");
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            if scheme != "https" {
                errors.invalid(&path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
            }
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (host, rest) = rest.split_at(end);
            if host.is_empty() || scheme.is_empty() {
                errors.invalid(&path, "", format!("host must be specified{FORM}"));
            }
            if let Some((user, _)) = host.split_once('@') {
                errors.invalid(&path, user, "user information is not permitted in the URL");
            }
            if let Some((_, fragment)) = rest.split_once('#') {
                errors.invalid(&path, fragment, "fragments are not permitted in the URL");
            }
            if let Some((_, query)) = rest.split_once('?') {
                errors.invalid(&path, query, "query parameters are not permitted in the URL");
            }
        }
        (None, Some(service)) => {
            let path = path.child("service");
            checks::required(errors, &path, service, "name");
            checks::required(errors, &path, service, "namespace");
            let port = int_at(service, "port");
            for complaint in names::port_number(port) {
                errors.invalid(&path.child("port"), port, format!("port is not valid: {complaint}"));
            }
            validate_service_path(errors, &path.child("path"), text(service, "path"));
        }
    }
}

fn validate_service_path(errors: &mut ErrorList, path: &Path, value: &str) {
    if matches!(value, "" | "/") {
        return;
    }
    let Some(rest) = value.strip_prefix('/') else {
        return errors.invalid(path, value, "must start with a '/'");
    };
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(path, value, format!("segment[{index}] may not be empty"));
            continue;
        }
        for complaint in names::dns_subdomain(step, false) {
            errors.invalid(path, value, format!("segment[{index}]: {complaint}"));
        }
    }
}
