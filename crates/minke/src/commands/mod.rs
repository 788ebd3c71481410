//! What each command does, in a few lines each; the work is in the other modules.
//! Called by `main`.
//! Every long-running command ends cleanly on SIGTERM.

pub mod certs;
pub mod completion;
pub mod console;
pub mod demo;
pub mod doctor;
pub mod down;
pub mod image;
pub mod images;
pub mod install;
pub mod logs;
pub mod machine_checks;
pub mod next_step;
pub mod redaction;
pub mod report;
pub mod several_servers;
pub mod status;
pub mod store;
pub mod support_bundle;
pub mod up;
pub mod versions;

use std::{net::SocketAddr, sync::Arc};

use ::ingress::IngressConfig;
use anyhow::Result;
use client::{
    Client, HttpsConfig, HttpsTransport, Identity, InformerFactory, LeaderElection, Reachability,
    ServiceAccountTransport, from_kubeconfig,
};
use controllers::ServiceAccountClients;
use env::Env;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::kubeconfigs::{self, Source},
    cluster::{
        clusters, file_modes, host,
        leader_identity::LeaderIdentity,
        members::{self, Kind, etcd},
        ports, preflight,
        process::{self, PidFile},
        ranges, sysctls,
    },
    commands::report::Reporter,
    components::Components,
    control_plane::{
        component_port::{self, Health, Pages, PortSettings},
        join_server, join_token, registry, server,
    },
    flags::{
        Agent, Choice, Command, ConfigCommand, EtcdCommand, NodeCommand, Scheduler, Server, ServerCommand,
        ServerSubcommand, Store,
        component_flags::{LeaderElectionTimes, PortFlags},
        config_file,
        controller_manager_flags::ControllerManager,
        ingress_flags::IngressAlone,
        kubelet_flags,
        network_flags::Dns,
    },
    network::ingress,
    node::{access::Access, agent, container_runtime::Runtime, network_policy_enforcer, service_proxy},
    runtime,
};

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(flags) => up::up(*flags),
        Command::Down(flags) => down::down(&flags),
        Command::Server(flags) => server_command(*flags),
        Command::Apiserver(flags) => {
            flags.others.check()?;
            runtime()?.block_on(run_server(flags.server, None))
        }
        Command::ControllerManager(flags) => runtime()?.block_on(run_controller_manager(*flags)),
        Command::Scheduler(flags) => runtime()?.block_on(run_scheduler(*flags)),
        Command::Agent(flags) => {
            if let Some(netns) = &flags.netns {
                members::enter(netns, flags.node.node_name.as_deref())?;
            }
            runtime()?.block_on(run_agent(*flags, Parts::All))
        }
        Command::Kubelet(flags) => runtime()?.block_on(run_agent(flags.agent()?, Parts::Kubelet)),
        Command::Proxy(flags) if flags.cleanup == Some(true) => {
            let table = flags.agent.data.instance().proxy_table();
            runtime()?.block_on(service_proxy::remove_rules(&table))
        }
        Command::Proxy(flags) => runtime()?.block_on(run_agent(flags.agent()?, Parts::Proxy)),
        Command::Dns(flags) => runtime()?.block_on(run_dns(flags)),
        Command::Ingress(flags) => runtime()?.block_on(run_ingress(flags)),
        Command::Node(NodeCommand::Member(command)) => members::commands::run(Kind::Node, &command),
        Command::Node(NodeCommand::JoinCommand { data }) => {
            preflight::root()?;
            runtime()?.block_on(join_token::print_command(&data.instance(), &Env::real()))
        }
        Command::Etcd(EtcdCommand::Member(command)) => members::commands::run(Kind::Etcd, &command),
        Command::Etcd(EtcdCommand::Run { data, arguments }) => etcd::run(&data.instance(), &arguments),
        Command::Image(command) => runtime()?.block_on(image::run(command)),
        Command::Store(command) => runtime()?.block_on(run_store(command)),
        Command::Status(look) => runtime()?.block_on(status::run(&look)),
        Command::Doctor(look) => runtime()?.block_on(doctor::run(&look)),
        Command::Logs(flags) => logs::run(&flags),
        Command::SupportBundle(flags) => runtime()?.block_on(support_bundle::run(&flags)),
        // Certificates that renew themselves are tasks.
        Command::Certs(command) => runtime()?.block_on(async { certs::run(command) }),
        Command::Config(command) => run_config(&command),
        Command::Install(flags) => install::install(&flags),
        Command::Uninstall(flags) => install::uninstall(&flags),
        Command::Completion { shell } => completion::print_completion(shell),
        Command::Man(flags) => completion::man(&flags),
        Command::Console(flags) => runtime()?.block_on(console::run(&flags)),
        // `main` takes the usual way; these are `minke --some-flag kubectl …`.
        Command::Kubectl { arguments } => run_kubectl(arguments),
        Command::Why { arguments } => run_kubectl([vec!["why".to_string()], arguments].concat()),
        Command::Timeline { arguments } => run_kubectl([vec!["timeline".to_string()], arguments].concat()),
        Command::Top { arguments } => run_kubectl([vec!["live-top".to_string()], arguments].concat()),
    }
}

fn run_config(command: &ConfigCommand) -> Result<()> {
    let flags = config_file::command();
    match command {
        ConfigCommand::Example => print!("{}", config_file::example(&flags)),
        ConfigCommand::Check { file } => {
            let settings = config_file::check_file(&flags, file)?;
            println!("{} is good ({settings} settings)", file.display());
        }
    }
    Ok(())
}

fn run_kubectl(arguments: Vec<String>) -> anyhow::Result<()> {
    match cli::main(arguments) {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

/// For leases to be given back and the like.
const STOP_TIMEOUT: std::time::Duration = client::RELEASE_TIMEOUT;

/// What a command's components are started with.
struct Process {
    env: Env,
    shutdown: CancellationToken,
    report: Reporter,
    components: Components,
}

/// Runs what `start` starts until the process is told to stop, or one of its components fails.
async fn until_stopped<T>(start: impl AsyncFnOnce(&Process) -> Result<T>) -> Result<()> {
    let (env, shutdown) = (Env::real(), CancellationToken::new());
    let (report, components) = (Reporter::new(env.clone()), Components::new(&env, &shutdown));
    env.spawn(client::sweep_object_forms(env.clone()));
    let process = Process { env, shutdown, report, components };
    let running = async {
        let running = start(&process).await?;
        process.report.ready();
        process::until_stopped().await?;
        Ok(running)
    };
    let ended = process.components.unless_failed(running).await;
    process.shutdown.cancel();
    process.components.stopped(STOP_TIMEOUT).await;
    // What it held (locks, supervision) is let go after everything was told to stop.
    ended.map(drop).inspect_err(|error| process.report.failed(&format!("{error:#}")))
}

/// What `minke server` runs, or does with the servers of this machine.
fn server_command(flags: ServerCommand) -> Result<()> {
    match flags.command {
        Some(ServerSubcommand::Member(command)) => return members::commands::run(Kind::Server, &command),
        Some(ServerSubcommand::JoinCommand { data }) => {
            preflight::root()?;
            return runtime()?.block_on(join_server::print_command(&data.instance(), &Env::real()));
        }
        None => {}
    }
    if let Some(netns) = &flags.netns {
        members::enter(netns, flags.host_name.as_deref())?;
    }
    runtime()?.block_on(async {
        let flags = join_server::settle(flags, &Env::real()).await?;
        run_server(flags.server, Some(&flags.election)).await
    })
}

/// With controllers and scheduler where it is said how they are elected; else the API server alone.
async fn run_server(mut flags: Server, whole: Option<&LeaderElectionTimes>) -> Result<()> {
    until_stopped(async |Process { env, shutdown, report, components }| {
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        flags.scheduler_settings()?;
        let pid = PidFile::take(&instance)?;
        ranges::settle_apart(&mut flags, &instance)?;
        let plane = server::start_api(&flags, whole.is_some(), &instance, env, shutdown, report, components).await?;
        if let Some(election) = whole {
            join_server::keep_flags(&instance)?;
            server::start_controllers(&plane, &flags, election, &instance, (env, shutdown), components).await?;
        }
        registry::start(&flags.registry, &plane, &instance, (env, shutdown), report, components).await?;
        Ok((pid, plane))
    })
    .await
}

/// With credentials that are read anew when the file changes.
fn connect(source: &Source, name: &str, env: &Env, shutdown: &CancellationToken) -> Result<(Client, Reachability)> {
    let connection = source.read(name)?;
    kubeconfigs::follow(source, &connection.identity, env, shutdown);
    let transport = HttpsTransport::new(connection)?;
    let reachability = transport.reachability();
    Ok((Client::new(transport), reachability))
}

/// Clients of the same server whose tokens `owner` makes.
fn service_account_clients(source: &Source, owner: &Client, env: &Env) -> Result<ServiceAccountClients> {
    let connection = source.read("")?;
    let (owner, env) = (owner.clone(), env.clone());
    let connect = move |account: &str| -> Result<Client> {
        let token = Arc::new(RwLock::new(String::new()));
        let transport = HttpsTransport::new(HttpsConfig {
            identity: Identity { bearer_token: Some(token.clone()), ..Identity::default() },
            // Whose word counts here is the account's own.
            headers: Vec::new(),
            user_agent: format!("kube-controller-manager/{account}"),
            ..connection.clone()
        })?;
        Ok(Client::new(ServiceAccountTransport::new(transport, token, owner.clone(), account, env.clone())))
    };
    // What can be wrong with a connection is wrong with all of them.
    connect("default")?;
    Ok(Arc::new(move |account| connect(account).expect("a connection like the first")))
}

/// Opens the port of a component that runs alone.
fn open_port(
    flags: &PortFlags,
    secure_port: u16,
    client: &Client,
    pages: Pages,
    health: Health,
    (env, shutdown): (&Env, &CancellationToken),
) -> Result<()> {
    let delegate = |kubeconfig: &Option<std::path::PathBuf>| -> Result<Client> {
        let Some(kubeconfig) = kubeconfig else { return Ok(client.clone()) };
        let source = Source { kubeconfig: Some(kubeconfig.clone()), master: None };
        Ok(connect(&source, "minke-component-port", env, shutdown)?.0)
    };
    let settings = PortSettings {
        address: (flags.bind_address, secure_port).into(),
        authentication: delegate(&flags.authentication_kubeconfig)?,
        authorization: delegate(&flags.authorization_kubeconfig)?,
        client_ca_file: flags.client_ca_file.clone(),
        always_allow_paths: flags.authorization_always_allow_paths.clone(),
        tls: flags.tls.options()?,
        certificate: flags.tls.certificate(env, shutdown)?,
    };
    component_port::start(settings, pages, health, env, shutdown)
}

async fn run_controller_manager(flags: ControllerManager) -> Result<()> {
    until_stopped(async |Process { env, shutdown, components, .. }| {
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        let pki = flags.pki(env)?;
        let mut config = flags.config(pki.as_deref())?;
        config.feature_gates = flags.features.feature_gates.clone();
        let source = flags.connection.source();
        let (client, reachability) = connect(&source, "kube-controller-manager", env, shutdown)?;
        flags.features.show(&config.metrics);
        if flags.use_service_account_credentials.unwrap_or(pki.is_some()) {
            config.service_account_clients = Some(service_account_clients(&source, &client, env)?);
        }
        let elects = flags.election.leader_elect.unwrap_or(true);
        let health = Health::of_controllers(elects, shutdown, config.caches.clone(), reachability);
        let pages = Pages { metrics: config.metrics.clone(), ..Pages::default() };
        open_port(&flags.port, flags.secure_port, &client, pages, health, (env, shutdown))?;
        let mut election = LeaderElection::new("kube-controller-manager", String::new());
        flags.election.apply(&mut election)?;
        let identity = match elects {
            true => Some(LeaderIdentity::take(&instance, "controller-manager", env)?),
            false => None,
        };
        let election = identity.as_ref().map(|own| LeaderElection { identity: own.name.clone(), ..election });
        server::run_controllers(config, client, env, shutdown, election, components);
        Ok(identity)
    })
    .await
}

async fn run_scheduler(flags: Scheduler) -> Result<()> {
    until_stopped(async |Process { env, shutdown, components, .. }| {
        let (mut config, connection) = flags.settings()?;
        flags.features.show(&config.metrics);
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        let (client, reachability) = connect(&connection.source(), "kube-scheduler", env, shutdown)?;
        let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
        let elects = config.leader_election.as_ref().is_some_and(|election| election.leader_elect);
        let health = Health::of_scheduler(elects, shutdown, informers.clone(), reachability);
        let pages = Pages { metrics: config.metrics.clone(), configz: config.configz() };
        open_port(&flags.port, flags.secure_port, &client, pages, health, (env, shutdown))?;
        let identity = match elects {
            true => Some(LeaderIdentity::take(&instance, "scheduler", env)?),
            false => None,
        };
        if let (Some(identity), Some(election)) = (&identity, &mut config.leader_election) {
            election.identity = Some(identity.name.clone());
        }
        server::run_scheduler(config, client, informers, env, shutdown, components);
        Ok(identity)
    })
    .await
}

async fn run_ingress(flags: IngressAlone) -> Result<()> {
    until_stopped(async |Process { env, shutdown, report, components }| {
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        let taken = ports::take_ingress(&flags.ports, &instance)?;
        let addresses = match flags.node_ip.as_slice() {
            [] => vec![host::address_like(None)?],
            said => said.to_vec(),
        };
        let source = Source { kubeconfig: Some(flags.kubeconfig.clone()), master: None };
        let (client, _) = connect(&source, "minke-ingress", env, shutdown)?;
        let mut config = IngressConfig::new(addresses);
        config.own_gateway_addresses = flags.own_gateway_addresses;
        ingress::start(taken, &flags.ports, config, client, (env, shutdown), report, components).await
    })
    .await
}

/// Answers DNS until the process ends. What can't listen is no server of names: it says so, and the process ends.
fn start_dns(config: dns::DnsConfig, informers: &InformerFactory, process: &Process) {
    let Process { env, shutdown, components, .. } = process;
    let starting = dns::start(config, informers.clone(), env.clone(), shutdown.clone());
    components.run("cluster DNS", async move {
        starting.await?.await;
        Ok::<_, dns::DnsError>(())
    });
}

async fn run_dns(flags: Dns) -> Result<()> {
    until_stopped(async |process: &Process| {
        let (env, shutdown) = (&process.env, &process.shutdown);
        let (client, _) = connect(&flags.connection.source(), "minke-dns", env, shutdown)?;
        let informers = InformerFactory::new(client, env.clone(), shutdown.clone());
        start_dns(flags.config(), &informers, process);
        Ok(())
    })
    .await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Kubelet,
    Proxy,
}

async fn run_agent(mut flags: Agent, parts: Parts) -> Result<()> {
    preflight::root()?;
    preflight::node_tools()?;
    until_stopped(async |process: &Process| {
        let Process { env, shutdown, report, components } = process;
        flags.node.kubelet.feature_gates = flags.features.feature_gates.clone();
        flags.node.node_ip = agent::node_addresses(&flags.node, None, &flags.pod_cidr)?;
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        preflight::manifests(flags.node.pod_manifest_path.as_deref())?;
        // Who is not let in starts nothing and leaves nothing.
        let prepare = |flags: &Agent| -> Result<()> {
            file_modes::make_run_directory(&instance)?;
            if flags.netns.is_none() { sysctls::record(&instance) } else { Ok(()) }
        };
        if parts == Parts::Proxy {
            ports::settle_proxy_alone(&mut flags.node, &instance)?;
            let access = Access::open(&flags, &instance, env, shutdown).await?;
            prepare(&flags)?;
            let informers = InformerFactory::new(access.client, env.clone(), shutdown.clone());
            let name = agent::node_name(&flags.node)?;
            let config = service_proxy::config(&flags.node, &instance, &name, &flags.pod_cidr)?;
            service_proxy::answer_kubelet(&config, &instance, env, shutdown);
            // Pod networks are others' here, and so are policies unless it is said.
            if flags.node.network_policy == Some(Choice::Minke) {
                network_policy_enforcer::start(
                    &instance,
                    &name,
                    &config.registry,
                    env,
                    shutdown,
                    &informers,
                    components,
                );
            }
            service_proxy::start(&config, env, shutdown, &informers, components);
            if flags.dns == Some(Choice::Minke) {
                let listen = flags.node.node_ip.iter().map(|ip| SocketAddr::new(*ip, api::cluster_dns::PORT));
                let mut config = dns::DnsConfig::new(listen.collect(), &server::cluster_domain());
                config.also_here = server::dns_addresses(&flags.service_cidr)?;
                start_dns(config, &informers, process);
            }
            return Ok(None);
        }
        kubelet_flags::check(&flags.node)?;
        let pid = PidFile::take(&instance)?;
        // A kubelet alone leaves pod networks to others.
        if parts == Parts::All {
            let local = ranges::local(&flags.node, &instance)?;
            ranges::check(&flags.pod_cidr, &flags.service_cidr, &local, &ranges::name_servers())?;
            ports::settle_node(&mut flags.node, flags.dns.unwrap_or(Choice::Minke), &instance)?;
        }
        let access = Access::open(&flags, &instance, env, shutdown).await?;
        prepare(&flags)?;
        if parts == Parts::All {
            clusters::record(&instance, &flags.pod_cidr, &flags.service_cidr)?;
        }
        let runtime = Runtime::start(&flags.node, &instance, env).await?;
        let node = agent::Node::remote(&flags, access, runtime, &instance)?;
        match parts {
            Parts::Kubelet => Arc::new(node).start_kubelet_alone(env, shutdown, components)?,
            _ => node.start(env, shutdown, report, components).await?,
        }
        Ok(Some(pid))
    })
    .await
}

async fn run_store(command: Store) -> Result<()> {
    let wall_ms = u64::try_from(Env::real().now().as_millisecond())?;
    let done = match command {
        Store::Backup { data, store, file } => {
            self::store::backup::backup(&data.instance(), &store, &file, &Env::real()).await?
        }
        Store::Restore { data, store, replace, file } => {
            self::store::backup::restore(&data.instance(), &store, &file, replace, &Env::real()).await?
        }
        Store::Check { data, salvage: true } => ::store::files::salvage(&data.instance().store(), wall_ms)?,
        Store::Check { data, salvage: false } => ::store::files::check(&data.instance().store())?,
        Store::Migrate { data, to, store } => {
            self::store::migrate::run(&to, &store, &data.instance().store(), &Env::real()).await?
        }
        Store::Reencrypt { data } => {
            let connection = from_kubeconfig(&data.instance().admin_kubeconfig(), "minke-store")?;
            self::store::reencrypt::run(&Client::new(HttpsTransport::new(connection)?)).await?
        }
    };
    println!("{done}");
    Ok(())
}
