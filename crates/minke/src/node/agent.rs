//! A node in this process: containerd, pod network, kubelet, service proxy and cluster DNS.
//! Started by `up` beside the control plane, and by `minke agent` apart from it.
//! Reaches the cluster only through `client`.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use client::{Client, Identity, InformerFactory};
use cni::Attachment;
use cri::RemoteRuntime;
use env::Env;
use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kubelet::endpoint_drain::EndpointDrain;
use parking_lot::RwLock;
use proxy::ClusterRanges;
use rustls::server::ResolvesServerCert;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{authorities::Authority, pki::Leaf},
    cluster::{host, instance::Instance, ports},
    commands::{images, report::Reporter},
    components::Components,
    control_plane::server::{self, ControlPlane},
    flags::{self, Choice, kubelet_flags},
    network::{
        cni_directories, dns_service,
        endpoint_drain::{ClusterEndpointDrain, KubeletAuthorities, OwnRules},
        ipam_gc,
        pod_network::{self, Network},
    },
    node::{
        access::Access,
        container_runtime::Runtime,
        join::{Member, Serving},
        network_policy_enforcer,
        own_node::{self, Names, OwnNode},
        registry_hosts, service_proxy, shared_mount,
    },
};

pub struct Node {
    /// Our object, with the kubelet's identity.
    own: OwnNode,
    /// By which others know it; at most one more, of the other family.
    addresses: Vec<IpAddr>,
    flags: flags::Node,
    instance: Instance,
    runtime: Runtime,
    pod_cidrs: Vec<IpNet>,
    service_cidrs: Vec<IpNet>,
    dns: Choice,
    local_storage: Choice,
    proxy: Client,
    serving: Option<Arc<dyn ResolvesServerCert>>,
    joined: Option<(Arc<Member>, Arc<Serving>)>,
    client_ca: String,
    /// Who signs for other nodes' servers.
    kubelet_ca: Arc<RwLock<String>>,
    /// Who this node is to other nodes.
    identity: Identity,
    /// How containerd reaches the cluster's registry; none where the node has no certificate in a file of ours.
    registry: Option<registry_hosts::Way>,
}

impl Node {
    /// The node of the all-in-one process.
    pub fn local(
        flags: &flags::Node,
        server: &flags::Server,
        plane: &ControlPlane,
        runtime: Runtime,
        instance: &Instance,
    ) -> Result<Self> {
        let name = node_name(flags)?;
        let addresses = flags.node_ip.clone();
        let user = format!("system:node:{name}");
        let pki = plane.own_pki()?;
        let serving = pki.rotating(Leaf {
            name: "kubelet-serving".into(),
            authority: Authority::KubeletServing,
            common_name: user.clone(),
            organization: Some("system:nodes".into()),
            dns_names: vec![name.clone()],
            addresses: addresses.clone(),
            server: true,
            client: false,
        })?;
        // In place of one that was good for both, by the cluster's authority.
        let shown = pki.rotating(Leaf::client("kubelet", &user, Some("system:nodes")))?;
        let kubelet_ca = pki.authority_pem(Authority::KubeletServing)?;
        Ok(Self {
            own: OwnNode { client: in_process::client(&plane.api, &user, &["system:nodes"]), name },
            proxy: in_process::client(&plane.api, "system:kube-proxy", &[]),
            identity: Identity { certificate: Some(shown.0.clone()), ..Identity::default() },
            serving: Some(Arc::new(serving)),
            joined: None,
            client_ca: pki.ca_pem().to_string(),
            kubelet_ca: Arc::new(RwLock::new(kubelet_ca)),
            addresses,
            flags: flags.clone(),
            instance: instance.clone(),
            runtime,
            pod_cidrs: server.pod_cidr.clone(),
            service_cidrs: server.service_cidr.clone(),
            dns: server.dns,
            local_storage: server.local_storage,
            registry: Some(registry_hosts::Way::Loopback),
        })
    }

    /// A node apart from the control plane.
    pub fn remote(flags: &flags::Agent, access: Access, runtime: Runtime, instance: &Instance) -> Result<Self> {
        let Access { client, client_ca, kubelet_ca, serving, joined, identity } = access;
        let registry = joined.is_some().then(|| registry_hosts::Way::Tls {
            ca_pem: client_ca.clone(),
            certificate: instance.pki().join("kubelet-client.crt"),
            key: instance.pki().join("kubelet-client.key"),
        });
        Ok(Self {
            own: OwnNode { client: client.clone(), name: node_name(&flags.node)? },
            addresses: flags.node.node_ip.clone(),
            flags: flags.node.clone(),
            instance: instance.clone(),
            runtime,
            pod_cidrs: flags.pod_cidr.clone(),
            service_cidrs: flags.service_cidr.clone(),
            dns: flags.dns.unwrap_or(Choice::Minke),
            local_storage: flags.local_storage,
            proxy: client,
            serving,
            joined,
            client_ca,
            kubelet_ca,
            identity,
            registry,
        })
    }

    /// Starts everything and returns once the node is Ready.
    pub async fn start(
        self,
        env: &Env,
        shutdown: &CancellationToken,
        report: &Reporter,
        components: &Components,
    ) -> Result<()> {
        let node = Arc::new(self);
        let informers = InformerFactory::new(node.proxy.clone(), env.clone(), shutdown.clone());
        let proxy = node.proxy_config()?;
        let gate = node.gate(OwnRules::Here(proxy.applied_state.clone()), &informers, env);
        node.start_network(proxy, env, shutdown, &informers, components);
        node.start_kubelet(env, shutdown, gate, components)?;
        node.follow_registry(env, shutdown);
        let ready = node.ready(env, shutdown).await;
        ready.then_some(()).context("the node did not become ready")?;
        report.step(&format!("node {} ready", node.own.name));
        Ok(())
    }

    /// A containerd of somebody else has registries of its own.
    fn follow_registry(&self, env: &Env, shutdown: &CancellationToken) {
        let Some(way) = self.registry.clone().filter(|_| self.runtime.is_ours()) else { return };
        let (directory, client) = (self.instance.data.join("registries"), self.own.client.clone());
        env.spawn(registry_hosts::follow(directory, way, client, env.clone(), shutdown.clone()));
    }

    /// A kubelet whose service proxy is another process.
    pub fn start_kubelet_alone(
        self: &Arc<Self>,
        env: &Env,
        shutdown: &CancellationToken,
        components: &Components,
    ) -> Result<()> {
        let informers = InformerFactory::new(self.own.client.clone(), env.clone(), shutdown.clone());
        let gate = self.gate(OwnRules::Elsewhere(self.instance.proxy_socket()), &informers, env);
        self.start_kubelet(env, shutdown, gate, components)
    }

    /// What holds a pod's stop signal back until no node's rules use the pod.
    fn gate(&self, own: OwnRules, informers: &InformerFactory, env: &Env) -> Arc<dyn EndpointDrain> {
        let nodes = informers.informer::<NodeObject>();
        Arc::new(ClusterEndpointDrain::new(
            self.own.name.clone(),
            own,
            Box::new(move || nodes.list()),
            self.identity.clone(),
            KubeletAuthorities { own: self.kubelet_ca.clone(), former: self.client_ca.clone() },
            env.clone(),
        ))
    }

    fn start_kubelet(
        self: &Arc<Self>,
        env: &Env,
        shutdown: &CancellationToken,
        gate: Arc<dyn EndpointDrain>,
        components: &Components,
    ) -> Result<()> {
        let files = dns::HostFiles::default();
        let mut config = kubelet::Config {
            node_name: self.own.name.clone(),
            root_dir: self.instance.kubelet(),
            log_dir: self.instance.data.join("log"),
            runtime_endpoint: self.runtime.endpoint().to_path_buf(),
            node_ips: self.addresses.clone(),
            cluster_dns: server::dns_addresses(&self.service_cidrs)?,
            cluster_domain: server::cluster_domain(),
            // Pods do not start without a file that is named; a machine that has none resolves nothing.
            resolv_conf: Some(files.usable_elsewhere()).filter(|file| file.exists()).unwrap_or("".as_ref()).into(),
            cgroup_root: self.instance.cgroup(),
            cni_conf_dir: (self.runtime.is_ours() || self.flags.cni == Choice::Minke)
                .then(|| cni_directories::conf_dir(&self.flags, &self.instance)),
            sandbox_image: images::PAUSE.into(),
            sandbox_guards_itself: self.runtime.is_ours(),
            image_gc_high_percent: self.flags.image_gc_high_threshold,
            port: self.flags.kubelet_port.unwrap_or(ports::KUBELET_PORT),
            healthz_port: self.flags.healthz_port.unwrap_or(ports::KUBELET_HEALTHZ_PORT),
            serving_certificate: self.serving.clone(),
            client_ca_pem: self.client_ca.clone().into_bytes(),
            manifest_dir: self.flags.pod_manifest_path.clone(),
            manifest_url: self.flags.manifest_url.clone(),
            cadvisor_port: self.flags.cadvisor_port,
            cadvisor_address: self.flags.cadvisor_address,
            manifest_server_port: self.flags.manifest_server_port,
            endpoint_drain: Some(gate),
            local_storage: self.local_storage == Choice::Minke,
            ..kubelet::Config::default()
        };
        if let Some(thresholds) = self.flags.eviction_thresholds()? {
            config.eviction_hard = thresholds;
        }
        kubelet_flags::apply(&self.flags, &mut config)?;
        shared_mount::ensure(&config.root_dir)
            .with_context(|| format!("failed to make {} a shared mount", config.root_dir.display()))?;
        self.ask_for_serving_certificate(env, shutdown);
        let informers = InformerFactory::new(self.own.client.clone(), env.clone(), shutdown.clone());
        let running = kubelet::run(config, self.own.client.clone(), informers, env.clone(), shutdown.clone());
        components.run("the kubelet", running);
        Ok(())
    }

    /// Once the node has registered its addresses: only then is the request approved.
    fn ask_for_serving_certificate(self: &Arc<Self>, env: &Env, shutdown: &CancellationToken) {
        let Some((member, serving)) = self.joined.clone() else { return };
        let (node, env, shutdown) = (self.clone(), env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            if let Some(names) = node.registered(&env, &shutdown).await {
                member.serve(serving, names).await;
            }
        });
    }

    async fn registered(&self, env: &Env, shutdown: &CancellationToken) -> Option<Names> {
        self.own.find(env, shutdown, |object| own_node::registered(object, &self.addresses)).await
    }

    /// The pod network once the node has its range, the service proxy, and DNS.
    fn start_network(
        self: &Arc<Self>,
        proxy: proxy::ProxyConfig,
        env: &Env,
        shutdown: &CancellationToken,
        informers: &InformerFactory,
        components: &Components,
    ) {
        let (node, shared, task_env, until) = (self.clone(), informers.clone(), env.clone(), shutdown.clone());
        match self.flags.cni {
            Choice::Minke => {
                let cluster = ClusterRanges { pods: self.pod_cidrs.clone(), services: self.service_cidrs.clone() };
                let cluster_cidrs = cluster.pods.iter().chain(&cluster.services).copied().collect();
                let routes = pod_network::pod_routes(&self.flags, &self.instance, &self.own.name, cluster);
                env.spawn(proxy::run_pod_routes(routes, informers.clone(), env.clone(), shutdown.clone()));
                let network = Network::new(&self.flags, &self.instance, cluster_cidrs, proxy.applied_state.clone());
                // Before the kubelet can ask for more.
                let held = network.attachments();
                env.spawn(async move { node.run_network(network, held, shared, &task_env, &until).await });
            }
            Choice::None => {
                env.spawn(async move { node.serve_dns_on_node(shared, &task_env, &until).await });
            }
        }
        if self.flags.enforces_network_policy() {
            network_policy_enforcer::start(
                &self.instance,
                &self.own.name,
                &proxy.registry,
                env,
                shutdown,
                informers,
                components,
            );
        }
        let layer2 = proxy::Layer2Config {
            node_name: self.own.name.clone(),
            node_addresses: self.addresses.clone(),
            record: self.instance.announced_addresses(),
        };
        let own = self.own.client.clone();
        env.spawn(proxy::run_layer2(layer2, own, informers.clone(), env.clone(), shutdown.clone()));
        service_proxy::start(&proxy, env, shutdown, informers, components);
    }

    fn proxy_config(&self) -> Result<proxy::ProxyConfig> {
        service_proxy::config(&self.flags, &self.instance, &self.own.name, &self.pod_cidrs)
    }

    /// With DNS on the bridge.
    async fn run_network(
        &self,
        network: Network,
        held: Vec<Attachment>,
        informers: InformerFactory,
        env: &Env,
        shutdown: &CancellationToken,
    ) {
        let mut held = Some(held);
        let serve = |ranges: Vec<IpNet>, conflist: Value, until: CancellationToken| -> BoxFuture<'_, ()> {
            if let Some(held) = held.take() {
                self.collect_lost_addresses(held, conflist, env, shutdown);
            }
            let gateways = ranges.iter().map(cni::gateway);
            let listen = gateways.map(|ip| SocketAddr::new(ip, api::cluster_dns::PORT)).collect();
            Box::pin(self.serve_dns(listen, informers.clone(), env, until))
        };
        network.follow(&self.own, env, shutdown, serve).await;
    }

    fn collect_lost_addresses(&self, held: Vec<Attachment>, conflist: Value, env: &Env, shutdown: &CancellationToken) {
        let (endpoint, env, shutdown) = (self.runtime.endpoint().display().to_string(), env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            let runtime = RemoteRuntime::new(&endpoint, None);
            let freed = shutdown.run_until_cancelled(ipam_gc::free(held, conflist, &runtime, &env)).await;
            if let Some(Err(error)) = freed {
                tracing::warn!(error = format!("{error:#}"), "addresses of lost pods stay until the next start");
            }
        });
    }

    /// Where the pods' network is somebody else's there is no bridge of ours to answer on: the node's address does.
    async fn serve_dns_on_node(&self, informers: InformerFactory, env: &Env, shutdown: &CancellationToken) {
        if self.registered(env, shutdown).await.is_some() {
            let listen = vec![SocketAddr::new(self.addresses[0], dns_service::PORT_ON_NODE)];
            self.serve_dns(listen, informers, env, shutdown.clone()).await;
        }
    }

    async fn serve_dns(
        &self,
        listen: Vec<SocketAddr>,
        informers: InformerFactory,
        env: &Env,
        shutdown: CancellationToken,
    ) {
        let params = dns_service::Params {
            node_name: self.own.name.clone(),
            listen,
            addresses: server::dns_addresses(&self.service_cidrs).unwrap_or_default(),
            domain: server::cluster_domain(),
            client: self.own.client.clone(),
            informers,
            metrics_port: self.flags.dns_metrics_port.unwrap_or(ports::DNS_METRICS_PORT),
            env: env.clone(),
            shutdown,
        };
        match self.dns {
            Choice::Minke => dns_service::run(params).await,
            Choice::None => dns_service::leave_to_others(params).await,
        }
    }

    async fn ready(&self, env: &Env, shutdown: &CancellationToken) -> bool {
        let ready = |node: &NodeObject| {
            let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.any(|c| c.type_ == "Ready" && c.status == "True").then_some(())
        };
        self.own.find(env, shutdown, ready).await.is_some()
    }
}

/// As said, or `usual`, or this machine's own; one of each family that pods have, where there is one.
pub fn node_addresses(flags: &flags::Node, usual: Option<IpAddr>, pod_cidrs: &[IpNet]) -> Result<Vec<IpAddr>> {
    if !flags.node_ip.is_empty() {
        return Ok(flags.node_ip.clone());
    }
    let first = usual.map_or_else(|| host::address_like(pod_cidrs.first()), Ok)?;
    let both = pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv4() != first.is_ipv4());
    Ok([first].into_iter().chain(both.then(|| host::other_address(first)).flatten()).collect())
}

pub fn node_name(flags: &flags::Node) -> Result<String> {
    match &flags.node_name {
        Some(name) => Ok(name.clone()),
        None => host::node_name(),
    }
}
