//! The flags of `minke proxy`, under upstream's names, and the KubeProxyConfiguration file they are laid over.
//! Turned into an `Agent` by `commands`; the fields themselves are checked by `proxy::KubeProxyConfiguration`.
//! A flag wins over the file, and both pass the same table.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, bail};
use clap::{Args, FromArgMatches};
use proxy::{KubeProxyConfiguration, ProxySettings};
use serde_json::{Value, json};

use crate::flags::{
    Agent, Node,
    upstream::{self, Form, OtherFlags, PROXY_FIELDS},
};

#[derive(Debug, Clone, Args)]
pub struct Proxy {
    #[command(flatten)]
    pub agent: Agent,
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1); flags win over it
    #[arg(long, value_name = "FILE", conflicts_with = "proxy_config")]
    pub config: Option<PathBuf>,
    /// Remove the rules of all modes, and end
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub cleanup: Option<bool>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Port of the metrics, 0 turns them off; --metrics-bind-address says it better
    #[arg(long, value_name = "PORT", conflicts_with = "metrics_bind_address")]
    pub metrics_port: Option<u16>,
    /// `nftables` or `iptables` [default: nftables where there are any]
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// Name of this node, as --node-name
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Addresses of pods, as --pod-cidr
    #[arg(long, value_name = "CIDR")]
    pub cluster_cidr: Option<String>,
    /// Networks on whose addresses NodePorts answer, or `primary`
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// IP:port of the health check; empty turns it off
    #[arg(long, value_name = "IP:PORT")]
    pub healthz_bind_address: Option<String>,
    /// IP:port of the metrics; empty turns them off
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_bind_address: Option<String>,
    /// Masquerade all that goes to ClusterIPs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub masquerade_all: Option<bool>,
    /// Between -1000 and 1000
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true)]
    pub oom_score_adj: Option<i64>,
    /// Tracked connections per core; 0 leaves the limit as it is
    #[arg(long, value_name = "N")]
    pub conntrack_max_per_core: Option<i64>,
    /// Tracked connections at least
    #[arg(long, value_name = "N")]
    pub conntrack_min: Option<i64>,
    /// How long idle TCP connections are tracked; 0 leaves it as it is
    #[arg(long, value_name = "DURATION")]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// The same in state CLOSE_WAIT
    #[arg(long, value_name = "DURATION")]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// Track TCP packets out of their window too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// How long idle UDP flows are tracked; 0 leaves it as it is
    #[arg(long, value_name = "DURATION")]
    pub conntrack_udp_timeout: Option<String>,
    /// The same for those with answers
    #[arg(long, value_name = "DURATION")]
    pub conntrack_udp_timeout_stream: Option<String>,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    others: OtherFlags<upstream::Proxy>,
}

/// The further flags that are fields, by field.
#[derive(Debug, Clone, Default)]
struct Fields(BTreeMap<&'static str, Value>);

impl Args for Fields {
    fn augment_args(command: clap::Command) -> clap::Command {
        PROXY_FIELDS.iter().fold(command, |command, (flag, field, form)| {
            let argument = clap::Arg::new(*flag).long(*flag).help(format!("Field {field} of the configuration"));
            command.arg(match form {
                Form::Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
                _ => argument.allow_hyphen_values(true),
            })
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Fields {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut given = BTreeMap::new();
        for (flag, field, form) in PROXY_FIELDS {
            let Some(text) = matches.get_one::<String>(flag) else { continue };
            let value = match form {
                Form::Flag => text.parse::<bool>().ok().map(Value::from),
                Form::Number => text.parse::<i64>().ok().map(Value::from),
                _ => Some(text.as_str().into()),
            };
            let invalid = || clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("--{flag}={text}\n"));
            given.insert(*field, value.ok_or_else(invalid)?);
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Proxy {
    /// The node it is the proxy of.
    pub fn agent(mut self) -> Result<Agent> {
        self.others.check()?;
        let mut fields = match &self.config {
            Some(file) => KubeProxyConfiguration::load(file)?,
            None => KubeProxyConfiguration::default(),
        };
        for (path, value) in [
            ("mode", self.proxy_mode.map(Value::from)),
            ("hostnameOverride", self.hostname_override.map(Value::from)),
            ("clusterCIDR", self.cluster_cidr.map(Value::from)),
            ("nodePortAddresses", self.nodeport_addresses.map(|list| json!(list))),
            ("healthzBindAddress", self.healthz_bind_address.map(Value::from)),
            ("metricsBindAddress", self.metrics_bind_address.map(Value::from)),
            ("nftables.masqueradeAll", self.masquerade_all.map(Value::from)),
            ("oomScoreAdj", self.oom_score_adj.map(Value::from)),
            ("conntrack.maxPerCore", self.conntrack_max_per_core.map(Value::from)),
            ("conntrack.min", self.conntrack_min.map(Value::from)),
            ("conntrack.tcpEstablishedTimeout", self.conntrack_tcp_timeout_established.map(Value::from)),
            ("conntrack.tcpCloseWaitTimeout", self.conntrack_tcp_timeout_close_wait.map(Value::from)),
            ("conntrack.tcpBeLiberal", self.conntrack_tcp_be_liberal.map(Value::from)),
            ("conntrack.udpTimeout", self.conntrack_udp_timeout.map(Value::from)),
            ("conntrack.udpStreamTimeout", self.conntrack_udp_timeout_stream.map(Value::from)),
        ] {
            if let Some(value) = value {
                fields.set(path, value);
            }
        }
        for (path, value) in std::mem::take(&mut self.fields.0) {
            fields.set(path, value);
        }
        for (path, port, address) in [
            // Upstream's name for it here is that of the kubelet's among the flags of a node, which runs no kubelet.
            ("healthzBindAddress", self.agent.node.healthz_port, "0.0.0.0"),
            ("metricsBindAddress", self.metrics_port, "127.0.0.1"),
        ] {
            match port {
                None => {}
                Some(0) => fields.set(path, json!("")),
                Some(port) => fields.set(path, json!(format!("{address}:{port}"))),
            }
        }
        let (settings, _) = fields.settings()?;
        let agent = &mut self.agent;
        if let Some(name) = &settings.hostname_override {
            agent.node.node_name.get_or_insert_with(|| name.clone());
        }
        if agent.kubeconfig.is_none() && agent.server.is_none() {
            agent.kubeconfig = settings.kubeconfig.map(PathBuf::from);
        }
        if let Some(cidrs) = settings.cluster_cidrs {
            agent.pod_cidr = cidrs;
        }
        agent.master = self.master;
        agent.as_pod = agent.kubeconfig.is_none() && agent.server.is_none();
        agent.node.proxy = fields;
        Ok(self.agent)
    }
}

/// What the proxy of a node is told, by file and flags. Says which fields mean nothing here.
pub fn settings(node: &Node) -> Result<ProxySettings> {
    let fields = match &node.proxy_config {
        Some(file) => KubeProxyConfiguration::load(file)?,
        None => node.proxy.clone(),
    };
    let (settings, idle) = fields.settings()?;
    if !idle.is_empty() {
        tracing::warn!(fields = idle.join(", "), "fields of the KubeProxyConfiguration that have no effect here");
    }
    if let Some(score) = settings.oom_score_adj
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        bail!("failed to set oomScoreAdj {score}: {error}");
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        proxy: Proxy,
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: n1\n\
                    clientConnection: {kubeconfig: /k}\nconntrack: {min: 1, maxPerCore: 2}\nclusterCIDR: 10.1.0.0/16\n";
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        let agent = |more: &[&str]| {
            let words = ["proxy", "--config", &path].into_iter().chain(more.iter().copied());
            Command::try_parse_from(words).map_err(anyhow::Error::from).and_then(|command| command.proxy.agent())
        };
        let found = agent(&["--conntrack-min", "7", "--nodeport-addresses", "10.0.0.0/8", "--masquerade-all"]).unwrap();
        assert_eq!(found.node.node_name.as_deref(), Some("n1"));
        assert_eq!(found.kubeconfig, Some(PathBuf::from("/k")));
        assert_eq!(found.pod_cidr, ["10.1.0.0/16".parse().unwrap()]);
        let settings = settings(&found.node).unwrap();
        assert_eq!((settings.conntrack.min, settings.conntrack.max_per_core), (7, 2));
        assert!(settings.masquerade_all && settings.node_port_addresses.is_some());
        let refused = agent(&["--proxy-mode", "ipvs"]).unwrap_err().to_string();
        assert!(refused.contains("KubeProxyConfiguration.mode"), "{refused}");
    }
}
