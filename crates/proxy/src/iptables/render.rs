//! All Services and their endpoints as the text of one `iptables-restore`, in the chains that kube-proxy has.
//! Called by `mod`; endpoints are chosen as for nftables (`rules::Endpoints`).
//! Pure (tidy: `pure_files`): the same state gives the same text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use ipnet::IpNet;

use crate::{
    model::{NodeConfig, PortInfo, ServiceInfo, State},
    pod_routes::stable_hash,
    rules::{Endpoints, Family, Target},
};

/// All chains of ours begin so, as kube-proxy's.
pub const OWN_PREFIX: &str = "KUBE-";
const SERVICES: &str = "KUBE-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const NEW: [&str; 4] = ["-m", "conntrack", "--ctstate", "NEW"];

/// Table, chain of the kernel, and what follows: where our chains are entered.
pub const BASE_JUMPS: &[(&str, &str, &[&str])] = &[
    ("filter", "INPUT", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", SERVICES]),
    ("filter", "FORWARD", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", SERVICES]),
    ("filter", "OUTPUT", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", SERVICES]),
    ("filter", "INPUT", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", FIREWALL]),
    ("filter", "FORWARD", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", FIREWALL]),
    ("filter", "OUTPUT", &[NEW[0], NEW[1], NEW[2], NEW[3], "-j", FIREWALL]),
    ("filter", "FORWARD", &["-j", FORWARD]),
    ("nat", "PREROUTING", &["-j", SERVICES]),
    ("nat", "OUTPUT", &["-j", SERVICES]),
    ("nat", "POSTROUTING", &["-j", POSTROUTING]),
];

pub struct Rendered {
    pub text: String,
    /// Of the nat table.
    pub chains: BTreeSet<String>,
}

#[derive(Default)]
struct Lines {
    /// Of the nat table, with their rules in order.
    chains: BTreeMap<String, Vec<String>>,
    services: Vec<String>,
    node_ports: Vec<String>,
    refused: Vec<String>,
    firewall: Vec<String>,
}

pub fn render(family: Family, state: &State, config: &NodeConfig, known: &BTreeSet<String>) -> Rendered {
    let mut lines = Lines::default();
    let mut keys: Vec<&String> = state.service_keys().collect();
    keys.sort_unstable();
    for key in keys {
        let Some(service) = state.service(key) else { continue };
        for port in &service.ports {
            let endpoints = Endpoints::choose(state, key, port, family);
            ServicePort { key, service, port, family, config, endpoints: &endpoints }.write(&mut lines);
        }
    }
    if family == Family::V4 && config.localhost_node_ports {
        // route_localnet is on for NodePorts on 127.0.0.1; nobody else may use it.
        let stranger = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT";
        lines.firewall.insert(0, format!("{stranger} -j DROP"));
    }
    lines.services.push(format!("-m addrtype --dst-type LOCAL -j {NODE_PORTS}"));
    let fixed = [
        (SERVICES, lines.services),
        (NODE_PORTS, lines.node_ports),
        (MARK_MASQUERADE, vec!["-j MARK --or-mark 0x4000".to_owned()]),
        (
            POSTROUTING,
            vec![
                "-m mark ! --mark 0x4000/0x4000 -j RETURN".to_owned(),
                "-j MARK --xor-mark 0x4000".to_owned(),
                "-j MASQUERADE --random-fully".to_owned(),
            ],
        ),
    ];
    lines.chains.extend(fixed.map(|(name, rules)| (name.to_owned(), rules)));
    let forward = vec![
        "-m mark --mark 0x4000/0x4000 -j ACCEPT".to_owned(),
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
    ];
    let filter =
        [(SERVICES, lines.refused), (FIREWALL, lines.firewall), (FORWARD, forward)].map(|(n, r)| (n.to_owned(), r));
    let mut text = String::new();
    table(&mut text, "filter", &filter.into(), &BTreeSet::new());
    let stale = known.iter().filter(|name| !lines.chains.contains_key(*name)).cloned().collect();
    table(&mut text, "nat", &lines.chains, &stale);
    Rendered { text, chains: lines.chains.into_keys().collect() }
}

/// Chains are emptied by being named; those that nobody names any more go when nothing leads to them.
fn table(text: &mut String, name: &str, chains: &BTreeMap<String, Vec<String>>, stale: &BTreeSet<String>) {
    let _ = writeln!(text, "*{name}");
    for chain in chains.keys().chain(stale) {
        let _ = writeln!(text, ":{chain} - [0:0]");
    }
    for (chain, rules) in chains {
        for rule in rules {
            let _ = writeln!(text, "-A {chain} {rule}");
        }
    }
    for chain in stale {
        let _ = writeln!(text, "-X {chain}");
    }
    text.push_str("COMMIT\n");
}

struct ServicePort<'a> {
    key: &'a str,
    service: &'a ServiceInfo,
    port: &'a PortInfo,
    family: Family,
    config: &'a NodeConfig,
    endpoints: &'a Endpoints,
}

impl ServicePort<'_> {
    /// The names of chains are limited to 28 characters.
    fn chain(&self, kind: &str, of: &str) -> String {
        let text = format!("{}:{}:{}:{of}", self.key, self.port.name, self.protocol());
        format!("{OWN_PREFIX}{kind}-{:016X}", stable_hash(&text))
    }

    fn protocol(&self) -> &'static str {
        self.port.protocol.name()
    }

    fn ours<'a>(&self, ips: &'a [IpAddr]) -> impl Iterator<Item = &'a IpAddr> {
        let family = self.family;
        ips.iter().filter(move |ip| Family::of_ip(**ip) == family)
    }

    /// What is sent to an address and port of the Service.
    fn to(&self, ip: IpAddr) -> String {
        let protocol = self.protocol();
        format!("-d {} -p {protocol} -m {protocol} --dport {}", IpNet::from(ip), self.port.port)
    }

    fn write(&self, lines: &mut Lines) {
        let (cluster, local) = (&self.endpoints.cluster, &self.endpoints.local);
        let inside = if self.service.internal_local { local } else { cluster };
        let (svc, svl) = (self.chain("SVC", ""), self.chain("SVL", ""));
        for ip in self.ours(&self.service.cluster_ips) {
            let to = self.to(*ip);
            if inside.is_empty() {
                let verdict = if cluster.is_empty() { "REJECT" } else { "DROP" };
                lines.refused.push(format!("{to} -j {verdict}"));
            } else {
                lines.services.push(format!("{to} -j {}", if self.service.internal_local { &svl } else { &svc }));
            }
        }
        let external = self.external(lines);
        if !cluster.is_empty() && (external || !self.service.internal_local) {
            self.balance(lines, &svc, cluster);
        }
        let used_locally = self.service.internal_local || external && self.service.external_local;
        if used_locally && !local.is_empty() {
            self.balance(lines, &svl, local);
        }
    }

    /// Whether anything leads in from outside.
    fn external(&self, lines: &mut Lines) -> bool {
        let entry = self.chain("EXT", "");
        let protocol = self.protocol();
        let mut ways: Vec<String> = self.ours(&self.service.external_ips).map(|ip| self.to(*ip)).collect();
        let balancers: Vec<IpAddr> = self.ours(&self.service.load_balancer_ips).copied().collect();
        let node_port = self.port.node_port.filter(|_| self.ours(&self.config.node_port_addresses).next().is_some());
        let mut at_node_port: Vec<String> = Vec::new();
        if let Some(port) = node_port {
            let mut addresses: Vec<IpAddr> = self.ours(&self.config.node_port_addresses).copied().collect();
            if self.config.localhost_node_ports && self.family == Family::V4 {
                addresses.push(IpAddr::from([127, 0, 0, 1]));
            }
            let to = |ip: IpAddr| format!("-d {} -p {protocol} -m {protocol} --dport {port}", IpNet::from(ip));
            at_node_port.extend(addresses.into_iter().map(to));
        }
        if ways.is_empty() && balancers.is_empty() && at_node_port.is_empty() {
            return false;
        }
        let fence = self.fence(&balancers);
        if fence.is_none() {
            ways.extend(balancers.iter().map(|ip| self.to(*ip)));
        }
        if self.endpoints.cluster.is_empty() {
            let fenced = balancers.iter().filter(|_| fence.is_some()).map(|ip| self.to(*ip));
            let all = ways.into_iter().chain(at_node_port).chain(fenced);
            lines.refused.extend(all.map(|to| format!("{to} -j REJECT")));
            return false;
        }
        if let Some(allowed) = &fence {
            let chain = self.chain("FW", "");
            let rules = allowed.iter().map(|range| format!("-s {range} -j {entry}")).collect();
            lines.chains.insert(chain.clone(), rules);
            for ip in &balancers {
                lines.services.push(format!("{} -j {chain}", self.to(*ip)));
                // Who was let in has another destination by now.
                lines.firewall.push(format!("{} -j DROP", self.to(*ip)));
            }
        }
        if self.service.external_local && self.endpoints.local.is_empty() {
            let fenced = balancers.iter().filter(|_| fence.is_some()).map(|ip| self.to(*ip));
            let all = ways.iter().cloned().chain(at_node_port.iter().cloned()).chain(fenced);
            lines.refused.extend(all.map(|to| format!("{to} -j DROP")));
        }
        lines.services.extend(ways.into_iter().map(|to| format!("{to} -j {entry}")));
        lines.node_ports.extend(at_node_port.into_iter().map(|to| format!("{to} -j {entry}")));
        lines.chains.insert(entry, self.entry());
        true
    }

    /// Who may call the load balancer; `None`: anybody.
    fn fence(&self, balancers: &[IpAddr]) -> Option<Vec<IpNet>> {
        let ranges = self.service.source_ranges.as_ref()?;
        let mut allowed: Vec<IpNet> =
            ranges.iter().filter(|range| Family::of_ip(range.addr()) == self.family).map(IpNet::trunc).collect();
        if self.config.node_addresses.iter().any(|node| allowed.iter().any(|range| range.contains(node))) {
            // Where the balancer's address is put on the node too, the node calls it from that very address.
            allowed.extend(balancers.iter().map(|ip| IpNet::from(*ip)));
        }
        Some(allowed)
    }

    /// What comes from outside: masqueraded under policy Cluster, kept on this node under policy Local.
    fn entry(&self) -> Vec<String> {
        let svc = self.chain("SVC", "");
        if !self.service.external_local {
            return vec![format!("-j {MARK_MASQUERADE}"), format!("-j {svc}")];
        }
        // Pods and the node itself are inside: for them the policy is Cluster.
        let pods = self.config.pod_cidrs.iter().filter(|net| Family::of_ip(net.addr()) == self.family);
        let mut rules: Vec<String> = pods.map(|net| format!("-s {} -j {svc}", net.trunc())).collect();
        rules.push(format!("-m addrtype --src-type LOCAL -j {MARK_MASQUERADE}"));
        rules.push(format!("-m addrtype --src-type LOCAL -j {svc}"));
        if !self.endpoints.local.is_empty() {
            rules.push(format!("-j {}", self.chain("SVL", "")));
        }
        rules
    }

    fn balance(&self, lines: &mut Lines, chain: &str, targets: &[Target]) {
        let mut rules = Vec::new();
        let own = self.ours(&self.service.cluster_ips).map(|ip| self.to(*ip));
        let pods: Vec<&IpNet> =
            self.config.pod_cidrs.iter().filter(|net| Family::of_ip(net.addr()) == self.family).collect();
        for to in own {
            match pods.as_slice() {
                _ if self.config.masquerade_all => rules.push(format!("{to} -j {MARK_MASQUERADE}")),
                [] => {}
                [pods] => rules.push(format!("! -s {} {to} -j {MARK_MASQUERADE}", pods.trunc())),
                // No rule can say "from none of these"; who is masqueraded for nothing is served all the same.
                _ => rules.push(format!("{to} -j {MARK_MASQUERADE}")),
            }
        }
        let of: Vec<(String, &Target)> = targets
            .iter()
            .map(|target| (self.chain("SEP", &format!("{}:{}", target.ip, target.port)), target))
            .collect();
        if let Some(seconds) = self.service.affinity_seconds {
            let sticky = |name: &String| {
                format!("-m recent --name {name} --rcheck --seconds {seconds} --reap --rsource -j {name}")
            };
            rules.extend(of.iter().map(|(name, _)| sticky(name)));
        }
        for (index, (name, _)) in of.iter().enumerate() {
            let left = of.len() - index;
            let chance = match left {
                1 => String::new(),
                _ => format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64),
            };
            rules.push(format!("{chance}-j {name}"));
        }
        lines.chains.insert(chain.to_owned(), rules);
        for (name, target) in of {
            let (ip, protocol) = (target.ip, self.protocol());
            let to = if ip.is_ipv4() { format!("{ip}:{}", target.port) } else { format!("[{ip}]:{}", target.port) };
            let recent = match self.service.affinity_seconds {
                Some(_) => format!("-m recent --name {name} --set --rsource "),
                None => String::new(),
            };
            let rules = vec![
                format!("-s {} -j {MARK_MASQUERADE}", IpNet::from(ip)),
                format!("-p {protocol} {recent}-m {protocol} -j DNAT --to-destination {to}"),
            ];
            lines.chains.insert(name, rules);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
    use serde_json::{Value, json};

    use super::*;

    fn config() -> NodeConfig {
        NodeConfig {
            node_name: "here".into(),
            node_port_addresses: vec!["192.0.2.1".parse().unwrap()],
            pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            ..NodeConfig::default()
        }
    }

    /// Rules of a Service `d/s` with endpoints on the nodes named.
    fn rules(spec: Value, endpoints: &[(&str, &str)]) -> (Vec<String>, BTreeSet<String>) {
        let mut all =
            json!({ "type": "ClusterIP", "clusterIPs": ["10.96.0.10"], "ports": [{ "port": 80, "name": "p" }] });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let status = all.as_object_mut().unwrap().remove("status").unwrap_or_default();
        let service = json!({ "metadata": { "name": "s", "namespace": "d" }, "spec": all, "status": status });
        let service: Service = serde_json::from_value(service).unwrap();
        let list: Vec<Value> =
            endpoints.iter().map(|(ip, node)| json!({ "addresses": [ip], "nodeName": node })).collect();
        let labels = json!({ "kubernetes.io/service-name": "s" });
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": { "name": "s-1", "namespace": "d", "labels": labels }, "addressType": "IPv4",
            "ports": [{ "name": "p", "port": 8080 }], "endpoints": list,
        }))
        .unwrap();
        let mut state = State::default();
        state.apply_service("d/s", Some(&service));
        state.apply_slice("d/s-1", Some(&slice), &config());
        let Rendered { text, chains } = render(Family::V4, &state, &config(), &["KUBE-SVC-OLD".to_owned()].into());
        (text.lines().map(str::to_owned).collect(), chains)
    }

    /// Each text is in some rule, or in none where it begins with `!`.
    #[track_caller]
    fn check(spec: Value, endpoints: &[(&str, &str)], expected: &[&str]) {
        let (found, _) = rules(spec.clone(), endpoints);
        for wanted in expected {
            let (text, is_there) = wanted.strip_prefix('!').map_or((*wanted, true), |text| (text, false));
            assert_eq!(
                found.iter().any(|rule| rule.contains(text)),
                is_there,
                "{spec}: {wanted}\n{}",
                found.join("\n")
            );
        }
    }

    #[test]
    fn services_become_upstreams_chains() {
        let two = [("10.244.0.2", "here"), ("10.244.1.2", "there")];
        check(
            json!({}),
            &two,
            &[
                "-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-",
                " ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ",
                "-m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-",
                "-j DNAT --to-destination 10.244.1.2:8080",
                "-s 10.244.0.2/32 -j KUBE-MARK-MASQ",
                ":KUBE-SVC-OLD - [0:0]",
                "-X KUBE-SVC-OLD",
                "!REJECT",
            ],
        );
        check(json!({}), &[], &["-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j REJECT", "!KUBE-SVC-1"]);
        check(json!({ "internalTrafficPolicy": "Local" }), &two[1..], &["--dport 80 -j DROP", "!DNAT"]);
        check(
            json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 7 } } }),
            &two,
            &["--rcheck --seconds 7 --reap --rsource -j KUBE-SEP-", "--set --rsource -m tcp -j DNAT"],
        );
        let node_port = json!({ "type": "NodePort", "ports": [{ "port": 80, "name": "p", "nodePort": 30080 }] });
        check(
            node_port.clone(),
            &two,
            &["-A KUBE-NODEPORTS -d 192.0.2.1/32 -p tcp -m tcp --dport 30080 -j KUBE-EXT-", "-j KUBE-MARK-MASQ"],
        );
        let mut local = node_port;
        local["externalTrafficPolicy"] = json!("Local");
        check(local.clone(), &two, &["-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ", "-j KUBE-SVL-"]);
        check(local, &two[1..], &["--dport 30080 -j DROP", "!-j KUBE-SVL-"]);
        check(
            json!({
                "type": "LoadBalancer", "loadBalancerSourceRanges": ["198.51.100.0/24"],
                "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.5" }] } },
            }),
            &two,
            &[
                "-d 203.0.113.5/32 -p tcp -m tcp --dport 80 -j KUBE-FW-",
                "-s 198.51.100.0/24 -j KUBE-EXT-",
                "-A KUBE-PROXY-FIREWALL -d 203.0.113.5/32 -p tcp -m tcp --dport 80 -j DROP",
            ],
        );
        let (_, chains) = rules(json!({}), &two);
        assert!(chains.iter().all(|name| name.len() <= 28), "{chains:?}");
    }
}
