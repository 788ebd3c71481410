//! Flags of cluster DNS as a component of its own.
//! Parsed by `main`; carried out in `commands`.
//! Starts nothing; only reads what was typed.

use std::net::{IpAddr, SocketAddr};

use clap::Args;

use super::component_flags::ConnectionFlags;

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
