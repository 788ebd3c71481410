//! Flags of the network: what pods' networks are, where load balancers get addresses, and cluster DNS as a component of its own.
//! Part of `flags`; carried out in `commands` and `network`.
//! Starts nothing; only reads what was typed.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, ValueEnum};

use super::component_flags::ConnectionFlags;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodNetwork {
    Routes,
    Vxlan,
}

impl PodNetwork {
    pub fn name(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::Vxlan => "vxlan",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadBalancerMode {
    Nodes,
    Layer2,
    None,
}

// No doc comment: clap would show it as --help.
#[derive(Debug, Clone, Default, Args)]
pub struct CniDirectories {
    /// Directory of network configurations: where our containerd looks for them, and our own is written
    /// [default: in the data directory; /etc/cni/net.d with --container-runtime-endpoint]
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directory of network plugins [default: in the data directory; /opt/cni/bin with --container-runtime-endpoint]
    #[arg(long, value_name = "DIR")]
    pub cni_bin_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Dns {
    #[command(flatten)]
    pub connection: ConnectionFlags,
    /// Addresses to answer at, UDP and TCP
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', default_value = "0.0.0.0")]
    pub address: Vec<IpAddr>,
    /// Port to answer at
    #[arg(long, value_name = "PORT", default_value_t = 53)]
    pub port: u16,
    /// Domain of the cluster
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Addresses of the Service that leads here, which are not asked about names outside the cluster
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,
    /// Port of the metrics, at the first address; 0 turns them off
    #[arg(long, value_name = "PORT", default_value_t = 9153)]
    pub metrics_port: u16,
}

impl Dns {
    pub fn config(&self) -> dns::DnsConfig {
        let listen = self.address.iter().map(|ip| SocketAddr::new(*ip, self.port)).collect();
        let mut config = dns::DnsConfig::new(listen, &self.cluster_domain);
        config.also_here = self.cluster_dns.clone();
        let metrics = self.address.first().filter(|_| self.metrics_port != 0);
        config.metrics = metrics.map(|ip| SocketAddr::new(*ip, self.metrics_port));
        config
    }
}
