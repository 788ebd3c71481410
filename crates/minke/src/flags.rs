//! Every command and flag, with the help people read.
//! Parsed by `main`; flags of components have upstream's names where there are any.
//! Invariant: no logic.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;

use crate::instance::{DEFAULT_DATA_DIRECTORY, Instance};

/// Kubernetes in one small binary.
#[derive(Debug, Parser)]
#[command(name = "minke", version, propagate_version = true)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine and wait until it is ready
    Up(Up),
    /// Stop the cluster and remove everything it made outside its data directory
    Down(Down),
    /// Run the control plane: API server, controllers and scheduler
    Server(Server),
    /// Run a node: kubelet, service proxy and DNS, with its own containerd
    Agent(Agent),
    /// Run the API server alone
    Apiserver(Server),
    /// Run the controllers alone
    ControllerManager(Remote),
    /// Run the scheduler alone
    Scheduler(Remote),
    /// Run the kubelet alone
    Kubelet(Agent),
    /// Run the service proxy alone
    Proxy(Agent),
    /// Work with the images on the cluster's nodes
    #[command(subcommand)]
    Image(Image),
    /// Back up, restore or check the embedded store
    #[command(subcommand)]
    Store(Store),
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
    /// Port of the API server
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    /// Where objects are kept: `embedded`, or `etcd=URL[,URL…]`
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub store: String,
    /// Addresses of pods; each node gets a part
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16", value_delimiter = ',')]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/12", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
    /// Ports for services of type NodePort
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767")]
    pub service_node_port_range: String,
}

#[derive(Debug, Clone, Args)]
pub struct Node {
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// CRI socket of a runtime that is already there; minke then starts no containerd
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<String>,
    /// Port of the kubelet; 0 takes a free one
    #[arg(long, default_value_t = 10250)]
    pub kubelet_port: u16,
    /// Port of the kubelet's health check on loopback; 0 turns it off
    #[arg(long, default_value_t = 10248)]
    pub healthz_port: u16,
    /// Who sets up pod networks: our own plugin, or `none` when a foreign one is installed
    #[arg(long, value_name = "PLUGIN", default_value = "minke")]
    pub cni: String,
    /// Directory of static pod manifests
    #[arg(long, value_name = "DIR")]
    pub pod_manifest_path: Option<PathBuf>,
    /// URL of static pod manifests
    #[arg(long, value_name = "URL")]
    pub manifest_url: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Up {
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    pub node: Node,
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

#[derive(Debug, Clone, Args)]
pub struct Agent {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Credentials for the API server
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    #[command(flatten)]
    pub node: Node,
    /// Addresses of pods in the whole cluster
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16", value_delimiter = ',')]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/12", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
}

#[derive(Debug, Clone, Args)]
pub struct Remote {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Credentials for the API server
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// Addresses of pods; each node gets a part
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16", value_delimiter = ',')]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/12", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Image {
    /// Import OCI or docker archives, plain or compressed (gzip, zstd)
    Import {
        #[command(flatten)]
        data: DataDirectory,
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the images of every node
    Ls {
        #[command(flatten)]
        data: DataDirectory,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum Store {
    /// Write a consistent snapshot of a stopped cluster's store to a file
    Backup {
        #[command(flatten)]
        data: DataDirectory,
        file: PathBuf,
    },
    /// Fill an empty store from a snapshot; resource versions stay valid
    Restore {
        #[command(flatten)]
        data: DataDirectory,
        file: PathBuf,
    },
    /// Read everything and verify every checksum
    Check {
        #[command(flatten)]
        data: DataDirectory,
    },
}
