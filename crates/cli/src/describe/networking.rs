//! Describes Ingresses and their classes, NetworkPolicies, ServiceCIDRs and IPAddresses.
//! Neighbours: `services` formats the endpoints of a backend.
//! A backend whose Service cannot be read shows the error in its place.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Context, Related,
    fields::{format_selector, list, name, namespace, number, rfc1123, string, strings, text, text_or, timestamp},
    is_empty,
    sections::{annotations, conditions_with_times, labels, labels_and_annotations, name_and_namespace},
    services::format_endpoint_slices,
    writer::{Writer, put},
};
use crate::object_reader::Query;

/// Every Service that the rules and the default backend name, in order of its name.
fn backend_services(ingress: &Value) -> Vec<&str> {
    let spec = &ingress["spec"];
    let paths = list(&spec["rules"]).iter().flat_map(|rule| list(&rule["http"]["paths"]));
    let backends = paths.map(|path| &path["backend"]).chain([&spec["defaultBackend"]]);
    let names: BTreeSet<&str> = backends.filter_map(|backend| backend["service"]["name"].as_str()).collect();
    names.into_iter().collect()
}

/// For each backend its Service and its EndpointSlices.
pub fn backends(ingress: &Value) -> Vec<Query> {
    let namespace = namespace(ingress);
    let queries = backend_services(ingress).into_iter().flat_map(|service| {
        let selector = format!("kubernetes.io/service-name={service}");
        [
            Query::get("v1", "services", namespace, service),
            Query::list("discovery.k8s.io/v1", "endpointslices", namespace).labels(selector),
        ]
    });
    queries.collect()
}

fn backend(ingress: &Value, backend: &Value, related: &Related) -> String {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    if !service.is_object() {
        if !resource.is_object() {
            return String::new();
        }
        let group = text_or(&resource["apiGroup"], "<none>");
        return format!("APIGroup: {group}, Kind: {}, Name: {}", text(&resource["kind"]), text(&resource["name"]));
    }
    let port = match number(&service["port"]["number"]) {
        0 => text(&service["port"]["name"]),
        number => number.to_string(),
    };
    let shown = format!("{}:{port}", text(&service["name"]));
    let at = backend_services(ingress).iter().position(|name| *name == string(&service["name"])).unwrap_or(0) * 2;
    for answer in [related.answers.get(at + 1), related.answers.get(at)] {
        if let Some(Err(error)) = answer {
            return format!("{shown} (<error: {error}>)");
        }
    }
    let ports = related.objects(at).first().map_or(&[][..], |service| list(&service["spec"]["ports"]));
    let matches = |port: &&Value| {
        let number_wanted = number(&service["port"]["number"]);
        (number_wanted != 0 && number_wanted == number(&port["port"]))
            || (port["name"].is_string() && port["name"] == service["port"]["name"])
    };
    let port_name = ports.iter().rfind(matches).map_or("", |port| string(&port["name"]));
    format!("{shown} ({})", format_endpoint_slices(related.objects(at + 1), port_name))
}

pub fn ingress(w: &mut Writer, ingress: &Value, related: &Related, _: &Context) -> Result<(), String> {
    let (meta, spec) = (&ingress["metadata"], &ingress["spec"]);
    put!(w, 0, "Name:\t{}\n", name(ingress));
    labels(w, "Labels", &meta["labels"]);
    put!(w, 0, "Namespace:\t{}\n", namespace(ingress));
    let address = |ingress: &Value| text_or(&ingress["ip"], string(&ingress["hostname"]));
    let addresses: BTreeSet<String> = list(&ingress["status"]["loadBalancer"]["ingress"]).iter().map(address).collect();
    let addresses: Vec<String> = addresses.into_iter().filter(|address| !address.is_empty()).collect();
    put!(w, 0, "Address:\t{}\n", addresses.join(","));
    put!(w, 0, "Ingress Class:\t{}\n", text_or(&spec["ingressClassName"], "<none>"));
    let default_backend = match &spec["defaultBackend"] {
        Value::Null => "<default>".to_string(),
        given => backend(ingress, given, related),
    };
    put!(w, 0, "Default backend:\t{default_backend}\n");
    if !is_empty(&spec["tls"]) {
        w.write(0, "TLS:\n");
        for tls in list(&spec["tls"]) {
            let hosts = strings(&tls["hosts"]).join(",");
            match string(&tls["secretName"]) {
                "" => put!(w, 1, "SNI routes {hosts}\n"),
                secret => put!(w, 1, "{secret} terminates {hosts}\n"),
            }
        }
    }
    w.write(0, "Rules:\n  Host\tPath\tBackends\n");
    w.write(1, "----\t----\t--------\n");
    let rules: Vec<&Value> = list(&spec["rules"]).iter().filter(|rule| rule["http"].is_object()).collect();
    for rule in &rules {
        put!(w, 1, "{}\t\n", text_or(&rule["host"], "*"));
        for path in list(&rule["http"]["paths"]) {
            put!(w, 2, "\t{} \t{}\n", text(&path["path"]), backend(ingress, &path["backend"], related));
        }
    }
    if rules.is_empty() {
        put!(w, 1, "*\t*\t{default_backend}\n");
    }
    annotations(w, "Annotations", &meta["annotations"]);
    Ok(())
}

pub fn ingress_class(w: &mut Writer, class: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(class));
    labels_and_annotations(w, class);
    put!(w, 0, "Controller:\t{}\n", text(&class["spec"]["controller"]));
    let parameters = &class["spec"]["parameters"];
    if parameters.is_object() {
        w.write(0, "Parameters:\n");
        for (title, field) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            if field != "apiGroup" || !parameters[field].is_null() {
                put!(w, 1, "{title}:\t{}\n", text(&parameters[field]));
            }
        }
    }
    Ok(())
}

pub fn service_cidr(w: &mut Writer, cidr: &Value, _: &Related, context: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(cidr));
    labels_and_annotations(w, cidr);
    put!(w, 0, "CIDRs:\t{}\n", strings(&cidr["spec"]["cidrs"]).join(", "));
    if !is_empty(&cidr["status"]["conditions"]) {
        w.write(0, "Status:\n");
        w.write(0, "Conditions:\n");
        conditions_with_times(w, cidr, context);
    }
    Ok(())
}

pub fn ip_address(w: &mut Writer, address: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(address));
    labels_and_annotations(w, address);
    let parent = &address["spec"]["parentRef"];
    if parent.is_object() {
        w.write(0, "Parent Reference:\n");
        let rows = [("Group", "group"), ("Resource", "resource"), ("Namespace", "namespace"), ("Name", "name")];
        for (title, field) in rows {
            put!(w, 1, "{title}:\t{}\n", text(&parent[field]));
        }
    }
    Ok(())
}

pub fn network_policy(w: &mut Writer, policy: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let spec = &policy["spec"];
    name_and_namespace(w, policy);
    let created = match timestamp(&policy["metadata"]["creationTimestamp"]) {
        Some(time) => time.to_zoned(context.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %z %Z").to_string(),
        None => rfc1123(&Value::Null, &context.zone),
    };
    put!(w, 0, "Created on:\t{created}\n");
    labels_and_annotations(w, policy);
    w.write(0, "Spec:\n");
    w.write(1, "PodSelector: ");
    match format_selector(&spec["podSelector"]) {
        selector if selector == "<none>" => {
            w.write(2, "<none> (Allowing the specific traffic to all pods in this namespace)\n");
        }
        selector => put!(w, 2, "{selector}\n"),
    }
    let types = strings(&spec["policyTypes"]);
    let directions =
        [("ingress", "Ingress", "from", "From", "source"), ("egress", "Egress", "to", "To", "destination")];
    for (field, kind, peers, title, end) in directions {
        if !types.contains(&kind) {
            put!(w, 1, "Not affecting {field} traffic\n");
            continue;
        }
        put!(w, 1, "Allowing {field} traffic:\n");
        let rules = list(&spec[field]);
        if rules.is_empty() {
            put!(w, 0, "    <none> (Selected pods are isolated for {field} connectivity)\n");
        }
        for (i, rule) in rules.iter().enumerate() {
            policy_ports(w, rule);
            policy_peers(w, &rule[peers], title, end);
            if i + 1 != rules.len() {
                w.write(0, "    ----------\n");
            }
        }
    }
    let types = if types.is_empty() { "<none>".to_string() } else { types.join(", ") };
    put!(w, 1, "Policy Types: {types}\n");
    Ok(())
}

fn policy_ports(w: &mut Writer, rule: &Value) {
    if is_empty(&rule["ports"]) {
        w.write(0, "    To Port: <any> (traffic allowed to all ports)\n");
    }
    for port in list(&rule["ports"]) {
        let (number, protocol) = (text_or(&port["port"], "<nil>"), text_or(&port["protocol"], "TCP"));
        match port["endPort"].as_i64() {
            None => put!(w, 0, "    To Port: {number}/{protocol}\n"),
            Some(end) => put!(w, 0, "    To Port Range: {number}-{end}/{protocol}\n"),
        }
    }
}

fn policy_peers(w: &mut Writer, peers: &Value, title: &str, end: &str) {
    if is_empty(peers) {
        put!(w, 0, "    {title}: <any> (traffic not restricted by {end})\n");
    }
    for peer in list(peers) {
        put!(w, 0, "    {title}:\n");
        let mut selected = false;
        for (title, field) in [("NamespaceSelector", "namespaceSelector"), ("PodSelector", "podSelector")] {
            if peer[field].is_object() {
                selected = true;
                put!(w, 1, "    {title}: {}\n", format_selector(&peer[field]));
            }
        }
        if !selected && peer["ipBlock"].is_object() {
            w.write(1, "    IPBlock:\n");
            put!(w, 2, "    CIDR: {}\n", text(&peer["ipBlock"]["cidr"]));
            put!(w, 2, "    Except: {}\n", strings(&peer["ipBlock"]["except"]).join(", "));
        }
    }
}
