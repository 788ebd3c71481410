//! `create service clusterip|nodeport|loadbalancer|externalname`.
//! Neighbours: `expose` makes Services of what runs.
//! Ports are checked before anything is made.

use serde_json::{Value, json};

use super::metadata;
use crate::template::go_format::quote;

#[derive(Default)]
pub struct Service<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: &'a str,
    pub tcp: &'a [String],
    pub cluster_ip: &'a str,
    pub node_port: i64,
    pub external_name: &'a str,
}

/// `PORT` or `PORT:TARGET`, a target being a number or a name.
fn port_and_target(text: &str) -> Result<(i64, Value), String> {
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    let port: i64 =
        first.parse::<u64>().map_err(|_| format!("strconv.ParseUint: parsing {}: invalid syntax", quote(first)))?
            as i64;
    if port > 65_535 {
        return Err(format!("strconv.ParseUint: parsing {}: value out of range", quote(first)));
    }
    let Some(target) = parts.next() else { return Ok((port, port.into())) };
    let (wrong, value) = match target.parse::<i64>() {
        Ok(number) => (api::names::port_number(number), Value::from(number)),
        Err(_) => (api::names::port_name(target), Value::from(target)),
    };
    if wrong.is_empty() { Ok((port, value)) } else { Err(wrong.join(",")) }
}

pub fn service(options: &Service) -> Result<Value, String> {
    let headless = options.cluster_ip == "None";
    if headless && options.kind != "ClusterIP" {
        return Err("ClusterIP=None can only be used with ClusterIP service type".to_string());
    }
    if !headless && options.tcp.is_empty() && options.kind != "ExternalName" {
        return Err("at least one tcp port specifier must be provided".to_string());
    }
    if options.kind == "ExternalName" && !api::names::dns_subdomain(options.external_name, false).is_empty() {
        return Err(format!("invalid service external name {}", options.external_name));
    }
    let mut ports = Vec::new();
    for text in options.tcp {
        let (port, target) = port_and_target(text)?;
        let mut one = json!({ "name": text.replace(':', "-"), "port": port, "targetPort": target, "protocol": "TCP" });
        if options.node_port > 0 {
            one["nodePort"] = options.node_port.into();
        }
        ports.push(one);
    }
    let selected = json!({ "app": options.name });
    let mut spec = json!({ "selector": selected, "type": options.kind });
    if !ports.is_empty() {
        spec["ports"] = ports.into();
    }
    if !options.cluster_ip.is_empty() {
        spec["clusterIP"] = options.cluster_ip.into();
    }
    if !options.external_name.is_empty() {
        spec["externalName"] = options.external_name.into();
    }
    let mut meta = metadata(options.name, options.namespace);
    meta["labels"] = selected;
    Ok(
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec, "status": { "loadBalancer": {} } }),
    )
}
