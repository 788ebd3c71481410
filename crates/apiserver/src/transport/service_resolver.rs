//! Where Services are: a ready endpoint of one, by its EndpointSlices.
//! Asked for webhooks and extension API servers, and by the proxy subresource of Services.
//! An address that means something else on this machine than elsewhere is never returned.

use std::net::IpAddr;

use serde_json::Value;

use api::names;

use crate::storage::cluster::Cluster;

/// A ready endpoint of a Service's port (by number or name; empty: the only one). It works before any proxy has
/// programmed the Service's own address.
pub fn resolve(cluster: &Cluster, namespace: &str, name: &str, port: &str) -> Result<(String, u16), String> {
    let service = cluster.get("services", namespace, name);
    if let Some(service) = service.map(|service| service.value())
        && service["spec"]["type"] == "ExternalName"
    {
        let host = service["spec"]["externalName"].as_str().unwrap_or_default();
        return Ok((host.to_string(), port.parse().unwrap_or(443)));
    }
    let found = ready_endpoints(cluster, namespace, name, port)?;
    any_of(cluster, name, found.into_iter().map(|(address, port, _)| (address.to_string(), port)).collect())
}

/// The same, but only a pod of the Service's namespace: whoever may write EndpointSlices must not lend this server's
/// place in the network to reach what is no pod.
pub fn resolve_pod(cluster: &Cluster, namespace: &str, name: &str, port: &str) -> Result<(String, u16), String> {
    let is_pod = |address: IpAddr, reference: &Value| {
        let here = reference["namespace"] == namespace;
        let pod = reference["name"].as_str().filter(|_| here).and_then(|name| cluster.get("pods", namespace, name));
        let addresses = pod.map(|pod| pod.value()["status"]["podIPs"].clone()).unwrap_or_default();
        let own = |ip: &Value| ip["ip"].as_str().and_then(names::parse_ip) == Some(address);
        addresses.as_array().into_iter().flatten().any(own)
    };
    let found = ready_endpoints(cluster, namespace, name, port)?.into_iter();
    let pods = found.filter(|(address, _, reference)| is_pod(*address, reference));
    any_of(cluster, name, pods.map(|(address, port, _)| (address.to_string(), port)).collect())
}

fn any_of(cluster: &Cluster, name: &str, mut found: Vec<(String, u16)>) -> Result<(String, u16), String> {
    match found.len() {
        0 => Err(format!("no endpoints available for service {name:?}")),
        count => Ok(found.swap_remove(cluster.env.random_u64() as usize % count)),
    }
}

/// Address, port and what each endpoint says it is. Names are not resolved, and addresses that mean something else on
/// this machine than elsewhere are left out.
fn ready_endpoints(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    port: &str,
) -> Result<Vec<(IpAddr, u16, Value)>, String> {
    let service = cluster.get("services", namespace, name);
    let service = service.ok_or_else(|| format!("service {name:?} not found"))?.value();
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let number: Option<u64> = port.parse().ok();
    let fits = |p: &&Value| match port {
        "" => ports.len() == 1,
        wanted => p["name"] == wanted || (number.is_some() && p["port"].as_u64() == number),
    };
    let wanted = ports.iter().find(fits);
    let wanted = wanted.ok_or_else(|| format!("no service port {port:?} found for service {name:?}"))?;
    let port_name = wanted["name"].as_str().unwrap_or_default();
    let mut found = Vec::new();
    for slice in cluster.list("endpointslices", namespace) {
        if slice.meta.labels.get("kubernetes.io/service-name").is_none_or(|n| n != name) {
            continue;
        }
        let slice = slice.value();
        let ports = slice["ports"].as_array().cloned().unwrap_or_default();
        let number = ports.iter().find(|p| p["name"].as_str().unwrap_or_default() == port_name);
        let Some(number) = number.and_then(|p| u16::try_from(p["port"].as_u64()?).ok()) else { continue };
        let ready = slice["endpoints"].as_array().into_iter().flatten().filter(|e| e["conditions"]["ready"] != false);
        for endpoint in ready {
            let address = endpoint["addresses"][0].as_str().and_then(names::parse_ip);
            if let Some(address) = address.filter(|address| names::is_global_unicast(*address)) {
                found.push((address, number, endpoint["targetRef"].clone()));
            }
        }
    }
    Ok(found)
}
