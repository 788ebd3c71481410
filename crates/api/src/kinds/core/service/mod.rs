//! Services: defaults, strategy, columns. Their validation is `validation`.
//! Neighbours: the API server's address and port allocator, which fills `clusterIPs` and `nodePort` after defaulting.
//! An address, once given, stays until the type makes it meaningless.

pub mod validation;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::ErrorList,
    kinds::{
        Allocates, Behavior, Column,
        behavior::{drop_field, keep_field},
        common::{
            access::{default_absent, default_to, each, int, int_at, is_set, items, part_mut, set, text, texts},
            columns::{age, age_of, labels, load_balancer, name, name_of, string, wide},
        },
    },
    names,
};
use validation::{is_externally_accessible, needs_health_check};

#[derive(Default)]
pub struct Service;

const DEFAULT_AFFINITY_SECONDS: i64 = 10_800;

fn warnings(object: &Value) -> Vec<String> {
    let spec = &object["spec"];
    let kind = text(spec, "type");
    let mut warnings = Vec::new();
    if object["metadata"]["annotations"].get("service.kubernetes.io/topology-aware-hints").is_some() {
        warnings.push(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use \
             service.kubernetes.io/topology-mode instead"
                .to_string(),
        );
    }
    let has_external_ips = !items(spec, "externalIPs").is_empty();
    if kind == "ClusterIP" && text(spec, "clusterIP") == "None" {
        if !text(spec, "loadBalancerIP").is_empty() {
            warnings.push("spec.loadBalancerIP is ignored for headless services".into());
        }
        if has_external_ips {
            warnings.push("spec.externalIPs is ignored for headless services".into());
        }
        if text(spec, "sessionAffinity") != "None" {
            warnings.push("spec.SessionAffinity is ignored for headless services".into());
        }
    }
    if kind == "ExternalName" && has_external_ips {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
    warnings
}

impl Behavior for Service {
    fn allocates(&self) -> Allocates {
        Allocates::ServiceAddressesAndPorts
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "sessionAffinity", "None");
        default_to(spec, "type", "ClusterIP");
        match text(spec, "sessionAffinity") {
            "ClientIP" => {
                if let Some(client) =
                    part_mut(spec, "sessionAffinityConfig").and_then(|config| part_mut(config, "clientIP"))
                {
                    default_to(client, "timeoutSeconds", DEFAULT_AFFINITY_SECONDS);
                }
            }
            "None" => drop_field(spec, "sessionAffinityConfig"),
            _ => {}
        }
        each(spec, "ports", |port| {
            default_to(port, "protocol", "TCP");
            let number = int_at(port, "port");
            if matches!(&port["targetPort"], Value::Null) || port["targetPort"] == 0 || port["targetPort"] == "" {
                port["targetPort"] = json!(number);
            }
        });
        let kind = text(spec, "type").to_string();
        let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
            || (kind == "ClusterIP" && is_set(spec, "externalIPs"));
        if external {
            default_to(spec, "externalTrafficPolicy", "Cluster");
        }
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
            default_absent(spec, "internalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            default_to(spec, "allocateLoadBalancerNodePorts", true);
            if let Some(balancer) = object.get_mut("status").and_then(|status| status.get_mut("loadBalancer")) {
                each(balancer, "ingress", |ingress| {
                    if is_set(ingress, "ip") {
                        default_to(ingress, "ipMode", "VIP");
                    }
                });
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "loadBalancer": {} });
        if let Some(spec) = part_mut(object, "spec") {
            normalize_cluster_ips(spec, None);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        // What the balancer still has to take down is no concern of the Service any more.
        if text(&object["spec"], "type") != "LoadBalancer" && is_set(&object["status"], "loadBalancer") {
            object["status"]["loadBalancer"] = json!({});
        }
        let Some(spec) = part_mut(object, "spec") else { return };
        patch_allocated(spec, &old["spec"]);
        drop_what_it_lost(spec, &old["spec"]);
        normalize_cluster_ips(spec, Some(&old["spec"]));
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validation::service(errors, object);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validation::update(errors, object, old);
        validation::service(errors, object);
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        validation::balancer_status(errors, &object["status"]);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings(object)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns1035_label(name, prefix)
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 7] = [
            name(),
            string("Type", "How the service is exposed."),
            string("Cluster-IP", "Address inside the cluster."),
            string("External-IP", "Addresses outside the cluster."),
            string("Port(s)", "Ports it listens on."),
            age(),
            wide("Selector", "Which pods serve it."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(spec, "type")),
            json!(texts(spec, "clusterIPs").next().unwrap_or("<none>")),
            json!(external_ip(object)),
            json!(ports(spec)),
            age_of(object, now),
            labels(spec, "selector"),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let spec = &object["spec"];
        ["clusterIP", "type"].map(|field| (format!("spec.{field}"), text(spec, field).to_string())).into()
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.clusterIP".into(), "spec.type".into()]
    }
}

/// `clusterIP` and `clusterIPs[0]` are one thing under two names; clients that know only the old one may write it.
fn normalize_cluster_ips(spec: &mut Value, old: Option<&Value>) {
    let Some(old) = old else {
        let single = text(spec, "clusterIP").to_string();
        if !single.is_empty() && !is_set(spec, "clusterIPs") {
            spec["clusterIPs"] = json!([single]);
        }
        return;
    };
    let (new_ip, old_ip) = (text(spec, "clusterIP").to_string(), text(old, "clusterIP").to_string());
    let same_list = spec.get("clusterIPs") == old.get("clusterIPs");
    if new_ip != old_ip {
        if new_ip.is_empty() {
            if same_list {
                drop_field(spec, "clusterIPs");
            }
        } else if same_list || (old_ip.is_empty() && !is_set(spec, "clusterIPs")) {
            spec["clusterIPs"] = json!([new_ip]);
        }
    }
}

/// An update that leaves allocated fields out means "as they were".
fn patch_allocated(spec: &mut Value, old: &Value) {
    let needs_ip = |spec: &Value| text(spec, "type") != "ExternalName";
    if needs_ip(old) && needs_ip(spec) {
        if !is_set(spec, "clusterIP") {
            set(spec, "clusterIP", old["clusterIP"].clone());
        }
        if !is_set(spec, "clusterIPs") && text(spec, "clusterIP") == text(old, "clusterIP") {
            set(spec, "clusterIPs", old["clusterIPs"].clone());
        }
    }
    let needs_port = |spec: &Value| matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
    if needs_port(old) && needs_port(spec) {
        let key = |port: &Value| (text(port, "protocol").to_string(), int_at(port, "port"));
        let mut taken: Vec<i64> = items(spec, "ports").iter().filter_map(|port| int(port, "nodePort")).collect();
        each(spec, "ports", |port| {
            if int_at(port, "nodePort") != 0 {
                return;
            }
            let before = items(old, "ports").iter().find(|p| key(p) == key(port)).map(|p| int_at(p, "nodePort"));
            if let Some(number) = before.filter(|number| *number != 0 && !taken.contains(number)) {
                port["nodePort"] = json!(number);
                taken.push(number);
            }
        });
    }
    if text(old, "type") == "LoadBalancer"
        && text(spec, "type") == "LoadBalancer"
        && text(spec, "externalTrafficPolicy") == "Local"
        && int_at(spec, "healthCheckNodePort") == 0
        && int_at(old, "healthCheckNodePort") != 0
    {
        spec["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
}

/// What the user did not change and the Service, as it is now, cannot have is dropped.
fn drop_what_it_lost(spec: &mut Value, old: &Value) {
    let has_ip = |spec: &Value| text(spec, "type") != "ExternalName";
    let has_port = |spec: &Value| matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
    let is_balancer = |spec: &Value| text(spec, "type") == "LoadBalancer";
    if has_port(old) && !has_port(spec) {
        let before: Vec<i64> = items(old, "ports").iter().map(|port| int_at(port, "nodePort")).collect();
        each(spec, "ports", |port| {
            if before.contains(&int_at(port, "nodePort")) {
                drop_field(port, "nodePort");
            }
        });
    }
    let addresses: &[&str] = &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"];
    let lost = [
        (has_ip(old) && !has_ip(spec), addresses),
        (is_balancer(old) && !is_balancer(spec), &["allocateLoadBalancerNodePorts", "loadBalancerClass"]),
        (needs_health_check(old) && !needs_health_check(spec), &["healthCheckNodePort"]),
        (is_externally_accessible(old) && !is_externally_accessible(spec), &["externalTrafficPolicy"]),
    ];
    for field in lost.into_iter().filter(|(lost, _)| *lost).flat_map(|(_, fields)| fields) {
        if spec.get(field) == old.get(field) {
            drop_field(spec, field);
        }
    }
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let external: Vec<&str> = texts(spec, "externalIPs").collect();
    match text(spec, "type") {
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_string(),
        "ClusterIP" | "NodePort" => external.join(","),
        "LoadBalancer" => {
            let balancer = load_balancer(&service["status"]);
            let all: Vec<&str> = balancer.split(',').filter(|ip| !ip.is_empty()).chain(external).collect();
            if all.is_empty() { "<pending>".to_string() } else { all.join(",") }
        }
        "ExternalName" => text(spec, "externalName").to_string(),
        _ => "<unknown>".to_string(),
    }
}

fn ports(spec: &Value) -> String {
    let all: Vec<String> = items(spec, "ports")
        .iter()
        .map(|port| match (int_at(port, "port"), int_at(port, "nodePort"), text(port, "protocol")) {
            (number, 0, protocol) => format!("{number}/{protocol}"),
            (number, node_port, protocol) => format!("{number}:{node_port}/{protocol}"),
        })
        .collect();
    if all.is_empty() { "<none>".to_string() } else { all.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults() {
        let check = |spec: Value, expected: Value| {
            let mut service = json!({ "spec": spec });
            Service.default(&mut service);
            assert_eq!(service["spec"], expected);
        };
        check(
            json!({ "ports": [{ "port": 80 }] }),
            json!({
                "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }], "type": "ClusterIP",
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            }),
        );
        check(
            json!({ "type": "LoadBalancer", "sessionAffinity": "ClientIP" }),
            json!({
                "type": "LoadBalancer", "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10800 } },
                "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
                "allocateLoadBalancerNodePorts": true,
            }),
        );
        check(
            json!({ "type": "ExternalName", "externalName": "a.b" }),
            json!({ "type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None" }),
        );
    }

    #[test]
    fn updates_keep_what_was_allocated() {
        let old = json!({ "spec": {
            "type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{ "port": 80, "protocol": "TCP", "nodePort": 30000 }],
        } });
        let mut new = json!({ "spec": { "type": "NodePort", "ports": [{ "port": 80, "protocol": "TCP" }] } });
        Service.prepare_update(&mut new, &old);
        assert_eq!(new["spec"], old["spec"]);
        let mut new = old.clone();
        new["spec"]["type"] = json!("ClusterIP");
        Service.prepare_update(&mut new, &old);
        assert_eq!(new["spec"]["ports"], json!([{ "port": 80, "protocol": "TCP" }]));
    }

    #[test]
    fn updates_drop_what_no_longer_applies() {
        let check = |old: Value, change: Value, expected: Value| {
            let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
            let old = json!({ "spec": old, "status": status });
            let mut new = old.clone();
            for (field, value) in change.as_object().unwrap() {
                new["spec"][field] = value.clone();
            }
            Service.prepare_update(&mut new, &old);
            assert_eq!(new["spec"], expected, "{change}");
            let kept = if new["spec"]["type"] == "LoadBalancer" { status } else { json!({ "loadBalancer": {} }) };
            assert_eq!(new["status"], kept, "{change}");
        };
        let local = json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
            "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a/b" });
        check(
            local.clone(),
            json!({ "externalTrafficPolicy": "Cluster" }),
            json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true,
                "loadBalancerClass": "a/b" }),
        );
        check(local.clone(), json!({ "type": "ClusterIP" }), json!({ "type": "ClusterIP" }));
        check(
            local.clone(),
            json!({ "type": "NodePort", "healthCheckNodePort": 30002 }),
            json!({ "type": "NodePort", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30002 }),
        );
        let external = json!({ "type": "ClusterIP", "externalIPs": ["192.0.2.7"], "externalTrafficPolicy": "Cluster" });
        check(external.clone(), json!({ "externalIPs": [] }), json!({ "type": "ClusterIP", "externalIPs": [] }));
        check(external.clone(), json!({}), external);
    }
}
