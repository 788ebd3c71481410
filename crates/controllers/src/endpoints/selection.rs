//! What a service selects and which ports of a pod it means.
//! Shared by both endpoint controllers.
//! Invariant: pure; a pod's change that can't change any endpoint is recognised as such (tidy: `pure_files`).

use std::{collections::BTreeMap, sync::Arc};

use api::pod_resources::is_sidecar;
use client::{Change, Informer};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service, ServicePort, ServiceSpec},
        discovery::v1::EndpointPort,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    common::{
        indexes,
        meta::{Object, labels},
        pods,
    },
    runner::Queue,
};

pub const HEADLESS: &str = "service.kubernetes.io/headless";
pub const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub fn spec(service: &Service) -> ServiceSpec {
    service.spec.clone().unwrap_or_default()
}

/// `None` for services whose endpoints are not ours to write.
pub fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    spec.selector.as_ref().filter(|s| !s.is_empty() && spec.type_.as_deref() != Some("ExternalName"))
}

pub fn headless(service: &Service) -> bool {
    let ip = service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()).unwrap_or_default();
    ip.is_empty() || ip == "None"
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let have = labels(pod.meta());
    selector(service).is_some_and(|want| want.iter().all(|(key, value)| have.get(key) == Some(value)))
}

/// Queues the services that a pod's change can matter to.
pub fn queue_services(services: &Informer<Service>, change: &Change<Pod>, queue: &Queue) {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    if let (Some(old), Some(new)) = (old, new)
        && same_endpoint(old, new)
    {
        return;
    }
    let Some(namespace) = new.or(old).map(|pod| pod.namespace()) else { return };
    for service in services.by_index(indexes::NAMESPACE, namespace) {
        if old.into_iter().chain(new).any(|pod| selects(&service, pod)) {
            queue.add(service.key());
        }
    }
}

fn same_endpoint(old: &Pod, new: &Pod) -> bool {
    let view = |pod: &Pod| {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        (
            pod.metadata.uid.clone(),
            pod.metadata.labels.clone(),
            pod.deleting(),
            pods::ready(pod),
            pods::finished(pod),
            status.and_then(|s| s.pod_ips.clone()),
            spec.and_then(|s| s.node_name.clone()),
            spec.map(|s| (s.hostname.clone(), s.subdomain.clone())),
        )
    };
    view(old) == view(new)
}

pub fn selected_pods(pods: &Informer<Pod>, service: &Service) -> Vec<Arc<Pod>> {
    let all = pods.by_index(indexes::NAMESPACE, service.namespace());
    all.into_iter().filter(|pod| selects(service, pod)).collect()
}

/// Whether a pod has an address worth telling.
pub fn belongs(pod: &Pod, terminating_too: bool) -> bool {
    !pods::finished(pod) && addresses(pod).next().is_some() && (terminating_too || !pod.deleting())
}

pub fn addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    let all = pod.status.as_ref().and_then(|s| s.pod_ips.as_ref());
    all.into_iter().flatten().map(|ip| ip.ip.as_str()).filter(|ip| !ip.is_empty())
}

/// `IPv4` or `IPv6`, as slices call it.
pub fn family(address: &str) -> &'static str {
    if address.contains(':') { "IPv6" } else { "IPv4" }
}

pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let wanted = spec.subdomain.as_deref() == Some(service.name()) && pod.namespace() == service.namespace();
    spec.hostname.clone().filter(|name| wanted && !name.is_empty())
}

pub fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The order in which sets of ports are compared: whoever wrote them down may have had another.
pub fn sorted(mut ports: Vec<EndpointPort>) -> Vec<EndpointPort> {
    ports.sort_by(|a, b| (&a.name, a.port, &a.protocol).cmp(&(&b.name, b.port, &b.protocol)));
    ports
}

/// The service's ports as this pod serves them; a named port that the pod lacks is left out.
pub fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_ref());
    let found = ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(target_port(port, pod)?),
                protocol: Some(protocol(port).to_string()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    sorted(found)
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match port.target_port.as_ref() {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
            let mut open = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
            open.find(|p| p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol(port))
                .map(|p| p.container_port)
        }
    }
}

/// When the pods last changed in a way that endpoints show.
pub fn last_change(service: &Service, pods: &[Arc<Pod>]) -> Option<String> {
    let changes = pods.iter().filter_map(|pod| {
        let ready = pods::condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref());
        ready.or(pod.metadata.deletion_timestamp.as_ref()).map(|t| t.0)
    });
    changes.chain(service.created()).max().map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
