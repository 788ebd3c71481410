//! Ingresses: defaults, strategy, columns, validation.
//! Ingress controllers write the status.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{int_at, is_set, items, part, text, texts},
            checks::{self, complaints},
            columns::{age, age_of, load_balancer, name, name_of, string},
        },
        core::service::validation,
    },
    names,
};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

#[derive(Default)]
pub struct Ingress;

impl Behavior for Ingress {
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "loadBalancer": {} });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"]);
        let annotation = text(&object["metadata"]["annotations"], CLASS_ANNOTATION);
        let class = object["spec"]["ingressClassName"].as_str();
        let is_annotated = object["metadata"]["annotations"].get(CLASS_ANNOTATION).is_some();
        if is_annotated && class.is_some_and(|class| class != annotation) {
            errors.invalid(
                &Path::new("annotations").child(CLASS_ANNOTATION),
                annotation,
                "must match `ingressClassName` when both are specified",
            );
        }
    }

    fn validate_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"]);
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        validation::balancer_status(errors, &object["status"]);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let is_annotated = object["metadata"]["annotations"].get(CLASS_ANNOTATION).is_some();
        if old.is_some() || !is_annotated || object["spec"]["ingressClassName"].is_string() {
            return Vec::new();
        }
        vec![format!("annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead")]
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("Class", "Which controller serves it."),
            string("Hosts", "Hosts of its rules."),
            string("Address", "Where it is reached."),
            string("Ports", "Ports that are open."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(spec["ingressClassName"].as_str().unwrap_or("<none>")),
            json!(hosts(items(spec, "rules"))),
            json!(load_balancer(&object["status"])),
            json!(if is_set(spec, "tls") { "80, 443" } else { "80" }),
            age_of(object, now),
        ]
    }
}

fn hosts(rules: &[Value]) -> String {
    const SHOWN: usize = 3;
    let mut shown = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= shown.len() == SHOWN;
        if !more && is_set(rule, "host") {
            shown.push(text(rule, "host"));
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_string(),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN),
        (false, false) => shown.join(","),
    }
}

fn validate_spec(errors: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    let backend = part(spec, "defaultBackend");
    if !is_set(spec, "rules") && backend.is_none() {
        errors.invalid(
            &path,
            spec.get("rules").cloned().unwrap_or_default(),
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if let Some(backend) = backend {
        validate_backend(errors, &path.child("defaultBackend"), backend);
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        let path = path.child("rules").index(index);
        let host = text(rule, "host");
        if names::parse_ip(host).is_some() {
            errors.invalid(&path.child("host"), host, "must be a DNS name, not an IP address");
        }
        if !host.is_empty() {
            complaints(errors, &path.child("host"), host, host_complaints(host));
        }
        let Some(http) = part(rule, "http") else { continue };
        let path = path.child("http").child("paths");
        if !is_set(http, "paths") {
            errors.required(&path, "");
        }
        for (index, route) in items(http, "paths").iter().enumerate() {
            validate_path(errors, &path.index(index), route);
        }
    }
    for (index, tls) in items(spec, "tls").iter().enumerate() {
        let path = path.child("tls").index(index);
        for (index, host) in texts(tls, "hosts").enumerate() {
            complaints(errors, &path.child("hosts").index(index), host, host_complaints(host));
        }
        checks::optional_name(errors, &path, tls, "secretName", |name| names::dns_subdomain(name, false));
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        complaints(errors, &path.child("ingressClassName"), class, names::dns_subdomain(class, false));
    }
}

fn host_complaints(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns_subdomain(host, false) }
}

fn validate_path(errors: &mut ErrorList, path: &Path, route: &Value) {
    const ABSOLUTE: &str = "must be an absolute path";
    let (kind, value) = (text(route, "pathType"), text(route, "path"));
    let at = path.child("path");
    match kind {
        "" if route.get("pathType").is_none_or(Value::is_null) => {
            return errors.required(&path.child("pathType"), "pathType must be specified");
        }
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                errors.invalid(&at, value, ABSOLUTE);
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|s| value.contains(**s)) {
                errors.invalid(&at, value, format!("must not contain '{sequence}'"));
            }
            for ending in ["/..", "/."].iter().filter(|s| value.ends_with(**s)) {
                errors.invalid(&at, value, format!("cannot end with '{ending}'"));
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                errors.invalid(&at, value, ABSOLUTE);
            }
        }
        _ => errors.not_supported(&path.child("pathType"), kind, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    validate_backend(errors, &path.child("backend"), &route["backend"]);
}

fn validate_backend(errors: &mut ErrorList, path: &Path, backend: &Value) {
    match (part(backend, "resource"), part(backend, "service")) {
        (Some(_), Some(_)) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (None, None) => errors.invalid(path, "", "resource or service backend is required"),
        (Some(resource), None) => validate_reference(errors, &path.child("resource"), resource),
        (None, Some(service)) => {
            let at = path.child("service");
            checks::required_name(errors, &at, service, "name", |name| names::dns1035_label(name, false));
            let port = &service["port"];
            match (text(port, "name"), int_at(port, "number")) {
                ("", 0) => errors.required(path, "port name or number is required"),
                ("", number) => checks::port_number(errors, &at.child("port").child("number"), number),
                (name, 0) => complaints(errors, &at.child("port").child("name"), name, names::port_name(name)),
                _ => errors.invalid(path, "", "cannot set both port name & port number"),
            }
        }
    }
}

pub fn validate_reference(errors: &mut ErrorList, path: &Path, reference: &Value) {
    checks::optional_name(errors, path, reference, "apiGroup", |name| names::dns_subdomain(name, false));
    for field in ["kind", "name"] {
        checks::required_name(errors, path, reference, field, |name| names::path_segment(name, false));
    }
}
