//! The shell: informers into the zone, sockets out of it.
//! Puts `index`, `server` and `forward` to work; started by the agent.
//! Answers are given only after the first lists, so that a restart does not say NXDOMAIN to a name that exists.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
    time::Duration,
};

use client::{InformerFactory, ListParams, ObjectChange};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod, Service},
    discovery::v1::EndpointSlice,
};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    customization::{CONFIG_MAP_NAME, CONFIG_MAP_NAMESPACE, Customization},
    dns_metrics,
    forward::Forwarder,
    index::{PodRecords, Zone},
    resolv_conf::HostFiles,
    server::Server,
    upstreams::Upstreams,
};

#[derive(Debug, Clone)]
pub struct DnsConfig {
    /// Where to answer, UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// Puts the listening addresses on this interface first (`lo` for the cluster DNS address on every node).
    pub interface: Option<String>,
    pub cluster_domain: String,
    /// Addresses beside those of `listen` that lead here: the cluster DNS Service's. Everything that is not the
    /// cluster's is asked of the node's own name servers, but never of ourselves.
    pub also_here: Vec<IpAddr>,
    pub pod_records: PodRecords,
    /// How long others may remember our answers, in seconds.
    pub ttl_seconds: u32,
    /// How long we remember upstream's at most.
    pub cache: Duration,
    /// Where `/metrics` answers.
    pub metrics: Option<SocketAddr>,
}

impl DnsConfig {
    pub fn new(listen: Vec<SocketAddr>, cluster_domain: &str) -> Self {
        Self {
            listen,
            interface: None,
            cluster_domain: cluster_domain.to_owned(),
            also_here: Vec::new(),
            pod_records: PodRecords::default(),
            ttl_seconds: 5,
            cache: Duration::from_secs(30),
            metrics: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("invalid cluster domain {0:?}: {1}")]
    Domain(String, hickory_proto::ProtoError),
    #[error("failed to put {0} on {1}: {2}")]
    Address(SocketAddr, String, String),
    #[error("failed to listen for DNS on {0:?}: {1}")]
    Listen(Vec<SocketAddr>, std::io::Error),
}

/// Answers questions until it is told to stop, or dropped.
pub type Serving = BoxFuture<'static, ()>;

/// Takes the addresses and reads the first lists: what it returns answers until `shutdown`.
pub fn start(
    config: DnsConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<Serving, DnsError>> {
    Box::pin(bind_and_read(config, informers, env, shutdown))
}

async fn bind_and_read(
    config: DnsConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<Serving, DnsError> {
    let mut zone = Zone::new(&config.cluster_domain, config.ttl_seconds, config.pod_records)
        .map_err(|error| DnsError::Domain(config.cluster_domain.clone(), error))?;
    zone.set_server_addresses(config.listen.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()).collect());
    let zone = Arc::new(RwLock::new(zone));
    if let Some(interface) = &config.interface {
        for address in &config.listen {
            assign(*address, interface)?;
        }
    }
    let upstreams = Upstreams::of_host(HostFiles::default(), 53).except(&config.listen, &config.also_here);
    let forwarder = Forwarder::new(env.clone(), upstreams, config.cache);
    let metrics = forwarder.metrics().clone();
    // First: where this fails nothing else has begun. Questions that come now wait in the socket.
    let server = Server::bind(&config.listen, zone.clone(), forwarder, env.clone())
        .await
        .map_err(|error| DnsError::Listen(config.listen.clone(), error))?;
    // Everything that is started here ends with what is returned.
    let until = shutdown.child_token();
    let guard = until.clone().drop_guard();
    if let Some(address) = config.metrics {
        let served = dns_metrics::serve(address, metrics, env.clone());
        let until = until.clone();
        env.spawn(async move { until.run_until_cancelled(served).await });
    }
    follow_customization(&server, &informers, &env, &until);
    until.run_until_cancelled(follow(&config, &informers, &env, &zone, &until)).await;
    Ok(Box::pin(async move {
        let _guard = guard;
        server.serve(until).await;
    }))
}

/// Not waited for: where it may not be read, there is none.
fn follow_customization(server: &Server, informers: &InformerFactory, env: &Env, until: &CancellationToken) {
    let selector = format!("metadata.name={CONFIG_MAP_NAME},metadata.namespace={CONFIG_MAP_NAMESPACE}");
    let mut changes = informers.informer_with::<ConfigMap>(ListParams::fields(selector)).subscribe();
    let (shared, until) = (server.shared.clone(), until.clone());
    env.spawn(async move {
        while let Some(Some(change)) = until.run_until_cancelled(changes.next()).await {
            let data = change.new.as_ref().and_then(|map| map.data.clone()).unwrap_or_default();
            let (customization, problems) = Customization::parse(&data);
            for problem in problems {
                tracing::warn!(problem, "a part of the ConfigMap kube-system/kube-dns is left out");
            }
            shared.forwarder.customize(customization);
        }
    });
}

fn assign(address: SocketAddr, interface: &str) -> Result<(), DnsError> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = format!("{}/{bits}", address.ip());
    let output = Command::new("ip").args(["address", "replace", &prefix, "dev", interface]).output();
    let problem = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{error} (apt-get install -y iproute2)"),
    };
    Err(DnsError::Address(address, interface.to_owned(), problem))
}

/// Starts a follower per kind and returns when each has applied its first list.
async fn follow(
    config: &DnsConfig,
    informers: &InformerFactory,
    env: &Env,
    zone: &Arc<RwLock<Zone>>,
    until: &CancellationToken,
) {
    macro_rules! follow {
        ($kind:ty, $apply:expr, $delete:expr) => {{
            let informer = informers.informer::<$kind>();
            informer.synced().await;
            let mut changes = informer.objects().subscribe();
            let zone = zone.clone();
            let apply = move |zone: &RwLock<Zone>, change: ObjectChange| match change.new.as_deref() {
                Some(object) => {
                    if let Some(object) = client::read_once::<$kind>(object) {
                        $apply(&mut zone.write(), &change.key, &object);
                    }
                }
                None => $delete(&mut zone.write(), &change.key),
            };
            while let Some(change) = changes.try_next() {
                apply(&zone, change);
            }
            let until = until.clone();
            env.spawn(async move {
                while let Some(Some(change)) = until.run_until_cancelled(changes.next()).await {
                    apply(&zone, change);
                }
            });
        }};
    }
    follow!(Namespace, |zone: &mut Zone, key: &str, _: &Namespace| zone.apply_namespace(key), Zone::delete_namespace);
    follow!(EndpointSlice, Zone::apply_endpoint_slice, Zone::delete_endpoint_slice);
    follow!(Service, Zone::apply_service, Zone::delete_service);
    if config.pod_records == PodRecords::Verified {
        follow!(Pod, Zone::apply_pod, Zone::delete_pod);
    }
}
