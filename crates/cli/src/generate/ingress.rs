//! `create ingress`.
//! Neighbours: the verb passes rules as they were typed.
//! A rule that is not of the form host/path=service:port[,tls[=secret]] is refused.

use regex::Regex;
use serde_json::{Map, Value, json};

use super::{int_or_string, metadata};

const RULE: &str =
    r"^(?P<host>[\w*\-.]*)(?P<path>/.*)=(?P<service>[\w\-]+):(?P<port>[\w\-]+)(,(?P<tls>tls)=?(?P<secret>[\w\-]+)?)?";

#[derive(Default)]
pub struct Ingress<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    pub class: &'a str,
    pub rules: &'a [String],
    pub default_backend: &'a str,
    pub annotations: &'a [String],
}

fn backend(service: &str) -> Value {
    let (name, port) = service.split_once(':').unwrap_or((service, ""));
    let port = match int_or_string(port) {
        Value::Number(number) => json!({ "number": number }),
        name => json!({ "name": name }),
    };
    json!({ "service": { "name": name, "port": port } })
}

pub fn ingress(options: &Ingress) -> Result<Value, String> {
    if options.default_backend.is_empty() && options.rules.is_empty() {
        return Err(
            "not enough information provided: every ingress has to either specify a default-backend (which catches \
                    all traffic) or a list of rules (which catch specific paths)"
                .to_string(),
        );
    }
    let valid = Regex::new(RULE).map_err(|error| error.to_string())?;
    for rule in options.rules {
        if !valid.is_match(rule) {
            return Err(format!(
                "rule {rule} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
            ));
        }
    }
    let mut annotations = Map::new();
    for annotation in options.annotations {
        match annotation.split_once('=') {
            Some((key, value)) if !key.is_empty() => drop(annotations.insert(key.to_string(), value.into())),
            _ => return Err(format!("annotation {annotation} is invalid and should be in format key=[value]")),
        }
    }
    if !options.default_backend.is_empty() && options.default_backend.split(':').count() != 2 {
        return Err("default-backend should be in format servicename:serviceport".to_string());
    }
    let mut spec = json!({});
    if !options.class.is_empty() {
        spec["ingressClassName"] = options.class.into();
    }
    if !options.default_backend.is_empty() {
        spec["defaultBackend"] = backend(options.default_backend);
    }
    let (tls, rules) = (tls(options.rules), rules(options.rules));
    for (field, list) in [("tls", tls), ("rules", rules)] {
        if !list.is_empty() {
            spec[field] = list.into();
        }
    }
    let mut meta = metadata(options.name, options.namespace);
    if !annotations.is_empty() {
        meta["annotations"] = annotations.into();
    }
    Ok(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": spec,
        "status": { "loadBalancer": {} },
    }))
}

fn tls(rules: &[String]) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    let mut hosts_seen: Vec<&str> = Vec::new();
    for rule in rules {
        let parts: Vec<&str> = rule.split(',').collect();
        let [_, given] = parts[..] else { continue };
        let host = rule.split('/').next().unwrap_or_default();
        let secret = given.split('=').nth(1).unwrap_or_default();
        if hosts_seen.contains(&host) {
            continue;
        }
        hosts_seen.push(host);
        if let Some(same) = entries.iter_mut().find(|entry| entry["secretName"].as_str().unwrap_or_default() == secret)
        {
            if let Some(hosts) = same["hosts"].as_array_mut() {
                hosts.push(host.into());
            } else {
                same["hosts"] = json!([host]);
            }
            continue;
        }
        let mut entry = json!({});
        if !host.is_empty() {
            entry["hosts"] = json!([host]);
        }
        if !secret.is_empty() {
            entry["secretName"] = secret.into();
        }
        if entry != json!({}) {
            entries.push(entry);
        }
    }
    entries
}

fn rules(given: &[String]) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for rule in given {
        let rule = rule.split(',').next().unwrap_or_default();
        let (host, path_and_service) = rule.split_once('/').unwrap_or((rule, ""));
        let mut parts = path_and_service.split('=');
        let path = format!("/{}", parts.next().unwrap_or_default());
        let (path, kind) = match path.strip_suffix('*') {
            Some(prefix) => (prefix, "Prefix"),
            None => (path.as_str(), "Exact"),
        };
        let path = json!({ "path": path, "pathType": kind, "backend": backend(parts.next().unwrap_or_default()) });
        let same = rules.iter_mut().find(|own| own["host"].as_str().unwrap_or_default() == host);
        if let Some(paths) = same.and_then(|own| own["http"]["paths"].as_array_mut()) {
            paths.push(path);
            continue;
        }
        let mut one = json!({ "http": { "paths": [path] } });
        if !host.is_empty() {
            one["host"] = host.into();
        }
        rules.push(one);
    }
    rules
}
