//! The ports of a cluster on this machine: free before anything starts, and others than those of a cluster beside it.
//! Settled by `up` and `agent` after they hold their data directory; who has a port is read from /proc.
//! A port that was asked for is taken or refused, never replaced.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use crate::{
    certificates::pki::write_private,
    cluster::{instance::Instance, preflight},
    flags::{self, Choice, kubelet_flags},
    network::dns_service,
};

pub const API_PORT: u16 = 6443;
pub const KUBELET_PORT: u16 = 10250;
pub const KUBELET_HEALTHZ_PORT: u16 = 10248;
pub const PROXY_HEALTHZ_PORT: u16 = 10256;
pub const PROXY_METRICS_PORT: u16 = 10249;
pub const DNS_METRICS_PORT: u16 = 9153;

const HEALTH_PORTS_FILE: &str = "health-ports.json";

/// Between the ports of one cluster and the next. No two defaults differ by a multiple of it.
const PORT_STEP: u16 = 20;
const CLUSTERS_MAX: u16 = 50;

/// Who listens on a port.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    pub name: String,
}

impl Holder {
    fn is_minke(&self) -> bool {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        // One that was replaced while it runs ends in " (deleted)".
        let program = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        program.split(' ').next() == Some("minke")
    }
}

/// A port to be listened on.
struct Wanted {
    flag: &'static str,
    /// What is asked for; none leaves the choice to us.
    asked: Option<u16>,
    usual: u16,
    address: IpAddr,
    /// The address is made later: only who listens on all addresses is in the way.
    is_later: bool,
}

/// Fills in the node's ports that were not asked for, and refuses those that somebody else has.
pub fn settle_node(node: &mut flags::Node, dns: Choice, instance: &Instance) -> Result<()> {
    let mut ports = Ports::open(instance);
    // The kubelet's configuration file may say otherwise.
    let mut config = kubelet::Config {
        port: node.kubelet_port.unwrap_or(KUBELET_PORT),
        healthz_port: node.healthz_port.unwrap_or(KUBELET_HEALTHZ_PORT),
        ..kubelet::Config::default()
    };
    let before = (config.port, config.healthz_port);
    kubelet_flags::apply(node, &mut config)?;
    let said = |now: u16, before: u16, flag: Option<u16>| if now == before { flag } else { Some(now) };
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let kubelet = Wanted {
        flag: "--kubelet-port",
        asked: said(config.port, before.0, node.kubelet_port),
        usual: KUBELET_PORT,
        address: config.address.unwrap_or(everywhere),
        is_later: false,
    };
    let healthz = Wanted {
        flag: "--healthz-port",
        asked: said(config.healthz_port, before.1, node.healthz_port),
        usual: KUBELET_HEALTHZ_PORT,
        address: Ipv4Addr::LOCALHOST.into(),
        is_later: false,
    };
    let (kubelet, healthz) = (ports.settle(&kubelet)?, ports.settle(&healthz)?);
    (node.kubelet_port, node.healthz_port) = (Some(kubelet), Some(healthz));
    settle_proxy(node, &mut ports)?;
    if dns == Choice::Minke {
        let address = if node.cni == Choice::Minke { Ipv4Addr::LOCALHOST.into() } else { everywhere };
        let metrics = Wanted {
            flag: "--dns-metrics-port",
            asked: node.dns_metrics_port,
            usual: DNS_METRICS_PORT,
            address,
            is_later: true,
        };
        node.dns_metrics_port = Some(ports.settle(&metrics)?);
        let port = if node.cni == Choice::Minke { api::cluster_dns::PORT } else { dns_service::PORT_ON_NODE };
        if let Some(holder) = everywhere_holder(port) {
            bail!(
                "{} listens on port {port} of all addresses, where cluster DNS answers: stop it, or leave cluster DNS \
                 to another with --dns none",
                told(holder)
            );
        }
    }
    let health = [("kubelet", node.healthz_port), ("service proxy", node.proxy_healthz_port)];
    let health: BTreeMap<&str, u16> = health.into_iter().map(|(name, port)| (name, port.unwrap_or(0))).collect();
    write_private(&instance.data.join(HEALTH_PORTS_FILE), &serde_json::to_string(&health)?)?;
    ports.keep()
}

/// Where the parts of a node tell their health on this machine, by the name of the part; 0 is nowhere.
pub fn health_ports(instance: &Instance) -> BTreeMap<String, u16> {
    let text = fs::read(instance.data.join(HEALTH_PORTS_FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Who listens on a port of this machine, as it is told to people.
pub fn holder_of(port: u16) -> Option<(String, bool)> {
    let holder = listening(port, |_| true).map(owner)?;
    let is_minke = holder.as_ref().is_some_and(Holder::is_minke);
    Some((told(holder), is_minke))
}

/// Those of a service proxy in a process of its own.
pub fn settle_proxy_alone(node: &mut flags::Node, instance: &Instance) -> Result<()> {
    let mut ports = Ports::open(instance);
    settle_proxy(node, &mut ports)?;
    ports.keep()
}

fn settle_proxy(node: &mut flags::Node, ports: &mut Ports) -> Result<()> {
    let healthz = Wanted {
        flag: "--proxy-healthz-port",
        asked: node.proxy_healthz_port,
        usual: PROXY_HEALTHZ_PORT,
        address: Ipv4Addr::UNSPECIFIED.into(),
        is_later: false,
    };
    let metrics = Wanted {
        flag: "--proxy-metrics-port",
        asked: node.proxy_metrics_port,
        usual: PROXY_METRICS_PORT,
        address: Ipv4Addr::LOCALHOST.into(),
        is_later: false,
    };
    let settled = (ports.settle(&healthz)?, ports.settle(&metrics)?);
    (node.proxy_healthz_port, node.proxy_metrics_port) = (Some(settled.0), Some(settled.1));
    Ok(())
}

/// The API server's, in the same way.
pub fn settle_api(server: &mut flags::Server, instance: &Instance) -> Result<()> {
    let mut ports = Ports::open(instance);
    let api =
        Wanted { flag: "--port", asked: server.port, usual: API_PORT, address: server.bind_address, is_later: false };
    server.port = Some(ports.settle(&api)?);
    ports.keep()
}

/// What the ingress listens on: taken at once, so that nobody else can have it between now and the start.
#[derive(Default)]
pub struct IngressListeners {
    pub listeners: ingress::Listeners,
    /// Ports that somebody else has.
    notes: Vec<String>,
}

impl IngressListeners {
    pub fn ports(&self) -> Vec<u16> {
        let listeners = [&self.listeners.http, &self.listeners.https].into_iter().flatten();
        listeners.filter_map(|listener| listener.local_addr().ok()).map(|address| address.port()).collect()
    }

    pub fn summary(&self) -> String {
        let ports: Vec<String> = self.ports().iter().map(ToString::to_string).collect();
        let notes = if self.notes.is_empty() { String::new() } else { format!(" ({})", self.notes.join(", ")) };
        match ports.as_slice() {
            [] => format!("ingress on no port{notes}"),
            [one] => format!("ingress ready on port {one}{notes}"),
            more => format!("ingress ready on ports {}{notes}", more.join(" and ")),
        }
    }
}

/// A port that is asked for is taken or refused. Else the usual ones, and where somebody has them others, which is told.
pub fn take_ingress(flags: &flags::ingress_flags::IngressPorts, instance: &Instance) -> Result<IngressListeners> {
    let mut ports = Ports::open(instance);
    let mut taken = IngressListeners::default();
    let http = IngressPort { flag: "--ingress-http-port", usual: 80, others: 8080 };
    let https = IngressPort { flag: "--ingress-https-port", usual: 443, others: 8443 };
    taken.listeners.http = ports.take(&http, flags.ingress_http_port, &mut taken.notes)?;
    taken.listeners.https = ports.take(&https, flags.ingress_https_port, &mut taken.notes)?;
    ports.keep()?;
    Ok(taken)
}

struct IngressPort {
    flag: &'static str,
    usual: u16,
    /// The first of those that are tried after it.
    others: u16,
}

/// The ports that this cluster chose for itself before, by flag.
struct Ports {
    file: PathBuf,
    kept: BTreeMap<String, u16>,
    changed: bool,
}

impl Ports {
    fn open(instance: &Instance) -> Self {
        let file = instance.data.join("ports.json");
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { file, kept, changed: false }
    }

    fn settle(&mut self, wanted: &Wanted) -> Result<u16> {
        if let Some(port) = wanted.asked {
            return match holder(wanted, port) {
                None => Ok(port),
                Some(holder) => bail!("{}", in_use(wanted, port, holder)),
            };
        }
        let first = self.kept.get(wanted.flag).copied().unwrap_or(wanted.usual);
        let Some(first_holder) = holder(wanted, first) else { return Ok(first) };
        // Only a cluster of ours is made room for: a stranger on a well-known port is worth a word.
        if !first_holder.as_ref().is_some_and(Holder::is_minke) {
            bail!("{}", in_use(wanted, first, first_holder));
        }
        let mut others = (1..CLUSTERS_MAX).filter_map(|n| wanted.usual.checked_add(n * PORT_STEP));
        let Some(free) = others.find(|port| holder(wanted, *port).is_none()) else {
            bail!("{}", in_use(wanted, first, first_holder));
        };
        tracing::info!(port = free, flag = wanted.flag, "another cluster has the usual port; this one has its own");
        self.kept.insert(wanted.flag.to_string(), free);
        self.changed = true;
        Ok(free)
    }

    fn take(
        &mut self,
        wanted: &IngressPort,
        asked: Option<u16>,
        notes: &mut Vec<String>,
    ) -> Result<Option<TcpListener>> {
        let address = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        match asked {
            Some(0) => return Ok(None),
            Some(port) => return preflight::listen(address(port), wanted.flag).map(Some),
            None => {}
        }
        let kept = self.kept.get(wanted.flag).copied();
        let others = (0..CLUSTERS_MAX).map(|n| wanted.others + n * PORT_STEP);
        for port in kept.into_iter().chain([wanted.usual]).chain(others) {
            match preflight::listen(address(port), wanted.flag) {
                Ok(listener) => {
                    self.changed |= self.kept.insert(wanted.flag.to_string(), port) != Some(port);
                    return Ok(Some(listener));
                }
                Err(_) if port == wanted.usual => {
                    let holder = listening(port, |_| true).and_then(owner);
                    notes.push(format!("{port} is taken by {}", told(holder)));
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn keep(self) -> Result<()> {
        match self.changed {
            true => write_private(&self.file, &serde_json::to_string(&self.kept)?),
            false => Ok(()),
        }
    }
}

fn in_use(wanted: &Wanted, port: u16, holder: Option<Holder>) -> String {
    let place = match wanted.is_later {
        true => format!("port {port}"),
        false => SocketAddr::new(wanted.address, port).to_string(),
    };
    conflict_message(&place, holder, wanted.flag)
}

/// Why nobody else can listen there, when it is that somebody does.
pub fn refusal(address: SocketAddr, flag: &str) -> Option<String> {
    let inode = listening(address.port(), |ip| overlaps(ip, address.ip()))?;
    Some(conflict_message(&address.to_string(), owner(inode), flag))
}

fn conflict_message(place: &str, holder: Option<Holder>, flag: &str) -> String {
    format!("can't listen on {place}, where {} does: choose another port with {flag}", told(holder))
}

fn told(holder: Option<Holder>) -> String {
    match holder {
        Some(Holder { pid, name }) => format!("{name} (process {pid})"),
        None => "another process".to_string(),
    }
}

/// Whether somebody has the port, and who, if it can be seen.
fn holder(wanted: &Wanted, port: u16) -> Option<Option<Holder>> {
    if port == 0 {
        return None;
    }
    if wanted.is_later {
        return everywhere_holder(port);
    }
    let address = metrics::http::everywhere(SocketAddr::new(wanted.address, port));
    match TcpListener::bind(address) {
        Ok(_) => None,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Some(listening(port, |ip| overlaps(ip, wanted.address)).and_then(owner))
        }
        // Why else it can't be had is the component's to say.
        Err(_) => None,
    }
}

fn everywhere_holder(port: u16) -> Option<Option<Holder>> {
    listening(port, |ip| ip.is_unspecified()).map(owner)
}

fn overlaps(one: IpAddr, other: IpAddr) -> bool {
    one.is_unspecified() || other.is_unspecified() || one.to_canonical() == other.to_canonical()
}

/// The inode of a socket that has this port at an address that `is_in_the_way`.
fn listening(port: u16, is_in_the_way: impl Fn(IpAddr) -> bool) -> Option<u64> {
    const TCP_LISTEN: &str = "0A";
    let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    ["tcp", "tcp6", "udp", "udp6"].iter().find_map(|name| {
        table(name).lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, peer, state, inode) = (fields.get(1)?, fields.get(2)?, fields.get(3)?, fields.get(9)?);
            let waits = if name.starts_with("tcp") { *state == TCP_LISTEN } else { peer.ends_with(":0000") };
            let (ip, found) = socket_address(address)?;
            (waits && found == port && is_in_the_way(ip)).then(|| inode.parse().ok()).flatten()
        })
    })
}

/// As the kernel writes them: words of 32 bits in the machine's order, in hex.
fn socket_address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |n: usize| u32::from_str_radix(address.get(n * 8..n * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for n in 0..4 {
                bytes[n * 4..n * 4 + 4].copy_from_slice(&word(n)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

/// The process that has the socket open.
fn owner(inode: u64) -> Option<Holder> {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == wanted))
    };
    let pid = pids.into_iter().find(has)?;
    let name = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm")).unwrap_or_default();
    Some(Holder { pid, name: name.trim().to_string() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn node(arguments: &[&str]) -> flags::Node {
        let flags = flags::Flags::try_parse_from(["minke", "up"].iter().chain(arguments)).expect("valid flags");
        let flags::Command::Up(up) = flags.command else { panic!("up") };
        up.node
    }

    #[test]
    fn a_node_port_in_use_is_told_with_its_holder_and_its_flag() {
        let data = tempfile::tempdir().unwrap();
        let instance = Instance::new(data.path());
        for (flag, address) in [
            ("--kubelet-port", "0.0.0.0:0"),
            ("--healthz-port", "127.0.0.1:0"),
            ("--proxy-healthz-port", "127.0.0.1:0"),
            ("--proxy-metrics-port", "[::]:0"),
            ("--dns-metrics-port", "0.0.0.0:0"),
        ] {
            let taken = TcpListener::bind(address).unwrap();
            let port = taken.local_addr().unwrap().port();
            // All others are off or free, whatever runs on this machine.
            let off = ["--kubelet-port", "--healthz-port", "--proxy-healthz-port", "--proxy-metrics-port"];
            let off = off.iter().chain(&["--dns-metrics-port"]).filter(|other| **other != flag);
            let mut arguments: Vec<String> = off.map(|other| format!("{other}=0")).collect();
            arguments.push(format!("{flag}={port}"));
            let mut flags = node(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            let error = settle_node(&mut flags, Choice::Minke, &instance).unwrap_err().to_string();
            let own = format!("(process {})", std::process::id());
            assert!(error.contains(&format!("{port}, where ")) && error.contains(&own), "{flag}: {error}");
            assert!(error.ends_with(&format!("choose another port with {flag}")), "{flag}: {error}");
            drop(taken);
        }
    }

    #[test]
    fn a_port_that_a_stranger_has_is_refused_and_one_of_ours_is_made_room_for() {
        let data = tempfile::tempdir().unwrap();
        let instance = Instance::new(data.path());
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let usual = taken.local_addr().unwrap().port();
        let wanted = Wanted { flag: "--x", asked: None, usual, address: Ipv4Addr::LOCALHOST.into(), is_later: false };
        let found = holder(&wanted, usual).expect("in use").expect("its process is seen");
        assert_eq!(found.pid, std::process::id() as i32);
        // Unit tests run as `minke-<hash>`.
        assert!(!found.is_minke());
        assert!(Ports::open(&instance).settle(&wanted).is_err());
        // What was chosen once is kept, also when the usual port is free again.
        let mut ports = Ports::open(&instance);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        ports.kept.insert("--x".into(), free);
        ports.changed = true;
        ports.keep().unwrap();
        assert_eq!(Ports::open(&instance).settle(&wanted).unwrap(), free);
    }

    #[test]
    fn the_ingress_takes_other_ports_when_the_usual_ones_are_taken_and_says_so() {
        let data = tempfile::tempdir().unwrap();
        let instance = Instance::new(data.path());
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let usual = taken.local_addr().unwrap().port();
        let free = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let wanted = IngressPort { flag: "--x", usual, others: free };
        let take = |asked| {
            let (mut ports, mut notes) = (Ports::open(&instance), Vec::new());
            let listener = ports.take(&wanted, asked, &mut notes).map(|l| l.map(|l| l.local_addr().unwrap().port()));
            ports.keep().unwrap();
            (listener, notes)
        };
        let (first, notes) = take(None);
        assert_eq!(first.unwrap(), Some(free));
        assert!(notes[0].starts_with(&format!("{usual} is taken by ")), "{notes:?}");
        // A port of before is no surprise.
        assert!(matches!(take(None), (Ok(Some(port)), notes) if port == free && notes.is_empty()));
        assert!(matches!(take(Some(0)), (Ok(None), _)));
        let refused = take(Some(usual)).0.unwrap_err();
        assert!(format!("{refused:#}").contains("choose another port with --x"), "{refused:#}");
    }

    #[test]
    fn the_kernels_addresses_are_read() {
        let check = |text: &str, expected: &str| {
            let (ip, port) = socket_address(text).unwrap();
            assert_eq!(SocketAddr::new(ip, port).to_string(), expected);
        };
        check("0100007F:280A", "127.0.0.1:10250");
        check("00000000:0035", "0.0.0.0:53");
        check("00000000000000000000000001000000:1F90", "[::1]:8080");
    }
}
