//! Flags of the ingress: part of `up`, and of `minke ingress` alone.
//! Read by `network::ingress` and `cluster::ports`.
//! Ports that are not asked for are chosen at start; nothing is listened on here.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use crate::flags::{Choice, DataDirectory};

#[derive(Debug, Clone, Args)]
pub struct Ingress {
    /// Who serves Ingresses: our own proxy on this machine, or `none` when another is installed
    #[arg(long, value_name = "PROXY", default_value = "minke")]
    pub ingress: Choice,
    #[command(flatten)]
    pub ports: IngressPorts,
}

// No doc comment: clap would show it as --help.
#[derive(Debug, Clone, Args)]
pub struct IngressPorts {
    /// Port of the ingress for HTTP; 0 turns it off [default: 80, or a free one from 8080]
    #[arg(long, value_name = "PORT")]
    pub ingress_http_port: Option<u16>,
    /// Port of the ingress for HTTPS; 0 turns it off [default: 443, or a free one from 8443]
    #[arg(long, value_name = "PORT")]
    pub ingress_https_port: Option<u16>,
    /// File to which the ingress appends a line per request
    #[arg(long, value_name = "FILE")]
    pub ingress_access_log: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct IngressAlone {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Credentials for the API server
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// Addresses that Ingresses show in their status [default: this machine's first]
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Give each Gateway an address of its own, from the pool of --load-balancer=layer2 (which `up` then does by itself)
    #[arg(long)]
    pub own_gateway_addresses: bool,
    #[command(flatten)]
    pub ports: IngressPorts,
}
