//! resolv.conf: read for our upstreams, written for pods by their dnsPolicy.
//! Used by `run` and by the kubelet; pure but for `read`.
//! Invariant: within the limits that Kubernetes promises: 3 servers, 32 search domains of 2048 characters together.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

pub const MAX_NAME_SERVERS: usize = 3;
pub const MAX_SEARCHES: usize = 32;
pub const MAX_SEARCH_CHARACTERS: usize = 2048;

const OWN: &str = "/etc/resolv.conf";
/// Where systemd-resolved writes the servers that it asks itself.
const BEHIND_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The node's configuration, as those in other network namespaces can use it: nobody answers on their loopback.
pub fn host_file() -> &'static str {
    let own = std::fs::read_to_string(OWN).unwrap_or_default();
    usable_elsewhere(&own, Path::new(BEHIND_RESOLVED).exists())
}

fn usable_elsewhere(own: &str, resolved: bool) -> &'static str {
    let loopback = |server: &String| server.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    // A file that names no server means the one on loopback, too.
    let useless = ResolvConf::parse(own).name_servers.iter().all(loopback);
    if useless && resolved { BEHIND_RESOLVED } else { OWN }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub name_servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsPolicy {
    ClusterFirst,
    ClusterFirstWithHostNet,
    Default,
    None,
}

impl DnsPolicy {
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Default") => Self::Default,
            Some("None") => Self::None,
            Some("ClusterFirstWithHostNet") => Self::ClusterFirstWithHostNet,
            _ => Self::ClusterFirst,
        }
    }
}

/// What decides a pod's resolv.conf.
#[derive(Debug, Clone)]
pub struct PodDns<'a> {
    pub policy: DnsPolicy,
    pub host_network: bool,
    pub namespace: &'a str,
    /// The pod's dnsConfig.
    pub config: ResolvConf,
    pub cluster_dns: &'a [IpAddr],
    pub cluster_domain: &'a str,
    /// The node's own.
    pub host: &'a ResolvConf,
}

impl ResolvConf {
    /// A file that is not there says nothing.
    pub fn read(path: &str) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.name_servers.extend(words.next().map(str::to_owned)),
                // The last line counts.
                Some("search" | "domain") => {
                    conf.searches = words.map(|word| normal(word).to_owned()).collect();
                }
                Some("options") => conf.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        conf
    }

    /// The name servers as socket addresses.
    pub fn upstreams(&self) -> Vec<SocketAddr> {
        let parsed = self.name_servers.iter().filter_map(|server| server.parse::<IpAddr>().ok());
        parsed.map(|ip| SocketAddr::new(ip, 53)).collect()
    }

    /// A pod's, by its policy.
    pub fn for_pod(pod: &PodDns<'_>) -> Self {
        let cluster_first = match pod.policy {
            DnsPolicy::ClusterFirst => !pod.host_network,
            DnsPolicy::ClusterFirstWithHostNet => true,
            DnsPolicy::Default | DnsPolicy::None => false,
        };
        let mut conf = match pod.policy {
            DnsPolicy::None => Self::default(),
            // A node without cluster DNS can only offer its own.
            _ if cluster_first && !pod.cluster_dns.is_empty() => {
                let domain = pod.cluster_domain;
                let mut searches =
                    vec![format!("{}.svc.{domain}", pod.namespace), format!("svc.{domain}"), domain.to_owned()];
                searches.extend(pod.host.searches.iter().cloned());
                Self {
                    name_servers: pod.cluster_dns.iter().map(ToString::to_string).collect(),
                    searches,
                    options: vec!["ndots:5".to_owned()],
                }
            }
            _ => pod.host.clone(),
        };
        conf.name_servers.extend(pod.config.name_servers.iter().cloned());
        conf.searches.extend(pod.config.searches.iter().cloned());
        conf.options = merged(&conf.options, &pod.config.options);
        conf.limited()
    }

    fn limited(mut self) -> Self {
        self.name_servers = unique(self.name_servers);
        self.name_servers.truncate(MAX_NAME_SERVERS);
        self.searches = unique(self.searches);
        self.searches.truncate(MAX_SEARCHES);
        let mut room = MAX_SEARCH_CHARACTERS;
        self.searches.retain(|search| match room.checked_sub(search.len() + 1) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        });
        self
    }

    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            text.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in &self.name_servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        if !self.options.is_empty() {
            text.push_str(&format!("options {}\n", self.options.join(" ")));
        }
        text
    }
}

fn normal(search: &str) -> &str {
    if search == "." { search } else { search.trim_end_matches('.') }
}

fn unique(items: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

/// The pod's own options replace those of the same name.
fn merged(base: &[String], own: &[String]) -> Vec<String> {
    let name = |option: &String| option.split(':').next().unwrap_or_default().to_owned();
    let own_by_name: BTreeMap<String, &String> = own.iter().map(|option| (name(option), option)).collect();
    let mut options: Vec<String> =
        base.iter().filter(|option| !own_by_name.contains_key(&name(option))).cloned().collect();
    options.extend(own.iter().cloned());
    unique(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "# made by hand\nnameserver 192.0.2.53\nsearch example.com.\noptions timeout:1 ndots:2\n";

    fn check(policy: &str, host_network: bool, config: &str, expected: &str) {
        let pod = PodDns {
            policy: DnsPolicy::parse(Some(policy)),
            host_network,
            namespace: "d",
            config: ResolvConf::parse(config),
            cluster_dns: &["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local",
            host: &ResolvConf::parse(HOST),
        };
        assert_eq!(ResolvConf::for_pod(&pod).to_text(), expected, "{policy} {host_network}");
    }

    #[test]
    fn a_resolver_on_loopback_is_of_no_use_elsewhere() {
        let check = |own: &str, resolved: bool, expected: &str| {
            assert_eq!(usable_elsewhere(own, resolved), expected, "{own:?} {resolved}");
        };
        check("nameserver 127.0.0.53\noptions edns0\n", true, BEHIND_RESOLVED);
        check("nameserver 127.0.0.53\nnameserver ::1\n", true, BEHIND_RESOLVED);
        check("", true, BEHIND_RESOLVED);
        check("nameserver 127.0.0.53\n", false, OWN);
        check("nameserver 127.0.0.53\nnameserver 192.0.2.53\n", true, OWN);
        check("nameserver 192.0.2.53\n", true, OWN);
        check("nameserver fe80::1%eth0\n", true, OWN);
    }

    #[test]
    fn every_policy() {
        let cluster = "search d.svc.cluster.local svc.cluster.local cluster.local example.com\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";
        let host = "search example.com\nnameserver 192.0.2.53\noptions timeout:1 ndots:2\n";
        check("ClusterFirst", false, "", cluster);
        check("ClusterFirst", true, "", host);
        check("ClusterFirstWithHostNet", true, "", cluster);
        check("Default", false, "", host);
        check(
            "None",
            false,
            "nameserver 1.1.1.1\nsearch resolv.conf.local\noptions ndots:3 edns0",
            "search resolv.conf.local\nnameserver 1.1.1.1\noptions ndots:3 edns0\n",
        );
        check(
            "ClusterFirst",
            false,
            "nameserver 10.96.0.10\noptions ndots:1 edns0",
            &cluster.replace("ndots:5", "ndots:1 edns0"),
        );
    }
}
