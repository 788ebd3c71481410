//! What each command does, in a few lines each; the work is in the other modules.
//! Called by `main`.
//! Every long-running command ends cleanly on SIGTERM.

pub mod certs;
pub mod completion;
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
pub mod reencrypt;
pub mod report;
pub mod status;
pub mod support_bundle;
pub mod up;
pub mod versions;

use std::{path::Path, sync::Arc};

use ::ingress::IngressConfig;
use anyhow::{Result, bail};
use client::{
    Client, HttpsConfig, HttpsTransport, Identity, InformerFactory, ServiceAccountTransport, from_kubeconfig,
};
use controllers::ServiceAccountClients;
use env::Env;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{kubeconfigs, pki::Pki},
    cluster::{
        clusters, file_modes, host,
        leader_identity::LeaderIdentity,
        nodes, ports, preflight,
        process::{self, PidFile},
        ranges, sysctls,
    },
    commands::report::Reporter,
    components::Components,
    control_plane::{
        component_port::{self, Health, Pages},
        registry, server,
    },
    flags::{
        Agent, Command, ConfigCommand, Remote, Scheduler, Server, Store, config_file, ingress_flags::IngressAlone,
        kubelet_flags,
    },
    network::ingress,
    node::{access::Access, agent, container_runtime::Runtime, network_policy_enforcer, service_proxy},
    runtime,
};

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(flags) => up::up(*flags),
        Command::Down(flags) => down::down(&flags),
        Command::Server(flags) => runtime()?.block_on(run_server(flags, true)),
        Command::Apiserver(flags) => runtime()?.block_on(run_server(flags, false)),
        Command::ControllerManager(flags) => runtime()?.block_on(run_controller_manager(flags)),
        Command::Scheduler(flags) => runtime()?.block_on(run_scheduler(flags)),
        Command::Agent(flags) => {
            if let Some(netns) = &flags.netns {
                nodes::enter(netns, flags.node.node_name.as_deref())?;
            }
            runtime()?.block_on(run_agent(flags, Parts::All))
        }
        Command::Kubelet(flags) => runtime()?.block_on(run_agent(flags.agent()?, Parts::Kubelet)),
        Command::Proxy(flags) => runtime()?.block_on(run_agent(flags.agent()?, Parts::Proxy)),
        Command::Ingress(flags) => runtime()?.block_on(run_ingress(flags)),
        Command::Node(command) => nodes::run(command),
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
    // What it held (locks, supervision) is let go after everything was told to stop.
    ended.map(drop).inspect_err(|error| process.report.failed(&format!("{error:#}")))
}

async fn run_server(mut flags: Server, whole: bool) -> Result<()> {
    until_stopped(async |Process { env, shutdown, report, components }| {
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        flags.scheduler_settings()?;
        let pid = PidFile::take(&instance)?;
        ranges::settle_apart(&mut flags, &instance)?;
        let plane = server::start_api(&flags, whole, &instance, env, shutdown, report, components).await?;
        if whole {
            server::start_controllers(&plane, &flags, &instance, env, shutdown, components).await?;
        }
        registry::start(&flags.registry, &plane, &instance, (env, shutdown), report, components).await?;
        Ok((pid, plane))
    })
    .await
}

/// With credentials that are read anew when the file changes.
fn connect(kubeconfig: &Path, name: &str, env: &Env, shutdown: &CancellationToken) -> Result<Client> {
    let connection = from_kubeconfig(kubeconfig, name)?;
    kubeconfigs::follow(kubeconfig, &connection.identity, env, shutdown);
    Ok(Client::new(HttpsTransport::new(connection)?))
}

/// Clients of the same server whose tokens `owner` makes.
fn service_account_clients(kubeconfig: &Path, owner: &Client, env: &Env) -> Result<ServiceAccountClients> {
    let connection = from_kubeconfig(kubeconfig, "")?;
    let (server, ca, owner, env) = (connection.server, connection.ca, owner.clone(), env.clone());
    let connect = move |account: &str| -> Result<Client> {
        let token = Arc::new(RwLock::new(String::new()));
        let transport = HttpsTransport::new(HttpsConfig {
            server: server.clone(),
            ca: ca.clone(),
            identity: Identity { bearer_token: Some(token.clone()), ..Identity::default() },
            user_agent: format!("minke-controller-manager/{account}"),
        })?;
        Ok(Client::new(ServiceAccountTransport::new(transport, token, owner.clone(), account, env.clone())))
    };
    // What can be wrong with a connection is wrong with all of them.
    connect("default")?;
    Ok(Arc::new(move |account| connect(account).expect("a connection like the first")))
}

/// The words of `--controllers`, each of which must name one that there is.
fn known_controllers(words: &[String]) -> Result<Vec<String>> {
    let is_known = |word: &str| word == "*" || controllers::names().any(|name| name == word);
    match words.iter().find(|word| !is_known(word.strip_prefix('-').unwrap_or(word))) {
        Some(unknown) => bail!("{unknown:?} is not in the list of known controllers"),
        None => Ok(words.to_vec()),
    }
}

async fn run_controller_manager(flags: Remote) -> Result<()> {
    until_stopped(async |Process { env, shutdown, components, .. }| {
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        let client = connect(&flags.kubeconfig, "minke-controller-manager", env, shutdown)?;
        let pki = Pki::open(&instance.pki(), env.clone())?;
        let mut config = server::controllers_config(&pki, &flags.pod_cidr, &flags.service_cidr)?;
        config.controllers = known_controllers(&flags.controllers)?;
        flags.features.show(&config.metrics);
        flags.settings.apply(&mut config);
        if flags.use_service_account_credentials {
            config.service_account_clients = Some(service_account_clients(&flags.kubeconfig, &client, env)?);
        }
        let address = (flags.bind_address, flags.secure_port).into();
        let client_ca = flags.client_ca_file.as_deref();
        let health = Health::of_controllers(flags.leader_elect, shutdown, config.caches.clone());
        let pages = Pages { metrics: config.metrics.clone(), ..Pages::default() };
        component_port::start(address, client.clone(), client_ca, pages, health, env, shutdown)?;
        let identity = match flags.leader_elect {
            true => Some(LeaderIdentity::take(&instance, "controller-manager", env)?),
            false => None,
        };
        let name = identity.as_ref().map(|identity| identity.name.clone());
        server::run_controllers(config, client, env, shutdown, name, components);
        Ok(identity)
    })
    .await
}

async fn run_scheduler(flags: Scheduler) -> Result<()> {
    until_stopped(async |Process { env, shutdown, components, .. }| {
        let (mut config, kubeconfig) = flags.settings()?;
        flags.features.show(&config.metrics);
        let instance = flags.data.instance();
        preflight::data_directory(&instance.data)?;
        let client = connect(&kubeconfig, "minke-scheduler", env, shutdown)?;
        let address = (flags.bind_address, flags.secure_port).into();
        let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
        let elects = config.leader_election.as_ref().is_some_and(|election| election.leader_elect);
        let client_ca = flags.client_ca_file.as_deref();
        let health = Health::of_scheduler(elects, shutdown, informers.clone());
        let pages = Pages { metrics: config.metrics.clone(), configz: config.configz() };
        component_port::start(address, client.clone(), client_ca, pages, health, env, shutdown)?;
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
        let client = connect(&flags.kubeconfig, "minke-ingress", env, shutdown)?;
        let config = IngressConfig::new(addresses);
        ingress::start(taken, &flags.ports, config, client, (env, shutdown), report, components).await
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
    until_stopped(async |Process { env, shutdown, report, components }| {
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
            if flags.node.network_policy == Some(crate::flags::Choice::Minke) {
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
            return Ok(None);
        }
        kubelet_flags::check(&flags.node)?;
        let pid = PidFile::take(&instance)?;
        // A kubelet alone leaves pod networks to others.
        if parts == Parts::All {
            let local = ranges::local(&flags.node, &instance)?;
            ranges::check(&flags.pod_cidr, &flags.service_cidr, &local, &ranges::name_servers())?;
            ports::settle_node(&mut flags.node, flags.dns, &instance)?;
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
        Store::Backup { data, file } => store::files::backup(&data.instance().store(), &file)?,
        Store::Restore { data, file } => store::files::restore(&data.instance().store(), &file, wall_ms)?,
        Store::Check { data, salvage: true } => store::files::salvage(&data.instance().store(), wall_ms)?,
        Store::Check { data, salvage: false } => store::files::check(&data.instance().store())?,
        Store::Reencrypt { data } => {
            let connection = from_kubeconfig(&data.instance().admin_kubeconfig(), "minke-store")?;
            reencrypt::run(&Client::new(HttpsTransport::new(connection)?)).await?
        }
    };
    println!("{done}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_controllers_that_there_are_can_be_chosen() {
        let check = |words: &[&str]| known_controllers(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert_eq!(check(&["*", "-job-controller"]).unwrap(), ["*", "-job-controller"]);
        assert!(check(&["deployment-controller"]).is_ok());
        let error = check(&["*", "-jobs"]).unwrap_err().to_string();
        assert_eq!(error, "\"-jobs\" is not in the list of known controllers");
    }
}
