//! The core: the slices a service should have, with the fewest changes to those it has.
//! Called by `endpoint_slice`; reads pods through `selection`.
//! A slice holds one address family, one set of ports and at most `ENDPOINTS_PER_SLICE_MAX` endpoints.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    selection::{self, HEADLESS, LAST_CHANGE},
    topology_hints::{self, ZoneShares},
};
use crate::common::{meta::Object, pods};

pub const MANAGER: &str = "endpointslice-controller.k8s.io";
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const ENDPOINTS_PER_SLICE_MAX: usize = 100;

#[derive(Debug, Default)]
pub struct Plan {
    /// Without names: the caller draws them.
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    /// Why a Service that asks for hints by zone has none.
    pub hints_refused: Option<String>,
}

/// `node` of a pod that is not known yet leaves the pod out; the node's arrival brings the service back.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
    existing: &[Arc<EndpointSlice>],
    shares: impl FnOnce() -> ZoneShares,
) -> Plan {
    let families = families(service);
    let mut wanted = Wanted::new();
    for pod in pods.iter().filter(|pod| selection::belongs(pod, true)) {
        let zone = match pods::node_name(pod) {
            "" => None,
            name => match node(name) {
                Some(node) => node.label("topology.kubernetes.io/zone").map(String::from),
                None => continue,
            },
        };
        let ports = selection::ports(service, pod);
        let ports_id = serde_json::to_string(&ports).unwrap_or_default();
        for family in &families {
            let Some(address) = selection::addresses(pod).find(|a| selection::family(a) == family) else { continue };
            let group = wanted.entry((family.clone(), ports_id.clone())).or_insert_with(|| (ports.clone(), Vec::new()));
            group.1.push(endpoint(service, pod, address, zone.clone()));
        }
    }
    let hints_refused =
        topology_hints::is_auto(service).then(|| hint_by_zone(&mut wanted, &families, &shares())).flatten();
    let plan = arrange(&families, wanted, &Template::new(service, pods), existing, true);
    Plan { hints_refused, ..plan }
}

fn hint_by_zone(wanted: &mut Wanted, families: &[String], shares: &ZoneShares) -> Option<String> {
    let of_family = |family: &String| {
        let groups = wanted.iter_mut().filter(|((held, _), _)| held == family);
        let mut endpoints: Vec<&mut Endpoint> = groups.flat_map(|(_, (_, endpoints))| endpoints).collect();
        topology_hints::assign(&mut endpoints, shares, family).err()
    };
    families.iter().filter_map(of_family).last()
}

/// Endpoints by address family and by the text of their ports, which are `sorted`.
pub type Wanted = BTreeMap<(String, String), (Vec<EndpointPort>, Vec<Endpoint>)>;

/// Puts `wanted` into slices, changing those that exist as little as possible.
pub fn arrange(
    families: &[String],
    wanted: Wanted,
    template: &Template,
    existing: &[Arc<EndpointSlice>],
    placeholders: bool,
) -> Plan {
    let mut plan = Plan::default();
    let mut left: Vec<Arc<EndpointSlice>> = existing.to_vec();
    let mut kept: HashMap<String, usize> = HashMap::new();
    for ((family, _), (ports, endpoints)) in wanted {
        let matching = |slice: &EndpointSlice| {
            slice.address_type == family
                && selection::sorted(slice.ports.clone().unwrap_or_default()) == ports
                && !slice.deleting()
        };
        let (same, others) = left.into_iter().partition(|slice| matching(slice));
        left = others;
        *kept.entry(family.clone()).or_default() += fill(&mut plan, template, &family, ports, endpoints, same);
    }
    for family in families.iter().filter(|_| placeholders) {
        if kept.get(family).copied().unwrap_or(0) > 0 {
            continue;
        }
        // A service without endpoints keeps one empty slice, to show that it was looked at.
        let placeholder = left.iter().position(|slice| slice.address_type == *family && !slice.deleting());
        match placeholder.map(|at| left.swap_remove(at)) {
            Some(old) => template.update(&mut plan, &old, Vec::new(), Vec::new()),
            None => plan.create.push(template.slice(family, Vec::new(), Vec::new())),
        }
    }
    plan.delete.extend(left.into_iter().filter(|slice| !slice.deleting()));
    plan
}

/// Keeps endpoints where they are, fills free places, then opens new slices. Returns how many slices remain.
fn fill(
    plan: &mut Plan,
    template: &Template,
    family: &str,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
    same: Vec<Arc<EndpointSlice>>,
) -> usize {
    let identity = |e: &Endpoint| (e.addresses.clone(), e.target_ref.as_ref().and_then(|t| t.uid.clone()));
    let mut missing: BTreeMap<_, Endpoint> = endpoints.into_iter().map(|e| (identity(&e), e)).collect();
    let mut slices: Vec<(Arc<EndpointSlice>, Vec<Endpoint>)> = same
        .into_iter()
        .map(|slice| {
            let kept = slice.endpoints.iter().filter_map(|e| missing.remove(&identity(e))).collect();
            (slice, kept)
        })
        .collect();
    let mut missing = missing.into_values().peekable();
    // The fullest first, so that emptier slices can go.
    slices.sort_by_key(|(_, endpoints)| std::cmp::Reverse(endpoints.len()));
    let mut count = 0;
    for (old, mut endpoints) in slices {
        let room = ENDPOINTS_PER_SLICE_MAX.saturating_sub(endpoints.len());
        endpoints.extend(missing.by_ref().take(room));
        if endpoints.is_empty() {
            plan.delete.push(old);
            continue;
        }
        count += 1;
        template.update(plan, &old, ports.clone(), endpoints);
    }
    while missing.peek().is_some() {
        let endpoints = missing.by_ref().take(ENDPOINTS_PER_SLICE_MAX).collect();
        plan.create.push(template.slice(family, ports.clone(), endpoints));
        count += 1;
    }
    count
}

fn families(service: &Service) -> Vec<String> {
    let spec = selection::spec(service);
    match spec.ip_families.filter(|f| !f.is_empty()) {
        Some(families) => families,
        None => match spec.cluster_ip.as_deref() {
            Some(ip) if !ip.is_empty() && ip != "None" => vec![selection::family(ip).to_string()],
            _ => vec!["IPv4".into(), "IPv6".into()],
        },
    }
}

fn endpoint(service: &Service, pod: &Pod, address: &str, zone: Option<String>) -> Endpoint {
    let spec = selection::spec(service);
    let (serving, terminating) = (pods::ready(pod), pod.deleting());
    let ready = spec.publish_not_ready_addresses == Some(true) || (serving && !terminating);
    let node = Some(pods::node_name(pod).to_string()).filter(|name| !name.is_empty());
    let hints = match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") if ready => zone_hint(&zone, None),
        Some("PreferSameNode") if ready => zone_hint(&zone, node.clone()),
        _ => None,
    };
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        deprecated_topology: None,
        hints,
        hostname: selection::hostname(service, pod),
        node_name: node,
        target_ref: Some(selection::target(pod)),
        zone,
    }
}

fn zone_hint(zone: &Option<String>, node: Option<String>) -> Option<EndpointHints> {
    let for_zones = zone.clone().map(|name| vec![ForZone { name }]);
    let for_nodes = node.map(|name| vec![ForNode { name }]);
    Some(EndpointHints { for_zones, for_nodes }).filter(|h| h.for_zones.is_some() || h.for_nodes.is_some())
}

/// What all slices of one service have in common.
pub struct Template {
    /// Without annotations, those of the slices are left as they are.
    pub meta: ObjectMeta,
    pub last_change: Option<String>,
}

impl Template {
    fn new(service: &Service, pods: &[Arc<Pod>]) -> Self {
        let mut labels = service.metadata.labels.clone().unwrap_or_default();
        labels.remove(HEADLESS);
        if selection::headless(service) {
            labels.insert(HEADLESS.into(), String::new());
        }
        labels.insert(SERVICE_NAME.into(), service.name().into());
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        let meta = ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![service.as_controller()]),
            ..ObjectMeta::default()
        };
        Self { meta, last_change: selection::last_change(service, pods) }
    }

    fn slice(&self, family: &str, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>) -> EndpointSlice {
        let mut metadata = self.meta.clone();
        metadata.annotations = metadata.annotations.filter(|a| !a.is_empty());
        self.stamp(&mut metadata);
        EndpointSlice { metadata, address_type: family.into(), endpoints, ports: Some(ports) }
    }

    /// Those of the template, with the stamp of the last change that was worth writing.
    fn annotations(&self, old: &EndpointSlice) -> Option<BTreeMap<String, String>> {
        let mut annotations = self.meta.annotations.clone()?;
        if let Some(at) = old.annotation(LAST_CHANGE) {
            annotations.insert(LAST_CHANGE.into(), at.into());
        }
        Some(annotations)
    }

    fn stamp(&self, meta: &mut ObjectMeta) {
        if let Some(at) = &self.last_change {
            meta.annotations.get_or_insert_default().insert(LAST_CHANGE.into(), at.clone());
        }
    }

    fn update(&self, plan: &mut Plan, old: &EndpointSlice, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>) {
        let mut new = old.clone();
        new.metadata.labels = self.meta.labels.clone();
        if let Some(annotations) = self.annotations(old) {
            new.metadata.annotations = Some(annotations).filter(|a| !a.is_empty());
        }
        new.endpoints = endpoints;
        if selection::sorted(old.ports.clone().unwrap_or_default()) != ports {
            new.ports = Some(ports);
        }
        if new != *old {
            self.stamp(&mut new.metadata);
            plan.update.push(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(change: serde_json::Value) -> Service {
        let mut service = json!({
            "metadata": { "name": "web", "namespace": "d", "uid": "s", "labels": { "team": "sea" } },
            "spec": { "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "selector": { "app": "web" },
                "ports": [{ "name": "http", "port": 80, "targetPort": "http", "protocol": "TCP" }] },
        });
        for (key, value) in change.as_object().unwrap() {
            service["spec"][key] = value.clone();
        }
        serde_json::from_value(service).unwrap()
    }

    fn pod(index: usize, ready: bool) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": format!("p{index}"), "namespace": "d", "uid": format!("u{index:04}") },
                "spec": { "nodeName": "n", "containers": [
                    { "name": "c", "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }] }] },
                "status": { "phase": "Running",
                    "podIPs": [{ "ip": format!("10.1.{}.{}", 100 + index / 100, 100 + index % 100) }, { "ip": format!("fd00::{index:x}") }],
                    "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
            }))
            .unwrap(),
        )
    }

    fn node(_: &str) -> Option<Arc<Node>> {
        let node = json!({ "metadata": { "name": "n", "labels": { "topology.kubernetes.io/zone": "z" } } });
        Some(Arc::new(serde_json::from_value(node).unwrap()))
    }

    fn named(slices: Vec<EndpointSlice>) -> Vec<Arc<EndpointSlice>> {
        let name = |(index, mut slice): (usize, EndpointSlice)| {
            slice.metadata.name = Some(format!("web-{index}"));
            Arc::new(slice)
        };
        slices.into_iter().enumerate().map(name).collect()
    }

    #[test]
    fn one_slice_with_upstreams_labels_and_conditions() {
        let plan = plan(&service(json!({})), &[pod(1, true), pod(2, false)], node, &[], ZoneShares::new);
        let slice = &plan.create[0];
        assert_eq!(slice.label(MANAGED_BY), Some(MANAGER));
        assert_eq!((slice.label(SERVICE_NAME), slice.label("team")), (Some("web"), Some("sea")));
        assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
        let ready: Vec<_> = slice.endpoints.iter().map(|e| e.conditions.as_ref().unwrap().ready).collect();
        assert_eq!(ready, [Some(true), Some(false)]);
        assert_eq!(
            (slice.endpoints[0].zone.as_deref(), slice.endpoints[0].node_name.as_deref()),
            (Some("z"), Some("n"))
        );
    }

    #[test]
    fn states_of_pods() {
        let check = |change: serde_json::Value, edit: &dyn Fn(&mut Pod), expected: Option<(bool, bool, bool)>| {
            let mut pod = (*pod(1, true)).clone();
            edit(&mut pod);
            let plan = plan(&service(change), &[Arc::new(pod)], node, &[], ZoneShares::new);
            let found = plan.create[0].endpoints.first().and_then(|e| e.conditions.clone());
            let found = found.map(|c| (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap()));
            assert_eq!(found, expected);
        };
        let terminate = |p: &mut Pod| p.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
        check(json!({}), &|_| {}, Some((true, true, false)));
        check(json!({}), &terminate, Some((false, true, true)));
        check(json!({ "publishNotReadyAddresses": true }), &terminate, Some((true, true, true)));
        check(json!({}), &|p| p.status.as_mut().unwrap().phase = Some("Failed".into()), None);
        check(json!({}), &|p| p.status.as_mut().unwrap().pod_ips = None, None);
    }

    #[test]
    fn changes_are_few() {
        let service = service(json!({}));
        let pods: Vec<_> = (0..250).map(|i| pod(i, true)).collect();
        let first = plan(&service, &pods, node, &[], ZoneShares::new);
        assert_eq!(first.create.iter().map(|s| s.endpoints.len()).collect::<Vec<_>>(), [100, 100, 50]);
        let slices = named(first.create);
        let check = |pods: &[Arc<Pod>], expected: (usize, usize, usize)| {
            let plan = plan(&service, pods, node, &slices, ZoneShares::new);
            assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), expected);
        };
        check(&pods, (0, 0, 0));
        check(&pods[1..], (0, 1, 0));
        check(&[pods.clone(), vec![pod(300, true)]].concat(), (0, 1, 0));
        check(&pods[..100], (0, 0, 2));
        check(&[], (0, 1, 2));
    }

    #[test]
    fn families_and_hints() {
        let plan = plan(
            &service(json!({ "ipFamilies": ["IPv4", "IPv6"], "trafficDistribution": "PreferClose" })),
            &[pod(1, true)],
            node,
            &[],
            ZoneShares::new,
        );
        let kinds: Vec<_> = plan.create.iter().map(|s| s.address_type.as_str()).collect();
        assert_eq!(kinds, ["IPv4", "IPv6"]);
        let hints = plan.create[0].endpoints[0].hints.as_ref().unwrap();
        assert_eq!(hints.for_zones.as_ref().unwrap()[0].name, "z");
    }
}
