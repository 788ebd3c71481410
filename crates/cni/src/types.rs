//! The CNI documents: network configuration in, result or error out, in every version we speak.
//! Used by every other file of the crate.
//! Invariant: pure; reads no environment and touches no system (tidy: `pure_files`).

use std::{net::IpAddr, path::PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Request, bandwidth::Bandwidth};

pub const SUPPORTED_VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A CNI error: `code` as the specification numbers them, 100 and above are ours.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: u32,
    pub message: String,
}

impl Error {
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
    pub fn incompatible_version(message: impl Into<String>) -> Self {
        Self::new(1, message)
    }
    pub fn invalid_environment(message: impl Into<String>) -> Self {
        Self::new(4, message)
    }
    pub fn io(message: impl Into<String>) -> Self {
        Self::new(5, message)
    }
    pub fn decode(message: impl Into<String>) -> Self {
        Self::new(6, message)
    }
    pub fn invalid_config(message: impl Into<String>) -> Self {
        Self::new(7, message)
    }
    pub fn plugin_not_available(message: impl Into<String>) -> Self {
        Self::new(50, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(999, message)
    }
    /// CHECK found something other than what ADD made.
    pub fn check_failed(message: impl Into<String>) -> Self {
        Self::new(100, message)
    }

    pub fn to_json(&self, cni_version: &str) -> Value {
        json!({ "cniVersion": cni_version, "code": self.code, "msg": self.message })
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetConf {
    pub cni_version: String,
    #[serde(default)]
    pub name: String,
    #[serde(rename = "type")]
    pub plugin: String,
    #[serde(default)]
    pub bridge: String,
    #[serde(default)]
    pub mtu: Option<u32>,
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations reached with the pod's own address: the pods and services of the whole cluster.
    #[serde(default, rename = "clusterCIDRs")]
    pub cluster_cidrs: Vec<IpNet>,
    #[serde(default)]
    pub data_dir: PathBuf,
    #[serde(default)]
    pub table: String,
    /// Where the enforcement of NetworkPolicies hears of new pods.
    #[serde(default)]
    pub policy_socket: Option<PathBuf>,
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<Attachment>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeConfig {
    #[serde(default)]
    pub port_mappings: Vec<PortMapping>,
    #[serde(default)]
    pub bandwidth: Bandwidth,
}

/// containerd writes Go's names, others the specification's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    #[serde(alias = "HostPort")]
    pub host_port: u16,
    #[serde(alias = "ContainerPort")]
    pub container_port: u16,
    #[serde(default = "tcp", alias = "Protocol")]
    pub protocol: String,
    #[serde(default, rename = "hostIP", alias = "HostIP")]
    pub host_ip: String,
}

fn tcp() -> String {
    "tcp".to_owned()
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
}

impl NetConf {
    pub fn parse(input: &str) -> Result<Self, Error> {
        let conf: Self = serde_json::from_str(input)
            .map_err(|error| Error::decode(format!("failed to parse the network configuration: {error}")))?;
        if !SUPPORTED_VERSIONS.contains(&conf.cni_version.as_str()) {
            return Err(Error::incompatible_version(format!(
                "cniVersion {:?} is not supported, only {SUPPORTED_VERSIONS:?}",
                conf.cni_version
            )));
        }
        if conf.plugin != "loopback" {
            conf.validate()?;
        }
        Ok(conf)
    }

    /// Whether an address is of the ranges that the node has now.
    pub fn has(&self, ip: &IpAddr) -> bool {
        self.pod_cidrs.iter().any(|network| network.contains(ip))
    }

    fn validate(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::invalid_config(message));
        for (field, value) in [("name", &self.name), ("bridge", &self.bridge), ("table", &self.table)] {
            let fine = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            if !fine || value.starts_with('.') {
                return invalid(format!("{field} {value:?} must be letters, digits, '-', '_' or '.'"));
            }
        }
        if self.bridge.len() > 15 {
            return invalid(format!("bridge {:?} is longer than 15 characters", self.bridge));
        }
        if !self.data_dir.is_absolute() {
            return invalid(format!("dataDir {:?} must be an absolute path", self.data_dir));
        }
        let families = self.pod_cidrs.iter().filter(|net| net.addr().is_ipv4()).count();
        if self.pod_cidrs.is_empty() || families > 1 || self.pod_cidrs.len() - families > 1 {
            return invalid("podCIDRs must name one network per address family".to_owned());
        }
        for net in &self.pod_cidrs {
            if net.max_prefix_len() - net.prefix_len() < 2 {
                return invalid(format!("podCIDRs: {net} has no room for a gateway and a pod"));
            }
        }
        Ok(())
    }

    pub fn network_dir(&self) -> PathBuf {
        self.data_dir.join(&self.name)
    }
}

impl Request {
    pub fn validate(&self) -> Result<(), Error> {
        let needs: &[(&str, &str)] = match self.command.as_str() {
            "ADD" | "CHECK" => {
                &[("CNI_CONTAINERID", &self.container_id), ("CNI_NETNS", &self.netns), ("CNI_IFNAME", &self.ifname)]
            }
            // The namespace may be gone already when DEL comes.
            "DEL" => &[("CNI_CONTAINERID", &self.container_id), ("CNI_IFNAME", &self.ifname)],
            "GC" | "STATUS" => &[],
            other => return Err(Error::invalid_environment(format!("unknown CNI_COMMAND: {other}"))),
        };
        for (name, value) in needs {
            if value.is_empty() {
                return Err(Error::invalid_environment(format!("required env variable {name} is missing")));
            }
        }
        let id = &self.container_id;
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        let starts_well = id.bytes().next().is_none_or(|b| b.is_ascii_alphanumeric());
        if !starts_well || !id.bytes().all(legal) {
            return Err(Error::invalid_environment(format!("invalid characters in containerID {id:?}")));
        }
        let ifname = &self.ifname;
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if ifname.len() > 15 || ifname == "." || ifname == ".." || ifname.contains(bad) {
            return Err(Error::invalid_environment(format!("invalid interface name {ifname:?}")));
        }
        Ok(())
    }
}

/// What ADD made, to be printed in the version the caller asked for.
#[derive(Debug, Clone, Default)]
pub struct AddResult {
    pub interfaces: Vec<Interface>,
    pub ips: Vec<(IpNet, Option<IpAddr>)>,
    /// Which of `interfaces` carries the addresses; `None` before there is one.
    pub ip_interface: Option<usize>,
    pub routes: Vec<(IpNet, Option<IpAddr>)>,
    /// What the configuration says of name servers.
    pub dns: Option<Value>,
}

#[derive(Debug, Clone, Default)]
pub struct Interface {
    pub name: String,
    pub mac: String,
    pub mtu: Option<u32>,
    pub sandbox: Option<String>,
}

impl AddResult {
    pub fn to_json(&self, cni_version: &str) -> Value {
        let interfaces: Vec<Value> = self
            .interfaces
            .iter()
            .map(|interface| {
                let mut value = json!({ "name": interface.name, "mac": interface.mac });
                if let Some(sandbox) = &interface.sandbox {
                    value["sandbox"] = json!(sandbox);
                }
                if let (Some(mtu), "1.1.0") = (interface.mtu, cni_version) {
                    value["mtu"] = json!(mtu);
                }
                value
            })
            .collect();
        let ips: Vec<Value> = self
            .ips
            .iter()
            .map(|(address, gateway)| {
                let mut value = json!({ "address": address.to_string() });
                if let Some(interface) = self.ip_interface {
                    value["interface"] = json!(interface);
                }
                if let Some(gateway) = gateway {
                    value["gateway"] = json!(gateway);
                }
                if cni_version.starts_with("0.") {
                    value["version"] = json!(if address.addr().is_ipv4() { "4" } else { "6" });
                }
                value
            })
            .collect();
        let routes: Vec<Value> = self
            .routes
            .iter()
            .map(|(destination, gateway)| match gateway {
                Some(gateway) => json!({ "dst": destination.to_string(), "gw": gateway }),
                None => json!({ "dst": destination.to_string() }),
            })
            .collect();
        let dns = self.dns.clone().unwrap_or_else(|| json!({}));
        let mut result = json!({ "cniVersion": cni_version, "ips": ips, "routes": routes, "dns": dns });
        if !interfaces.is_empty() {
            result["interfaces"] = json!(interfaces);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(change: impl FnOnce(&mut Value)) -> Result<NetConf, Error> {
        let mut value = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "minke-cni", "bridge": "b0", "table": "t",
            "dataDir": "/var/lib/x", "podCIDRs": ["10.0.0.0/24", "fd00::/64"],
        });
        change(&mut value);
        NetConf::parse(&value.to_string())
    }

    #[test]
    fn configurations_are_checked() {
        let check = |change: fn(&mut Value), code: u32| match conf(change) {
            Ok(_) => assert_eq!(code, 0),
            Err(error) => assert_eq!(error.code, code, "{error}"),
        };
        check(|_| {}, 0);
        check(|v| v["cniVersion"] = json!("0.1.0"), 1);
        check(|v| v["cniVersion"] = json!(1), 6);
        check(|v| v["bridge"] = json!("sixteen-letters-"), 7);
        check(|v| v["name"] = json!("../etc"), 7);
        check(|v| v["podCIDRs"] = json!([]), 7);
        check(|v| v["podCIDRs"] = json!(["10.0.0.0/24", "10.0.1.0/24"]), 7);
        check(|v| v["podCIDRs"] = json!(["10.0.0.0/31"]), 7);
        check(|v| v["dataDir"] = json!("relative"), 7);
        let ports = |ports: Value| json!({ "portMappings": [ports] });
        for good in [
            json!({ "hostPort": 80, "containerPort": 8080, "protocol": "tcp" }),
            json!({ "HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": "127.0.0.1" }),
        ] {
            let read = conf(|v| v["runtimeConfig"] = ports(good.clone())).unwrap_or_else(|e| panic!("{good}: {e}"));
            assert_eq!(read.runtime_config.port_mappings[0].container_port, 8080);
        }
    }

    #[test]
    fn results_follow_the_version() {
        let result = AddResult {
            interfaces: vec![Interface { name: "eth0".into(), mtu: Some(1450), ..Interface::default() }],
            ips: vec![("10.0.0.2/32".parse().unwrap(), Some("10.0.0.1".parse().unwrap()))],
            ..AddResult::default()
        };
        assert_eq!(result.to_json("0.4.0")["ips"][0]["version"], "4");
        assert!(result.to_json("1.0.0")["ips"][0].get("version").is_none());
        assert!(result.to_json("1.0.0")["interfaces"][0].get("mtu").is_none());
        assert_eq!(result.to_json("1.1.0")["interfaces"][0]["mtu"], 1450);
    }
}
