//! Where a webhook is called: a URL or a Service.
//! Called by `webhook_configuration`, and by CustomResourceDefinitions for their conversion webhooks.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::{int_at, part, text},
    names,
};

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
            // Upstream names each by the other's field.
            for (missing, told) in [("namespace", "name"), ("name", "namespace")] {
                if text(service, missing).is_empty() {
                    errors.required(&path.child(told), "");
                }
            }
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
    if value == "//" {
        return errors.invalid(path, value, "segment[0] may not be empty");
    }
    if !value.starts_with('/') {
        errors.invalid(path, value, "must start with a '/'");
    }
    // Whatever it begins with, the first character is taken off.
    let rest = value.chars().next().map_or("", |first| &value[first.len_utf8()..]);
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
