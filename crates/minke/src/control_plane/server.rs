//! The control plane in this process: store, API server, controllers, scheduler.
//! Started by `up`, `minke server` and the single-component commands.
//! Controllers and scheduler reach the API server only through `client`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use api::cluster_ranges::ClusterRanges;
use apiserver::{
    ApiServer,
    component_health::{CONTROLLER_MANAGER, SCHEDULER},
    config,
};
use client::{Client, InformerFactory, LeaderElection, lead};
use controllers::{ClusterDns, LoadBalancer, LocalStorage};
use env::Env;
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{
        authorities::Authority,
        kubeconfigs, kubelet_serving_ca,
        pki::{Leaf, Pki, write_private},
    },
    cluster::{host, instance::Instance, leader_identity::LeaderIdentity, members::etcd, ports, preflight},
    commands::report::Reporter,
    components::Components,
    control_plane::{
        cluster_settings::{self, ClusterSettings},
        console_answers, join_token,
    },
    flags::{self, Choice, LoadBalancerMode, component_flags::LeaderElectionTimes, scheduler_flags},
};

/// Of the admin's kubeconfig, and of nothing that runs by itself.
pub const MASTERS: &str = "system:masters";
const DOMAIN: &str = "cluster.local";

/// A running API server and what others need to join it.
pub struct ControlPlane {
    pub api: Arc<ApiServer>,
    /// None where all that it would sign is given.
    pub pki: Option<Arc<Pki>>,
    pub address: SocketAddr,
}

impl ControlPlane {
    /// Of a cluster of ours, which has one.
    pub fn own_pki(&self) -> Result<&Arc<Pki>> {
        self.pki.as_ref().context("this API server was given its certificates and has no authority of its own")
    }
}

/// Opens the store and serves the API. Returns once it answers. `admits_agents`: see `apiserver::Config`.
pub async fn start_api(
    flags: &flags::Server,
    admits_agents: bool,
    instance: &Instance,
    env: &Env,
    shutdown: &CancellationToken,
    report: &Reporter,
    components: &Components,
) -> Result<ControlPlane> {
    let port = flags.port.unwrap_or(ports::API_PORT);
    let listener = preflight::listen(SocketAddr::new(flags.bind_address, port), "--port")?;
    let port = listener.local_addr()?.port();
    let advertise = advertise_address(flags)?;
    // An API server alone that is given all it shows has no authority of its own, and makes nobody an admin.
    let given = !admits_agents && flags.is_given_certificates();
    let pki = if given { None } else { Some(Pki::open(&instance.pki(), env.clone())?) };
    let store = flags.store.open(instance, env).await?;
    let own = api_config(flags, pki.as_ref(), (advertise, port), env, shutdown)?;
    let config = config::Config { admits_agents, ..own };
    if flags.store.is_shared() {
        let settings = ClusterSettings::new(&config, flags, admits_agents)?;
        cluster_settings::check(&*store, &settings, &config).await?;
    }
    let api = ApiServer::new(config, store, env.clone()).await.context("the API server did not start")?;
    if flags.console {
        console_answers::show(&api, env);
    }
    let address = SocketAddr::new(advertise, port);
    write_private(&instance.data.join("server-url"), &format!("https://{address}\n"))?;
    if let Some(pki) = &pki {
        kubeconfigs::keep_renewed(instance, pki, &server_url_here(flags.bind_address, port), env, shutdown)?;
    }
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (serving, until) = (api.clone(), shutdown.clone());
    components.run("the API server", async move { serving.serve(listener, until.cancelled_owned()).await });
    report.step(&format!("API server ready on port {port}"));
    Ok(ControlPlane { api, pki, address })
}

/// Where pods and other machines reach the API server: an address that can be an endpoint of the `kubernetes` Service.
pub fn advertise_address(flags: &flags::Server) -> Result<IpAddr> {
    let services = flags.service_cidr.first();
    let address = match flags.advertise_address {
        Some(address) => address,
        None if !flags.bind_address.is_unspecified() => flags.bind_address,
        None => host::address_like(services)?,
    };
    match services.filter(|services| services.addr().is_ipv4() != address.is_ipv4()) {
        Some(services) => bail!(
            "pods can't reach an API server at {address} by the first address of --service-cidr {services}, which is of \
             the other family: choose another with --advertise-address"
        ),
        None => Ok(address),
    }
}

/// Names and addresses that the API server's certificate is for, and no other.
fn serving_names(flags: &flags::Server, advertise: IpAddr) -> Result<(Vec<String>, Vec<IpAddr>)> {
    let service_ip = first_address(&flags.service_cidr)?;
    let mut addresses = vec![service_ip, advertise, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let more = [Some(flags.bind_address), host::address(false).ok(), host::address(true).ok()].into_iter().flatten();
    for address in more.filter(|a| !a.is_unspecified()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    Ok((names.map(str::to_string).to_vec(), addresses))
}

fn api_config(
    flags: &flags::Server,
    pki: Option<&Arc<Pki>>,
    (advertise, port): (IpAddr, u16),
    env: &Env,
    shutdown: &CancellationToken,
) -> Result<config::Config> {
    let mut config = config::Config::in_process(String::new());
    config.advertise_address = advertise;
    config.port = port;
    config.hostname = host::name()?;
    config.service_cidrs = flags.service_cidr.clone();
    config.node_ports = port_range(&flags.service_node_port_range)?;
    if let Some(pki) = pki {
        of_own_authority(&mut config, flags, pki, advertise)?;
    }
    flags.security.apply(&mut config)?;
    flags.serving.apply(&mut config, env, shutdown)?;
    flags.store.apply(&mut config)?;
    if flags.controllers.vertical_pod_autoscaler {
        config.enable_admission_plugins.push("VerticalPodAutoscaler".into());
    }
    Ok(config)
}

/// What the cluster's own authorities sign for the server.
fn of_own_authority(
    config: &mut config::Config,
    flags: &flags::Server,
    pki: &Arc<Pki>,
    advertise: IpAddr,
) -> Result<()> {
    let (dns_names, addresses) = serving_names(flags, advertise)?;
    let serving = pki.rotating(Leaf {
        name: "apiserver".into(),
        common_name: "kube-apiserver".into(),
        dns_names,
        addresses,
        server: true,
        ..Leaf::default()
    })?;
    // Bound to `system:kubelet-api-admin` by the bootstrap policy.
    let leaf = Leaf::client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", None);
    config.service_accounts.signing_key_pem = pki.service_account_key()?;
    config.serving_certificate = Some(Arc::new(serving));
    config.client_ca_pem = pki.ca_pem().as_bytes().to_vec();
    config.kubelet_client = Some(config::KubeletClient {
        certificate: client_certificate(pki, leaf)?,
        ca_pem: pki.authority_pem(Authority::KubeletServing)?.into_bytes(),
        // Nodes that joined when it signed for all keep their certificates until they are renewed.
        former_ca_pem: pki.ca_pem().as_bytes().to_vec(),
    });
    let front_proxy = Leaf::client("front-proxy-client", "front-proxy-client", None);
    config.proxy_client = Some(config::ProxyClient {
        certificate: client_certificate(pki, Leaf { authority: Authority::FrontProxy, ..front_proxy })?,
        ca_pem: pki.authority_pem(Authority::FrontProxy)?.into_bytes(),
    });
    Ok(())
}

/// One that renews itself.
fn client_certificate(pki: &Arc<Pki>, leaf: Leaf) -> Result<config::ClientCertificate> {
    let pem = pki.leaf(&leaf)?;
    let certificate = config::ClientCertificate::new(pem.certificate.into_bytes(), pem.key.into_bytes());
    let renewed = certificate.clone();
    pki.on_renewal(leaf, move |pem| renewed.renew(pem.certificate.into_bytes(), pem.key.into_bytes()));
    Ok(certificate)
}

fn port_range(text: &str) -> Result<std::ops::RangeInclusive<u16>> {
    let parse = || -> Option<(u16, u16)> {
        let (from, to) = text.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    match parse() {
        Some((from, to)) if from <= to => Ok(from..=to),
        _ => bail!("--service-node-port-range {text} is not a range: write it as 30000-32767"),
    }
}

/// The address of the `kubernetes` Service: the first of the range.
pub fn first_address(service_cidrs: &[IpNet]) -> Result<IpAddr> {
    nth_address(service_cidrs.first().context("--service-cidr is empty")?, 1)
}

/// The cluster DNS addresses: the tenth of each range, as everywhere.
pub fn dns_addresses(service_cidrs: &[IpNet]) -> Result<Vec<IpAddr>> {
    service_cidrs.iter().map(|cidr| nth_address(cidr, 10)).collect()
}

fn nth_address(cidr: &IpNet, n: usize) -> Result<IpAddr> {
    let address = match cidr {
        IpNet::V4(net) => IpAddr::from((u32::from(net.network()) + n as u32).to_be_bytes()),
        IpNet::V6(net) => IpAddr::from((u128::from(net.network()) + n as u128).to_be_bytes()),
    };
    if !cidr.contains(&address) {
        bail!("--service-cidr {cidr} is too small: give it at least 16 addresses");
    }
    Ok(address)
}

/// Where programs on this machine reach the API server.
pub fn server_url_here(bind: IpAddr, port: u16) -> String {
    let local = if bind.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { bind };
    format!("https://{}", SocketAddr::new(local, port))
}

/// Starts the controllers and the scheduler as clients of the API server in this process, and lets nodes join.
pub async fn start_controllers(
    plane: &ControlPlane,
    flags: &flags::Server,
    elected: &LeaderElectionTimes,
    instance: &Instance,
    (env, shutdown): (&Env, &CancellationToken),
    components: &Components,
) -> Result<()> {
    let controllers = in_process::client(&plane.api, "system:kube-controller-manager", &[]);
    let pki = plane.own_pki()?;
    let mut config = controllers_config(pki, &flags.pod_cidr, &flags.service_cidr)?;
    config.feature_gates = flags.security.features.feature_gates.clone();
    flags.controllers.apply(&mut config);
    if flags.controllers.gateway_api {
        let (client, env) = (in_process::client(&plane.api, "minke:gateway-api", &[MASTERS]), env.clone());
        env.clone().spawn(async move { ingress::gateway::install(&client, &env).await });
    }
    own_cluster(&mut config, plane, flags)?;
    plane.api.show_metrics(config.metrics.clone());
    // Others may share an etcd; the embedded store has one server only.
    let identity = match flags.store.is_shared() {
        true => Some(LeaderIdentity::take(instance, "server", env)?),
        false => None,
    };
    let name = identity.as_ref().map(|identity| identity.name.clone());
    let mut election = name.clone().map(|name| LeaderElection::new("kube-controller-manager", name));
    election.as_mut().map_or(Ok(()), |election| elected.apply(election))?;
    let health = plane.api.config.component_health.clone();
    let caches = config.caches.clone();
    run_controllers(config, controllers, env, shutdown, election, components);
    let mut scheduling = flags.scheduler_settings()?;
    if name.is_some() {
        let election = scheduling.leader_election.get_or_insert_default();
        election.identity = name.clone();
        scheduler_flags::elect(election, |found| elected.apply(found))?;
    }
    plane.api.show_metrics(scheduling.metrics.clone());
    let verdicts = scheduling.diagnoses.clone();
    plane.api.debug.add("scheduling", Arc::new(move |pod| verdicts.get(pod).map(|verdict| verdict.report())));
    let client = in_process::client(&plane.api, "system:kube-scheduler", &[]);
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    // Where several may lead, Leases tell who does. One that ends takes this process with it.
    if name.is_none() {
        let waits = || "the caches are not filled yet".to_string();
        health.set(CONTROLLER_MANAGER, move || caches.are_filled().unwrap_or(false).then_some(()).ok_or_else(waits));
        let known = informers.clone();
        health.set(SCHEDULER, move || known.is_synced().then_some(()).ok_or_else(waits));
    }
    run_scheduler(scheduling, client, informers, env, shutdown, components);
    if let Some(identity) = identity {
        // Held for as long as they may lead.
        let until = shutdown.clone();
        env.spawn(async move {
            until.cancelled().await;
            drop(identity);
        });
    }
    let issuer = in_process::service_account_client(&plane.api, join_token::ISSUER);
    join_token::ensure_token(&issuer, instance, env).await.context("failed to prepare for joining nodes")?;
    let authority = pki.authority_pem(Authority::KubeletServing)?;
    let published = kubelet_serving_ca::wait_until_published(&issuer, &authority, env);
    published.await.context("failed to publish the kubelets' authority")
}

/// What the controllers are told about this cluster beyond what a controller manager elsewhere could know.
fn own_cluster(config: &mut controllers::Config, plane: &ControlPlane, flags: &flags::Server) -> Result<()> {
    let ranges = ClusterRanges { pods: flags.pod_cidr.clone(), services: flags.service_cidr.clone() };
    let (server_names, server_addresses) = serving_names(flags, plane.address.ip())?;
    config.kubelet_serving_names_reserved = Some(controllers::ReservedNames {
        server_names,
        server_addresses,
        cluster: ranges.clone(),
        domain: cluster_domain(),
        boot_id: host::boot_id(),
    });
    config.cluster_dns = match flags.dns {
        Choice::Minke => ClusterDns::Nodes { addresses: dns_addresses(&flags.service_cidr)?, ranges },
        Choice::None => ClusterDns::Other,
    };
    config.load_balancer = match flags.load_balancer {
        LoadBalancerMode::Nodes => LoadBalancer::Nodes,
        LoadBalancerMode::Layer2 => LoadBalancer::Layer2(flags.load_balancer_pool.clone()),
        LoadBalancerMode::None => LoadBalancer::None,
    };
    config.node_ports_reserved = vec![(22, "SSH"), (etcd::CLIENT_PORT, "etcd"), (etcd::PEER_PORT, "etcd")];
    config.node_ports_reserved.extend(flags.ingress_ports.iter().map(|port| (*port, "the ingress")));
    if flags.registry.registry {
        config.node_ports_reserved.push((flags.registry.registry_port, "the registry"));
    }
    config.local_storage = match flags.local_storage {
        Choice::Minke => LocalStorage::Nodes,
        Choice::None => LocalStorage::None,
    };
    let api = plane.api.clone();
    if let Some(key) = flags.security.authentication.signing_key()? {
        config.service_account_key_pem = Some(key);
    }
    config.service_account_clients = Some(Arc::new(move |account| in_process::service_account_client(&api, account)));
    Ok(())
}

pub fn controllers_config(pki: &Pki, pod_cidrs: &[IpNet], service_cidrs: &[IpNet]) -> Result<controllers::Config> {
    let kubelets = pki.certifier(Authority::KubeletServing)?;
    Ok(controllers::Config {
        cluster_cidrs: pod_cidrs.to_vec(),
        service_cidrs: service_cidrs.to_vec(),
        certificate_authority: Some(controllers::CertificateAuthority {
            certificate_pem: pki.ca_pem().to_string(),
            key_pem: pki.ca_key_pem().to_string(),
        }),
        kubelet_serving_authority: Some(controllers::CertificateAuthority {
            certificate_pem: kubelets.certificate_pem,
            key_pem: kubelets.key_pem,
        }),
        root_ca_pem: Some(pki.ca_pem().to_string()),
        service_account_key_pem: Some(pki.service_account_key()?),
        ..controllers::Config::default()
    })
}

/// With an election, runs them only while this process leads.
pub fn run_controllers(
    config: controllers::Config,
    client: Client,
    env: &Env,
    shutdown: &CancellationToken,
    election: Option<LeaderElection>,
    components: &Components,
) {
    let (env, shutdown) = (env.clone(), shutdown.clone());
    components.run_to_end("the controller manager", async move {
        let start = |term: CancellationToken| {
            let informers = InformerFactory::new(client.clone(), env.clone(), term.clone());
            controllers::run(config.clone(), client.clone(), informers, env.clone(), term)
        };
        match election {
            None => start(shutdown).await,
            Some(election) => lead(&election, &client, &env, &shutdown, start).await,
        }
        Ok::<_, std::convert::Infallible>(())
    });
}

pub fn run_scheduler(
    config: scheduler::Config,
    client: Client,
    informers: InformerFactory,
    env: &Env,
    shutdown: &CancellationToken,
    components: &Components,
) {
    components.run_to_end("the scheduler", scheduler::run(config, client, informers, env.clone(), shutdown.clone()));
}

pub fn cluster_domain() -> String {
    DOMAIN.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_addresses_and_port_ranges() {
        let cidr: Vec<IpNet> = vec!["10.96.0.0/12".parse().unwrap()];
        assert_eq!(first_address(&cidr).unwrap().to_string(), "10.96.0.1");
        let both: Vec<IpNet> = vec![cidr[0], "fd02::/112".parse().unwrap()];
        let dns: Vec<String> = dns_addresses(&both).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(dns, ["10.96.0.10", "fd02::a"]);
        let tiny: Vec<IpNet> = vec!["10.96.0.0/30".parse().unwrap()];
        assert!(dns_addresses(&tiny).unwrap_err().to_string().contains("too small"));
        assert_eq!(port_range("30000-32767").unwrap(), 30000..=32767);
        assert!(port_range("32767").unwrap_err().to_string().contains("write it as"));
    }
}
