//! The pure core: a question in, an answer of records out, as the Kubernetes DNS specification (1.1.0) has it.
//! Reads `index`; put on the wire by `server`.
//! Invariant: a name that exists without the asked type is NODATA, any other name in the zone is NXDOMAIN (test:
//! `questions_and_answers`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{CNAME, NS, PTR, SOA, SRV, TXT},
};

use crate::index::{PortEntry, ServiceEntry, Zone};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Not a name of this zone: ask upstream.
    NotOurs,
    Records {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// The name exists, this type of it does not. Carries the SOA.
    NoData(Record),
    NxDomain(Record),
    /// An alias; the records of `target` go behind it.
    Alias {
        record: Record,
        target: Name,
    },
}

const SCHEMA_VERSION: &str = "1.1.0";

impl Zone {
    pub fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        if let Some(ip) = reverse(name) {
            return self.answer_reverse(name, ip, kind);
        }
        let lower = name.to_lowercase();
        if !self.origin.zone_of(&lower) {
            return Answer::NotOurs;
        }
        let own = usize::from(lower.num_labels() - self.origin.num_labels());
        let labels: Vec<String> =
            lower.iter().take(own).map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let question = Question { zone: self, name, kind };
        match labels.as_slice() {
            [] => question.apex(),
            ["dns-version"] => question.text(SCHEMA_VERSION),
            ["dns" | "svc" | "pod"] => question.no_data(),
            ["ns", "dns"] => question.addresses(self.server_addresses.iter().copied()),
            [namespace, "svc" | "pod"] if self.knows_namespace(namespace) => question.no_data(),
            [service, namespace, "svc"] => question.service(namespace, service, &[]),
            [rest @ .., service, namespace, "svc"] => question.service(namespace, service, rest),
            [address, namespace, "pod"] if self.knows_namespace(namespace) => question.pod(namespace, address),
            _ => question.nx_domain(),
        }
    }

    fn answer_reverse(&self, name: &Name, ip: IpAddr, kind: RecordType) -> Answer {
        let Some(owners) = self.owners.get(&ip) else { return Answer::NotOurs };
        let question = Question { zone: self, name, kind };
        if !matches!(kind, RecordType::PTR | RecordType::ANY) {
            return question.no_data();
        }
        let names = owners.iter().filter_map(|(key, host)| {
            let service = self.service_name(key)?;
            match host {
                Some(host) => service.prepend_label(host.as_str()).ok(),
                None => Some(service),
            }
        });
        question.records(names.map(|name| RData::PTR(PTR(name))).collect())
    }

    /// `service.namespace.svc.<zone>`
    fn service_name(&self, key: &str) -> Option<Name> {
        let (namespace, name) = key.split_once('/')?;
        Name::from_labels([name, namespace, "svc"]).ok()?.append_domain(&self.origin).ok()
    }

    /// For negative answers; its serial grows with every change.
    pub fn soa(&self) -> Record {
        let name = |label: &str| self.origin.prepend_label(label).unwrap_or_else(|_| self.origin.clone());
        let server = name("dns").prepend_label("ns").unwrap_or_else(|_| self.origin.clone());
        let soa = SOA::new(server, name("hostmaster"), self.serial, 7200, 1800, 86400, self.ttl);
        Record::from_rdata(self.origin.clone(), self.ttl, RData::SOA(soa))
    }
}

/// A question while it is answered. Owner names repeat the question as it was asked, letter case included.
struct Question<'a> {
    zone: &'a Zone,
    name: &'a Name,
    kind: RecordType,
}

impl Question<'_> {
    fn no_data(&self) -> Answer {
        Answer::NoData(self.zone.soa())
    }

    fn nx_domain(&self) -> Answer {
        Answer::NxDomain(self.zone.soa())
    }

    fn records(&self, data: Vec<RData>) -> Answer {
        if data.is_empty() {
            return self.no_data();
        }
        let answers = data.into_iter().map(|data| Record::from_rdata(self.name.clone(), self.zone.ttl, data));
        Answer::Records { answers: answers.collect(), additionals: Vec::new() }
    }

    fn apex(&self) -> Answer {
        let soa = self.zone.soa();
        let server = match &soa.data {
            RData::SOA(soa) => soa.mname.clone(),
            _ => return self.no_data(),
        };
        match self.kind {
            RecordType::SOA => Answer::Records { answers: vec![soa], additionals: Vec::new() },
            RecordType::NS => {
                let additionals = self.address_records(&server, self.zone.server_addresses.iter().copied());
                match self.records(vec![RData::NS(NS(server))]) {
                    Answer::Records { answers, .. } => Answer::Records { answers, additionals },
                    other => other,
                }
            }
            _ => self.no_data(),
        }
    }

    fn text(&self, text: &str) -> Answer {
        match self.kind {
            RecordType::TXT | RecordType::ANY => self.records(vec![RData::TXT(TXT::new(vec![text.to_owned()]))]),
            _ => self.no_data(),
        }
    }

    fn addresses(&self, ips: impl Iterator<Item = IpAddr>) -> Answer {
        let wanted = ips.filter(|ip| match self.kind {
            RecordType::A => ip.is_ipv4(),
            RecordType::AAAA => ip.is_ipv6(),
            RecordType::ANY => true,
            _ => false,
        });
        self.records(wanted.map(address_data).collect())
    }

    fn address_records(&self, name: &Name, ips: impl Iterator<Item = IpAddr>) -> Vec<Record> {
        ips.map(|ip| Record::from_rdata(name.clone(), self.zone.ttl, address_data(ip))).collect()
    }

    fn service(&self, namespace: &str, name: &str, rest: &[&str]) -> Answer {
        let key = format!("{namespace}/{name}");
        let Some(service) = self.zone.services.get(&key) else { return self.nx_domain() };
        if let Some(target) = &service.external_name {
            return if rest.is_empty() { self.alias(target) } else { self.nx_domain() };
        }
        let headless = service.cluster_ips.is_empty();
        if headless && service.hosts.is_empty() {
            return self.nx_domain();
        }
        match rest {
            [] if self.kind == RecordType::SRV => self.srv(&key, service, |_| true),
            [] if headless => self.addresses(service.hosts.values().flat_map(|host| host.addresses.iter().copied())),
            [] => self.addresses(service.cluster_ips.iter().copied()),
            [port, protocol] => match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
                (Some(port), Some(protocol)) => {
                    self.named_srv(&key, service, |p| p.name == port && p.protocol == protocol)
                }
                _ => self.nx_domain(),
            },
            [label] => match (self.zone.host_addresses(&key, label), label.strip_prefix('_')) {
                (ips, _) if !ips.is_empty() => self.addresses(ips.into_iter()),
                (_, Some(protocol)) if ports(service).any(|port| port.protocol == protocol) => self.no_data(),
                _ => self.nx_domain(),
            },
            _ => self.nx_domain(),
        }
    }

    fn alias(&self, target: &str) -> Answer {
        let Ok(mut target) = Name::from_ascii(target) else { return self.no_data() };
        target.set_fqdn(true);
        let data = RData::CNAME(CNAME(target.clone()));
        Answer::Alias { record: Record::from_rdata(self.name.clone(), self.zone.ttl, data), target }
    }

    fn named_srv(&self, key: &str, service: &ServiceEntry, wanted: impl Fn(&PortEntry) -> bool) -> Answer {
        if !ports(service).any(&wanted) {
            return self.nx_domain();
        }
        match self.kind {
            RecordType::SRV | RecordType::ANY => self.srv(key, service, wanted),
            _ => self.no_data(),
        }
    }

    fn srv(&self, key: &str, service: &ServiceEntry, wanted: impl Fn(&PortEntry) -> bool) -> Answer {
        let Some(name) = self.zone.service_name(key) else { return self.no_data() };
        let mut targets: Vec<(u16, Name, Vec<IpAddr>)> = Vec::new();
        if service.cluster_ips.is_empty() {
            for (host, entry) in &service.hosts {
                let Ok(target) = name.prepend_label(host.as_str()) else { continue };
                let ips: Vec<IpAddr> = entry.addresses.iter().copied().collect();
                let ports = entry.ports.iter().filter(|port| wanted(port));
                targets.extend(ports.map(|port| (port.port, target.clone(), ips.clone())));
            }
        } else {
            let ports = service.ports.iter().filter(|port| wanted(port));
            targets.extend(ports.map(|port| (port.port, name.clone(), service.cluster_ips.clone())));
        }
        let weight = (100 / targets.len().max(1)).max(1) as u16;
        let mut additionals: Vec<Record> = Vec::new();
        for (_, target, ips) in &targets {
            if !additionals.iter().any(|record| record.name == *target) {
                additionals.extend(self.address_records(target, ips.iter().copied()));
            }
        }
        let data = targets.into_iter().map(|(port, target, _)| RData::SRV(SRV::new(0, weight, port, target)));
        match self.records(data.collect()) {
            Answer::Records { answers, .. } => Answer::Records { answers, additionals },
            other => other,
        }
    }

    fn pod(&self, namespace: &str, label: &str) -> Answer {
        let ip = match undashed(label) {
            Some(ip) if self.zone.has_pod(namespace, ip) => ip,
            _ => return self.nx_domain(),
        };
        self.addresses(std::iter::once(ip))
    }
}

fn ports(service: &ServiceEntry) -> impl Iterator<Item = &PortEntry> {
    let of_hosts = service.hosts.values().flat_map(|host| host.ports.iter());
    let own = service.ports.iter().filter(|_| !service.cluster_ips.is_empty());
    own.chain(of_hosts)
}

fn address_data(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(ip.into()),
        IpAddr::V6(ip) => RData::AAAA(ip.into()),
    }
}

/// The address in a pod's label: `10-0-0-1` or `fd00--1`.
fn undashed(label: &str) -> Option<IpAddr> {
    match label.replace('-', ".").parse::<Ipv4Addr>() {
        Ok(ip) => Some(IpAddr::V4(ip)),
        Err(_) => label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

/// The whole address of a name under in-addr.arpa or ip6.arpa.
fn reverse(name: &Name) -> Option<IpAddr> {
    let net = name.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
