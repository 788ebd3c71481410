//! Every command and flag, with the help people read.
//! Parsed by `main`; flags of components have upstream's names where there are any.
//! Starts nothing; only reads what was typed.

pub mod audit_flags;
pub mod authentication_flags;
mod command_properties;
pub mod component_flags;
pub mod config_file;
pub mod controller_flags;
pub mod controller_manager_flags;
pub mod everyday_flags;
pub mod feature_flags;
pub mod ingress_flags;
pub mod kubelet_flags;
pub mod network_flags;
pub mod passed_on;
pub mod proxy_flags;
pub mod registry_flags;
pub mod scheduler_flags;
pub mod security_flags;
pub mod serving_flags;
pub mod store_flags;
pub mod subcommands;
pub mod upstream;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use ipnet::{IpNet, Ipv4Net};
use kubelet::configuration::Configuration;
use proxy::KubeProxyConfiguration;

pub use self::{
    everyday_flags::{Certs, ConfigCommand, Install, Logs, Look, Man, OutputForm, SupportBundle, Uninstall},
    network_flags::{CniDirectories, LoadBalancerMode, PodNetwork},
    registry_flags::RegistryFlags,
    scheduler_flags::{Scheduler, scheduler_config},
    subcommands::{
        Console, EtcdCommand, Image, MemberCommand, NamedMember, NodeCommand, ServerCommand, ServerSubcommand, Store,
    },
};
use crate::{
    cluster::instance::{DEFAULT_DATA_DIRECTORY, Instance},
    flags::{
        component_flags::LeaderElectionTimes,
        controller_flags::Controllers,
        controller_manager_flags::ControllerManager,
        feature_flags::FeatureFlags,
        ingress_flags::{Ingress, IngressAlone},
        kubelet_flags::Kubelet,
        proxy_flags::Proxy,
        security_flags::Security,
        serving_flags::ServingFlags,
        store_flags::StoreFlags,
        upstream::OtherFlags,
    },
    logging::Logging,
};

/// Kubernetes in one small binary.
#[derive(Debug, Parser)]
#[command(name = "minke", version, propagate_version = true)]
pub struct Flags {
    #[command(flatten)]
    pub logging: Logging,
    /// File with flags for those that are not typed (`minke config example` prints one); also behind the command, where
    /// the component has no --config of its own [default: /etc/minke/config.yaml, if it is there]
    // Taken out of the line by `config_file` before this is parsed.
    #[arg(long = "config", value_name = "FILE")]
    pub _config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine and wait until it is ready
    Up(Box<Up>),
    /// Stop the cluster and remove everything it made outside its data directory
    Down(Down),
    /// Run the control plane: API server, controllers and scheduler; or look at the servers that `up --servers` made on
    /// this machine, and disturb them
    Server(Box<ServerCommand>),
    /// Run a node: kubelet, service proxy and DNS, with its own containerd
    Agent(Box<Agent>),
    /// Run the API server alone, with upstream's flags
    Apiserver(Box<Apiserver>),
    /// Run the controllers alone, with upstream's flags
    ControllerManager(Box<ControllerManager>),
    /// Run the scheduler alone, with upstream's flags and its configuration file
    Scheduler(Box<Scheduler>),
    /// Run the kubelet alone, with upstream's flags and its configuration file
    Kubelet(Box<Kubelet>),
    /// Run the service proxy alone, with upstream's flags and its configuration file
    Proxy(Box<Proxy>),
    /// Run cluster DNS alone
    Dns(network_flags::Dns),
    /// Run the ingress alone
    Ingress(IngressAlone),
    /// Look at the nodes that `up --nodes` made on this machine, and disturb them
    #[command(subcommand)]
    Node(NodeCommand),
    /// Look at the etcd servers that `up --servers` made on this machine, and disturb them
    #[command(subcommand)]
    Etcd(EtcdCommand),
    /// Work with the images on the cluster's nodes
    #[command(subcommand)]
    Image(Image),
    /// Back up, restore, check or migrate what the cluster keeps
    #[command(subcommand)]
    Store(Store),
    /// Show what runs, how it is, and what to look after
    Status(Look),
    /// Look at this machine for what a cluster needs, and say what to do about it
    Doctor(Look),
    /// Show the cluster's log
    Logs(Logs),
    /// Gather what somebody needs who is to help, without any secret in it
    SupportBundle(SupportBundle),
    /// Look at the cluster's certificates, or issue them again
    #[command(subcommand)]
    Certs(Certs),
    /// Print or check a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Put minke on this machine as a service, or a newer one in the place of an older
    Install(Install),
    /// Take it off again
    Uninstall(Uninstall),
    /// Print what a shell needs to complete minke's commands and flags
    Completion { shell: clap_complete::Shell },
    /// Print the manual
    Man(Man),
    /// Print an address that opens the console, signed in for a while with rights of your choice
    Console(Console),
    /// Say why an object is pending, not ready, restarting or terminating (TYPE/NAME, with kubectl's flags)
    #[command(disable_help_flag = true)]
    Why {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Show what happened to an object and when (TYPE/NAME, with kubectl's flags)
    #[command(disable_help_flag = true)]
    Timeline {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Watch the use of nodes and pods in the terminal (with kubectl's flags)
    #[command(disable_help_flag = true)]
    Top {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Control a cluster with kubectl's commands and flags
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct DataDirectory {
    /// Where the cluster keeps everything
    #[arg(long = "data-dir", value_name = "DIR", default_value = DEFAULT_DATA_DIRECTORY, env = "MINKE_DATA_DIR")]
    pub path: PathBuf,
}

impl DataDirectory {
    pub fn instance(&self) -> Instance {
        Instance::new(Path::new(&self.path))
    }
}

#[derive(Debug, Clone, Args)]
pub struct Server {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Address the API server listens on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Address other machines and pods reach the API server at [default: this machine's first address]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Port of the API server [default: 6443, or a free one beside another cluster]
    #[arg(long, visible_alias = "secure-port")]
    pub port: Option<u16>,
    #[command(flatten)]
    pub store: StoreFlags,
    /// Addresses of pods; each node gets a part [default: 10.244.0.0/16, or free ones beside another cluster]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services [default: 10.96.0.0/12, or free ones beside another cluster]
    #[arg(long, visible_alias = "service-cluster-ip-range", value_name = "CIDR", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
    /// Ports for services of type NodePort
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767")]
    pub service_node_port_range: String,
    /// Who answers cluster DNS: our own server, or `none` when another (CoreDNS) is installed
    #[arg(long, value_name = "SERVER", default_value = "minke")]
    pub dns: Choice,
    /// Where Services of type LoadBalancer get their addresses: `nodes` lends those of the nodes, `layer2` gives them
    /// from a pool that one node at a time announces on its link, `none` leaves them to others
    #[arg(long, value_name = "MODE", default_value = "nodes")]
    pub load_balancer: LoadBalancerMode,
    /// Addresses for --load-balancer=layer2, as CIDRs or ranges (192.0.2.0/28,192.0.2.40-192.0.2.49)
    #[arg(long, value_name = "RANGE", value_delimiter = ',', required_if_eq("load_balancer", "layer2"))]
    pub load_balancer_pool: Vec<controllers::AddressRange>,
    /// Of the ingress beside it.
    #[arg(skip)]
    pub ingress_ports: Vec<u16>,
    /// Who makes volumes of the default StorageClass: nodes, as directories of their own, or `none` for drivers alone
    #[arg(long, value_name = "PROVISIONER", default_value = "minke")]
    pub local_storage: Choice,
    /// KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1) for the scheduler
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Policy file (v1: predicates, priorities, extenders) for the scheduler, the older form of the same
    #[arg(long, value_name = "FILE", conflicts_with = "scheduler_config")]
    pub policy_config_file: Option<PathBuf>,
    /// Whether the API server shows the console, a page to see and change the cluster by, at /console/
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub console: bool,
    #[command(flatten)]
    pub controllers: Controllers,
    #[command(flatten)]
    pub security: Security,
    #[command(flatten)]
    pub registry: RegistryFlags,
    #[command(flatten)]
    pub serving: ServingFlags,
}

#[derive(Debug, Clone, Args)]
pub struct Apiserver {
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    pub others: OtherFlags<upstream::Apiserver>,
}

#[derive(Debug, Clone, Args)]
pub struct Node {
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// CRI socket of a runtime that is already there; minke then starts no containerd
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<String>,
    /// Port of the kubelet; 0 takes a free one [default: 10250, or a free one beside another cluster]
    #[arg(long)]
    pub kubelet_port: Option<u16>,
    /// Port of the kubelet's health check on loopback; 0 turns it off [default: 10248, or a free one]
    #[arg(long)]
    pub healthz_port: Option<u16>,
    /// Port of the service proxy's health check; 0 turns it off [default: 10256, or a free one]
    #[arg(long)]
    pub proxy_healthz_port: Option<u16>,
    /// Port of the service proxy's metrics on loopback; 0 turns it off [default: 10249, or a free one]
    #[arg(long)]
    pub proxy_metrics_port: Option<u16>,
    /// Port of the cluster DNS's metrics, where this node answers DNS; 0 turns it off [default: 9153, or a free one]
    #[arg(long)]
    pub dns_metrics_port: Option<u16>,
    /// Who sets up pod networks: our own plugin, or `none` when a foreign one is installed
    #[arg(long, value_name = "PLUGIN", default_value = "minke")]
    pub cni: Choice,
    #[command(flatten)]
    pub cni_directories: CniDirectories,
    /// Who enforces NetworkPolicies: ourselves, or `none` when a foreign network plugin does
    /// [default: minke with --cni=minke, else none]
    #[arg(long, value_name = "ENFORCER")]
    pub network_policy: Option<Choice>,
    /// How pods reach those of other nodes: `routes` when nodes share a link, else `vxlan`
    #[arg(long, value_name = "NETWORK", default_value = "routes")]
    pub pod_network: PodNetwork,
    /// Address of this node, or one of each family [default: this machine's first of each family that pods have]
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Percent of disk usage beyond which unused images are removed; 100 turns that off
    #[arg(long, value_name = "PERCENT", default_value_t = 85, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub image_gc_high_threshold: u8,
    /// When pods are evicted, as SIGNAL<LEAST,… (`memory.available<100Mi,nodefs.available<10%`); empty: never
    /// [default: upstream's]
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<String>,
    /// Directory of static pod manifests
    #[arg(long, value_name = "DIR")]
    pub pod_manifest_path: Option<PathBuf>,
    /// URL of static pod manifests
    #[arg(long, value_name = "URL")]
    pub manifest_url: Option<String>,
    /// Port of cAdvisor's page and JSON, open to whoever reaches it; 0 turns it off
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub cadvisor_port: u16,
    /// Address of that port
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub cadvisor_address: IpAddr,
    /// Port on 127.0.0.1 where static pods are submitted over HTTPS; 0 turns it off
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub manifest_server_port: u16,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) for the kubelet of this node; wins over the flags here
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1) for the service proxy of this node
    #[arg(long, value_name = "FILE")]
    pub proxy_config: Option<PathBuf>,
    #[arg(skip)]
    pub kubelet: KubeletSettings,
    /// The file's fields, and over them the flags of `minke proxy`.
    #[arg(skip)]
    pub proxy: KubeProxyConfiguration,
}

impl Node {
    pub fn enforces_network_policy(&self) -> bool {
        self.network_policy.unwrap_or(self.cni) == Choice::Minke
    }
}

/// What only `minke kubelet` can be told.
#[derive(Debug, Clone, Default)]
pub struct KubeletSettings {
    pub configuration: Configuration,
    /// Those of the whole command; fields of the configuration count more.
    pub feature_gates: api::feature_gates::FeatureGates,
    pub labels: BTreeMap<String, String>,
    pub root_dir: Option<PathBuf>,
    pub pod_admission_hook: Option<kubelet::HookConfig>,
    pub credential_providers: Option<kubelet::CredentialProviderSettings>,
    pub dead_containers: kubelet::DeadContainerLimits,
    pub lock_file: Option<kubelet::LockFile>,
    pub external_cloud_provider: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Up {
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub ingress: Ingress,
    /// How many nodes to run on this machine; each but the first in its own network namespace
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub nodes: u8,
    /// How many API servers to run on this machine; several are each in a network namespace of their own, with controllers and
    /// scheduler, on an etcd of three servers, or of five from five on (or on the one of --etcd-servers)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub servers: u8,
    #[command(flatten)]
    pub election: LeaderElectionTimes,
    /// Addresses of nodes and servers when there are several [default: a /24 of 198.18.0.0/15 that follows from the data
    /// directory]
    #[arg(long, value_name = "CIDR")]
    pub node_cidr: Option<Ipv4Net>,
    /// Stay in the foreground and log to the terminal
    #[arg(long)]
    pub foreground: bool,
    /// Also run a demo Deployment of 3 replicas and wait until its Service answers
    #[arg(long)]
    pub demo: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Down {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Also remove the data directory: every object and image
    #[arg(long)]
    pub purge: bool,
}

// What a node needs to join a cluster it has no credentials for. No doc comment: clap would show it as --help.
#[derive(Debug, Clone, Default, Args)]
pub struct Join {
    // Only to say why it is refused: everybody on the machine sees the command line of a process.
    #[arg(long = "token", value_name = "ID.SECRET", hide = true, value_parser = refuse_token)]
    _token: Option<String>,
    /// File that holds the bootstrap token to join with, `-` for standard input; needed the first time only
    /// [default: the environment's MINKE_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// That of a bootstrap kubeconfig.
    #[arg(skip)]
    pub token_of_kubeconfig: Option<String>,
    /// The cluster's certificate authority
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Fingerprint of that authority's public key, in place of the file
    #[arg(long, value_name = "sha256:HEX", conflicts_with = "ca_file")]
    pub ca_hash: Option<String>,
}

impl Join {
    pub fn with_files(token: PathBuf, authority: PathBuf) -> Self {
        Self { token_file: Some(token), ca_file: Some(authority), ..Self::default() }
    }
}

fn refuse_token(_: &str) -> Result<String, &'static str> {
    Err("everybody on this machine could read it from the list of processes: write the token to a file and give \
         --token-file FILE, or pipe it in with --token-file -")
}

#[derive(Debug, Clone, Args)]
pub struct Agent {
    #[command(flatten)]
    pub data: DataDirectory,
    #[command(flatten)]
    pub features: FeatureFlags,
    /// Credentials for the API server, instead of joining with a token
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The server's address in place of the kubeconfig's.
    #[arg(skip)]
    pub master: Option<String>,
    /// Without any of these, with the credentials of the pod that we run in.
    #[arg(skip)]
    pub as_pod: bool,
    /// API server to join, as https://HOST:PORT; of several, separated by commas, any one that answers
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig")]
    pub server: Option<String>,
    #[command(flatten)]
    pub join: Join,
    /// Network namespace to run in
    #[arg(long, value_name = "PATH", hide = true)]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    pub node: Node,
    /// Who answers cluster DNS: our own server, or `none` when another (CoreDNS) is installed
    /// [default: minke; none beside a service proxy that runs alone]
    #[arg(long, value_name = "SERVER")]
    pub dns: Option<Choice>,
    /// Who makes volumes of the default StorageClass: nodes, as directories of their own, or `none` for drivers alone
    #[arg(long, value_name = "PROVISIONER", default_value = "minke")]
    pub local_storage: Choice,
    /// Addresses of pods in the whole cluster
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16", value_delimiter = ',')]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/12", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
}

/// Our own, or somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    Minke,
    None,
}

impl Choice {
    pub fn name(self) -> &'static str {
        match self {
            Self::Minke => "minke",
            Self::None => "none",
        }
    }
}

impl Agent {
    /// With every flag as it is when it is not given.
    pub fn of_kubelet(data: DataDirectory) -> anyhow::Result<Self> {
        let command = Self::augment_args(clap::Command::new("kubelet"));
        let matches = command.try_get_matches_from(["kubelet", "--kubeconfig", "none"])?;
        Ok(Self { data, kubeconfig: None, ..Self::from_arg_matches(&matches)? })
    }
}

impl Server {
    /// Whether all is given that an authority of our own would sign.
    pub fn is_given_certificates(&self) -> bool {
        self.serving.tls.is_given()
            && self.security.names_client_authorities()
            && self.security.authentication.service_account_signing_key_file.is_some()
    }

    pub fn scheduler_settings(&self) -> anyhow::Result<scheduler::Config> {
        scheduler_config(self.scheduler_config.as_deref(), self.policy_config_file.as_deref())
    }
}

impl Node {
    /// What the kubelet's configuration says, from whichever command.
    pub fn configuration(&self) -> anyhow::Result<Configuration> {
        match &self.kubelet_config {
            Some(path) => Configuration::load(path).map_err(anyhow::Error::msg),
            None => Ok(self.kubelet.configuration.clone()),
        }
    }

    /// `--eviction-hard` by signal; `None` leaves the defaults.
    pub fn eviction_thresholds(&self) -> anyhow::Result<Option<BTreeMap<String, String>>> {
        let Some(text) = &self.eviction_hard else { return Ok(None) };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let threshold = |part: &str| match part.split_once('<') {
            Some((signal, least)) => Ok((signal.trim().to_string(), least.trim().to_string())),
            None => anyhow::bail!("--eviction-hard {part:?} is not SIGNAL<LEAST: write it as memory.available<100Mi"),
        };
        parts.map(threshold).collect::<anyhow::Result<_>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_is_configured_by_a_file() {
        let directory = std::env::temp_dir().join(format!("minke-scheduler-flags-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("config.yaml");
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        let check = |text: &str, arguments: &[&str]| {
            std::fs::write(&file, format!("{head}{text}")).unwrap();
            let typed = ["minke", "scheduler", "--config", file.to_str().unwrap()];
            let flags = Flags::try_parse_from(typed.iter().chain(arguments)).expect("valid flags");
            let Command::Scheduler(flags) = flags.command else { panic!("scheduler") };
            flags.settings().map(|(config, connection)| {
                let leads = config.leader_election.is_some_and(|election| election.leader_elect);
                let path = connection.kubeconfig.unwrap_or_default();
                (config.profiles.len(), path.display().to_string(), leads)
            })
        };
        let two = "profiles: [{schedulerName: a}, {schedulerName: b}]\n";
        assert_eq!(check(two, &["--kubeconfig", "/flag"]).unwrap(), (2, "/flag".into(), true));
        assert_eq!(check("clientConnection: {kubeconfig: /file}\n", &[]).unwrap(), (1, "/file".into(), true));
        let alone = "clientConnection: {kubeconfig: /file}\nleaderElection: {leaderElect: false}\n";
        assert!(!check(alone, &[]).unwrap().2);
        assert!(check(alone, &["--leader-elect"]).unwrap().2);
        assert!(!check(two, &["--kubeconfig", "/flag", "--leader-elect=false"]).unwrap().2);
        let wrong = check("profiles: [{plugin: {}}]\n", &[]).unwrap_err().to_string();
        assert!(wrong.contains("config.yaml") && wrong.contains("profiles[0].plugin"), "{wrong}");
        let refused = check("", &["--leader-elect-lease-duration=5s"]).unwrap_err().to_string();
        assert_eq!(refused, "leaseDuration must be greater than renewDeadline");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_token_is_never_on_a_command_line() {
        let parse = |arguments: &[&str]| {
            let typed = ["minke", "agent", "--server", "https://a:6443"];
            Flags::try_parse_from(typed.iter().chain(arguments)).map(drop)
        };
        let refused = parse(&["--token", "abcdef.0123456789abcdef"]).unwrap_err().to_string();
        assert!(refused.contains("list of processes") && refused.contains("--token-file"), "{refused}");
        assert!(parse(&["--token-file", "-"]).is_ok());
    }

    #[test]
    fn the_console_is_on_unless_it_is_turned_off() {
        let check = |arguments: &[&str], expected: bool| {
            let flags = Flags::try_parse_from(["minke", "up"].iter().chain(arguments)).expect("valid flags");
            let Command::Up(up) = flags.command else { panic!("up") };
            assert_eq!(up.server.console, expected, "{arguments:?}");
        };
        check(&[], true);
        check(&["--console"], true);
        check(&["--console=false"], false);
    }

    #[test]
    fn eviction_thresholds_are_upstreams_syntax() {
        let check = |arguments: &[&str]| {
            let flags = Flags::try_parse_from(["minke", "up"].iter().chain(arguments)).expect("valid flags");
            let Command::Up(up) = flags.command else { panic!("up") };
            up.node.eviction_thresholds()
        };
        assert_eq!(check(&[]).unwrap(), None);
        assert_eq!(check(&["--eviction-hard", ""]).unwrap(), Some(BTreeMap::new()));
        let two = check(&["--eviction-hard", "memory.available<1Gi,nodefs.available<5%"]).unwrap().unwrap();
        assert_eq!((two["memory.available"].as_str(), two["nodefs.available"].as_str()), ("1Gi", "5%"));
        assert!(check(&["--eviction-hard", "memory"]).unwrap_err().to_string().contains("write it as"));
    }
}
