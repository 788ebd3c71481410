//! Holds a pod's stop signal back until every node's Service rules have let go of the pod.
//! Joins the proxy of this node, in this process or in another, with those of others, which are asked through their
//! kubelets; used by `kubelet`.
//! Waits no longer than `DRAIN_TIMEOUT`, whoever is silent; a pod in no Service waits for nothing.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use api::ApiError;
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, HttpsConfig, HttpsTransport, Identity};
use env::Env;
use futures::future::join_all;
use http::Request;
use k8s_openapi::api::core::v1::Node;
use kubelet::endpoint_drain::EndpointDrain;
use parking_lot::{Mutex, RwLock};
use proxy::{Answer, AppliedState, PodUid, ask_applied_state};

/// The longest that a pod's stop signal is held back.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// For requests that came in while the rules still named the pod.
const LAST_REQUESTS_INTERVAL: Duration = Duration::from_millis(200);
/// A node that did not answer delays no other pod for so long.
const SILENT_PEER_BACKOFF: Duration = Duration::from_secs(30);

/// Where the rules of this node are written.
pub enum OwnRules {
    /// In this process.
    Here(AppliedState),
    /// By `minke proxy`, which answers at this socket.
    Elsewhere(PathBuf),
}

impl OwnRules {
    /// The version that the rules hold once they no longer use the pod; `None` for a pod that they never used, or when
    /// nobody can tell.
    async fn withdrawn(&self, pod_uid: &str, version: u64) -> Option<u64> {
        match self {
            Self::Here(applied_state) => {
                let pod = PodUid::parse(pod_uid).filter(|pod| version > 0 || applied_state.knows(*pod))?;
                Some(applied_state.withdrawn(pod, version).await)
            }
            Self::Elsewhere(socket) => match ask_applied_state(socket, pod_uid, version).await {
                Ok(Answer::Withdrawn(held)) => Some(held),
                Ok(Answer::Unknown) => None,
                Err(error) => {
                    tracing::debug!(%error, socket = %socket.display(), "no service proxy of ours runs on this node");
                    None
                }
            },
        }
    }
}

/// The nodes of the cluster, as far as they are known just now.
pub type Nodes = Box<dyn Fn() -> Vec<Arc<Node>> + Send + Sync>;

/// Who signs the certificates of the nodes' servers.
pub struct KubeletAuthorities {
    pub own: Arc<RwLock<String>>,
    /// Of nodes that joined before there was one for kubelets alone.
    pub former: String,
}

pub struct ClusterEndpointDrain {
    node_name: String,
    own: OwnRules,
    nodes: Nodes,
    identity: Identity,
    authorities: KubeletAuthorities,
    env: Env,
    peers: Mutex<HashMap<String, Peer>>,
}

struct Peer {
    address: SocketAddr,
    client: Client,
    silent_until: Duration,
}

impl std::fmt::Debug for ClusterEndpointDrain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterEndpointDrain").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// Where a node's kubelet answers, if the node is alive.
fn kubelet_address(node: &Node) -> Option<SocketAddr> {
    let status = node.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let internal = status.addresses.iter().flatten().find(|a| a.type_ == "InternalIP")?;
    let port = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port;
    ready.then_some(SocketAddr::new(internal.address.parse().ok()?, u16::try_from(port).ok()?))
}

impl ClusterEndpointDrain {
    pub fn new(
        node_name: String,
        own: OwnRules,
        nodes: Nodes,
        identity: Identity,
        authorities: KubeletAuthorities,
        env: Env,
    ) -> Self {
        Self { node_name, own, nodes, identity, authorities, env, peers: Mutex::default() }
    }

    /// The other nodes that are worth asking.
    fn others(&self) -> Vec<(String, Client)> {
        let now = self.env.monotonic();
        let mut peers = self.peers.lock();
        let nodes = (self.nodes)();
        let mut alive = HashMap::with_capacity(nodes.len());
        for node in &nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            if let Some(address) = kubelet_address(node).filter(|_| name != self.node_name) {
                alive.insert(name.to_owned(), address);
            }
        }
        peers.retain(|name, peer| alive.get(name) == Some(&peer.address));
        for (name, address) in alive {
            if let Entry::Vacant(place) = peers.entry(name) {
                match self.connect(address) {
                    Ok(client) => drop(place.insert(Peer { address, client, silent_until: Duration::ZERO })),
                    Err(error) => tracing::warn!(%error, node = place.key(), "a node can't be asked about endpoints"),
                }
            }
        }
        let awake = peers.iter().filter(|(_, peer)| peer.silent_until <= now);
        awake.map(|(name, peer)| (name.clone(), peer.client.clone())).collect()
    }

    fn connect(&self, address: SocketAddr) -> Result<Client, ApiError> {
        let pem = format!("{}{}", self.authorities.own.read(), self.authorities.former);
        let ca = client::certificates(pem.as_bytes()).map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(Client::new(HttpsTransport::new(HttpsConfig {
            server: format!("https://{address}"),
            ca,
            identity: self.identity.clone(),
            user_agent: "minke-agent".into(),
            ..HttpsConfig::default()
        })?))
    }

    /// Waits for one node's answer; a node that gives none within the limit is left alone for a while.
    async fn ask(&self, name: String, client: Client, pod_uid: &str, version: u64, limit: Duration) {
        let uri = format!("/withdrawn/{pod_uid}?resourceVersion={version}");
        let Ok(request) = Request::get(uri).body(Bytes::new()) else { return };
        match self.env.timeout(limit, client.request(request)).await {
            Some(Ok(_)) => {}
            // Another kind of kubelet, or one that does not know us: there is nothing to wait for.
            Some(Err(error)) => tracing::debug!(%error, node = name, pod_uid, "a node did not confirm"),
            None => {
                tracing::warn!(node = name, pod_uid, "a node did not say in time that an endpoint left its rules");
                if let Some(peer) = self.peers.lock().get_mut(&name) {
                    peer.silent_until = self.env.monotonic() + SILENT_PEER_BACKOFF;
                }
            }
        }
    }
}

#[async_trait]
impl EndpointDrain for ClusterEndpointDrain {
    async fn drained(&self, pod_uid: &str) {
        let began = self.env.monotonic();
        // Our own rules first: the version that they hold is what the others must have seen.
        let own = self.env.timeout(DRAIN_TIMEOUT, self.own.withdrawn(pod_uid, 0)).await;
        if own == Some(None) {
            return;
        }
        if let Some(version) = own.flatten() {
            let left = DRAIN_TIMEOUT.saturating_sub(self.env.monotonic() - began);
            let asked = self.others().into_iter().map(|(name, peer)| self.ask(name, peer, pod_uid, version, left));
            join_all(asked).await;
        } else {
            tracing::warn!(pod_uid, "a pod that ends is still an endpoint; stopping it all the same");
        }
        let left = DRAIN_TIMEOUT.saturating_sub(self.env.monotonic() - began);
        self.env.sleep(LAST_REQUESTS_INTERVAL.min(left)).await;
    }

    async fn drained_here(&self, pod_uid: &str, version: u64) -> bool {
        self.env.timeout(DRAIN_TIMEOUT, self.own.withdrawn(pod_uid, version)).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID: &str = "5d6c1f0e-88a7-4a3e-9d8e-0f6b8f4d2a11";

    fn node(name: &str, ready: &str, address: &str, port: u16) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name },
            "status": {
                "conditions": [{ "type": "Ready", "status": ready }],
                "addresses": [{ "type": "Hostname", "address": "n" }, { "type": "InternalIP", "address": address }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
            },
        }))
        .unwrap()
    }

    /// Simulated time stands still while anything is done and jumps while everything waits, so the wait is exact.
    async fn waited(drain: &ClusterEndpointDrain) -> Duration {
        let began = drain.env.monotonic();
        drain.drained(UID).await;
        drain.env.monotonic() - began
    }

    fn gate(own: OwnRules, nodes: Vec<Arc<Node>>, ca_pem: &str) -> ClusterEndpointDrain {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let nodes: Nodes = Box::new(move || nodes.clone());
        let authorities = KubeletAuthorities { own: Arc::new(RwLock::new(ca_pem.into())), former: String::new() };
        ClusterEndpointDrain::new("here".into(), own, nodes, Identity::default(), authorities, env)
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_never_let_go_hold_a_pod_back_for_the_timeout_and_no_longer() {
        let pod = PodUid::parse(UID).unwrap();
        let applied_state = AppliedState::default();
        let own = gate(OwnRules::Here(applied_state.clone()), vec![], "");
        assert_eq!(waited(&own).await, Duration::ZERO, "a pod in no Service");
        applied_state.replace(&[], &[(pod, true)]);
        applied_state.publish(7);
        assert_eq!(waited(&own).await, DRAIN_TIMEOUT);
        assert!(!own.drained_here(UID, 7).await);
        applied_state.replace(&[(pod, true)], &[(pod, false)]);
        applied_state.publish(8);
        assert_eq!(waited(&own).await, LAST_REQUESTS_INTERVAL);
        assert!(own.drained_here(UID, 8).await);
        assert!(!own.drained_here(UID, 9).await, "the rules are behind");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_proxy_never_confirms_costs_the_timeout_once() {
        let directory = tempfile::tempdir().unwrap();
        let pki = crate::certificates::pki::Pki::open(directory.path(), Env::real()).unwrap();
        // Takes connections and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let nodes =
            vec![Arc::new(node("there", "True", "127.0.0.1", port)), Arc::new(node("here", "True", "127.0.0.1", 1))];
        let pod = PodUid::parse(UID).unwrap();
        let applied_state = AppliedState::default();
        applied_state.replace(&[], &[(pod, false)]);
        applied_state.publish(7);
        let own = gate(OwnRules::Here(applied_state), nodes, pki.ca_pem());
        assert_eq!(waited(&own).await, DRAIN_TIMEOUT);
        assert_eq!(waited(&own).await, LAST_REQUESTS_INTERVAL, "a silent node is left alone for a while");
        own.env.sleep(SILENT_PEER_BACKOFF).await;
        assert_eq!(waited(&own).await, DRAIN_TIMEOUT, "and asked again then");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_proxy_of_ours_nothing_is_waited_for() {
        let nowhere = gate(OwnRules::Elsewhere("/nonexistent/proxy.sock".into()), vec![], "");
        assert_eq!(waited(&nowhere).await, Duration::ZERO);
        assert!(nowhere.drained_here(UID, 3).await);
    }

    #[test]
    fn only_nodes_that_live_are_asked() {
        let check = |ready: &str, address: &str, expected: Option<&str>| {
            assert_eq!(
                kubelet_address(&node("n", ready, address, 10250)),
                expected.map(|text| text.parse().unwrap()),
                "{ready} {address}"
            );
        };
        check("True", "192.0.2.1", Some("192.0.2.1:10250"));
        check("True", "2001:db8::1", Some("[2001:db8::1]:10250"));
        check("Unknown", "192.0.2.1", None);
        check("False", "192.0.2.1", None);
        check("True", "junk", None);
        assert_eq!(kubelet_address(&Node::default()), None);
    }
}
