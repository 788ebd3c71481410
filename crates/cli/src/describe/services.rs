//! Describes Services, Endpoints and EndpointSlices.
//! Neighbours: `networking` shows the endpoints behind an Ingress with `format_endpoint_slices`.
//! An endpoint counts unless it says that it is not ready.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{format_labels, list, name, namespace, number, string, strings, text, text_or},
    is_empty,
    sections::{labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};
use crate::object_reader::Query;

/// How many endpoints are shown by address.
const ENDPOINTS_SHOWN_MAX: usize = 3;

pub fn endpoint_slices(service: &Value) -> Vec<Query> {
    let selector = format!("kubernetes.io/service-name={}", name(service));
    vec![Query::list("discovery.k8s.io/v1", "endpointslices", namespace(service)).labels(selector)]
}

pub fn service(w: &mut Writer, service: &Value, related: &Related, _: &Context) -> Result<(), String> {
    let spec = &service["spec"];
    name_and_namespace(w, service);
    labels_and_annotations(w, service);
    put!(w, 0, "Selector:\t{}\n", format_labels(&spec["selector"]));
    put!(w, 0, "Type:\t{}\n", text(&spec["type"]));
    let optional = |w: &mut Writer, title: &str, value: &Value| {
        if !text(value).is_empty() && text(value) != "0" {
            put!(w, 0, "{title}:\t{}\n", text(value));
        }
    };
    let joined = |value: &Value| match strings(value).join(",") {
        joined if joined.is_empty() => "<none>".to_string(),
        joined => joined,
    };
    optional(w, "IP Family Policy", &spec["ipFamilyPolicy"]);
    put!(w, 0, "IP Families:\t{}\n", joined(&spec["ipFamilies"]));
    put!(w, 0, "IP:\t{}\n", text(&spec["clusterIP"]));
    put!(w, 0, "IPs:\t{}\n", joined(&spec["clusterIPs"]));
    if !is_empty(&spec["externalIPs"]) {
        put!(w, 0, "External IPs:\t{}\n", joined(&spec["externalIPs"]));
    }
    optional(w, "Desired LoadBalancer IP", &spec["loadBalancerIP"]);
    optional(w, "External Name", &spec["externalName"]);
    let ingress = &service["status"]["loadBalancer"]["ingress"];
    if !is_empty(ingress) {
        let shown = |ingress: &Value| match string(&ingress["ip"]) {
            "" => text(&ingress["hostname"]),
            ip if ingress["ipMode"].is_null() => ip.to_string(),
            ip => format!("{ip} ({})", text(&ingress["ipMode"])),
        };
        let addresses: Vec<String> = list(ingress).iter().map(shown).collect();
        put!(w, 0, "LoadBalancer Ingress:\t{}\n", addresses.join(", "));
    }
    for port in list(&spec["ports"]) {
        let (name, protocol) = (text_or(&port["name"], "<unset>"), text(&port["protocol"]));
        put!(w, 0, "Port:\t{name}\t{}/{protocol}\n", number(&port["port"]));
        put!(w, 0, "TargetPort:\t{}/{protocol}\n", text_or(&port["targetPort"], "0"));
        if number(&port["nodePort"]) != 0 {
            put!(w, 0, "NodePort:\t{name}\t{}/{protocol}\n", number(&port["nodePort"]));
        }
        put!(w, 0, "Endpoints:\t{}\n", format_endpoint_slices(related.objects(0), string(&port["name"])));
    }
    put!(w, 0, "Session Affinity:\t{}\n", text(&spec["sessionAffinity"]));
    optional(w, "External Traffic Policy", &spec["externalTrafficPolicy"]);
    optional(w, "Internal Traffic Policy", &spec["internalTrafficPolicy"]);
    optional(w, "HealthCheck NodePort", &spec["healthCheckNodePort"]);
    if !is_empty(&spec["loadBalancerSourceRanges"]) {
        put!(w, 0, "LoadBalancer Source Ranges:\t{}\n", joined(&spec["loadBalancerSourceRanges"]));
    }
    optional(w, "Traffic Distribution", &spec["trafficDistribution"]);
    Ok(())
}

/// The first ready endpoints of the port with this name, and how many more there are.
pub fn format_endpoint_slices(slices: &[Value], port_name: &str) -> String {
    if slices.is_empty() {
        return "<none>".to_string();
    }
    let (mut shown, mut count, mut more) = (Vec::new(), 0, false);
    let mut add = |endpoint: &Value, port: Option<&Value>| {
        more |= shown.len() == ENDPOINTS_SHOWN_MAX;
        if endpoint["conditions"]["ready"] == false {
            return;
        }
        if !more {
            let address = list(&endpoint["addresses"]).first().map(string).unwrap_or_default();
            shown.push(match port {
                None => address.to_string(),
                Some(port) if address.contains(':') => format!("[{address}]:{}", number(&port["port"])),
                Some(port) => format!("{address}:{}", number(&port["port"])),
            });
        }
        count += 1;
    };
    for slice in slices {
        let endpoints = list(&slice["endpoints"]);
        if is_empty(&slice["ports"]) {
            endpoints.iter().for_each(|endpoint| add(endpoint, None));
        }
        for port in list(&slice["ports"]).iter().filter(|port| string(&port["name"]) == port_name) {
            endpoints.iter().for_each(|endpoint| add(endpoint, Some(port)));
        }
    }
    let joined = shown.join(",");
    if more { format!("{joined} + {} more...", count - ENDPOINTS_SHOWN_MAX as i64) } else { joined }
}

pub fn endpoints(w: &mut Writer, endpoints: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, endpoints);
    labels_and_annotations(w, endpoints);
    w.write(0, "Subsets:\n");
    for subset in list(&endpoints["subsets"]) {
        for (title, field) in [("Addresses", "addresses"), ("NotReadyAddresses", "notReadyAddresses")] {
            let addresses: Vec<&str> = list(&subset[field]).iter().map(|address| string(&address["ip"])).collect();
            let shown = if addresses.is_empty() { "<none>".to_string() } else { addresses.join(",") };
            put!(w, 1, "{title}:\t{shown}\n");
        }
        if !is_empty(&subset["ports"]) {
            w.write(1, "Ports:\n");
            ports(w, &subset["ports"], 2);
        }
        w.write(0, "\n");
    }
    Ok(())
}

fn ports(w: &mut Writer, ports: &Value, level: usize) {
    w.write(level, "Name\tPort\tProtocol\n");
    w.write(level, "----\t----\t--------\n");
    for port in list(ports) {
        let (name, number) = (text_or(&port["name"], "<unset>"), text_or(&port["port"], "<unset>"));
        put!(w, level, "{name}\t{number}\t{}\n", text(&port["protocol"]));
    }
}

pub fn endpoint_slice(w: &mut Writer, slice: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, slice);
    labels_and_annotations(w, slice);
    put!(w, 0, "AddressType:\t{}\n", text(&slice["addressType"]));
    if is_empty(&slice["ports"]) {
        w.write(0, "Ports: <unset>\n");
    } else {
        w.write(0, "Ports:\n");
        ports(w, &slice["ports"], 1);
    }
    if is_empty(&slice["endpoints"]) {
        w.write(0, "Endpoints: <none>\n");
        return Ok(());
    }
    w.write(0, "Endpoints:\n");
    for endpoint in list(&slice["endpoints"]) {
        let addresses = strings(&endpoint["addresses"]).join(", ");
        put!(w, 1, "- Addresses:\t{}\n", if addresses.is_empty() { "<none>" } else { &addresses });
        w.write(2, "Conditions:\n");
        put!(w, 3, "Ready:\t{}\n", text_or(&endpoint["conditions"]["ready"], "<unset>"));
        put!(w, 2, "Hostname:\t{}\n", text_or(&endpoint["hostname"], "<unset>"));
        let target = &endpoint["targetRef"];
        if target.is_object() {
            put!(w, 2, "TargetRef:\t{}/{}\n", text(&target["kind"]), text(&target["name"]));
        }
        put!(w, 2, "NodeName:\t{}\n", text_or(&endpoint["nodeName"], "<unset>"));
        put!(w, 2, "Zone:\t{}\n", text_or(&endpoint["zone"], "<unset>"));
    }
    Ok(())
}
