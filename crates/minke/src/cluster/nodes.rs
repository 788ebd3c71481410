//! Further nodes of the cluster on this machine: each has a network namespace, a cable to a common switch, and its
//! own `minke agent` with its own containerd.
//! Made by `up --nodes`, disturbed by `minke node`, removed by `down`.
//! Every name follows from a node's data directory, so that what was made is always found again.

use std::{
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use env::{Backoff, Env};
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{file_modes, instance::Instance, process},
    commands::{
        down,
        report::{Line, SUPERVISED},
    },
    control_plane::server::ControlPlane,
    flags,
    network::nft_repair,
};

/// Between an agent's end and its next start; doubled each time.
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), RESTART_DELAY_MAX);

/// How a node is started again, kept in its data directory.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    address: IpAddr,
    arguments: Vec<String>,
}

/// The switch between the nodes, with the host itself as the first of them.
#[derive(Debug)]
pub struct Switch {
    cidr: Ipv4Net,
    /// Where pods have addresses of IPv6, nodes have them too.
    six: Option<Ipv6Net>,
    /// Those of the pods, in their order, as whether it is IPv6.
    families: Vec<bool>,
    bridge: String,
    table: String,
    rules: String,
}

impl Switch {
    pub fn new(table: &str, bridge: &str, cidr: Ipv4Net, pod_cidrs: &[IpNet]) -> Self {
        let six = pod_cidrs.iter().any(|c| c.addr().is_ipv6()).then(|| six_beside(cidr));
        let own = [Some(IpNet::V4(cidr)), six.map(IpNet::V6)];
        let rules = own.into_iter().flatten().map(|own| rules(table, bridge, own, pod_cidrs)).collect();
        let families = pod_cidrs.iter().map(|c| c.addr().is_ipv6()).collect();
        Self { cidr, six, families, bridge: bridge.into(), table: table.into(), rules }
    }

    /// Makes it, and lets what is behind it out into the world.
    pub fn create(instance: &Instance, flags: &flags::Up) -> Result<Self> {
        let cidr = flags.node_cidr.unwrap_or_else(|| default_range(&instance.id)).trunc();
        if cidr.hosts().count() < usize::from(flags.nodes) {
            bail!("--node-cidr {cidr} is too small for {} nodes", flags.nodes);
        }
        if flags.server.bind_address.is_loopback() {
            bail!("other nodes can't reach an API server on {}: leave out --bind-address", flags.server.bind_address);
        }
        let bridge = instance.node_bridge();
        for range in flags.server.pod_cidr.iter().chain(&flags.server.service_cidr) {
            if range.contains(&IpNet::V4(cidr)) || IpNet::V4(cidr).contains(range) {
                bail!("--node-cidr {cidr} overlaps with {range} of pods or Services: choose another");
            }
        }
        refuse_overlap(cidr, &bridge)?;
        let switch = Self::new(&instance.nodes_table(), &bridge, cidr, &flags.server.pod_cidr);
        let mut batch = String::new();
        if !exists(&bridge) {
            batch += &format!("link add {bridge} type bridge\n");
        }
        batch += &format!("address replace {}/{} dev {bridge}\n", switch.host(), cidr.prefix_len());
        if let Some(six) = switch.six_of(1) {
            batch += &format!("address replace {six} dev {bridge} nodad\n");
        }
        batch += &format!("link set {bridge} up\n");
        ip(&["-batch", "-"], &batch)?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("failed to let packets through this machine")?;
        if switch.six.is_some() {
            let path = "/proc/sys/net/ipv6/conf/all/forwarding";
            fs::write(path, "1").context("failed to let packets through this machine")?;
        }
        nft(&switch.rules)?;
        Ok(switch)
    }

    /// Writes the rules anew whenever somebody else has deleted them. Runs until shutdown.
    pub fn keep_rules(&self, env: &Env, shutdown: &CancellationToken) -> impl Future<Output = ()> + use<> {
        let (table, rules) = (self.table.clone(), self.rules.clone());
        let families = if self.six.is_some() { &["ip", "ip6"][..] } else { &["ip"] };
        let restore = move || {
            let there = |family: &&str| {
                let rules = feed("nft", "nftables", &["list", "chain", family, &table, "postrouting"], "");
                rules.is_ok_and(|rules| rules.contains("masquerade"))
            };
            if families.iter().all(there) { Ok(false) } else { nft(&rules).map(|()| true) }
        };
        nft_repair::repair_on_change(vec![self.table.clone()], restore, env.clone(), shutdown.clone())
    }

    /// The host's address on the switch: the first.
    fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn address(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.cidr.network()) + n)
    }

    fn six_of(&self, n: u32) -> Option<Ipv6Net> {
        let six = self.six?;
        let address = Ipv6Addr::from(u128::from(six.network()) + u128::from(n));
        Ipv6Net::new(address, six.prefix_len()).ok()
    }

    /// All of node `n`: one of each family that pods have.
    pub fn addresses(&self, n: u32) -> Vec<IpAddr> {
        let of = |six: &bool| match six {
            true => self.six_of(n).map(|six| six.addr().into()),
            false => Some(self.address(n).into()),
        };
        self.families.iter().filter_map(of).collect()
    }

    /// Where the host is reached by those whose addresses are like `range`.
    pub fn host_like(&self, range: Option<&IpNet>) -> Option<IpAddr> {
        let six = range.is_some_and(|range| range.addr().is_ipv6());
        self.addresses(1).into_iter().find(|address| address.is_ipv6() == six)
    }

    /// The namespace and cable of node `n` (2, 3, …), and the record of how its agent is started.
    pub fn add(&self, instance: &Instance, plane: &ControlPlane, flags: &flags::Up, name: &str, n: u32) -> Result<()> {
        let node = instance.node(name);
        file_modes::close_data_directory(&node.data)
            .with_context(|| format!("failed to create {}", node.data.display()))?;
        let (id, cable) = (&node.id, node.cable());
        if !node.netns().exists() {
            ip(&["netns", "add", id], "")?;
        }
        if !exists(&cable) {
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", id], "")?;
        }
        ip(&["link", "set", &cable, "master", &self.bridge, "up"], "")?;
        // A node port may lead back to the node that asks; where bridges pass through netfilter, that is decided in here.
        ip(&["link", "set", &cable, "type", "bridge_slave", "hairpin", "on"], "")?;
        let (address, prefix, host) = (self.address(n), self.cidr.prefix_len(), self.host());
        ip(
            &["-n", id, "-batch", "-"],
            &format!(
                "link set lo up\naddress replace {address}/{prefix} dev eth0\nlink set eth0 up\n\
                 route replace default via {host}\n"
            ),
        )?;
        if let (Some(own), Some(host)) = (self.six_of(n), self.six_of(1)) {
            ip(&["-n", id, "address", "replace", &own.to_string(), "dev", "eth0", "nodad"], "")?;
            ip(&["-6", "-n", id, "route", "replace", "default", "via", &host.addr().to_string()], "")?;
        }
        let mut arguments = arguments(instance, &node, plane, flags, name);
        let addresses = self.addresses(n);
        let said: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        arguments.extend(["--node-ip".to_string(), said.join(",")]);
        let record = Record { address: addresses.first().copied().unwrap_or(address.into()), arguments };
        fs::write(node.data.join("node.json"), serde_json::to_vec_pretty(&record)?)?;
        Ok(())
    }
}

/// 198.18.0.0/15 is set aside for tests of networks: no other machine is in there.
fn default_range(id: &str) -> Ipv4Net {
    let hash = Sha256::digest(id.as_bytes());
    let address = Ipv4Addr::new(198, 18 + (hash[0] & 1), hash[1], 0);
    Ipv4Net::new(address, 24).expect("24 is a prefix length")
}

/// A range of local addresses (RFC 4193) that follows from the other family's.
fn six_beside(cidr: Ipv4Net) -> Ipv6Net {
    let hash = Sha256::digest(cidr.to_string());
    let part = |n: usize| u16::from_be_bytes([hash[n], hash[n + 1]]);
    let address = Ipv6Addr::new(0xfd00 | u16::from(hash[6]), part(0), part(2), part(4), 0, 0, 0, 0);
    Ipv6Net::new(address, 64).expect("64 is a prefix length")
}

/// Pods and nodes see each other's own addresses; only the rest of the world sees this machine's.
fn rules(table: &str, bridge: &str, own: IpNet, pod_cidrs: &[IpNet]) -> String {
    let family = if own.addr().is_ipv4() { "ip" } else { "ip6" };
    let inside = pod_cidrs.iter().filter(|c| c.addr().is_ipv4() == own.addr().is_ipv4()).map(ToString::to_string);
    let inside: Vec<String> = inside.chain([own.to_string()]).collect();
    format!(
        "add table {family} {table}\ndelete table {family} {table}\ntable {family} {table} {{ chain postrouting {{\n\
         type nat hook postrouting priority srcnat; policy accept;\n{family} saddr {own} {family} daddr != {{ {} }} \
         oifname != \"{bridge}\" fib daddr type != local masquerade\n}}\n}}\n",
        inside.join(", ")
    )
}

fn refuse_overlap(cidr: Ipv4Net, own: &str) -> Result<()> {
    for interface in nix::ifaddrs::getifaddrs()?.filter(|i| i.interface_name != own) {
        let address = interface.address.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip());
        let mask = interface.netmask.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip());
        let (Some(address), Some(mask)) = (address, mask) else { continue };
        let Ok(network) = Ipv4Net::with_netmask(address, mask) else { continue };
        if network.contains(&cidr.network()) || cidr.contains(&address) {
            bail!("--node-cidr {cidr} overlaps with {network} on {}: choose another", interface.interface_name);
        }
    }
    Ok(())
}

fn arguments(instance: &Instance, node: &Instance, plane: &ControlPlane, flags: &flags::Up, name: &str) -> Vec<String> {
    let list = |cidrs: &[IpNet]| cidrs.iter().map(|c| c.to_string()).collect::<Vec<_>>().join(",");
    let path = |path: &Path| path.display().to_string();
    let mut arguments = vec!["agent".to_string()];
    let mut flag = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
    flag("data-dir", path(&node.data));
    flag("netns", path(&node.netns()));
    flag("server", format!("https://{}", plane.address));
    flag("token-file", path(&instance.join_token()));
    flag("ca-file", path(&instance.pki().join("ca.crt")));
    flag("node-name", name.to_string());
    for (name, port) in [
        ("kubelet-port", flags.node.kubelet_port),
        ("healthz-port", flags.node.healthz_port),
        ("proxy-healthz-port", flags.node.proxy_healthz_port),
        ("proxy-metrics-port", flags.node.proxy_metrics_port),
        ("dns-metrics-port", flags.node.dns_metrics_port),
    ] {
        if let Some(port) = port {
            flag(name, port.to_string());
        }
    }
    let gates = flags.server.security.features.feature_gates.flag();
    if !gates.is_empty() {
        flag("feature-gates", gates);
    }
    flag("cni", flags.node.cni.name().to_string());
    if let Some(enforcer) = flags.node.network_policy {
        flag("network-policy", enforcer.name().to_string());
    }
    flag("dns", flags.server.dns.name().to_string());
    flag("local-storage", flags.server.local_storage.name().to_string());
    flag("pod-network", flags.node.pod_network.name().to_string());
    flag("pod-cidr", list(&flags.server.pod_cidr));
    flag("service-cidr", list(&flags.server.service_cidr));
    flag("image-gc-high-threshold", flags.node.image_gc_high_threshold.to_string());
    if let Some(thresholds) = &flags.node.eviction_hard {
        flag("eviction-hard", thresholds.clone());
    }
    arguments
}

/// Starts the node's agent and returns once the node is Ready. One that runs already is left alone.
pub async fn start(name: &str, node: &Instance) -> Result<()> {
    if process::running(node)?.is_some() {
        return wanted_up(node);
    }
    let record = record(name, node)?;
    let log = file_modes::open_log(&node.log_file())?;
    let mut command = env::open_files::command(std::env::current_exe()?);
    // All that it is told is in the record: flags of a file would be those of another node.
    command.args(&record.arguments).env(SUPERVISED, "1").env(flags::config_file::ENVIRONMENT, "");
    // A group of its own: what ends the terminal's programs does not end a node.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
    let mut child = tokio::process::Command::from(command)
        .spawn()
        .with_context(|| format!("failed to start the agent of node {name}"))?;
    let stdout = child.stdout.take().context("the agent has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        match Line::parse(&line) {
            Some(Line::Ready) => return wanted_up(node),
            Some(Line::Failed(text)) => bail!("node {name} did not start: {text}"),
            _ => {}
        }
    }
    let status = child.wait().await?;
    bail!("the agent of node {name} stopped while starting ({status}): see {}", node.log_file().display())
}

/// There while somebody wants the node to be down.
fn stopped_file(node: &Instance) -> PathBuf {
    node.data.join("stopped")
}

/// Takes back that the node is to be down. Only once it runs: who keeps agents running goes by it.
fn wanted_up(node: &Instance) -> Result<()> {
    match fs::remove_file(stopped_file(node)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Starts the node's agent again whenever it ends and nobody asked for it. Runs until shutdown.
pub async fn keep_running(name: String, node: Instance, env: Env, shutdown: CancellationToken) -> Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(&node.data, WatchMask::DELETE)?;
    let mut changes = inotify.into_event_stream(vec![0; 4096])?;
    let mut backoff = RESTART_BACKOFF;
    loop {
        if let Some(pid) = process::running(&node)? {
            let began = env.monotonic();
            tokio::select! {
                () = process::ended(pid) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            if env.monotonic() - began > RESTART_DELAY_MAX {
                backoff.reset();
            }
        } else if stopped_file(&node).exists() {
            // `minke node start` removes the file once the agent runs.
            tokio::select! {
                _ = changes.next() => continue,
                () = shutdown.cancelled() => return Ok(()),
            }
        }
        if stopped_file(&node).exists() {
            continue;
        }
        let pause = backoff.next_delay();
        tracing::warn!(node = name, ?pause, "the agent of a node ended; starting it again");
        tokio::select! {
            () = env.sleep(pause) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        if stopped_file(&node).exists() {
            continue;
        }
        if let Err(error) = start(&name, &node).await {
            tracing::error!(error = format!("{error:#}"), node = name, "failed to start an agent again");
        }
    }
}

fn record(name: &str, node: &Instance) -> Result<Record> {
    let text = fs::read(node.data.join("node.json")).with_context(|| {
        format!("there is no node {name} with a network of its own: `minke node ls` shows which there are")
    })?;
    Ok(serde_json::from_slice(&text)?)
}

/// Ends the agent; its containers go on.
pub fn stop_agent(node: &Instance) -> Result<()> {
    match process::running(node)? {
        Some(pid) => process::stop(pid, Duration::from_secs(30)),
        None => Ok(()),
    }
}

pub fn run(command: flags::NodeCommand) -> Result<()> {
    use flags::NodeCommand::*;
    crate::cluster::preflight::root()?;
    let found = |flags: &flags::NamedNode| -> Result<Instance> {
        let node = flags.data.instance().node(&flags.name);
        record(&flags.name, &node).map(|_| node)
    };
    match command {
        Ls { data } => list(&data.instance()),
        Stop(flags) => {
            let node = found(&flags)?;
            // Before it ends: who keeps the agents running must not start it again.
            fs::write(stopped_file(&node), "")?;
            stop_agent(&node)?;
            down::end_containers(&node);
            println!("node {} stopped", flags.name);
            Ok(())
        }
        Start(flags) => {
            let node = found(&flags)?;
            crate::runtime()?.block_on(async {
                // A node that never finished joining needs a token that is still good.
                if let Err(error) =
                    crate::control_plane::join_token::refresh(&flags.data.instance(), &Env::real()).await
                {
                    tracing::warn!(error = format!("{error:#}"), "the token could not be renewed");
                }
                start(&flags.name, &node).await
            })?;
            println!("node {} runs", flags.name);
            Ok(())
        }
        Cut(flags) => ip(&["link", "set", &found(&flags)?.cable(), "down"], "").map(drop),
        Heal(flags) => ip(&["link", "set", &found(&flags)?.cable(), "up"], "").map(drop),
        JoinCommand { data } => {
            crate::runtime()?.block_on(crate::control_plane::join_token::print_command(&data.instance(), &Env::real()))
        }
    }
}

fn list(instance: &Instance) -> Result<()> {
    println!("{:<24} {:<16} {:<10} {:<8} DATA", "NAME", "ADDRESS", "STATE", "PROCESS");
    let row = |name: &str, address: String, cut: bool, node: &Instance| -> Result<()> {
        let pid = process::running(node)?;
        let state = match (pid, cut) {
            (Some(_), true) => "cut",
            (Some(_), false) => "running",
            (None, _) => "stopped",
        };
        let pid = pid.map(|p| p.to_string()).unwrap_or_default();
        println!("{name:<24} {address:<16} {state:<10} {pid:<8} {}", node.data.display());
        Ok(())
    };
    row("(this machine)", String::new(), false, instance)?;
    for (name, node) in instance.nodes() {
        let address = record(&name, &node)?.address;
        row(&name, address.to_string(), !is_up(&node.cable()), &node)?;
    }
    Ok(())
}

/// Takes the nodes away: processes, namespaces, cables and the switch.
pub fn remove(instance: &Instance) -> Result<()> {
    for (name, node) in instance.nodes() {
        stop_agent(&node)?;
        down::remove_node(&node)?;
        for (there, arguments) in [
            (exists(&node.cable()), ["link", "del", &node.cable()]),
            (node.netns().exists(), ["netns", "del", &node.id]),
        ] {
            if there {
                ip(&arguments, "")?;
            }
        }
        println!("✓ node {name} removed");
    }
    let bridge = instance.node_bridge();
    if exists(&bridge) {
        ip(&["link", "del", &bridge], "")?;
    }
    let table = instance.nodes_table();
    let gone = |family: &str| format!("add table {family} {table}\ndelete table {family} {table}\n");
    nft(&(gone("ip") + &gone("ip6")))
}

pub fn exists(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

fn is_up(interface: &str) -> bool {
    let mut all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.any(|i| i.interface_name == interface && i.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
}

pub fn ip(arguments: &[&str], input: &str) -> Result<String> {
    feed("ip", "iproute2", arguments, input)
}

fn nft(input: &str) -> Result<()> {
    feed("nft", "nftables", &["-f", "-"], input).map(drop)
}

fn feed(program: &str, package: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("failed to run {program}: apt-get install {package}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that gave up early says why on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        bail!("{program} {} failed: {said}", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Moves this process into a namespace, and gives it a host name of its own, which pods on the host's network see.
/// Only before there are other threads.
pub fn enter(netns: &Path, host_name: Option<&str>) -> Result<()> {
    let file = fs::File::open(netns).with_context(|| format!("there is no network namespace {}", netns.display()))?;
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("failed to enter the network namespace {}", netns.display()))?;
    let Some(host_name) = host_name else { return Ok(()) };
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).context("failed to get a host name of its own")?;
    nix::unistd::sethostname(host_name).with_context(|| format!("failed to take the host name {host_name}"))
}

/// The names of the nodes after the first.
pub fn names(first: &str, nodes: u8) -> impl Iterator<Item = (u32, String)> + '_ {
    (2..=u32::from(nodes)).map(move |n| (n, format!("{first}-{n}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_host_name_of_its_own() {
        let before = nix::unistd::gethostname().unwrap();
        // Namespaces are a thread's own.
        let inside = std::thread::spawn(|| {
            enter(Path::new("/proc/thread-self/ns/net"), Some("node-2")).expect("run this test as root");
            nix::unistd::gethostname().unwrap()
        });
        assert_eq!(inside.join().unwrap(), "node-2");
        assert_eq!(nix::unistd::gethostname().unwrap(), before);
    }

    #[test]
    fn ranges_follow_from_the_instance() {
        let outer: Ipv4Net = "198.18.0.0/15".parse().unwrap();
        let range = default_range("minke");
        assert!(outer.contains(&range));
        assert_eq!(range, default_range("minke"));
        assert_ne!(range, default_range("mk012345"));
        assert_eq!(names("a", 3).collect::<Vec<_>>(), [(2, "a-2".to_string()), (3, "a-3".to_string())]);
        assert_eq!(names("a", 1).count(), 0);
        let switch = |pods: &[&str]| {
            let pods: Vec<IpNet> = pods.iter().map(|p| p.parse().unwrap()).collect();
            Switch::new("t", "b", "198.18.7.0/24".parse().unwrap(), &pods)
        };
        let six = switch(&["fd01::/48"]).addresses(3);
        assert!(six.len() == 1 && six[0].is_ipv6(), "{six:?}");
        let four: IpAddr = "198.18.7.3".parse().unwrap();
        assert_eq!(switch(&["10.244.0.0/16"]).addresses(3), [four]);
        assert_eq!(switch(&["fd01::/48", "10.244.0.0/16"]).addresses(3), [six[0], four]);
        let loopback = refuse_overlap("127.0.0.0/24".parse().unwrap(), "own").unwrap_err();
        assert!(loopback.to_string().contains("--node-cidr"), "{loopback}");
    }
}
