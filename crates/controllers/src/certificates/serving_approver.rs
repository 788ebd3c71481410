//! Approves kubelets' requests for serving certificates when they name nothing but the node itself.
//! `signer` signs what is approved; upstream leaves this approval to the operator, and so does a cluster whose configuration
//! has no `ReservedNames`.
//! Every name in the certificate is one that the Node object of the asking kubelet has, and that nobody else answers
//! to: not the API server, no Service, no pod, no other node.

use std::{net::IpAddr, sync::Arc};

use api::{ApiError, cluster_ranges::ClusterRanges};
use async_trait::async_trait;
use client::{EventRecorder, Informer, ListParams, reference};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Node};
use rcgen::SanType;

use super::{
    approval::approve,
    signing::{self, KUBELET_SERVING},
};
use crate::runner::{Context, Controller, Outcome, Setup};

const NODES: &str = "system:nodes";
const EVERY_NAME_OWN: &str = "Every name in the request is one of the node's own.";
/// What its Events name as their source.
const COMPONENT: &str = "minke-server";

/// By what others than nodes are known.
#[derive(Clone)]
pub struct ReservedNames {
    /// Names of the API server.
    pub server_names: Vec<String>,
    pub server_addresses: Vec<IpAddr>,
    pub cluster: ClusterRanges,
    /// The domain of Services and pods.
    pub domain: String,
    /// Of the machine that the API server is on. A node there has its address by right.
    pub boot_id: String,
}

impl ReservedNames {
    fn dns_problem(&self, name: &str) -> Option<String> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let below = |domain: &str| name == domain || name.ends_with(&format!(".{domain}"));
        if self.server_names.contains(&name) || below("localhost") {
            return Some(format!("{name} is a name of the API server"));
        }
        if below("svc") || below(&self.domain) {
            return Some(format!("{name} is a name of Services"));
        }
        let odd = name.is_empty() || name.contains('*') || name.parse::<IpAddr>().is_ok();
        odd.then(|| format!("{name:?} is no name of a machine"))
    }

    fn address_problem(&self, address: IpAddr, node: &Node) -> Option<String> {
        if let Some(problem) = self.cluster.address_problem(address) {
            return Some(format!("{address} {problem}"));
        }
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let here = !self.boot_id.is_empty() && info.is_some_and(|info| info.boot_id == self.boot_id);
        let servers = self.server_addresses.contains(&address) && !here;
        servers.then(|| format!("{address} is an address of the API server"))
    }
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    setup.on_keys(&requests);
    let recorder = setup.context.recorder(COMPONENT);
    Arc::new(ServingApprover { context: setup.context.clone(), requests, recorder })
}

struct ServingApprover {
    context: Context,
    requests: Informer<CertificateSigningRequest>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for ServingApprover {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(reserved) = &self.context.config.kubelet_serving_names_reserved else { return Ok(None) };
        let Some(request) = self.requests.get(key) else { return Ok(None) };
        let pending = request.status.as_ref().is_none_or(|s| s.conditions.as_ref().is_none_or(|c| c.is_empty()));
        if request.spec.signer_name != KUBELET_SERVING || !pending {
            return Ok(None);
        }
        match self.refusal(&request, reserved).await? {
            None => approve(&self.context, key, &request, EVERY_NAME_OWN).await?,
            Some(refusal) => tracing::warn!(refusal, "a serving certificate waits for approval"),
        }
        Ok(None)
    }
}

impl ServingApprover {
    async fn refusal(
        &self,
        request: &CertificateSigningRequest,
        reserved: &ReservedNames,
    ) -> Result<Option<String>, ApiError> {
        let user = request.spec.username.as_deref().unwrap_or_default();
        let Some(name) = user.strip_prefix("system:node:") else { return Ok(Some("not asked by a node".into())) };
        if !request.spec.groups.iter().flatten().any(|group| group == NODES) {
            return Ok(Some(format!("not asked by a member of {NODES}")));
        }
        // From the server: the informer may not have heard yet of the addresses that the node asks for.
        let nodes = self.context.client.api::<Node>().list(&ListParams::default()).await?.items;
        let nodes: Vec<Arc<Node>> = nodes.into_iter().map(Arc::new).collect();
        let Some(node) = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)) else {
            return Ok(Some(format!("there is no node {name}")));
        };
        let problem = problem(request, node, &nodes, reserved);
        if let Some(problem) = &problem {
            let message = format!("the request for a serving certificate is not approved: {problem}");
            self.recorder.warning(&reference(&**node), "ServingCertificateNotApproved", message);
        }
        Ok(problem)
    }
}

fn problem(
    request: &CertificateSigningRequest,
    node: &Node,
    nodes: &[Arc<Node>],
    reserved: &ReservedNames,
) -> Option<String> {
    let params = match signing::parse(request) {
        Ok(params) => params,
        Err(error) => return Some(error.to_string()),
    };
    let common_name = signing::common_name(&params);
    if request.spec.username.as_deref() != Some(common_name.as_str()) {
        return Some(format!("asked for {common_name}"));
    }
    params.params.subject_alt_names.iter().find_map(|name| match name {
        SanType::DnsName(name) => name_problem(name.as_str(), node, nodes, reserved),
        SanType::IpAddress(ip) => ip_problem(*ip, node, nodes, reserved),
        other => Some(format!("{other:?} is neither a name nor an address")),
    })
}

fn said(node: &Node) -> impl Iterator<Item = &str> {
    node.status.iter().flat_map(|s| s.addresses.iter().flatten()).map(|a| a.address.as_str())
}

/// The others that keep what they share with `node`: those that were there before it.
fn elders<'a>(node: &'a Node, nodes: &'a [Arc<Node>]) -> impl Iterator<Item = &'a Node> {
    let age = |node: &Node| {
        let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, node.metadata.name.clone())
    };
    let own = age(node);
    nodes.iter().map(|other| &**other).filter(move |other| age(other) < own)
}

fn belongs_to(other: &Node, what: impl std::fmt::Display) -> String {
    let name = other.metadata.name.as_deref().unwrap_or_default();
    format!("{what} is that of node {name}: delete that Node if it is gone")
}

fn name_problem(name: &str, node: &Node, nodes: &[Arc<Node>], reserved: &ReservedNames) -> Option<String> {
    if !said(node).any(|address| address == name) {
        return Some(format!("the node has no address {name:?}"));
    }
    if let Some(problem) = reserved.dns_problem(name) {
        return Some(problem);
    }
    // With or without the dot at its end it is the same machine.
    let same = |other: &str| other.trim_end_matches('.').eq_ignore_ascii_case(name.trim_end_matches('.'));
    let named = nodes.iter().map(|other| &**other).filter(|other| other.metadata.name != node.metadata.name);
    let mut named = named.filter(|other| other.metadata.name.as_deref().is_some_and(same));
    let elder = || elders(node, nodes).find(|other| said(other).any(same));
    named.next().or_else(elder).map(|other| belongs_to(other, name))
}

fn ip_problem(ip: IpAddr, node: &Node, nodes: &[Arc<Node>], reserved: &ReservedNames) -> Option<String> {
    let has = |node: &Node| said(node).any(|address| address.parse::<IpAddr>().ok() == Some(ip));
    if !has(node) {
        return Some(format!("the node has no address {ip}"));
    }
    let elder = || elders(node, nodes).find(|other| has(other)).map(|other| belongs_to(other, ip));
    reserved.address_problem(ip, node).or_else(elder)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    use super::*;

    fn reserved() -> ReservedNames {
        let range = |text: &str| vec![text.parse().unwrap()];
        ReservedNames {
            server_names: ["kubernetes", "kubernetes.default"].map(str::to_string).to_vec(),
            server_addresses: vec!["192.0.2.250".parse().unwrap()],
            cluster: ClusterRanges { pods: range("10.244.0.0/16"), services: range("10.96.0.0/12") },
            domain: "cluster.local".into(),
            boot_id: "server".into(),
        }
    }

    fn node(name: &str, created: &str, boot_id: &str, addresses: &[&str]) -> Node {
        let addresses: Vec<_> = addresses.iter().map(|a| json!({ "type": "InternalIP", "address": a })).collect();
        let info = json!({ "bootID": boot_id, "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": "" });
        serde_json::from_value(json!({
            "metadata": { "name": name, "creationTimestamp": created },
            "status": { "addresses": addresses, "nodeInfo": info },
        }))
        .unwrap()
    }

    fn pem(common_name: &str, names: &[&str]) -> String {
        let mut params = CertificateParams::new(names.iter().map(|n| n.to_string()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[test]
    fn only_the_nodes_own_names() {
        let own = node("a", "2026-01-02T00:00:00Z", "", &["192.0.2.1", "a"]);
        let nodes = [Arc::new(own.clone())];
        let check = |common_name: &str, names: &[&str], good: bool| {
            let mut request = CertificateSigningRequest::default();
            request.spec.request.0 = pem(common_name, names).into_bytes();
            request.spec.username = Some("system:node:a".into());
            let found = problem(&request, &own, &nodes, &reserved());
            assert_eq!(found.is_none(), good, "{common_name} {names:?}: {found:?}");
        };
        check("system:node:a", &["a", "192.0.2.1"], true);
        check("system:node:b", &["a", "192.0.2.1"], false);
        check("system:node:a", &["b", "192.0.2.1"], false);
        check("system:node:a", &["a", "192.0.2.2"], false);
    }

    /// A node may say anything of itself; that alone makes it nobody's name or address.
    #[test]
    fn what_a_node_claims_of_others_is_not_certified() {
        let check = |name: &str, boot_id: &str, refusal: &str| {
            let own = node("a", "2026-01-02T00:00:00Z", boot_id, &["192.0.2.1", name]);
            let elder = node("elder", "2026-01-01T00:00:00Z", "", &["192.0.2.7", "elder.example.org"]);
            let younger = node("younger", "2026-01-03T00:00:00Z", "", &["192.0.2.9", "192.0.2.1"]);
            let nodes = [elder, own.clone(), younger].map(Arc::new);
            let mut request = CertificateSigningRequest::default();
            request.spec.request.0 = pem("system:node:a", &["192.0.2.1", name]).into_bytes();
            request.spec.username = Some("system:node:a".into());
            let found = problem(&request, &own, &nodes, &reserved()).unwrap_or_default();
            assert_eq!(found, refusal, "{name}");
        };
        check("a.example.org", "", "");
        for name in ["kubernetes", "kubernetes.default", "localhost"] {
            check(name, "", &format!("{name} is a name of the API server"));
        }
        check("web.default.svc", "", "web.default.svc is a name of Services");
        check("kubernetes.default.svc.cluster.local", "", "kubernetes.default.svc.cluster.local is a name of Services");
        check("*.example.org", "", "\"*.example.org\" is no name of a machine");
        check("192.0.2.250", "", "192.0.2.250 is an address of the API server");
        check("192.0.2.250", "server", "");
        check("10.96.0.1", "server", "10.96.0.1 is inside the cluster's Service range");
        check("10.244.3.4", "", "10.244.3.4 is inside the cluster's pod range");
        check("127.0.0.1", "server", "127.0.0.1 is of no use outside the node");
        check("::1", "", "::1 is of no use outside the node");
        check("192.0.2.7", "", "192.0.2.7 is that of node elder: delete that Node if it is gone");
        check("elder.example.org", "", "elder.example.org is that of node elder: delete that Node if it is gone");
        check("younger", "", "younger is that of node younger: delete that Node if it is gone");
        check("younger.", "", "younger. is that of node younger: delete that Node if it is gone");
    }
}
