//! Approves kubelets' requests for serving certificates when they name nothing but the node itself.
//! Runs beside the controllers, which sign what is approved; upstream leaves this approval to the operator.
//! Invariant: every name in the certificate is one that the Node object of the asking kubelet has, and that nobody else
//! answers to: not the API server, no Service, no pod, no other node.

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context, Result};
use client::{Client, EventRecorder, InformerFactory, ListParams, reference};
use env::Env;
use k8s_openapi::api::{
    certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
    core::v1::Node,
};
use proxy::ClusterRanges;
use rcgen::{CertificateSigningRequestParams, DnType, DnValue, SanType};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kubelet-serving";
const NODES: &str = "system:nodes";
/// The same for every boot of a machine, and told to nobody but the programs on it and the Node objects that run there.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// By what others than nodes are known.
pub struct Reserved {
    /// Names of the API server.
    pub server_names: Vec<String>,
    pub server_addresses: Vec<IpAddr>,
    pub cluster: ClusterRanges,
    /// The domain of Services and pods.
    pub domain: String,
    /// Of the machine that the API server is on. A node there has its address by right.
    pub boot_id: String,
}

impl Reserved {
    pub fn new(
        server_names: Vec<String>,
        server_addresses: Vec<IpAddr>,
        cluster: ClusterRanges,
        domain: String,
    ) -> Self {
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_string();
        Self { server_names, server_addresses, cluster, domain, boot_id }
    }

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

pub async fn run(client: Client, reserved: Reserved, env: Env, shutdown: CancellationToken) {
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown);
    let recorder = EventRecorder::new(client.clone(), env.clone(), "minke-server", "");
    let mut changes = informers.informer::<CertificateSigningRequest>().subscribe();
    while let Some(change) = changes.next().await {
        let Some(request) = change.new else { continue };
        let pending = request.status.as_ref().is_none_or(|s| s.conditions.as_ref().is_none_or(|c| c.is_empty()));
        if request.spec.signer_name != SIGNER || !pending {
            continue;
        }
        if let Err(error) = decide(&client, &reserved, &env, &recorder, &request).await {
            let name = request.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(error = format!("{error:#}"), request = name, "a serving certificate waits for approval");
        }
    }
}

async fn decide(
    client: &Client,
    reserved: &Reserved,
    env: &Env,
    recorder: &EventRecorder,
    request: &CertificateSigningRequest,
) -> Result<()> {
    let user = request.spec.username.as_deref().unwrap_or_default();
    let name = user.strip_prefix("system:node:").context("not asked by a node")?;
    let is_node = request.spec.groups.iter().flatten().any(|group| group == NODES);
    anyhow::ensure!(is_node, "not asked by a member of {NODES}");
    let nodes = client.api::<Node>().list(&ListParams::default()).await?.items;
    let nodes: Vec<Arc<Node>> = nodes.into_iter().map(Arc::new).collect();
    let node = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    let node = node.with_context(|| format!("there is no node {name}"))?;
    if let Some(problem) = problem(request, node, &nodes, reserved)? {
        let message = format!("the request for a serving certificate is not approved: {problem}");
        recorder.warning(&reference(&**node), "ServingCertificateNotApproved", message);
        anyhow::bail!(problem);
    }
    let mut approved = request.clone();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(env.now());
    approved.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: "Approved".into(),
            status: "True".into(),
            reason: Some("AutoApproved".into()),
            message: Some("Every name in the request is one of the node's own.".into()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        },
    );
    let key = request.metadata.name.as_deref().unwrap_or_default();
    let api = client.api::<CertificateSigningRequest>();
    api.replace_subresource::<_, Value>(key, "approval", &approved).await?;
    Ok(())
}

fn problem(
    request: &CertificateSigningRequest,
    node: &Node,
    nodes: &[Arc<Node>],
    reserved: &Reserved,
) -> Result<Option<String>> {
    let pem = std::str::from_utf8(&request.spec.request.0).context("the request is not PEM")?;
    let params = CertificateSigningRequestParams::from_pem(pem)?.params;
    let common_name = match params.distinguished_name.get(&DnType::CommonName) {
        Some(DnValue::Utf8String(text)) => text.clone(),
        Some(DnValue::PrintableString(text)) => text.as_str().to_string(),
        _ => String::new(),
    };
    if request.spec.username.as_deref() != Some(common_name.as_str()) {
        return Ok(Some(format!("asked for {common_name}")));
    }
    for name in &params.subject_alt_names {
        let found = match name {
            SanType::DnsName(name) => name_problem(name.as_str(), node, nodes, reserved),
            SanType::IpAddress(ip) => ip_problem(*ip, node, nodes, reserved),
            other => Some(format!("{other:?} is neither a name nor an address")),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
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

fn name_problem(name: &str, node: &Node, nodes: &[Arc<Node>], reserved: &Reserved) -> Option<String> {
    if !said(node).any(|address| address == name) {
        return Some(format!("the node has no address {name:?}"));
    }
    if let Some(problem) = reserved.dns_problem(name) {
        return Some(problem);
    }
    let same = |other: &str| other.eq_ignore_ascii_case(name);
    let named = nodes.iter().map(|other| &**other).filter(|other| other.metadata.name != node.metadata.name);
    let mut named = named.filter(|other| other.metadata.name.as_deref().is_some_and(same));
    let elder = || elders(node, nodes).find(|other| said(other).any(same));
    named.next().or_else(elder).map(|other| belongs_to(other, name))
}

fn ip_problem(ip: IpAddr, node: &Node, nodes: &[Arc<Node>], reserved: &Reserved) -> Option<String> {
    let has = |node: &Node| said(node).any(|address| address.parse::<IpAddr>().ok() == Some(ip));
    if !has(node) {
        return Some(format!("the node has no address {ip}"));
    }
    let elder = || elders(node, nodes).find(|other| has(other)).map(|other| belongs_to(other, ip));
    reserved.address_problem(ip, node).or_else(elder)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ApiServer;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::certificates::{
        authorities::Authority,
        pki::{Pki, signed_by},
    };

    fn reserved() -> Reserved {
        let range = |text: &str| vec![text.parse().unwrap()];
        Reserved {
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
            let found = problem(&request, &own, &nodes, &reserved()).unwrap();
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
            let found = problem(&request, &own, &nodes, &reserved()).unwrap().unwrap_or_default();
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
    }

    /// With the real API server, approver and signer: what a node gets is by an authority that is believed about kubelets
    /// alone, and what it claims of others stays unsigned.
    #[tokio::test]
    async fn requests_of_nodes_are_signed_by_the_authority_of_kubelets() {
        const PATIENCE: Duration = Duration::from_secs(120);
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), env.clone()).unwrap();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let config = apiserver::Config::in_process(pki.service_account_key().unwrap());
        let api = ApiServer::new(config, store, env.clone()).await.unwrap();
        let admin = in_process::client(&api, "admin", &[crate::control_plane::server::MASTERS]);
        let mut controllers = crate::control_plane::server::controllers_config(&pki, &[], &[]).unwrap();
        controllers.controllers = vec!["certificatesigningrequest-signing-controller".into()];
        let manager = in_process::client(&api, "system:kube-controller-manager", &[]);
        let informers = InformerFactory::new(manager.clone(), env.clone(), shutdown.clone());
        env.spawn(controllers::run(controllers, manager, informers, env.clone(), shutdown.clone()));
        env.spawn(run(admin.clone(), reserved(), env.clone(), shutdown.clone()));

        let kubelet = in_process::client(&api, "system:node:a", &[NODES]);
        let own = node("a", "2026-01-01T00:00:00Z", "", &["192.0.2.1", "10.96.0.1"]);
        kubelet.api::<Node>().create(&own).await.unwrap();
        let ask = async |name: &str, hosts: &[&str]| {
            let mut request = CertificateSigningRequest::default();
            request.metadata.name = Some(name.into());
            request.spec.request = ByteString(pem("system:node:a", hosts).into_bytes());
            request.spec.signer_name = SIGNER.into();
            request.spec.usages = Some(["digital signature", "server auth"].map(str::to_string).to_vec());
            kubelet.api::<CertificateSigningRequest>().create(&request).await.unwrap();
        };
        // The refused one first: when the other is signed, both were looked at.
        ask("greedy", &["192.0.2.1", "10.96.0.1"]).await;
        ask("modest", &["192.0.2.1"]).await;
        let requests = admin.api::<CertificateSigningRequest>();
        let signed = env::timeout(PATIENCE, async {
            loop {
                let status = requests.get("modest").await.unwrap().status.unwrap_or_default();
                if let Some(certificate) = status.certificate {
                    return certificate.0;
                }
                env::sleep(Duration::from_millis(20)).await;
            }
        });
        let signed = signed.await.expect("the node's own names are signed for");
        let der = client::certificates(&signed).unwrap().remove(0);
        assert!(signed_by(&der, &pki.authority_pem(Authority::KubeletServing).unwrap()));
        assert!(!signed_by(&der, pki.ca_pem()), "nobody takes it for the API server's");
        let greedy = requests.get("greedy").await.unwrap().status.unwrap_or_default();
        assert!(greedy.certificate.is_none() && greedy.conditions.unwrap_or_default().is_empty());
        shutdown.cancel();
    }
}
