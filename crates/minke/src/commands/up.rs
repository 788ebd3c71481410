//! `minke up`: starts the cluster, in this process or in one that stays behind, and waits until it is ready.
//! Uses `server` and `agent`; stopped by `down`.
//! A second `up` on a running cluster changes nothing; a failed one leaves nothing half-started.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use ::ingress::IngressConfig;
use anyhow::{Context, Result, bail};
use client::Client;
use env::Env;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{
        clusters, file_modes,
        instance::Instance,
        members::{self, nodes, switch::Switch},
        ports::{self, IngressListeners},
        preflight,
        process::{self, PidFile},
        ranges, sysctls,
    },
    commands::{
        demo, images,
        report::{Display, Line, Reporter, SUPERVISED},
        several_servers,
    },
    components::Components,
    control_plane::{registry, server},
    flags::{self, Choice, kubelet_flags},
    network::ingress,
    node::{agent, container_runtime::Runtime},
};

pub fn up(mut flags: flags::Up) -> Result<()> {
    flags.node.kubelet.feature_gates = flags.server.security.features.feature_gates.clone();
    let instance = flags.server.data.instance();
    if flags.foreground {
        return crate::runtime()?.block_on(foreground(flags, &instance));
    }
    preflight::root()?;
    if let Some(pid) = process::running(&instance)? {
        println!("minke is already running (process {pid})");
        println!("\nexport KUBECONFIG={}", instance.admin_kubeconfig().display());
        return Ok(());
    }
    preflight::data_directory(&instance.data)?;
    kubelet_flags::check(&flags.node)?;
    several_servers::check(&flags, &instance)?;
    flags.server.scheduler_settings()?;
    let display = Display::new("starting");
    match wait_for_child(&instance, &display) {
        Ok(()) => {
            display.finish();
            summary(&instance)
        }
        Err(error) => {
            display.finish();
            // Whatever had started is taken down again: the user gets an error, not half a cluster.
            crate::commands::down::down(&flags::Down { data: flags.server.data, purge: false })?;
            Err(error)
        }
    }
}

/// Starts ourselves again in the background with the same arguments and follows what it tells.
fn wait_for_child(instance: &Instance, display: &Display) -> Result<()> {
    let log = file_modes::open_log(&instance.log_file())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--foreground").env(SUPERVISED, "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
    let mut child = command.spawn().context("failed to start the background process")?;
    let stdout = child.stdout.take().context("the background process has no output")?;
    for line in BufReader::new(stdout).lines() {
        match Line::parse(&line?) {
            Some(Line::Step { milliseconds, text }) => display.step(milliseconds, &text),
            Some(Line::Failed(text)) => {
                // It is on its way out; nothing of it is left when we say so.
                child.wait()?;
                bail!("{text}")
            }
            Some(Line::Ready) => return Ok(()),
            None => {}
        }
    }
    let status = child.wait()?;
    bail!("minke stopped while starting ({status}): see {}", instance.log_file().display())
}

fn summary(instance: &Instance) -> Result<()> {
    let pid = process::running(instance)?.context("the cluster is gone again")?;
    println!("\nminke runs as process {pid}; its log is {}", instance.log_file().display());
    println!("stop it with: minke down{}", data_flag(instance));
    println!("\nexport KUBECONFIG={}", instance.admin_kubeconfig().display());
    Ok(())
}

fn data_flag(instance: &Instance) -> String {
    let usual = std::path::Path::new(crate::cluster::instance::DEFAULT_DATA_DIRECTORY);
    if instance.data == usual { String::new() } else { format!(" --data-dir {}", instance.data.display()) }
}

async fn foreground(flags: flags::Up, instance: &Instance) -> Result<()> {
    let env = Env::real();
    let report = Reporter::new(env.clone());
    let shutdown = CancellationToken::new();
    let components = Components::new(&env, &shutdown);
    let running = run(flags, instance, &env, &shutdown, &report, &components);
    let result = components.unless_failed(running).await;
    if let Err(error) = &result {
        report.failed(&format!("{error:#}"));
    }
    shutdown.cancel();
    result
}

async fn run(
    mut flags: flags::Up,
    instance: &Instance,
    env: &Env,
    shutdown: &CancellationToken,
    report: &Reporter,
    components: &Components,
) -> Result<()> {
    preflight::root()?;
    preflight::data_directory(&instance.data)?;
    several_servers::check(&flags, instance)?;
    preflight::manifests(flags.node.pod_manifest_path.as_deref())?;
    flags.server.scheduler_settings()?;
    if flags.node.container_runtime_endpoint.is_none() {
        preflight::node_tools()?;
    }
    let _pid = PidFile::take(instance)?;
    let local = ranges::local(&flags.node, instance)?;
    let (name_servers, others) = (ranges::name_servers(), clusters::others(instance));
    ranges::settle(&mut flags.server, instance, &local, &name_servers, &others)?;
    ports::settle_api(&mut flags.server, instance)?;
    ports::settle_node(&mut flags.node, flags.server.dns, instance)?;
    let ingress = match flags.ingress.ingress {
        Choice::Minke => Some(ports::take_ingress(&flags.ingress.ports, instance)?),
        Choice::None => None,
    };
    flags.server.ingress_ports = ingress.as_ref().map(IngressListeners::ports).unwrap_or_default();
    file_modes::make_run_directory(instance)?;
    sysctls::record(instance)?;
    clusters::record(instance, &flags.server.pod_cidr, &flags.server.service_cidr)?;
    let switch = match (flags.nodes, flags.servers) {
        (1, 1) => None,
        _ => {
            let switch = Switch::create(instance, &flags)?;
            env.spawn(switch.keep_rules(env, shutdown));
            // This machine too is known to the others by its address on the switch.
            if flags.node.node_ip.is_empty() {
                flags.node.node_ip = switch.addresses(1);
            }
            let host = switch.host_like(flags.server.service_cidr.first());
            flags.server.advertise_address = flags.server.advertise_address.or(host);
            Some(switch)
        }
    };
    let advertised = server::advertise_address(&flags.server)?;
    flags.node.node_ip = agent::node_addresses(&flags.node, Some(advertised), &flags.server.pod_cidr)?;
    let context = (env, shutdown);
    match switch {
        Some(switch) if flags.servers > 1 => {
            several_servers::run(flags, instance, switch, ingress, context, report, components).await
        }
        switch => one_server(flags, instance, switch, ingress, context, report, components).await,
    }
}

/// With the control plane in this process.
async fn one_server(
    flags: flags::Up,
    instance: &Instance,
    switch: Option<Switch>,
    ingress: Option<IngressListeners>,
    (env, shutdown): (&Env, &CancellationToken),
    report: &Reporter,
    components: &Components,
) -> Result<()> {
    let runtime = Runtime::start(&flags.node, instance, env);
    let api = server::start_api(&flags.server, true, instance, env, shutdown, report, components);
    let (plane, runtime) = tokio::try_join!(api, runtime)?;
    let election = &flags.election;
    server::start_controllers(&plane, &flags.server, election, instance, (env, shutdown), components).await?;
    registry::start(&flags.server.registry, &plane, instance, (env, shutdown), report, components).await?;
    let mut endpoints = vec![runtime.endpoint().to_path_buf()];
    let node = agent::Node::local(&flags.node, &flags.server, &plane, runtime, instance)?;
    let url = format!("https://{}", plane.address);
    let others = start_nodes(&flags, instance, &url, switch.as_ref(), report);
    let ingress = async {
        let Some(taken) = ingress else { return Ok(()) };
        let client = in_process::client(&plane.api, ingress::USER, &[]);
        let mut config = IngressConfig::new(flags.node.node_ip.clone());
        config.own_gateway_addresses = flags.server.load_balancer == flags::LoadBalancerMode::Layer2;
        plane.api.show_metrics(config.metrics.clone());
        let (context, settings) = ((env, shutdown), &flags.ingress.ports);
        ingress::start(taken, settings, config, client, context, report, components).await
    };
    let ((), others, ()) = tokio::try_join!(node.start(env, shutdown, report, components), others, ingress)?;
    endpoints.extend(others);
    let admin = in_process::client(&plane.api, "kubernetes-admin", &[server::MASTERS]);
    until_stopped(&flags, instance, &admin, &endpoints, (env, shutdown), report).await
}

/// Starts the demo if it is wanted, then keeps the members of the cluster running until this process is told to stop.
pub(super) async fn until_stopped(
    flags: &flags::Up,
    instance: &Instance,
    admin: &Client,
    runtimes: &[PathBuf],
    (env, shutdown): (&Env, &CancellationToken),
    report: &Reporter,
) -> Result<()> {
    if flags.demo {
        for endpoint in runtimes {
            images::import_own(endpoint, images::DEMO, images::demo_archive()?).await?;
        }
        demo::run(admin, env, shutdown, report).await?;
    }
    let stopping = shutdown.child_token();
    members::keep_running(instance, env, &stopping);
    report.ready();
    process::until_stopped().await?;
    tracing::info!("stopping; containers go on");
    stopping.cancel();
    members::stop_all(instance).await
}

/// The nodes after the first, at once. Returns the sockets of their runtimes.
pub(super) async fn start_nodes(
    flags: &flags::Up,
    instance: &Instance,
    urls: &str,
    switch: Option<&Switch>,
    report: &Reporter,
) -> Result<Vec<PathBuf>> {
    let Some(switch) = switch else { return Ok(Vec::new()) };
    let first = agent::node_name(&flags.node)?;
    let started = nodes::names(&first, flags.nodes).map(async |(n, name)| {
        let node = nodes::add(switch, instance, urls, flags, (n, &name))?;
        node.start().await?;
        report.step(&format!("node {name} ready"));
        anyhow::Ok(node.instance.containerd_socket())
    });
    futures::future::try_join_all(started).await
}
