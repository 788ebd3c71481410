//! `expose`: a Service for a Pod, Service, ReplicationController, Deployment or ReplicaSet.
//! Neighbours: `service` makes Services from flags alone.
//! Selector and ports come from the flags, or else from the object.

use serde_json::{Map, Value, json};

use super::{int_or_string, labels, metadata};

/// The flags of `expose`; empty ones are taken from the object.
#[derive(Default)]
pub struct Expose<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    pub selector: &'a str,
    pub labels: &'a str,
    pub port: &'a str,
    pub protocol: &'a str,
    pub target_port: &'a str,
    pub kind: &'a str,
    pub external_ip: &'a str,
    pub load_balancer_ip: &'a str,
    pub cluster_ip: &'a str,
    pub session_affinity: &'a str,
}

/// What pods the object has, as a Service can select them.
fn selector_of(object: &Value) -> Result<Map<String, Value>, String> {
    let labels_of = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    match kind {
        "Pod" => match labels_of(&object["metadata"]["labels"]) {
            labels if labels.is_empty() => Err("the pod has no labels and cannot be exposed".to_string()),
            labels => Ok(labels),
        },
        "Service" => match labels_of(&object["spec"]["selector"]) {
            selector if selector.is_empty() => Err("the service has no pod selector set".to_string()),
            selector => Ok(selector),
        },
        "ReplicationController" => Ok(labels_of(&object["spec"]["selector"])),
        "Deployment" | "ReplicaSet" => {
            let selector = &object["spec"]["selector"];
            let expressions = selector["matchExpressions"].as_array().filter(|list| !list.is_empty());
            if let Some(expressions) = expressions {
                let shown: Vec<String> = expressions.iter().map(expression_text).collect();
                return Err(format!(
                    "couldn't convert expressions - \"[{}]\" to map-based selector format",
                    shown.join(" ")
                ));
            }
            match labels_of(&selector["matchLabels"]) {
                labels if labels.is_empty() => {
                    Err(format!("invalid {}: no selectors, therefore cannot be exposed", kind.to_lowercase()))
                }
                labels => Ok(labels),
            }
        }
        kind => Err(format!("cannot extract pod selector from {kind}")),
    }
}

fn expression_text(expression: &Value) -> String {
    let text = |field: &str| expression[field].as_str().unwrap_or_default().to_string();
    let values = crate::describe::fields::go_list(&expression["values"]);
    format!("{{Key:{} Operator:{} Values:{values}}}", text("key"), text("operator"))
}

/// Ports with their protocols, as containers or the Service name them.
fn ports_of(object: &Value) -> Vec<(i64, String)> {
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or("TCP").to_string();
    if object["kind"] == "Service" {
        let ports = crate::describe::fields::list(&object["spec"]["ports"]);
        return ports.iter().map(|port| (port["port"].as_i64().unwrap_or(0), protocol(port))).collect();
    }
    let spec = if object["kind"] == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
    let containers = crate::describe::fields::list(&spec["containers"]).iter();
    let ports = containers.flat_map(|container| crate::describe::fields::list(&container["ports"]));
    ports.map(|port| (port["containerPort"].as_i64().unwrap_or(0), protocol(port))).collect()
}

pub fn can_be_exposed(group: &str, kind: &str) -> Result<(), String> {
    match (group, kind) {
        ("", "ReplicationController" | "Service" | "Pod") | ("apps", "Deployment" | "ReplicaSet") => Ok(()),
        _ if group.is_empty() => Err(format!("cannot expose a {kind}")),
        _ => Err(format!("cannot expose a {kind}.{group}")),
    }
}

pub fn service(options: &Expose, object: &Value) -> Result<Value, String> {
    let introspection = "via --selector flag or introspection";
    let selector = match options.selector {
        "" => selector_of(object).map_err(|error| format!("couldn't retrieve selectors {introspection}: {error}"))?,
        given => labels(given)?,
    };
    let found = ports_of(object);
    let is_headless = options.cluster_ip == "None";
    let ports: Vec<i64> = match options.port {
        "" => found.iter().map(|(port, _)| *port).collect(),
        given => given
            .split(',')
            .map(|port| {
                port.parse().map_err(|_| {
                    format!("strconv.Atoi: parsing {}: invalid syntax", crate::template::go_format::quote(port))
                })
            })
            .collect::<Result<_, _>>()?,
    };
    if ports.is_empty() && !is_headless {
        return Err("couldn't find port via --port flag or introspection".to_string());
    }
    let name = match options.name {
        "" => object["metadata"]["name"].as_str().unwrap_or_default(),
        name => name,
    };
    let several = ports.len() > 1;
    let port = |(i, port): (usize, &i64)| {
        let protocol = match options.protocol {
            "" => {
                found.iter().find(|(own, _)| own == port).map_or("TCP", |(_, protocol)| protocol.as_str()).to_string()
            }
            given => given.to_string(),
        };
        let target =
            if options.target_port.is_empty() { Value::from(*port) } else { int_or_string(options.target_port) };
        let mut one = json!({ "port": port, "protocol": protocol, "targetPort": target });
        if several {
            one["name"] = format!("port-{}", i + 1).into();
        }
        one
    };
    let mut spec = json!({ "selector": selector });
    let ports: Vec<Value> = ports.iter().enumerate().map(port).collect();
    if !ports.is_empty() {
        spec["ports"] = ports.into();
    }
    let optional =
        [("type", options.kind), ("loadBalancerIP", options.load_balancer_ip), ("clusterIP", options.cluster_ip)];
    for (field, value) in optional {
        if !value.is_empty() {
            spec[field] = value.into();
        }
    }
    if !options.external_ip.is_empty() {
        spec["externalIPs"] = json!([options.external_ip]);
    }
    match options.session_affinity {
        "" => {}
        affinity @ ("None" | "ClientIP") => spec["sessionAffinity"] = affinity.into(),
        other => return Err(format!("unknown session affinity: {other}")),
    }
    let mut meta = metadata(name, options.namespace);
    let given = match options.labels {
        "" => object["metadata"]["labels"].as_object().cloned().unwrap_or_default(),
        given => labels(given)?,
    };
    if !given.is_empty() {
        meta["labels"] = given.into();
    }
    Ok(
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec, "status": { "loadBalancer": {} } }),
    )
}
