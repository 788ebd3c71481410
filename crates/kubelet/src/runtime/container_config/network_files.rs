//! What a pod finds in /etc/resolv.conf, /etc/hosts and as its host name.
//! Used by `container_config` (sandbox) and `runtime_manager` (the hosts file).
//! Invariant: pure; limits of the resolver are applied here and reported to the caller (tidy: `pure_files`).

use std::net::IpAddr;

use cri::v1;
use k8s_openapi::api::core::v1::{HostAlias, Pod};

use crate::pod::pod_spec;

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_BYTES_MAX: usize = 2048;
const DOMAIN_BYTES_MAX: usize = 253;
const HOSTNAME_BYTES_MAX: usize = 63;

/// Cluster-wide settings.
#[derive(Debug, Clone, Default)]
pub struct ClusterDns {
    pub servers: Vec<String>,
    pub domain: String,
}

pub fn parse_resolv_conf(text: &str) -> Result<v1::DnsConfig, String> {
    let mut config = v1::DnsConfig::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.push(words.next().ok_or("nameserver list is empty ")?.into()),
            Some("search") => {
                let domain = |word: &str| word.strip_suffix('.').unwrap_or(word).to_string();
                config.searches = words.filter(|word| *word != ".").map(domain).collect();
            }
            Some("options") => {
                for option in words {
                    set_option(&mut config.options, option.to_string());
                }
            }
            _ => {}
        }
    }
    Ok(config)
}

fn set_option(options: &mut Vec<String>, option: String) {
    let name = |text: &str| text.split(':').next().unwrap_or_default().to_string();
    match options.iter_mut().find(|existing| name(existing) == name(&option)) {
        Some(existing) => *existing = option,
        None => options.push(option),
    }
}

/// The pod's resolver settings, and a warning for each limit they ran into. `host` is what the node's file says; without
/// one, whoever would use it resolves nothing.
pub fn dns(
    pod: &Pod,
    host: Option<&v1::DnsConfig>,
    cluster: &ClusterDns,
    node_ips: &[IpAddr],
) -> (v1::DnsConfig, Vec<String>) {
    let spec = pod_spec::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster_first =
        policy == "ClusterFirstWithHostNet" || (policy == "ClusterFirst" && !pod_spec::host_network(pod));
    let mut config = match policy {
        "None" => v1::DnsConfig::default(),
        _ if cluster_first && !cluster.servers.is_empty() => {
            let domain = &cluster.domain;
            let mut searches = match domain.as_str() {
                "" => vec![],
                domain => {
                    let namespace = pod_spec::namespace(pod);
                    vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_string()]
                }
            };
            searches.extend(host.iter().flat_map(|host| host.searches.iter().cloned()));
            v1::DnsConfig {
                servers: cluster.servers.clone(),
                searches: unique(searches),
                options: vec!["ndots:5".into()],
            }
        }
        _ => host.cloned().unwrap_or_else(|| nobody(node_ips)),
    };
    if let Some(own) = &spec.dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        config.servers = unique(config.servers);
        config.searches = unique(config.searches);
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            let text = match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            };
            set_option(&mut config.options, text);
        }
    }
    let warnings = apply_limits(&mut config);
    (config, warnings)
}

/// Asks a loopback on which nobody answers: the runtime would give a pod without any settings the node's own.
fn nobody(node_ips: &[IpAddr]) -> v1::DnsConfig {
    let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_string();
    let mut servers: Vec<String> = node_ips.iter().map(loopback).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    v1::DnsConfig { servers, searches: vec![".".into()], options: vec![] }
}

fn unique(list: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    list.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

fn apply_limits(config: &mut v1::DnsConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.servers.len() > NAMESERVERS_MAX {
        config.servers.truncate(NAMESERVERS_MAX);
        warnings.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(SEARCHES_MAX);
    config.searches.retain(|search| search.len() <= DOMAIN_BYTES_MAX);
    while config.searches.join(" ").len() > SEARCH_BYTES_MAX {
        config.searches.pop();
    }
    if config.searches.len() < before {
        warnings.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
    warnings
}

/// The pod's short name and its domain (empty when it has no subdomain, or a name that stands for all of it).
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = pod_spec::spec(pod);
    let filled = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
    let whole = filled(&spec.hostname_override);
    let domain = match filled(&spec.subdomain).filter(|_| whole.is_none()) {
        Some(subdomain) => format!("{subdomain}.{}.svc.{cluster_domain}", pod_spec::namespace(pod)),
        None => String::new(),
    };
    let chosen = whole.or_else(|| filled(&spec.hostname)).unwrap_or_else(|| pod_spec::name(pod).into());
    (shortened(chosen), domain)
}

/// What the kernel takes for a name.
fn shortened(name: String) -> String {
    match name.len() > HOSTNAME_BYTES_MAX {
        true => name[..name.floor_char_boundary(HOSTNAME_BYTES_MAX)].trim_end_matches(['-', '.']).to_string(),
        false => name,
    }
}

/// What `uname -n` answers inside the pod.
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
    if pod_spec::spec(pod).set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(hostname);
    }
    let full = format!("{hostname}.{domain}");
    if full.len() > 64 {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long (64 characters is \
             the max, {} characters requested)",
            full.len()
        ));
    }
    Ok(full)
}

/// The managed hosts file. `host_file` is the node's own, for pods in its network.
pub fn hosts_file(pod: &Pod, pod_ips: &[String], cluster_domain: &str, host_file: Option<&str>) -> String {
    let spec = pod_spec::spec(pod);
    let mut text = String::new();
    match host_file {
        Some(own) => {
            text.push_str("# Kubernetes-managed hosts file (host network).\n");
            text.push_str(own);
        }
        None => {
            text.push_str(
                "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
                 fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
            );
            let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
            for ip in pod_ips {
                text.push_str(&match domain.as_str() {
                    "" => format!("{ip}\t{hostname}\n"),
                    domain => format!("{ip}\t{hostname}.{domain}\t{hostname}\n"),
                });
            }
        }
    }
    text.push_str(&aliases(spec.host_aliases.as_deref().unwrap_or_default()));
    text
}

fn aliases(list: &[HostAlias]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let lines =
        list.iter().map(|alias| format!("{}\t{}\n", alias.ip, alias.hostnames.clone().unwrap_or_default().join("\t")));
    format!("\n# Entries added by HostAliases.\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    #[test]
    fn resolver_settings_follow_the_policy() {
        let host =
            parse_resolv_conf("# c\nnameserver 9.9.9.9\nsearch example.com. .\noptions rotate ndots:1\n").unwrap();
        let cluster = ClusterDns { servers: vec!["10.96.0.10".into()], domain: "cluster.local".into() };
        let check = |spec: Value, expected: (&str, &str, &str)| {
            let (config, _) = dns(&pod(spec.clone()), Some(&host), &cluster, &[]);
            let joined = (config.servers.join(" "), config.searches.join(" "), config.options.join(" "));
            assert_eq!((joined.0.as_str(), joined.1.as_str(), joined.2.as_str()), expected, "{spec}");
        };
        let full = "shop.svc.cluster.local svc.cluster.local cluster.local example.com";
        check(json!({"containers": []}), ("10.96.0.10", full, "ndots:5"));
        check(json!({"containers": [], "hostNetwork": true}), ("9.9.9.9", "example.com", "rotate ndots:1"));
        check(
            json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
            ("10.96.0.10", full, "ndots:5"),
        );
        check(json!({"containers": [], "dnsPolicy": "Default"}), ("9.9.9.9", "example.com", "rotate ndots:1"));
        check(
            json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"],
                "searches": ["a.b"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}),
            ("1.1.1.1", "a.b", "ndots:2 edns0"),
        );
        let many = json!({"containers": [], "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}});
        let (config, warnings) = dns(&pod(many), Some(&host), &cluster, &[]);
        assert_eq!((config.servers.len(), warnings.len()), (3, 1));
    }

    #[test]
    fn without_a_file_of_the_nodes_nothing_is_resolved_but_by_the_cluster() {
        let cluster = ClusterDns { servers: vec!["10.96.0.10".into()], domain: "cluster.local".into() };
        let node_ips: Vec<IpAddr> = ["2001:db8::1", "192.0.2.1"].map(|ip| ip.parse().unwrap()).to_vec();
        let check = |policy: &str, node_ips: &[IpAddr], servers: &[&str], searches: &[&str]| {
            let (config, _) = dns(&pod(json!({"containers": [], "dnsPolicy": policy})), None, &cluster, node_ips);
            assert_eq!((config.servers, config.searches), (owned(servers), owned(searches)), "{policy}");
        };
        check("Default", &node_ips, &["::1", "127.0.0.1"], &["."]);
        check("Default", &[], &["127.0.0.1"], &["."]);
        let searches = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"];
        check("ClusterFirst", &node_ips, &["10.96.0.10"], &searches);
        check("None", &node_ips, &[], &[]);
    }

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_and_hosts() {
        let check = |spec: Value, kernel: &str, last_line: &str| {
            let pod = pod(spec);
            assert_eq!(kernel_hostname(&pod, "cluster.local").unwrap(), kernel);
            let text = hosts_file(&pod, &["10.0.0.2".into()], "cluster.local", None);
            assert_eq!(text.lines().last(), Some(last_line));
        };
        check(json!({"containers": []}), "web-0", "10.0.0.2\tweb-0");
        check(
            json!({"containers": [], "subdomain": "db", "hostname": "h"}),
            "h",
            "10.0.0.2\th.db.shop.svc.cluster.local\th",
        );
        check(
            json!({"containers": [], "subdomain": "db", "setHostnameAsFQDN": true}),
            "web-0.db.shop.svc.cluster.local",
            "10.0.0.2\tweb-0.db.shop.svc.cluster.local\tweb-0",
        );
        check(
            json!({"containers": [], "subdomain": "db", "hostname": "h", "hostnameOverride": "a.example.com"}),
            "a.example.com",
            "10.0.0.2\ta.example.com",
        );
        let long = format!("{}-.tail", "x".repeat(61));
        let short = "x".repeat(61);
        check(json!({"containers": [], "hostnameOverride": long}), &short, &format!("10.0.0.2\t{short}"));
        check(
            json!({"containers": [], "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]}),
            "web-0",
            "1.2.3.4\tx\ty",
        );
    }
}
