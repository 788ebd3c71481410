//! The KubeProxyConfiguration file (`kubeproxy.config.k8s.io/v1alpha1`): read strictly, then turned into settings.
//! Used by `minke proxy` for `--config`; flags are laid over the file by the same field names, so one table checks both.
//! A field that is unknown, of the wrong type, or not to be had here is refused by name; none is dropped.

use std::{net::SocketAddr, path::Path, time::Duration};

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::conntrack::ConntrackLimits;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// What the file and the flags say, with upstream's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// Where NodePorts answer; `None`: at the node's primary addresses.
    pub node_port_addresses: Option<Vec<IpNet>>,
    /// `Some(None)` turns it off.
    pub healthz: Option<Option<SocketAddr>>,
    pub metrics: Option<Option<SocketAddr>>,
    pub conntrack: ConntrackLimits,
    pub masquerade_all: bool,
    pub cluster_cidrs: Option<Vec<IpNet>>,
    pub hostname_override: Option<String>,
    pub kubeconfig: Option<String>,
    pub oom_score_adj: Option<i32>,
    pub mode: ProxyMode,
    /// In mode iptables: how often all rules are written, whoever has changed them.
    pub iptables_sync_period: Option<Duration>,
}

/// What the rules are written with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// nftables where there are any.
    #[default]
    Best,
    Nftables,
    Iptables,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("failed to load kube-proxy config file, path: {path}, error: {message}")]
    Load { path: String, message: String },
    #[error("{0}")]
    Syntax(String),
    #[error("strict decoding error: {}", .0.join(", "))]
    UnknownFields(Vec<String>),
    #[error("KubeProxyConfiguration.{name}: Invalid value: {value}: {message}")]
    Field { name: String, value: Value, message: String },
}

/// The fields of a file, with flags laid over them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KubeProxyConfiguration(Map<String, Value>);

impl KubeProxyConfiguration {
    pub fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let failed = |message: String| ConfigurationError::Load { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let mut read = Self::parse(&text).map_err(|error| failed(error.to_string()))?;
        // In a file an empty address is none that was said, as in those that kubeadm writes; only a flag turns a port off.
        for address in ["healthzBindAddress", "metricsBindAddress"] {
            if read.get(address).is_some_and(|value| value == "") {
                read.0.remove(address);
            }
        }
        Ok(read)
    }

    /// YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let syntax = |message: String| ConfigurationError::Syntax(message);
        let document: Value = serde_saphyr::from_str(text).map_err(|error| syntax(error.to_string()))?;
        let Value::Object(mut fields) = document else { return Err(syntax("the file is not an object".into())) };
        for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match fields.remove(field) {
                Some(Value::String(found)) if found == wanted => {}
                found => {
                    let found = found.unwrap_or_default();
                    return Err(syntax(format!("{field} is {found}, not {wanted:?}")));
                }
            }
        }
        let mut unknown = Vec::new();
        find_unknown(&fields, "", &mut unknown);
        if unknown.is_empty() { Ok(Self(fields)) } else { Err(ConfigurationError::UnknownFields(unknown)) }
    }

    /// A flag: replaces what the file says. `path` has dots where fields are nested.
    pub fn set(&mut self, path: &str, value: Value) {
        let mut place = &mut self.0;
        let (outer, name) = path.rsplit_once('.').unwrap_or(("", path));
        for part in outer.split('.').filter(|part| !part.is_empty()) {
            let next = place.entry(part).or_insert_with(|| Value::Object(Map::new()));
            if !next.is_object() {
                *next = Value::Object(Map::new());
            }
            let Value::Object(inner) = next else { return };
            place = inner;
        }
        place.insert(name.into(), value);
    }

    fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.0.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part)).filter(|value| !value.is_null())
    }

    /// Also the names of fields that are set and mean nothing to nftables.
    pub fn settings(&self) -> Result<(ProxySettings, Vec<&'static str>), ConfigurationError> {
        let mut settings = ProxySettings::default();
        let mut idle = Vec::new();
        for (name, meaning) in FIELDS {
            let Some(value) = self.get(name) else { continue };
            let refuse =
                |message: String| ConfigurationError::Field { name: (*name).to_owned(), value: value.clone(), message };
            match meaning {
                Meaning::Sets(set) => set(&mut settings, value).map_err(refuse)?,
                Meaning::Only(possible, reason) => {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    if !possible.contains(&text.as_str()) {
                        return Err(refuse((*reason).to_owned()));
                    }
                }
                Meaning::Idle => idle.push(*name),
            }
        }
        Ok((settings, idle))
    }
}

fn find_unknown(fields: &Map<String, Value>, under: &str, unknown: &mut Vec<String>) {
    for (name, value) in fields {
        let path = if under.is_empty() { name.clone() } else { format!("{under}.{name}") };
        if FIELDS.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let holds_known = FIELDS.iter().any(|(known, _)| known.starts_with(&format!("{path}.")));
        match value {
            Value::Object(inner) if holds_known => find_unknown(inner, &path, unknown),
            Value::Null if holds_known => {}
            _ => unknown.push(format!("unknown field {path:?}")),
        }
    }
}

type Set = fn(&mut ProxySettings, &Value) -> Result<(), String>;

enum Meaning {
    Sets(Set),
    /// Only these values are to be had, for this reason.
    Only(&'static [&'static str], &'static str),
    /// About other proxy modes or what there is no need for here.
    Idle,
}
use Meaning::{Idle, Only, Sets};

/// Every field of the kind.
const FIELDS: &[(&str, Meaning)] = &[
    ("bindAddress", Idle),
    ("bindAddressHardFail", Idle),
    ("clientConnection.acceptContentTypes", Idle),
    ("clientConnection.burst", Idle),
    ("clientConnection.contentType", Idle),
    (
        "clientConnection.kubeconfig",
        Sets(|s, v| text(v).map(|path| s.kubeconfig = Some(path).filter(|p| !p.is_empty()))),
    ),
    ("clientConnection.qps", Idle),
    ("clusterCIDR", Sets(|s, v| networks(&text(v)?).map(|cidrs| s.cluster_cidrs = cidrs))),
    ("configSyncPeriod", Idle),
    ("conntrack.maxPerCore", Sets(|s, v| number(v).map(|n| s.conntrack.max_per_core = n))),
    ("conntrack.min", Sets(|s, v| number(v).map(|n| s.conntrack.min = n))),
    ("conntrack.tcpBeLiberal", Sets(|s, v| flag(v).map(|b| s.conntrack.tcp_be_liberal = b))),
    ("conntrack.tcpCloseWaitTimeout", Sets(|s, v| duration(v).map(|d| s.conntrack.tcp_close_wait_timeout = d))),
    ("conntrack.tcpEstablishedTimeout", Sets(|s, v| duration(v).map(|d| s.conntrack.tcp_established_timeout = d))),
    ("conntrack.udpStreamTimeout", Sets(|s, v| duration(v).map(|d| s.conntrack.udp_stream_timeout = d))),
    ("conntrack.udpTimeout", Sets(|s, v| duration(v).map(|d| s.conntrack.udp_timeout = d))),
    ("detectLocal.bridgeInterface", Only(&[""], DETECT_LOCAL)),
    ("detectLocal.interfaceNamePrefix", Only(&[""], DETECT_LOCAL)),
    ("detectLocalMode", Only(&["", "ClusterCIDR"], DETECT_LOCAL)),
    ("enableProfiling", Only(&["false"], "there is no profiling here")),
    ("featureGates", Idle),
    ("healthzBindAddress", Sets(|s, v| address(v).map(|at| s.healthz = Some(at)))),
    ("hostnameOverride", Sets(|s, v| text(v).map(|name| s.hostname_override = Some(name).filter(|n| !n.is_empty())))),
    ("iptables.localhostNodePorts", Idle),
    ("iptables.masqueradeAll", Sets(|s, v| flag(v).map(|all| s.masquerade_all |= all))),
    ("iptables.masqueradeBit", Only(&["14"], "only bit 14 is used here")),
    ("iptables.minSyncPeriod", Idle),
    (
        "iptables.syncPeriod",
        Sets(|s, v| duration(v).map(|d| s.iptables_sync_period = Some(d).filter(|d| !d.is_zero()))),
    ),
    ("ipvs", Idle),
    ("logging", Idle),
    ("metricsBindAddress", Sets(|s, v| address(v).map(|at| s.metrics = Some(at)))),
    ("mode", Sets(mode)),
    ("nftables.masqueradeAll", Sets(|s, v| flag(v).map(|all| s.masquerade_all |= all))),
    ("nftables.masqueradeBit", Only(&["14"], "only bit 14 is used here")),
    ("nftables.minSyncPeriod", Idle),
    ("nftables.syncPeriod", Idle),
    ("nodePortAddresses", Sets(node_port_addresses)),
    ("oomScoreAdj", Sets(oom_score_adj)),
    ("portRange", Idle),
    ("showHiddenMetricsForVersion", Idle),
    ("windowsRunAsService", Idle),
    ("winkernel", Idle),
];

const DETECT_LOCAL: &str = "only ClusterCIDR is to be had here";

fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "must be a text".to_owned())
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "must be true or false".to_owned())
}

fn number(value: &Value) -> Result<u32, String> {
    let number = value.as_i64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| "must be greater than or equal to 0".to_owned())
}

fn duration(value: &Value) -> Result<Duration, String> {
    let nanoseconds = api::codec::parse_duration(&text(value)?)?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| "must be greater than or equal to 0".to_owned())
}

fn networks(text: &str) -> Result<Option<Vec<IpNet>>, String> {
    let parse = |text: &str| text.trim().parse::<IpNet>().map_err(|_| "must be a valid CIDR".to_owned());
    let all: Vec<IpNet> = text.split(',').filter(|text| !text.is_empty()).map(parse).collect::<Result<_, _>>()?;
    Ok(Some(all).filter(|all| !all.is_empty()))
}

fn address(value: &Value) -> Result<Option<SocketAddr>, String> {
    match text(value)?.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "must be IP:port".to_owned()),
    }
}

fn node_port_addresses(settings: &mut ProxySettings, value: &Value) -> Result<(), String> {
    let list = value.as_array().ok_or("must be a list")?;
    let texts: Vec<String> = list.iter().map(text).collect::<Result<_, _>>()?;
    if texts.iter().any(|text| text == "primary") {
        if texts.len() > 1 {
            return Err("can't use both 'primary' and CIDRs".into());
        }
        settings.node_port_addresses = None;
        return Ok(());
    }
    networks(&texts.join(",")).map(|cidrs| settings.node_port_addresses = cidrs)
}

fn mode(settings: &mut ProxySettings, value: &Value) -> Result<(), String> {
    settings.mode = match text(value)?.as_str() {
        "" => ProxyMode::Best,
        "nftables" => ProxyMode::Nftables,
        "iptables" => ProxyMode::Iptables,
        _ => return Err("must be 'nftables', 'iptables' or blank: other modes are not built in".into()),
    };
    Ok(())
}

fn oom_score_adj(settings: &mut ProxySettings, value: &Value) -> Result<(), String> {
    let score = value.as_i64().filter(|score| (-1000..=1000).contains(score));
    let score = score.ok_or("must be within the range [-1000, 1000]")?;
    settings.oom_score_adj = Some(score as i32);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<(ProxySettings, Vec<&'static str>), String> {
        let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{fields}\n");
        KubeProxyConfiguration::parse(&text).and_then(|read| read.settings()).map_err(|error| error.to_string())
    }

    #[test]
    fn upstreams_defaults_and_fields() {
        let (settings, idle) = read("").unwrap();
        assert_eq!((settings.clone(), idle.len()), (ProxySettings::default(), 0));
        assert_eq!(settings.conntrack.tcp_established_timeout, Duration::from_secs(24 * 3600));
        assert_eq!(settings.conntrack.tcp_close_wait_timeout, Duration::from_secs(3600));
        assert_eq!((settings.conntrack.max_per_core, settings.conntrack.min), (32768, 131_072));
        let (settings, idle) = read(
            "mode: nftables\nnodePortAddresses: [10.0.0.0/8, fd00::/8]\nhealthzBindAddress: 127.0.0.1:1\n\
             metricsBindAddress: \"\"\nclusterCIDR: 10.244.0.0/16\noomScoreAdj: -999\n\
             conntrack: {tcpCloseWaitTimeout: 1m0s, min: 0}\nnftables: {masqueradeAll: true, masqueradeBit: 14}\n\
             iptables: {syncPeriod: 1s, minSyncPeriod: 0s}\nipvs: {}",
        )
        .unwrap();
        assert_eq!(settings.node_port_addresses.unwrap().len(), 2);
        assert_eq!(settings.healthz, Some(Some("127.0.0.1:1".parse().unwrap())));
        assert_eq!(settings.metrics, Some(None));
        assert_eq!((settings.conntrack.min, settings.oom_score_adj), (0, Some(-999)));
        assert_eq!(settings.conntrack.tcp_close_wait_timeout, Duration::from_secs(60));
        assert!(settings.masquerade_all);
        assert_eq!(idle, ["iptables.minSyncPeriod", "ipvs"]);
        assert_eq!(settings.iptables_sync_period, Some(Duration::from_secs(1)));
        assert_eq!(read("mode: iptables").unwrap().0.mode, ProxyMode::Iptables);
        // A flag wins.
        let mut both = KubeProxyConfiguration::default();
        both.set("conntrack.min", 7.into());
        both.set("nodePortAddresses", vec!["primary"].into());
        assert_eq!(both.settings().unwrap().0.conntrack.min, 7);
    }

    #[test]
    fn what_is_not_to_be_had_is_refused_by_name() {
        for (fields, expected) in [
            ("mode: ipvs", "KubeProxyConfiguration.mode: Invalid value: \"ipvs\""),
            ("nodePortAddresses: [primary, 10.0.0.0/8]", "can't use both 'primary' and CIDRs"),
            ("nodePortAddresses: [x]", "must be a valid CIDR"),
            ("conntrack: {min: -1}", "must be greater than or equal to 0"),
            ("oomScoreAdj: 2000", "must be within the range [-1000, 1000]"),
            ("healthzBindAddress: x", "must be IP:port"),
            ("conntrack: {typo: 1}\nother: 2", "unknown field \"conntrack.typo\", unknown field \"other\""),
            ("detectLocalMode: BridgeInterface", "only ClusterCIDR"),
        ] {
            let found = read(fields).unwrap_err();
            assert!(found.contains(expected), "{fields}: {found}");
        }
        assert!(KubeProxyConfiguration::parse("kind: Other").is_err());
    }
}
