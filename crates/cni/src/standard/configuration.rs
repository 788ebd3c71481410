//! The configurations of upstream's standard plugins, as their documentation has them.
//! Read by every plugin of this folder; fields that none of them has are left alone, as upstream's do.
//! Invariant: pure (tidy: `pure_files`).

use std::{net::IpAddr, path::PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Attachment, Request, SUPPORTED_VERSIONS,
    bandwidth::Bandwidth,
    ipam::{self, AddressRange},
    types::{Error, PortMapping},
};

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    pub cni_version: String,
    #[serde(default)]
    pub name: String,
    #[serde(default = "default_bridge")]
    pub bridge: String,
    #[serde(default)]
    pub is_gateway: bool,
    #[serde(default)]
    pub is_default_gateway: bool,
    #[serde(default)]
    pub force_address: bool,
    #[serde(default)]
    pub ip_masq: bool,
    #[serde(default)]
    pub mtu: u32,
    #[serde(default)]
    pub hairpin_mode: bool,
    #[serde(default)]
    pub promisc_mode: bool,
    #[serde(default)]
    pub ipam: Option<IpamConfiguration>,
    #[serde(default)]
    pub dns: Option<Value>,
    /// Of portmap: whether calls from where answers would not find back are masqueraded.
    #[serde(default)]
    pub snat: Option<bool>,
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
    #[serde(default)]
    pub runtime_config: RuntimeConfiguration,
    #[serde(default)]
    pub args: Arguments,
    #[serde(default)]
    pub prev_result: Option<Value>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<Attachment>>,
    /// What is not read; some of it is refused.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeConfiguration {
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
    pub ips: Vec<String>,
    pub ip_ranges: Vec<Vec<RangeConfiguration>>,
    pub mac: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Arguments {
    pub cni: CniArguments,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CniArguments {
    pub ips: Vec<String>,
    pub mac: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpamConfiguration {
    #[serde(rename = "type")]
    pub plugin: String,
    #[serde(flatten)]
    pub range: RangeConfiguration,
    pub ranges: Vec<Vec<RangeConfiguration>>,
    pub routes: Vec<RouteConfiguration>,
    pub data_dir: Option<PathBuf>,
    pub resolv_conf: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RangeConfiguration {
    pub subnet: Option<IpNet>,
    pub range_start: Option<IpAddr>,
    pub range_end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RouteConfiguration {
    pub dst: IpNet,
    #[serde(default)]
    pub gw: Option<IpAddr>,
}

fn default_bridge() -> String {
    "cni0".to_owned()
}

/// Fields of upstream's bridge that ask for what there is none of here.
const NOT_FOLLOWED: [&str; 5] = ["vlan", "vlanTrunk", "macspoofchk", "disableContainerInterface", "portIsolation"];

impl Configuration {
    pub fn parse(input: &str) -> Result<Self, Error> {
        let conf: Self = serde_json::from_str(input)
            .map_err(|error| Error::decode(format!("failed to parse the network configuration: {error}")))?;
        if !SUPPORTED_VERSIONS.contains(&conf.cni_version.as_str()) {
            return Err(Error::incompatible_version(format!(
                "cniVersion {:?} is not supported, only {SUPPORTED_VERSIONS:?}",
                conf.cni_version
            )));
        }
        // It becomes the name of a directory.
        let fine = conf.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if conf.name.is_empty() || conf.name.starts_with('.') || !fine {
            return Err(Error::invalid_config(format!("invalid network name {:?}", conf.name)));
        }
        if conf.bridge.is_empty() || conf.bridge.len() > 15 || conf.bridge.contains(['/', ' ', '"']) {
            return Err(Error::invalid_config(format!("invalid bridge name {:?}", conf.bridge)));
        }
        let asks = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && *value != 0 && *value != "";
        match NOT_FOLLOWED.iter().find(|name| conf.rest.get(**name).is_some_and(asks)) {
            Some(name) => Err(Error::invalid_config(format!("{name} is not to be had from this bridge plugin"))),
            None if conf.hairpin_mode && conf.promisc_mode => {
                Err(Error::invalid_config("cannot set hairpin mode and promiscuous mode at the same time"))
            }
            None => Ok(conf),
        }
    }

    pub fn gives_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// The addresses that the runtime asks for, in all three ways that there are.
    pub fn requested_addresses(&self, request: &Request) -> Result<Vec<IpAddr>, Error> {
        let texts = self.runtime_config.ips.iter().chain(&self.args.cni.ips).map(String::as_str);
        let texts = texts.chain(request.argument("IP").into_iter().flat_map(|list| list.split(',')));
        let parse = |text: &str| {
            let address = text.split('/').next().unwrap_or_default().trim();
            address.parse().map_err(|_| Error::invalid_config(format!("invalid requested address {text:?}")))
        };
        texts.map(parse).collect()
    }

    pub fn requested_mac(&self, request: &Request) -> Result<Option<[u8; 6]>, Error> {
        let text = self.runtime_config.mac.as_deref().or(self.args.cni.mac.as_deref()).or(request.argument("MAC"));
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let bytes: Vec<u8> = text.split([':', '-']).filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
        let mac = bytes.try_into().map_err(|_| Error::invalid_config(format!("invalid hardware address {text:?}")))?;
        Ok(Some(mac))
    }

    /// What the pod's traffic is held to: the runtime's word counts more.
    pub fn bandwidth(&self) -> Result<Bandwidth, Error> {
        let bandwidth = self.runtime_config.bandwidth.unwrap_or(self.bandwidth);
        for (way, rate, burst) in [
            ("ingress", bandwidth.ingress_rate, bandwidth.ingress_burst),
            ("egress", bandwidth.egress_rate, bandwidth.egress_burst),
        ] {
            if (rate == 0) != (burst == 0) {
                return Err(Error::invalid_config(format!("{way} rate and burst must be set together")));
            }
        }
        Ok(bandwidth)
    }

    /// The sets of ranges that a pod gets one address each of: what the runtime asks for comes first, as upstream's.
    pub fn range_sets(&self) -> Result<Vec<Vec<AddressRange>>, Error> {
        let Some(ipam) = &self.ipam else { return Ok(Vec::new()) };
        let single = ipam.range.subnet.map(|_| vec![ipam.range.clone()]);
        let sets = self.runtime_config.ip_ranges.iter().cloned().chain(single).chain(ipam.ranges.iter().cloned());
        let sets: Vec<Vec<AddressRange>> =
            sets.map(|set| set.iter().map(RangeConfiguration::range).collect()).collect::<Result<_, _>>()?;
        if sets.is_empty() {
            return Err(Error::invalid_config("no IP ranges specified"));
        }
        for set in &sets {
            let ipv4 = set.first().map(|range| range.network.addr().is_ipv4());
            if ipv4.is_none() || set.iter().any(|range| Some(range.network.addr().is_ipv4()) != ipv4) {
                return Err(Error::invalid_config("a range set is empty or mixes address families"));
            }
        }
        let all: Vec<&AddressRange> = sets.iter().flatten().collect();
        for (index, range) in all.iter().enumerate() {
            if let Some(other) = all[..index].iter().find(|other| range.overlaps(other)) {
                let (a, b) = (range.network, other.network);
                return Err(Error::invalid_config(format!("ranges of {a} and {b} overlap")));
            }
        }
        Ok(sets)
    }
}

impl RangeConfiguration {
    fn range(&self) -> Result<AddressRange, Error> {
        let network = self.subnet.ok_or_else(|| Error::invalid_config("a range has no subnet"))?;
        if network != network.trunc() {
            let (bits, right) = (network.prefix_len(), network.network());
            return Err(Error::invalid_config(format!(
                "network has host bits set. For a subnet mask of length {bits} the network address is {right}"
            )));
        }
        if network.max_prefix_len() - network.prefix_len() < 2 {
            return Err(Error::invalid_config(format!("network {network} too small to allocate from")));
        }
        let gateway = self.gateway.unwrap_or_else(|| ipam::gateway(&network));
        let range = AddressRange::part(network, self.range_start, self.range_end, gateway);
        range.ok_or_else(|| Error::invalid_config(format!("rangeStart or rangeEnd is not in network {network}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The ranges, as `network first-last`, or what is wrong.
    fn ranges(ipam: Value, runtime: Value) -> Result<Vec<Vec<String>>, String> {
        let conf = json!({ "cniVersion": "0.3.1", "name": "n", "ipam": ipam, "runtimeConfig": runtime });
        let conf = Configuration::parse(&conf.to_string()).map_err(|error| error.message)?;
        let sets = conf.range_sets().map_err(|error| error.message)?;
        Ok(sets.iter().map(|set| set.iter().map(ToString::to_string).collect()).collect())
    }

    #[test]
    fn ranges_are_read_in_all_their_forms() {
        let check = |ipam: Value, expected: Result<&[&str], &str>| {
            let found = ranges(ipam.clone(), json!({}));
            let found = found.map(|sets| sets.iter().map(|set| set.join(" ")).collect::<Vec<_>>());
            match expected {
                Ok(sets) => assert_eq!(found.unwrap(), sets, "{ipam}"),
                Err(wrong) => assert!(found.as_ref().is_err_and(|error| error.contains(wrong)), "{ipam}: {found:?}"),
            }
        };
        check(json!({ "subnet": "10.22.0.0/16" }), Ok(&["10.22.0.0/16 10.22.0.1-10.22.255.254"]));
        check(
            json!({ "subnet": "10.22.0.0/24", "rangeStart": "10.22.0.9", "rangeEnd": "10.22.0.11" }),
            Ok(&["10.22.0.0/24 10.22.0.9-10.22.0.11"]),
        );
        check(
            json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "10.2.0.0/24" }], [{ "subnet": "fd00::/126" }]] }),
            Ok(&["10.1.0.0/24 10.1.0.1-10.1.0.254 10.2.0.0/24 10.2.0.1-10.2.0.254", "fd00::/126 fd00::1-fd00::3"]),
        );
        check(json!({}), Err("no IP ranges specified"));
        check(json!({ "subnet": "10.22.0.7/16" }), Err("the network address is 10.22.0.0"));
        check(json!({ "subnet": "10.22.0.0/31" }), Err("too small"));
        check(json!({ "subnet": "10.22.0.0/24", "rangeStart": "10.23.0.1" }), Err("is not in network"));
        check(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "fd00::/64" }]] }), Err("mixes"));
        check(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.1.0.0/16" }]] }), Err("overlap"));
        let asked = json!({ "ipRanges": [[{ "subnet": "10.9.0.0/24" }]] });
        assert_eq!(ranges(json!({}), asked).unwrap(), [["10.9.0.0/24 10.9.0.1-10.9.0.254"]]);
    }

    #[test]
    fn what_is_asked_for_in_vain_is_refused_by_name() {
        let check = |field: &str, value: Value, refused: bool| {
            let mut conf = json!({ "cniVersion": "1.0.0", "name": "n" });
            conf[field] = value;
            let found = Configuration::parse(&conf.to_string());
            assert_eq!(found.is_err_and(|error| error.message.contains(field)), refused, "{conf}");
        };
        check("vlan", json!(7), true);
        check("vlan", json!(0), false);
        check("macspoofchk", json!(true), true);
        check("macspoofchk", json!(false), false);
        check("capabilities", json!({ "portMappings": true }), false);
    }

    #[test]
    fn the_runtime_asks_in_three_ways() {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "n", "runtimeConfig": { "ips": ["10.0.0.7/24"], "mac": "02:00:00:00:00:07" },
            "args": { "cni": { "ips": ["10.0.0.8"] } },
        });
        let conf = Configuration::parse(&conf.to_string()).unwrap();
        let request =
            Request { args: "IgnoreUnknown=1;IP=10.0.0.9;MAC=02:00:00:00:00:01".into(), ..Request::default() };
        let asked: Vec<String> = conf.requested_addresses(&request).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(asked, ["10.0.0.7", "10.0.0.8", "10.0.0.9"]);
        assert_eq!(conf.requested_mac(&request).unwrap(), Some([2, 0, 0, 0, 0, 7]));
        let conf = Configuration::parse(r#"{"cniVersion": "1.0.0", "name": "n"}"#).unwrap();
        assert_eq!(conf.requested_mac(&request).unwrap(), Some([2, 0, 0, 0, 0, 1]));
    }
}
