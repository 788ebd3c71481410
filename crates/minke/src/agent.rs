//! A node in this process: containerd, pod network, kubelet, service proxy and cluster DNS.
//! Started by `up` beside the control plane, and by `minke agent` apart from it.
//! Invariant: reaches the cluster only through `client`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use client::{Client, HttpsConfig, HttpsTransport, Identity, InformerFactory, ListParams, from_kubeconfig};
use cni::Attachment;
use cri::{
    RemoteRuntime,
    containerd::{Containerd, ContainerdConfig},
};
use env::Env;
use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kubelet::endpoint_gate::EndpointGate;
use rustls::server::ResolvesServerCert;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    ca_pin, dns_service,
    flags::{self, Choice, PodNetwork},
    host, images,
    instance::Instance,
    join::{self, Member, Serving},
    kept_rules, kubelet_flags, lost_attachments,
    perseverance::Perseverance,
    pki::{Current, Leaf},
    report::Reporter,
    server::{self, ControlPlane},
    withdrawal::{OwnRules, Withdrawal},
};

/// Marks our routes to other nodes' pods; not among those the kernel or routing daemons use.
pub const ROUTE_PROTOCOL: u8 = 77;
const VXLAN_PORT: u16 = 8472;

/// The container runtime: our own containerd, or one that was already there.
pub struct Runtime {
    endpoint: PathBuf,
    /// Dropping it would end the supervision.
    _containerd: Option<Containerd>,
}

impl Runtime {
    pub async fn start(flags: &flags::Node, instance: &Instance, env: &Env) -> Result<Self> {
        if let Some(endpoint) = &flags.container_runtime_endpoint {
            let endpoint = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
            anyhow::ensure!(
                endpoint.exists(),
                "there is no runtime at {}: start it, or leave out --container-runtime-endpoint",
                endpoint.display()
            );
            return Ok(Self { endpoint, _containerd: None });
        }
        install_plugin(&instance.cni_bin())?;
        forget_other_network(flags, instance)?;
        let mut config = ContainerdConfig::new(instance.containerd_root(), instance.containerd_state(), images::PAUSE);
        config.cni_bin_dir = instance.cni_bin();
        config.cni_conf_dir = instance.cni_conf();
        config.registry_config_dir = instance.data.join("registries");
        config.systemd_cgroup = flags.configuration()?.get("cgroupDriver").is_some_and(|driver| driver == "systemd");
        let containerd = Containerd::start(config, env.clone()).await.context("containerd did not start")?;
        let endpoint = containerd.socket();
        images::import_own(&endpoint, images::PAUSE, images::pause_archive()?).await?;
        Ok(Self { endpoint, _containerd: Some(containerd) })
    }

    fn is_ours(&self) -> bool {
        self._containerd.is_some()
    }

    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }
}

fn vxlan_mtu(flags: &flags::Node) -> u32 {
    // The mesh chooses in the same way.
    let address = flags.node_ip.iter().find(|ip| ip.is_ipv4()).or(flags.node_ip.first());
    host::vxlan_mtu(address.and_then(|ip| host::mtu(*ip)), address.is_none_or(IpAddr::is_ipv4))
}

/// Of the pods' interfaces, where it is not the usual one.
fn mtu(flags: &flags::Node) -> Option<u32> {
    (flags.pod_network == PodNetwork::Vxlan).then(|| vxlan_mtu(flags))
}

fn network_file(instance: &Instance) -> PathBuf {
    instance.cni_conf().join("10-minke.conflist")
}

/// Pods that start before the network is configured anew must not get one of another kind from last time.
fn forget_other_network(flags: &flags::Node, instance: &Instance) -> Result<()> {
    let file = network_file(instance);
    let Ok(text) = std::fs::read(&file) else { return Ok(()) };
    let kept: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let kept = kept["plugins"][0]["mtu"].as_u64();
    if flags.cni != Choice::Minke || kept != mtu(flags).map(u64::from) {
        std::fs::remove_file(&file).with_context(|| format!("failed to remove {}", file.display()))?;
    }
    Ok(())
}

/// Our plugin is this very binary, called under another name.
fn install_plugin(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let binary = std::env::current_exe()?;
    for name in cni::PLUGIN_NAMES {
        let link = directory.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            continue;
        }
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        symlink(&binary, &link).with_context(|| format!("failed to install the network plugin {}", link.display()))?;
    }
    // Foreign configurations may name the standard plugins: Debian puts them here.
    for entry in std::fs::read_dir("/usr/lib/cni").into_iter().flatten().flatten() {
        let link = directory.join(entry.file_name());
        if link.symlink_metadata().is_err() {
            symlink(entry.path(), &link)?;
        }
    }
    Ok(())
}

pub struct Node {
    name: String,
    /// By which others know it; at most one more, of the other family.
    addresses: Vec<IpAddr>,
    flags: flags::Node,
    instance: Instance,
    runtime: Runtime,
    pod_cidrs: Vec<IpNet>,
    service_cidrs: Vec<IpNet>,
    dns: Choice,
    kubelet: Client,
    proxy: Client,
    serving: Option<Arc<dyn ResolvesServerCert>>,
    joined: Option<(Arc<Member>, Arc<Serving>)>,
    client_ca: String,
    /// Who this node is to other nodes.
    identity: Identity,
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
        let serving = plane.pki.rotating(Leaf {
            name: "kubelet".into(),
            common_name: user.clone(),
            organization: Some("system:nodes".into()),
            dns_names: vec![name.clone()],
            addresses: addresses.clone(),
            server: true,
            client: true,
        })?;
        Ok(Self {
            kubelet: local::client(&plane.api, &user, &["system:nodes"]),
            proxy: local::client(&plane.api, "system:kube-proxy", &[]),
            identity: Identity { certificate: Some(serving.0.clone()), ..Identity::default() },
            serving: Some(Arc::new(serving)),
            joined: None,
            client_ca: plane.pki.ca_pem().to_string(),
            name,
            addresses,
            flags: flags.clone(),
            instance: instance.clone(),
            runtime,
            pod_cidrs: server.pod_cidr.clone(),
            service_cidrs: server.service_cidr.clone(),
            dns: server.dns,
        })
    }

    fn address(&self) -> IpAddr {
        self.addresses[0]
    }

    /// A node apart from the control plane.
    pub fn remote(flags: &flags::Agent, access: Access, runtime: Runtime, instance: &Instance) -> Result<Self> {
        let Access { client, client_ca, serving, joined, identity } = access;
        Ok(Self {
            name: node_name(&flags.node)?,
            addresses: flags.node.node_ip.clone(),
            flags: flags.node.clone(),
            instance: instance.clone(),
            runtime,
            pod_cidrs: flags.pod_cidr.clone(),
            service_cidrs: flags.service_cidr.clone(),
            dns: flags.dns,
            kubelet: client.clone(),
            proxy: client,
            serving,
            joined,
            client_ca,
            identity,
        })
    }

    /// Starts everything and returns once the node is Ready.
    pub async fn start(self, env: &Env, shutdown: &CancellationToken, report: &Reporter) -> Result<()> {
        let node = Arc::new(self);
        let informers = InformerFactory::new(node.proxy.clone(), env.clone(), shutdown.clone());
        let proxy = node.proxy_config();
        let gate = node.gate(OwnRules::Here(proxy.confirmed.clone()), &informers, env);
        node.start_network(proxy, env, shutdown, &informers);
        node.start_kubelet(env, shutdown, gate)?;
        let ready = node.ready(env, shutdown).await;
        ready.then_some(()).context("the node did not become ready")?;
        report.step(&format!("node {} ready", node.name));
        Ok(())
    }

    /// A kubelet whose service proxy is another process.
    pub fn start_kubelet_alone(self: &Arc<Self>, env: &Env, shutdown: &CancellationToken) -> Result<()> {
        let informers = InformerFactory::new(self.kubelet.clone(), env.clone(), shutdown.clone());
        let gate = self.gate(OwnRules::Elsewhere(self.instance.proxy_socket()), &informers, env);
        self.start_kubelet(env, shutdown, gate)
    }

    /// What holds a pod's stop signal back until no node's rules use the pod.
    fn gate(&self, own: OwnRules, informers: &InformerFactory, env: &Env) -> Arc<dyn EndpointGate> {
        let nodes = informers.informer::<NodeObject>();
        Arc::new(Withdrawal::new(
            self.name.clone(),
            own,
            Box::new(move || nodes.list()),
            self.identity.clone(),
            self.client_ca.clone(),
            env.clone(),
        ))
    }

    fn start_kubelet(
        self: &Arc<Self>,
        env: &Env,
        shutdown: &CancellationToken,
        gate: Arc<dyn EndpointGate>,
    ) -> Result<()> {
        let mut config = kubelet::Config {
            node_name: self.name.clone(),
            root_dir: self.instance.kubelet(),
            log_dir: self.instance.data.join("log"),
            runtime_endpoint: self.runtime.endpoint().to_path_buf(),
            node_ips: self.addresses.clone(),
            cluster_dns: server::dns_addresses(&self.service_cidrs)?,
            cluster_domain: server::cluster_domain(),
            resolv_conf: dns::HostFiles::default().usable_elsewhere().into(),
            cgroup_root: self.instance.cgroup(),
            cni_conf_dir: self.runtime.is_ours().then(|| self.instance.cni_conf()),
            sandbox_image: images::PAUSE.into(),
            sandbox_guards_itself: self.runtime.is_ours(),
            image_gc_high_percent: self.flags.image_gc_high_threshold,
            port: self.flags.kubelet_port,
            healthz_port: self.flags.healthz_port,
            serving_certificate: self.serving.clone(),
            client_ca_pem: self.client_ca.clone().into_bytes(),
            manifest_dir: self.flags.pod_manifest_path.clone(),
            manifest_url: self.flags.manifest_url.clone(),
            endpoint_gate: Some(gate),
            ..kubelet::Config::default()
        };
        if let Some(thresholds) = self.flags.eviction_thresholds()? {
            config.eviction_hard = thresholds;
        }
        kubelet_flags::apply(&self.flags, &mut config)?;
        self.ask_for_serving_certificate(env, shutdown);
        let informers = InformerFactory::new(self.kubelet.clone(), env.clone(), shutdown.clone());
        let (client, env, shutdown) = (self.kubelet.clone(), env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            if let Err(error) = kubelet::run(config, client, informers, env, shutdown).await {
                tracing::error!(%error, "the kubelet stopped");
            }
        });
        Ok(())
    }

    /// Once the node has registered its addresses: only then is the request approved.
    fn ask_for_serving_certificate(self: &Arc<Self>, env: &Env, shutdown: &CancellationToken) {
        let Some((member, serving)) = self.joined.clone() else { return };
        let (node, env, shutdown) = (self.clone(), env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            let own = node.address().to_string();
            let registered = |object: &NodeObject| {
                object.status.iter().flat_map(|s| s.addresses.iter().flatten()).any(|a| a.address == own)
            };
            if node.watch_node(&env, &shutdown, registered).await {
                member.serve(serving, &node.name, node.address());
            }
        });
    }

    /// The pod network once the node has its range, the service proxy, and DNS.
    fn start_network(
        self: &Arc<Self>,
        proxy: proxy::ProxyConfig,
        env: &Env,
        shutdown: &CancellationToken,
        informers: &InformerFactory,
    ) {
        let ours = self.flags.cni == Choice::Minke;
        if ours {
            env.spawn(proxy::run_mesh(self.mesh_config(), informers.clone(), env.clone(), shutdown.clone()));
        }
        // Before the kubelet can ask for more.
        let held = match ours {
            true => cni::attachments(&self.instance.cni_data(), &self.instance.id),
            false => Ok(Vec::new()),
        };
        let held = held.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to see which pods have addresses");
            Vec::new()
        });
        let (node, shared, task_env, until) = (self.clone(), informers.clone(), env.clone(), shutdown.clone());
        env.spawn(async move {
            match ours {
                true => node.configure_network(held, shared, &task_env, &until).await,
                false => node.serve_dns_on_node(shared, &task_env, &until).await,
            }
        });
        start_proxy(&proxy, env, shutdown, informers);
    }

    fn proxy_config(&self) -> proxy::ProxyConfig {
        proxy_config(&self.flags, &self.instance, &self.name, &self.pod_cidrs)
    }

    fn mesh_config(&self) -> proxy::MeshConfig {
        proxy::MeshConfig {
            node_name: self.name.clone(),
            mode: match self.flags.pod_network {
                PodNetwork::Routes => proxy::MeshMode::Routes,
                PodNetwork::Vxlan => proxy::MeshMode::Vxlan {
                    device: self.instance.vxlan(),
                    vni: network_identifier(&self.pod_cidrs),
                    port: VXLAN_PORT,
                    mtu: vxlan_mtu(&self.flags),
                },
            },
            route_protocol: ROUTE_PROTOCOL,
            cluster_cidrs: self.pod_cidrs.clone(),
        }
    }

    /// Waits for this node's pod range, then tells containerd about the network and serves DNS on the bridge.
    async fn configure_network(
        &self,
        held: Vec<Attachment>,
        informers: InformerFactory,
        env: &Env,
        shutdown: &CancellationToken,
    ) {
        let Some(pod_cidrs) = self.pod_range(env, shutdown).await else { return };
        let conflist = cni::conflist(&cni::ConfListParams {
            name: self.instance.id.clone(),
            bridge: self.instance.bridge(),
            pod_cidrs: pod_cidrs.clone(),
            mtu: mtu(&self.flags),
            data_dir: self.instance.cni_data(),
            table: self.instance.cni_table(),
            cluster_cidrs: self.pod_cidrs.iter().chain(&self.service_cidrs).copied().collect(),
        });
        let trying = Perseverance::new(self.kubelet.clone(), &self.name, env, shutdown);
        let advice = "no pod of this node gets a network until this works; a range in use is changed with --pod-cidr";
        let attempt = || Box::pin(self.make_network(&conflist)) as BoxFuture<'_, _>;
        trying.until_done("FailedToMakePodNetwork", advice, attempt).await;
        let (tables, network) = (cni::tables(&self.instance.cni_table()), conflist.clone());
        let restore = move || Ok(cni::restore(&network)?);
        env.spawn(kept_rules::keep(tables, restore, env.clone(), shutdown.clone()));
        self.free_lost_attachments(held, conflist, env, shutdown);
        let gateways = pod_cidrs.iter().map(cni::gateway);
        let listen = gateways.map(|ip| SocketAddr::new(ip, dns_service::PORT)).collect();
        self.serve_dns(listen, informers, env, shutdown).await;
    }

    fn free_lost_attachments(
        &self,
        held: Vec<Attachment>,
        conflist: serde_json::Value,
        env: &Env,
        shutdown: &CancellationToken,
    ) {
        let (endpoint, env, shutdown) = (self.runtime.endpoint().display().to_string(), env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            let runtime = RemoteRuntime::new(&endpoint, None);
            let freed = shutdown.run_until_cancelled(lost_attachments::free(held, conflist, &runtime, &env)).await;
            if let Some(Err(error)) = freed {
                tracing::warn!(error = format!("{error:#}"), "addresses of lost pods stay until the next start");
            }
        });
    }

    /// The bridge and its rules first: with the configuration there, containerd calls the node's network ready.
    async fn make_network(&self, conflist: &serde_json::Value) -> Result<()> {
        let network = conflist.clone();
        let made = tokio::task::spawn_blocking(move || cni::prepare(&network)).await?;
        made.context("failed to make the pod network")?;
        std::fs::create_dir_all(self.instance.cni_conf())?;
        let file = network_file(&self.instance);
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec_pretty(conflist)?)?;
        std::fs::rename(&temporary, &file).with_context(|| format!("failed to write {}", file.display()))
    }

    /// Where the pods' network is somebody else's there is no bridge of ours to answer on: the node's address does.
    async fn serve_dns_on_node(&self, informers: InformerFactory, env: &Env, shutdown: &CancellationToken) {
        let own = self.address().to_string();
        let registered =
            |node: &NodeObject| node.status.iter().flat_map(|s| s.addresses.iter().flatten()).any(|a| a.address == own);
        if self.watch_node(env, shutdown, registered).await {
            let listen = vec![SocketAddr::new(self.address(), dns_service::PORT_ON_NODE)];
            self.serve_dns(listen, informers, env, shutdown).await;
        }
    }

    async fn serve_dns(
        &self,
        listen: Vec<SocketAddr>,
        informers: InformerFactory,
        env: &Env,
        shutdown: &CancellationToken,
    ) {
        let params = dns_service::Params {
            node_name: self.name.clone(),
            listen,
            addresses: server::dns_addresses(&self.service_cidrs).unwrap_or_default(),
            domain: server::cluster_domain(),
            client: self.kubelet.clone(),
            informers,
            metrics_port: self.flags.dns_metrics_port,
            env: env.clone(),
            shutdown: shutdown.clone(),
        };
        match self.dns {
            Choice::Minke => dns_service::run(params).await,
            Choice::None => dns_service::leave_to_others(params).await,
        }
    }

    /// Nothing when the process is stopping.
    async fn pod_range(&self, env: &Env, shutdown: &CancellationToken) -> Option<Vec<IpNet>> {
        let mut found = Vec::new();
        self.watch_node(env, shutdown, |node| {
            let spec = node.spec.clone().unwrap_or_default();
            found = spec.pod_cidrs.unwrap_or_default().iter().filter_map(|c| c.parse().ok()).collect();
            !found.is_empty()
        })
        .await
        .then_some(found)
    }

    async fn ready(&self, env: &Env, shutdown: &CancellationToken) -> bool {
        self.watch_node(env, shutdown, |node| {
            let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
        })
        .await
    }

    /// Returns `true` once `wanted` holds of our Node object; `false` when the process is stopping.
    async fn watch_node(
        &self,
        env: &Env,
        shutdown: &CancellationToken,
        mut wanted: impl FnMut(&NodeObject) -> bool,
    ) -> bool {
        let stop = shutdown.child_token();
        let _guard = stop.clone().drop_guard();
        let informers = InformerFactory::new(self.kubelet.clone(), env.clone(), stop.clone());
        let name = ListParams::fields(format!("metadata.name={}", self.name));
        let mut nodes = informers.informer_with::<NodeObject>(name).subscribe();
        loop {
            tokio::select! {
                change = nodes.next() => match change {
                    Some(change) if change.new.as_ref().is_some_and(|node| wanted(node)) => return true,
                    Some(_) => {}
                    None => return false,
                },
                () = shutdown.cancelled() => return false,
            }
        }
    }
}

/// How an agent reaches the API server, and what it shows to those who reach it.
pub struct Access {
    pub client: Client,
    client_ca: String,
    serving: Option<Arc<dyn ResolvesServerCert>>,
    joined: Option<(Arc<Member>, Arc<Serving>)>,
    identity: Identity,
}

impl Access {
    /// With a kubeconfig, or by joining with a token.
    pub async fn open(flags: &flags::Agent, instance: &Instance, env: &Env) -> Result<Self> {
        if let Some(kubeconfig) = &flags.kubeconfig {
            return Self::of(from_kubeconfig(kubeconfig, "minke-agent")?);
        }
        let member = join::join(flags, instance, &node_name(&flags.node)?, env).await?;
        let serving = Arc::new(Serving::default());
        Ok(Self {
            client: member.client.clone(),
            identity: member.identity.clone(),
            client_ca: member.ca_pem.clone(),
            serving: Some(serving.clone()),
            joined: Some((member, serving)),
        })
    }

    fn of(connection: HttpsConfig) -> Result<Self> {
        let serving = connection.identity.certificate.clone().map(|c| Arc::new(Current(c)) as _);
        let client_ca = connection.ca.iter().map(|der| ca_pin::pem(der)).collect();
        let identity = connection.identity.clone();
        Ok(Self { client: Client::new(HttpsTransport::new(connection)?), client_ca, serving, joined: None, identity })
    }
}

/// The same on every node of a cluster, and another for every other cluster on the machine.
fn network_identifier(pod_cidrs: &[IpNet]) -> u32 {
    let text: Vec<String> = pod_cidrs.iter().map(|c| c.to_string()).collect();
    let hash = Sha256::digest(text.join(","));
    u32::from_be_bytes([0, hash[0], hash[1], hash[2]]).max(1)
}

pub fn proxy_config(
    flags: &flags::Node,
    instance: &Instance,
    node_name: &str,
    pod_cidrs: &[IpNet],
) -> proxy::ProxyConfig {
    // A node may be known by another address than the machine's own; ports are open on both.
    let mut node_addresses = flags.node_ip.clone();
    let own = [host::address(false), host::address(true)].into_iter().flatten();
    node_addresses.extend(own.filter(|own| !flags.node_ip.contains(own) && !own.is_loopback()));
    let mut config = proxy::ProxyConfig::new(proxy::NodeConfig {
        node_name: node_name.to_string(),
        node_addresses,
        localhost_node_ports: true,
        pod_cidrs: pod_cidrs.to_vec(),
    });
    config.table = instance.proxy_table();
    let at = |address: Ipv4Addr, port: u16| (port != 0).then_some(SocketAddr::new(address.into(), port));
    config.healthz = at(Ipv4Addr::UNSPECIFIED, flags.proxy_healthz_port);
    config.metrics = at(Ipv4Addr::LOCALHOST, flags.proxy_metrics_port);
    config
}

/// Lets a kubelet in another process ask what the rules hold.
pub fn answer_kubelet(config: &proxy::ProxyConfig, instance: &Instance, env: &Env, shutdown: &CancellationToken) {
    let (socket, confirmed) = (instance.proxy_socket(), config.confirmed.clone());
    let (task_env, until) = (env.clone(), shutdown.clone());
    env.spawn(async move {
        let served = until.run_until_cancelled(proxy::serve_confirmed(&socket, confirmed, task_env)).await;
        if let Some(Err(error)) = served {
            tracing::error!(%error, socket = %socket.display(), "kubelets can't ask about endpoints");
        }
    });
}

pub fn start_proxy(config: &proxy::ProxyConfig, env: &Env, shutdown: &CancellationToken, informers: &InformerFactory) {
    let (config, informers, env, shutdown) = (config.clone(), informers.clone(), env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        if let Err(error) = proxy::run(config, informers, env, shutdown).await {
            tracing::error!(%error, "the service proxy stopped");
        }
    });
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
