//! Validation of services.
//! Neighbours: `service`. Expects addresses and ports to be allocated already, as upstream does.
//! A cluster address, once given, stays.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{int, int_at, is_set, items, part, text, texts},
        checks::{self, PROTOCOLS, complaints},
    },
    names,
};

const AFFINITY_SECONDS_MAX: i64 = 86_400;
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn is_headless(spec: &Value) -> bool {
    let mut addresses = texts(spec, "clusterIPs");
    addresses.next() == Some("None") && addresses.next().is_none()
}

pub fn is_externally_accessible(spec: &Value) -> bool {
    matches!(text(spec, "type"), "LoadBalancer" | "NodePort")
        || (text(spec, "type") == "ClusterIP" && is_set(spec, "externalIPs"))
}

pub fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

pub fn service(errors: &mut ErrorList, service: &Value) {
    let path = Path::new("spec");
    let spec = &service["spec"];
    let kind = text(spec, "type");
    if !is_set(spec, "ports") && !is_headless(spec) && kind != "ExternalName" {
        errors.required(&path.child("ports"), "");
    }
    by_type(errors, &path, spec);
    ports(errors, &path.child("ports"), spec);
    checks::labels(errors, &path, spec, "selector");
    affinity(errors, &path, spec);
    cluster_ips(errors, &path, spec);
    for (index, ip) in texts(spec, "externalIPs").enumerate() {
        let path = path.child("externalIPs").index(index);
        let malformed = names::ip(ip);
        let found = if malformed.is_empty() { names::endpoint_ip(ip) } else { malformed };
        complaints(errors, &path, ip, found);
    }
    checks::one_of(errors, &path, spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    unique_ports(errors, &path.child("ports"), spec);
    balancer(errors, &path, service);
    traffic_policies(errors, &path, spec);
}

fn by_type(errors: &mut ErrorList, path: &Path, spec: &Value) {
    match text(spec, "type") {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(spec) => errors.invalid(
            &path.child("clusterIPs").index(0),
            "None",
            format!("may not be set to 'None' for {kind} services"),
        ),
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].iter().filter(|field| is_set(spec, field)) {
                errors.forbidden(&path.child(field), "may not be set for ExternalName services");
            }
            match text(spec, "externalName").trim_end_matches('.') {
                "" => errors.required(&path.child("externalName"), ""),
                name => complaints(errors, &path.child("externalName"), name, names::dns_subdomain(name, false)),
            }
        }
        _ => {}
    }
}

fn ports(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let all = items(spec, "ports");
    let mut seen = BTreeSet::new();
    for (index, port) in all.iter().enumerate() {
        let path = path.index(index);
        match text(port, "name") {
            "" if all.len() > 1 => errors.required(&path.child("name"), ""),
            "" => {}
            name => {
                complaints(errors, &path.child("name"), name, names::dns_label(name, false));
                if !seen.insert(name) {
                    errors.duplicate(&path.child("name"), name);
                }
            }
        }
        checks::port_number(errors, &path.child("port"), int_at(port, "port"));
        checks::one_of(errors, &path, port, "protocol", &PROTOCOLS);
        checks::port_or_name(errors, &path.child("targetPort"), &port["targetPort"]);
        checks::optional_name(errors, &path, port, "appProtocol", names::qualified_name);
        if text(spec, "type") == "ClusterIP" && int_at(port, "nodePort") != 0 {
            errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
}

fn unique_ports(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in items(spec, "ports").iter().enumerate() {
        let path = path.index(index);
        let protocol = text(port, "protocol");
        let node_port = int_at(port, "nodePort");
        if node_port != 0 && !node_ports.insert((protocol, node_port)) {
            errors.duplicate(&path.child("nodePort"), node_port);
        }
        let number = int_at(port, "port");
        if !numbers.insert((protocol, number)) {
            errors.duplicate(&path, json!({ "port": number, "protocol": protocol, "targetPort": 0 }));
        }
    }
}

fn affinity(errors: &mut ErrorList, path: &Path, spec: &Value) {
    checks::one_of(errors, path, spec, "sessionAffinity", &["ClientIP", "None"]);
    let at = path.child("sessionAffinityConfig");
    let config = part(spec, "sessionAffinityConfig");
    match (text(spec, "sessionAffinity"), config) {
        ("ClientIP", None) => errors.required(&at, "when session affinity type is ClientIP"),
        ("ClientIP", Some(config)) => {
            let at = at.child("clientIP").child("timeoutSeconds");
            match int(&config["clientIP"], "timeoutSeconds") {
                None => errors.required(&at, "when session affinity type is ClientIP"),
                Some(seconds) if seconds <= 0 || seconds > AFFINITY_SECONDS_MAX => {
                    errors.invalid(&at, seconds, format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}"))
                }
                Some(_) => {}
            }
        }
        ("None", Some(_)) => errors.forbidden(&at, "must not be set when session affinity is None"),
        _ => {}
    }
}

fn cluster_ips(errors: &mut ErrorList, path: &Path, spec: &Value) {
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let at = path.child("clusterIPs");
    let (single, all) = (text(spec, "clusterIP"), texts(spec, "clusterIPs").collect::<Vec<_>>());
    let shown = || spec["clusterIPs"].clone();
    match (single, all.first()) {
        ("", Some(_)) => errors.invalid(&at, shown(), "must be empty when `clusterIP` is not specified"),
        ("", None) => {}
        (_, None) => errors.required(&at, ""),
        (single, Some(first)) if single != *first => errors.invalid(&at, shown(), "first value must match `clusterIP`"),
        _ => {}
    }
    let mut families = BTreeSet::new();
    for (index, family) in texts(spec, "ipFamilies").enumerate() {
        let path = path.child("ipFamilies").index(index);
        if !matches!(family, "IPv4" | "IPv6") {
            errors.not_supported(&path, family, &["IPv4", "IPv6"]);
        }
        if !families.insert(family) {
            errors.duplicate(&path, family);
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    checks::optional_one_of(errors, path, spec, "ipFamilyPolicy", &policies);
    if all.first() == Some(&"None") {
        if all.len() > 1 {
            errors.invalid(&at, shown(), "'None' must be the first and only value");
        }
        return;
    }
    let before = errors.len();
    for (index, ip) in all.iter().enumerate() {
        complaints(errors, &at.index(index), ip, names::ip(ip));
    }
    if all.len() > 2 {
        errors.invalid(&at, shown(), "may only hold up to 2 values");
    }
    if errors.len() > before {
        return;
    }
    let is_v6: Vec<bool> = all.iter().filter_map(|ip| names::parse_ip(ip)).map(|ip| ip.is_ipv6()).collect();
    if let [first, second] = is_v6[..]
        && first == second
    {
        errors.invalid(&at, shown(), "may specify no more than one IP for each IP family");
    }
    for (index, (v6, family)) in is_v6.iter().zip(texts(spec, "ipFamilies")).enumerate() {
        if (family == "IPv6") != *v6 {
            let words = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(&at.index(index), all[index], words);
        }
    }
}

fn balancer(errors: &mut ErrorList, path: &Path, service: &Value) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let spec = &service["spec"];
    let is_balancer = text(spec, "type") == "LoadBalancer";
    let annotation = text(&service["metadata"]["annotations"], SOURCE_RANGES).trim();
    if is_set(spec, "loadBalancerSourceRanges") {
        let at = path.child("LoadBalancerSourceRanges");
        if !is_balancer {
            errors.forbidden(&at, ONLY);
        }
        for (index, range) in texts(spec, "loadBalancerSourceRanges").enumerate() {
            complaints(errors, &at.index(index), range.trim(), names::cidr(range.trim()));
        }
    } else if !annotation.is_empty() {
        let at = Path::new("metadata").child("annotations").key(SOURCE_RANGES);
        if !is_balancer {
            errors.forbidden(&at, ONLY);
        }
        for range in annotation.split(',').map(str::trim) {
            complaints(errors, &at, range, names::cidr(range));
        }
    }
    if !is_balancer && is_set(spec, "allocateLoadBalancerNodePorts") {
        errors.forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY);
    }
    match (is_balancer, text(spec, "loadBalancerClass")) {
        (_, "") => {}
        (true, class) => complaints(errors, &path.child("loadBalancerClass"), class, names::qualified_name(class)),
        (false, _) => errors.forbidden(&path.child("loadBalancerClass"), ONLY),
    }
}

fn traffic_policies(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let at = path.child("externalTrafficPolicy");
    match (is_externally_accessible(spec), text(spec, "externalTrafficPolicy")) {
        (false, "") | (true, "Cluster" | "Local") => {}
        (false, policy) => errors.invalid(&at, policy, "may only be set for externally-accessible services"),
        (true, "") => errors.required(&at, ""),
        (true, policy) => errors.not_supported(&at, policy, &["Cluster", "Local"]),
    }
    let at = path.child("healthCheckNodePort");
    match (needs_health_check(spec), int_at(spec, "healthCheckNodePort")) {
        (false, 0) => {}
        (false, port) => errors.invalid(
            &at,
            port,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        (true, 0) => errors.required(&at, ""),
        (true, port) => checks::port_number(errors, &at, port),
    }
    let has_policy = matches!(text(spec, "type"), "ClusterIP" | "NodePort" | "LoadBalancer");
    if has_policy && !is_set(spec, "internalTrafficPolicy") {
        errors.required(&path.child("internalTrafficPolicy"), "");
    }
    checks::optional_one_of(errors, path, spec, "internalTrafficPolicy", &["Cluster", "Local"]);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    checks::optional_one_of(errors, path, spec, "trafficDistribution", &distributions);
}

pub fn update(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("spec");
    let (new, old) = (&new["spec"], &old["spec"]);
    if text(new, "type") != "ExternalName" && text(old, "type") != "ExternalName" {
        kept(errors, &path, new, old, "clusterIPs", "primary clusterIP can not be unset");
        if is_headless(new) == is_headless(old) && !is_headless(new) {
            kept(errors, &path, new, old, "ipFamilies", "primary ipFamily can not be unset");
        }
    }
    if text(new, "type") == "LoadBalancer"
        && text(old, "type") == "LoadBalancer"
        && text(new, "loadBalancerClass") != text(old, "loadBalancerClass")
    {
        let class = new.get("loadBalancerClass").cloned().unwrap_or_default();
        errors.invalid(&path.child("loadBalancerClass"), class, "may not change once set");
    }
    let port = |spec: &Value| int_at(spec, "healthCheckNodePort");
    if needs_health_check(new) && needs_health_check(old) && port(new) != port(old) {
        errors.forbidden(&path.child("healthCheckNodePort"), checks::IMMUTABLE);
    }
}

/// The first entry stays; a second may come, and go when the service becomes single-stack.
fn kept(errors: &mut ErrorList, path: &Path, new: &Value, old: &Value, field: &str, unset: &str) {
    let (now, before): (Vec<&str>, Vec<&str>) = (texts(new, field).collect(), texts(old, field).collect());
    let at = path.child(field);
    let shown = || new.get(field).cloned().unwrap_or_default();
    if now.is_empty() {
        if !before.is_empty() {
            errors.invalid(&at.index(0), shown(), unset);
        }
        return;
    }
    for (index, (now, before)) in now.iter().zip(&before).enumerate() {
        if now != before {
            errors.invalid(&at.index(index), shown(), "may not change once set");
        }
    }
    if before.len() > now.len() && text(new, "ipFamilyPolicy") != "SingleStack" {
        let what = if field == "clusterIPs" { "clusterIP" } else { "ipFamily" };
        errors.invalid(
            &path.child("ipFamilyPolicy"),
            new.get("ipFamilyPolicy").cloned().unwrap_or_default(),
            format!("must be set to 'SingleStack' when releasing the secondary {what}"),
        );
    }
}

/// `status.loadBalancer` of services and ingresses.
pub fn balancer_status(errors: &mut ErrorList, status: &Value) {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    for (index, ingress) in items(&status["loadBalancer"], "ingress").iter().enumerate() {
        let path = path.index(index);
        checks::optional_name(errors, &path, ingress, "ip", names::ip);
        let host = text(ingress, "hostname");
        checks::optional_name(errors, &path, ingress, "hostname", |name| names::dns_subdomain(name, false));
        if names::parse_ip(host).is_some() {
            errors.invalid(&path.child("hostname"), host, "must be a DNS name, not an IP address");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Behavior, core::service::Service};

    fn made(spec: Value) -> Value {
        let mut object = json!({ "metadata": { "name": "s" }, "spec": spec });
        Service.default(&mut object);
        Service.prepare_create(&mut object);
        object
    }

    #[test]
    fn creates() {
        let check = |spec: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            service(&mut errors, &made(spec));
            assert_eq!(errors.iter().map(|e| e.to_string()).collect::<Vec<_>>(), expected);
        };
        let port = json!([{ "port": 80 }]);
        check(json!({ "ports": port }), &[]);
        check(json!({ "ports": port, "clusterIP": "None" }), &[]);
        check(json!({ "clusterIP": "None" }), &[]);
        check(json!({}), &["spec.ports: Required value"]);
        check(json!({ "type": "ExternalName", "externalName": "a.b." }), &[]);
        check(json!({ "type": "ExternalName" }), &["spec.externalName: Required value"]);
        check(
            json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 80, "name": "a" }] }),
            &[
                "spec.ports[1].name: Duplicate value: \"a\"",
                "spec.ports[1]: Duplicate value: {\"port\":80,\"protocol\":\"TCP\",\"targetPort\":0}",
            ],
        );
        check(
            json!({ "ports": [{ "port": 0 }], "type": "X" }),
            &[
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \
                 \"LoadBalancer\", \"NodePort\"",
            ],
        );
        check(
            json!({ "ports": port, "clusterIP": "10.0.0.300" }),
            &["spec.clusterIPs[0]: Invalid value: \"10.0.0.300\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)"],
        );
    }

    #[test]
    fn updates() {
        let old = made(json!({ "ports": [{ "port": 80 }], "clusterIP": "10.0.0.1" }));
        let mut new = old.clone();
        new["spec"]["clusterIP"] = json!("10.0.0.2");
        Service.prepare_update(&mut new, &old);
        let mut errors = ErrorList::new();
        update(&mut errors, &new, &old);
        assert_eq!(
            errors.iter().map(|e| e.to_string()).collect::<Vec<_>>(),
            ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
        );
    }
}
