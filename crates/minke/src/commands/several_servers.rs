//! `minke up --servers`: etcd, API servers and further nodes as members in network namespaces of their own; this process
//! keeps them running, is the first node, and has the port by which this machine reaches the servers.
//! Called by `up`, which prepared the machine.
//! No API server is in this process: whichever of the members ends, the others go on.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use ::ingress::IngressConfig;
use anyhow::{Context, Result, bail};
use client::{Client, HttpsTransport, from_kubeconfig};
use env::Env;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{
        authorities::Authority,
        kubeconfigs,
        pki::{Pki, write_private},
    },
    cluster::{
        instance::Instance,
        members::{self, Kind, Member, etcd, servers, switch::Switch},
        ports::{self, IngressListeners},
        preflight,
    },
    commands::{report::Reporter, up},
    components::Components,
    control_plane::{join_token, server, server_balancer},
    flags,
    network::ingress,
    node::{access::Access, agent, container_runtime::Runtime},
};

/// What this cannot be: refused before anything is made.
pub fn check(flags: &flags::Up, instance: &Instance) -> Result<()> {
    let has_servers = !members::of_kind(instance, Kind::Server).is_empty();
    if flags.servers == 1 {
        if has_servers {
            bail!(
                "the cluster in {} has several servers: start it with --servers, or choose another --data-dir",
                instance.data.display()
            );
        }
        return Ok(());
    }
    if flags.server.registry.registry {
        bail!("--registry keeps images in one server's directory: leave it out with --servers");
    }
    if instance.store().exists() && !has_servers && !flags.server.store.is_shared() {
        bail!(
            "{} has an embedded store, which several servers can't share: choose another --data-dir, or move its objects \
             into an etcd of yours (`minke store migrate --to etcd`) and name that with --etcd-servers",
            instance.data.display()
        );
    }
    flags.server.store.check_reachable_from_elsewhere()
}

/// Returns when the process is told to stop.
pub async fn run(
    flags: flags::Up,
    instance: &Instance,
    switch: Switch,
    ingress: Option<IngressListeners>,
    (env, shutdown): (&Env, &CancellationToken),
    report: &Reporter,
    components: &Components,
) -> Result<()> {
    let port = flags.server.port.unwrap_or(ports::API_PORT);
    let listener = preflight::listen(SocketAddr::new(flags.server.bind_address, port), "--port")?;
    let pki = Pki::open(&instance.pki(), env.clone())?;
    pki.service_account_key()?;
    let etcd = start_etcd(&flags, instance, &switch, &pki, report).await?;
    let added = servers::add(&switch, instance, &flags, port, etcd.as_ref())?;
    let addresses: Vec<SocketAddr> = added.iter().map(|(_, address)| *address).collect();
    let urls: Vec<String> = addresses.iter().map(|address| format!("https://{address}")).collect();
    let urls = urls.join(",");
    write_private(&instance.data.join("server-url"), &format!("{urls}\n"))?;
    let here = server::server_url_here(flags.server.bind_address, port);
    kubeconfigs::keep_renewed(instance, &pki, &here, env, shutdown)?;
    // For whoever knows this machine only, and for the files that were just written.
    components
        .run("the way to the API servers", server_balancer::run(listener, addresses, env.clone(), shutdown.clone()));
    start_servers(added.into_iter().map(|(member, _)| member).collect(), report).await?;
    join_token::refresh(instance, env).await.context("failed to prepare for joining nodes")?;
    // What a server of before made would be in the way of what the kubelets' authority is now.
    pki.certifier(Authority::KubeletServing)?;

    let runtime = Runtime::start(&flags.node, instance, env).await?;
    let mut endpoints = vec![runtime.endpoint().to_path_buf()];
    let agent = first_node(&flags, instance, &urls);
    let access = Access::open(&agent, instance, env, shutdown).await?;
    let node = agent::Node::remote(&agent, access, runtime, instance)?;
    let others = up::start_nodes(&flags, instance, &urls, Some(&switch), report);
    let client = |kubeconfig: PathBuf, name: &str| -> Result<Client> {
        Ok(Client::new(HttpsTransport::new(from_kubeconfig(&kubeconfig, name)?)?))
    };
    let ingress = async {
        let Some(taken) = ingress else { return Ok(()) };
        let client = client(instance.data.join("kubeconfig/ingress"), "minke-ingress")?;
        let mut config = IngressConfig::new(flags.node.node_ip.clone());
        config.own_gateway_addresses = flags.server.load_balancer == flags::LoadBalancerMode::Layer2;
        let settings = &flags.ingress.ports;
        ingress::start(taken, settings, config, client, (env, shutdown), report, components).await
    };
    let ((), others, ()) = tokio::try_join!(node.start(env, shutdown, report, components), others, ingress)?;
    endpoints.extend(others);
    let admin = client(instance.admin_kubeconfig(), "minke-demo")?;
    up::until_stopped(&flags, instance, &admin, &endpoints, (env, shutdown), report).await
}

/// None where an etcd is given.
async fn start_etcd(
    flags: &flags::Up,
    instance: &Instance,
    switch: &Switch,
    pki: &Arc<Pki>,
    report: &Reporter,
) -> Result<Option<etcd::Access>> {
    if flags.server.store.is_shared() {
        return Ok(None);
    }
    let range = flags.server.service_cidr.first();
    let (members, access) = etcd::add(switch, instance, pki, range, etcd::count(instance, flags.servers))?;
    // None is ready before a majority is.
    futures::future::try_join_all(members.iter().map(Member::start)).await?;
    report.step(&format!("{} etcd servers ready", members.len()));
    Ok(Some(access))
}

/// The first makes what every cluster has; then the others at once.
async fn start_servers(servers: Vec<Member>, report: &Reporter) -> Result<()> {
    let start = async |server: &Member| {
        server.start().await?;
        report.step(&format!("{} ready", server.name));
        anyhow::Ok(())
    };
    let Some((first, others)) = servers.split_first() else { return Ok(()) };
    start(first).await?;
    futures::future::try_join_all(others.iter().map(start)).await.map(drop)
}

/// This machine itself: an agent like the others, in this process.
fn first_node(flags: &flags::Up, instance: &Instance, urls: &str) -> flags::Agent {
    flags::Agent {
        data: flags.server.data.clone(),
        features: flags.server.security.features.clone(),
        kubeconfig: None,
        master: None,
        as_pod: false,
        server: Some(urls.to_string()),
        join: flags::Join::with_files(instance.join_token(), instance.pki().join("ca.crt")),
        netns: None,
        node: flags.node.clone(),
        dns: Some(flags.server.dns),
        local_storage: flags.server.local_storage,
        pod_cidr: flags.server.pod_cidr.clone(),
        service_cidr: flags.server.service_cidr.clone(),
    }
}
