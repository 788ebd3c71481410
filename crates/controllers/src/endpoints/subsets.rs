//! The core of the older Endpoints: addresses grouped by the ports they serve.
//! Called by `legacy`; reads pods through `selection`.
//! One address family, at most `ADDRESSES_PER_SUBSET_MAX`, in a stable order.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Pod, Service};

use super::selection;
use crate::common::pods;

const ADDRESSES_PER_SUBSET_MAX: usize = 1000;

/// The subsets, and whether addresses were left out for being too many.
pub fn subsets(service: &Service, selected: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let spec = selection::spec(service);
    let unready_too = spec.publish_not_ready_addresses == Some(true);
    let family = match spec.ip_families.as_ref().and_then(|f| f.first()) {
        Some(family) => family.clone(),
        None => selection::family(spec.cluster_ip.as_deref().unwrap_or_default()).to_string(),
    };
    let no_ports = spec.ports.as_ref().is_none_or(Vec::is_empty);
    let mut groups: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    let mut count = 0;
    let mut pods: Vec<_> = selected.iter().filter(|pod| selection::belongs(pod, unready_too)).collect();
    // Ready ones first: where not all fit, those that serve stay.
    pods.sort_by_key(|pod| (!pods::ready(pod), pod.metadata.name.clone()));
    for pod in pods {
        let Some(ip) = selection::addresses(pod).find(|a| selection::family(a) == family) else { continue };
        let ports: Vec<_> = selection::ports(service, pod).into_iter().map(port).collect();
        if ports.is_empty() && !no_ports {
            continue;
        }
        count += 1;
        if count > ADDRESSES_PER_SUBSET_MAX {
            break;
        }
        let address = EndpointAddress {
            ip: ip.to_string(),
            hostname: selection::hostname(service, pod),
            node_name: Some(pods::node_name(pod).to_string()).filter(|name| !name.is_empty()),
            target_ref: Some(selection::target(pod)),
        };
        let group = groups.entry(serde_json::to_string(&ports).unwrap_or_default()).or_insert_with(|| EndpointSubset {
            ports: Some(ports).filter(|p| !p.is_empty()),
            ..EndpointSubset::default()
        });
        let list = if unready_too || pods::ready(pod) { &mut group.addresses } else { &mut group.not_ready_addresses };
        list.get_or_insert_default().push(address);
    }
    let mut subsets: Vec<_> = groups.into_values().collect();
    for list in subsets.iter_mut().flat_map(|s| [&mut s.addresses, &mut s.not_ready_addresses]).flatten() {
        list.sort_by(|a, b| a.ip.cmp(&b.ip));
    }
    (subsets, count > ADDRESSES_PER_SUBSET_MAX)
}

fn port(port: k8s_openapi::api::discovery::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: port.name.filter(|name| !name.is_empty()),
        port: port.port.unwrap_or(0),
        protocol: port.protocol,
        app_protocol: port.app_protocol,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ready_and_not() {
        let service = |unready_too: bool| -> Service {
            serde_json::from_value(json!({
                "metadata": { "name": "web", "namespace": "d" },
                "spec": { "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }], "publishNotReadyAddresses": unready_too },
            }))
            .unwrap()
        };
        let mut ready = crate::common::pods::testing::pod("a", Some("2026-01-01T00:00:00Z"));
        let mut unready = crate::common::pods::testing::pod("b", None);
        ready.status.as_mut().unwrap().pod_ips = serde_json::from_value(json!([{ "ip": "10.1.0.1" }])).unwrap();
        unready.status.as_mut().unwrap().pod_ips = serde_json::from_value(json!([{ "ip": "10.1.0.2" }])).unwrap();
        let pods = [Arc::new(ready), Arc::new(unready)];
        let check = |unready_too, expected: (usize, usize)| {
            let (subsets, over) = subsets(&service(unready_too), &pods);
            let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
            assert!(!over && subsets.len() == 1);
            assert_eq!((count(&subsets[0].addresses), count(&subsets[0].not_ready_addresses)), expected);
        };
        check(false, (1, 1));
        check(true, (2, 0));
    }

    #[test]
    fn of_too_many_those_that_serve_stay() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "d" },
            "spec": { "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] },
        }))
        .unwrap();
        // Those that are not ready come first by name.
        let pod = |number: usize| {
            let since = (number >= 10).then_some("2026-01-01T00:00:00Z");
            let mut pod = crate::common::pods::testing::pod(&format!("p{number:05}"), since);
            let ip = format!("10.1.{}.{}", number / 250, number % 250 + 1);
            pod.status.as_mut().unwrap().pod_ips = serde_json::from_value(json!([{ "ip": ip }])).unwrap();
            Arc::new(pod)
        };
        for (pods, ready, unready, over) in [(1000, 990, 10, false), (1003, 993, 7, true), (3000, 1000, 0, true)] {
            let pods: Vec<Arc<Pod>> = (0..pods).map(pod).collect();
            let (subsets, cut) = subsets(&service, &pods);
            let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
            assert_eq!(subsets.len(), 1);
            let found = (count(&subsets[0].addresses), count(&subsets[0].not_ready_addresses), cut);
            assert_eq!(found, (ready, unready, over), "{} pods", pods.len());
        }
    }
}
