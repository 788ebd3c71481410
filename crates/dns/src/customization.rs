//! What the ConfigMap `kube-system/kube-dns` changes: other servers for some domains or for all, hosts, and names that stand
//! for others.
//! Read by `run`, asked by `server` and `forward`; the keys `stubDomains` and `upstreamNameservers` are kube-dns'.
//! Pure (tidy: `pure_files`). A value that can't be read is left out and said; the rest counts.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hickory_proto::rr::Name;
use parking_lot::RwLock;

pub const CONFIG_MAP_NAMESPACE: &str = "kube-system";
pub const CONFIG_MAP_NAME: &str = "kube-dns";
/// As many as kube-dns takes.
const SERVERS_MAX: usize = 15;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Customization {
    stub_domains: HashMap<Name, Arc<[SocketAddr]>>,
    /// In the place of the node's own; empty: the node's.
    upstreams: Arc<[SocketAddr]>,
    hosts: HashMap<Name, Vec<IpAddr>>,
    rewrites: Vec<Rewrite>,
    /// Whether the rest of a pod's search path is looked through for it.
    autopath: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rewrite {
    from: Name,
    to: Name,
    /// Every name below `from` too.
    is_suffix: bool,
}

/// The one of now.
#[derive(Clone, Default)]
pub struct SharedCustomization(Arc<RwLock<Arc<Customization>>>);

impl SharedCustomization {
    pub fn load(&self) -> Arc<Customization> {
        self.0.read().clone()
    }

    /// Whether it is another one.
    pub fn store(&self, customization: Customization) -> bool {
        let mut current = self.0.write();
        let is_new = **current != customization;
        *current = Arc::new(customization);
        is_new
    }
}

impl Customization {
    /// From a ConfigMap's data, with what could not be read.
    pub fn parse(data: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let (mut made, mut problems) = (Self::default(), Vec::new());
        for (key, text) in data {
            match key.as_str() {
                "stubDomains" => match serde_json::from_str::<BTreeMap<String, Vec<String>>>(text) {
                    Ok(domains) => made.add_stub_domains(domains, &mut problems),
                    Err(error) => problems.push(format!("stubDomains is not a map of lists: {error}")),
                },
                "upstreamNameservers" => match serde_json::from_str::<Vec<String>>(text) {
                    Ok(servers) => made.upstreams = addresses(&servers, &mut problems),
                    Err(error) => problems.push(format!("upstreamNameservers is not a list: {error}")),
                },
                "hosts" => lines(text).for_each(|line| made.add_host(line, &mut problems)),
                "autopath" => match text.trim() {
                    "true" => made.autopath = true,
                    "false" => made.autopath = false,
                    other => problems.push(format!("autopath is {other:?}, not true or false")),
                },
                "rewrite" => lines(text).for_each(|line| made.add_rewrite(line, &mut problems)),
                other => problems.push(format!("the key {other} is not known")),
            }
        }
        (made, problems)
    }

    fn add_stub_domains(&mut self, domains: BTreeMap<String, Vec<String>>, problems: &mut Vec<String>) {
        for (domain, servers) in domains {
            let Some(domain) = name(&domain, problems) else { continue };
            let servers = addresses(&servers, problems);
            if !servers.is_empty() {
                self.stub_domains.insert(domain, servers);
            }
        }
    }

    /// An address and its names, as in `/etc/hosts`.
    fn add_host(&mut self, line: &str, problems: &mut Vec<String>) {
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
            return problems.push(format!("hosts: {line:?} does not begin with an address"));
        };
        for word in words {
            if let Some(name) = name(word, problems) {
                self.hosts.entry(name).or_default().push(address);
            }
        }
    }

    /// `name [exact|suffix] FROM TO`, as CoreDNS' plugin has it.
    fn add_rewrite(&mut self, line: &str, problems: &mut Vec<String>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (kind, from, to) = match words.as_slice() {
            ["name", kind, from, to] => (*kind, *from, *to),
            ["name", from, to] => ("exact", *from, *to),
            _ => return problems.push(format!("rewrite: {line:?} is not `name [exact|suffix] FROM TO`")),
        };
        let is_suffix = match kind {
            "exact" => false,
            "suffix" => true,
            other => return problems.push(format!("rewrite: {other} is not supported, only exact and suffix")),
        };
        let part = |text: &str| text.trim_start_matches('.').to_string();
        if let (Some(from), Some(to)) = (name(&part(from), problems), name(&part(to), problems)) {
            self.rewrites.push(Rewrite { from, to, is_suffix });
        }
    }

    pub fn autopath(&self) -> bool {
        self.autopath
    }

    /// The servers to ask about `name`; none: those of the node.
    pub fn servers(&self, name: &Name) -> Option<Arc<[SocketAddr]>> {
        if !self.stub_domains.is_empty() {
            let mut domain = name.to_lowercase();
            loop {
                if let Some(servers) = self.stub_domains.get(&domain) {
                    return Some(servers.clone());
                }
                if domain.is_root() {
                    break;
                }
                domain = domain.base_name();
            }
        }
        (!self.upstreams.is_empty()).then(|| self.upstreams.clone())
    }

    pub fn host(&self, name: &Name) -> Option<&[IpAddr]> {
        if self.hosts.is_empty() {
            return None;
        }
        self.hosts.get(&name.to_lowercase()).map(Vec::as_slice)
    }

    /// What is asked for in the place of `name`; the first line that fits counts.
    pub fn rewrite(&self, name: &Name) -> Option<Name> {
        if self.rewrites.is_empty() {
            return None;
        }
        let name = name.to_lowercase();
        self.rewrites.iter().find_map(|rewrite| match rewrite.is_suffix {
            false => (rewrite.from == name).then(|| rewrite.to.clone()),
            true if rewrite.from.zone_of(&name) => {
                let kept = name.num_labels().saturating_sub(rewrite.from.num_labels());
                let labels = name.iter().take(usize::from(kept)).chain(rewrite.to.iter());
                Name::from_labels(labels).ok()
            }
            true => None,
        })
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty())
}

fn name(text: &str, problems: &mut Vec<String>) -> Option<Name> {
    let parsed = Name::from_utf8(text).map(|mut name| {
        name.set_fqdn(true);
        name.to_lowercase()
    });
    parsed.inspect_err(|_| problems.push(format!("{text:?} is not a name"))).ok()
}

/// Each with port 53 unless it has its own.
fn addresses(servers: &[String], problems: &mut Vec<String>) -> Arc<[SocketAddr]> {
    let parse = |text: &String| {
        let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53));
        let parsed = text.parse::<SocketAddr>().ok().or_else(alone);
        if parsed.is_none() {
            problems.push(format!("{text:?} is not the address of a server"));
        }
        parsed
    };
    servers.iter().filter_map(parse).take(SERVERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fqdn(text: &str) -> Name {
        Name::from_utf8(text).unwrap()
    }

    fn parse(data: &[(&str, &str)]) -> (Customization, Vec<String>) {
        Customization::parse(&data.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn the_closest_stub_domain_is_asked_then_the_upstreams() {
        let stubs = r#"{"acme.local": ["1.2.3.4", "1.2.3.5:5353"], "b.acme.local": ["1.2.3.6"]}"#;
        let (made, problems) =
            parse(&[("stubDomains", stubs), ("upstreamNameservers", r#"["8.8.8.8", "2001:db8::1"]"#)]);
        assert_eq!(problems, Vec::<String>::new());
        for (name, expected) in [
            ("x.acme.local.", "[1.2.3.4:53, 1.2.3.5:5353]"),
            ("ACME.local.", "[1.2.3.4:53, 1.2.3.5:5353]"),
            ("a.b.acme.local.", "[1.2.3.6:53]"),
            ("xacme.local.", "[8.8.8.8:53, [2001:db8::1]:53]"),
            ("example.com.", "[8.8.8.8:53, [2001:db8::1]:53]"),
        ] {
            assert_eq!(format!("{:?}", made.servers(&fqdn(name)).unwrap()), expected, "{name}");
        }
        assert_eq!(Customization::default().servers(&fqdn("example.com.")), None);
    }

    #[test]
    fn hosts_have_their_addresses_and_names_are_rewritten() {
        let (made, problems) = parse(&[
            ("hosts", "# of ours\n10.0.0.1 one.test One.other.test # more\nfd00::1 one.test\n"),
            ("rewrite", "name old.test new.test\nname suffix .corp.test .svc.cluster.local\n"),
        ]);
        assert_eq!(problems, Vec::<String>::new());
        let addresses = |name: &str| made.host(&fqdn(name)).map(|all| all.len());
        assert_eq!(
            (addresses("ONE.test."), addresses("one.other.test."), addresses("two.test.")),
            (Some(2), Some(1), None)
        );
        let rewritten = |name: &str| made.rewrite(&fqdn(name)).map(|name| name.to_string());
        assert_eq!(rewritten("old.test.").as_deref(), Some("new.test."));
        assert_eq!(rewritten("a.old.test."), None);
        assert_eq!(rewritten("Web.shop.corp.test.").as_deref(), Some("web.shop.svc.cluster.local."));
    }

    #[test]
    fn what_cannot_be_read_is_said_and_the_rest_counts() {
        let (made, problems) = parse(&[
            ("hosts", "nonsense one.test\n10.0.0.1 two.test"),
            ("rewrite", "name regex a b\nttl 5"),
            ("stubDomains", "[]"),
            ("upstreamNameservers", r#"["nobody", "8.8.8.8"]"#),
            ("federations", "{}"),
        ]);
        assert_eq!(problems.len(), 6, "{problems:?}");
        assert!(made.host(&fqdn("two.test.")).is_some());
        assert_eq!(made.servers(&fqdn("x.")).unwrap().len(), 1);
    }
}
