//! FlowSchemas: defaults, strategy, columns, validation.
//! `bootstrap` has those of every cluster; the API server's flow control maintains them.
//! A mandatory schema is as every cluster has it.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_zero_to, flag, int_at, is_set, items, part, part_mut, text, text_at, texts},
            checks,
            columns::{age, age_of, condition, name, name_of, string},
        },
        flowcontrol::bootstrap::{alike, mandatory_spec},
    },
    names,
};

#[derive(Default)]
pub struct FlowSchema;

impl Behavior for FlowSchema {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_zero_to(spec, "matchingPrecedence", 1000);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let precedence = int_at(spec, "matchingPrecedence");
        if precedence <= 0 {
            errors.invalid(&path.child("matchingPrecedence"), precedence, "must be a positive value");
        }
        if precedence > 10_000 {
            let words = "must not be greater than 10000";
            errors.invalid(&path.child("matchingPrecedence"), precedence, words);
        }
        if precedence == 1 && text_at(object, "metadata.name") != "exempt" {
            let words = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.invalid(&path.child("matchingPrecedence"), precedence, words);
        }
        if let Some(method) = part(spec, "distinguisherMethod") {
            let path = path.child("distinguisherMethod");
            let kind = text(method, "type");
            if !matches!(kind, "ByNamespace" | "ByUser") {
                let shown = format!("{{\"Type\":{}}}", Value::from(kind));
                errors.not_supported_shown(&path.child("type"), shown, &["ByNamespace", "ByUser"]);
            }
        }
        let level = path.child("priorityLevelConfiguration");
        match text(&spec["priorityLevelConfiguration"], "name") {
            "" => errors.required(&level.child("name"), "must reference a priority level"),
            name => checks::complaints(errors, &level.child("name"), name, names::dns_subdomain(name, false)),
        }
        for (index, rule) in items(spec, "rules").iter().enumerate() {
            let path = path.child("rules").index(index);
            validate_rule(errors, &path, rule);
        }
        let name = text_at(object, "metadata.name");
        if mandatory_spec("FlowSchema", name).is_some_and(|fixed| !alike(spec, &fixed)) {
            errors.invalid(&path, spec.clone(), format!("spec of '{name}' must equal the fixed value"));
        }
    }

    fn validate_status_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        validate_conditions(errors, object);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("PriorityLevel", "Where its requests go."),
            string("MatchingPrecedence", "Lower is tried first."),
            string("DistinguisherMethod", "What keeps flows apart."),
            age(),
            string("MissingPL", "Whether that level is missing."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(&spec["priorityLevelConfiguration"], "name")),
            json!(int_at(spec, "matchingPrecedence")),
            json!(part(spec, "distinguisherMethod").map_or("<none>", |d| text(d, "type"))),
            age_of(object, now),
            json!(condition(object, "Dangling").map_or("?", |c| text(c, "status"))),
        ]
    }
}

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &Value) {
    if !is_set(rule, "subjects") {
        errors.required(&path.child("subjects"), "subjects must contain at least one value");
    }
    for (index, subject) in items(rule, "subjects").iter().enumerate() {
        validate_subject(errors, &path.child("subjects").index(index), subject);
    }
    if !is_set(rule, "resourceRules") && !is_set(rule, "nonResourceRules") {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (index, rule) in items(rule, "resourceRules").iter().enumerate() {
        let path = path.child("resourceRules").index(index);
        validate_verbs(errors, &path, rule);
        star_alone(errors, &path, rule, "apiGroups", "api groups", "resource rules must supply at least one api group");
        star_alone(errors, &path, rule, "resources", "resources", "resource rules must supply at least one resource");
        validate_namespaces(errors, &path, rule);
    }
    for (index, rule) in items(rule, "nonResourceRules").iter().enumerate() {
        let path = path.child("nonResourceRules").index(index);
        validate_verbs(errors, &path, rule);
        let needed = "nonResourceURLs must contain at least one value";
        if star_alone(errors, &path, rule, "nonResourceURLs", "non-resource URLs", needed) {
            for (index, url) in texts(rule, "nonResourceURLs").enumerate() {
                validate_url(errors, &path.child("nonResourceURLs").index(index), url);
            }
        }
    }
}

/// `true`: the list holds plain values, which are to be looked at.
fn star_alone(errors: &mut ErrorList, path: &Path, rule: &Value, field: &str, what: &str, needed: &str) -> bool {
    let (path, list) = (path.child(field), items(rule, field));
    if list.is_empty() {
        errors.required(&path, needed);
        return false;
    }
    let starred = list.iter().any(|item| item == "*");
    if starred && list.len() > 1 {
        errors.invalid(&path, list.to_vec(), format!("if '*' is present, must not specify other {what}"));
    }
    !starred
}

fn validate_verbs(errors: &mut ErrorList, path: &Path, rule: &Value) {
    let plain = star_alone(errors, path, rule, "verbs", "verbs", "verbs must contain at least one value");
    if plain && texts(rule, "verbs").any(|verb| !VERBS.contains(&verb)) {
        errors.not_supported(&path.child("verbs"), rule["verbs"].clone(), &VERBS);
    }
}

fn validate_namespaces(errors: &mut ErrorList, path: &Path, rule: &Value) {
    let needed = "resource rules that are not cluster scoped must supply at least one namespace";
    if flag(rule, "clusterScope") && !is_set(rule, "namespaces") {
        return;
    }
    if star_alone(errors, path, rule, "namespaces", "namespaces", needed) {
        for (index, namespace) in texts(rule, "namespaces").enumerate() {
            let path = path.child("namespaces").index(index);
            for complaint in names::dns_label(namespace, false) {
                let words = format!("each member of this list must be '*' or a DNS-1123 label; {complaint}");
                errors.invalid(&path, namespace, words);
            }
        }
    }
}

fn validate_url(errors: &mut ErrorList, path: &Path, url: &str) {
    let stars = url.matches('*').count();
    let complaint = match url {
        "" => "must not be empty",
        "/" => return,
        url if !url.starts_with('/') => "must start with slash",
        url if url.contains(' ') => "must not contain white-space",
        url if url.contains("//") => "must not contain double slash",
        url if stars > 1 || (stars == 1 && !url.ends_with("/*")) => "wildcard can only do suffix matching",
        _ => return,
    };
    errors.invalid(path, url, complaint);
}

fn validate_subject(errors: &mut ErrorList, path: &Path, subject: &Value) {
    const PARTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = text(subject, "kind");
    let Some((_, own)) = PARTS.iter().find(|(k, _)| *k == kind) else {
        return errors.not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]);
    };
    match part(subject, own) {
        None => errors.required(&path.child(own), &format!("{own} is required when subject kind is '{kind}'")),
        Some(found) => {
            let path = path.child(own);
            match text(found, "name") {
                "" => errors.required(&path.child("name"), ""),
                name if kind == "ServiceAccount" && name != "*" => {
                    checks::complaints(errors, &path.child("name"), name, names::dns_subdomain(name, false));
                }
                _ => {}
            }
            let namespace = text(found, "namespace");
            match (kind, namespace) {
                ("ServiceAccount", "") => {
                    errors.required(&path.child("namespace"), "must specify namespace for service account");
                }
                ("ServiceAccount", _) => {
                    let complaints = names::dns_label(namespace, false);
                    checks::complaints(errors, &path.child("namespace"), namespace, complaints);
                }
                _ => {}
            }
        }
    }
    for (other, field) in PARTS.iter().filter(|(_, field)| field != own) {
        if is_set(subject, field) {
            let words = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.forbidden(&path.child(field), words);
        }
    }
}

pub fn validate_conditions(errors: &mut ErrorList, object: &Value) {
    let path = Path::new("status").child("conditions");
    let conditions = items(&object["status"], "conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let (path, kind) = (path.index(index).child("type"), text(condition, "type"));
        if conditions[..index].iter().any(|other| text(other, "type") == kind) {
            errors.duplicate(&path, kind);
        }
        if kind.is_empty() {
            errors.required(&path, "");
        }
    }
}
