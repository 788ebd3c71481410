//! The proxy with real packets: a node, its pods and a stranger outside, each in a network namespace of its own.
//! Every namespace here is made by the test and removed at its end.
//! Nothing touches the machine's own namespace.

mod elements;
mod feed;
mod iptables;
mod layer2;
mod pod_routes;
mod policies;
mod trouble;
mod udp;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    process::Command,
    time::Duration,
};

use client::{Client, InformerFactory};
use env::Env;
use feed::Feed;
use nix::sched::{CloneFlags, setns};
use proxy::{AppliedState, NodeConfig, PodUid, ProxyConfig, ProxyMode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long a busy machine may take for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// What `look` finds, as soon as it finds something.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = env::instant_now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(env::instant_now() < end, "never {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The UID of the pod that has this address here.
fn uid(ip: &str) -> String {
    let last = ip.rsplit(['.', ':']).next().unwrap();
    let family = if ip.contains(':') { 6 } else { 4 };
    format!("00000000-0000-4000-800{family}-{last:0>12}")
}

fn require_tools() {
    assert!(nix::unistd::geteuid().is_root(), "this test makes network namespaces: run it as root");
    for (tool, package) in [("ip", "iproute2"), ("nft", "nftables"), ("conntrack", "conntrack")] {
        let found = Command::new(tool).arg("-V").output().is_ok();
        assert!(found, "{tool} is missing: apt-get install -y {package}");
    }
}

fn inside<T: Send + 'static>(namespace: &str, run: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    let file = fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::spawn(move || {
        setns(file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        run()
    })
}

fn service(name: &str, ip: &str, extra: &Value) -> Value {
    let mut spec = json!({ "clusterIP": ip, "clusterIPs": [ip], "ports": [{ "port": 80 }] });
    for (field, value) in extra.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({ "metadata": { "name": name, "namespace": "d" }, "spec": spec })
}

/// Each endpoint is an address, then any of: `there` (on another node), `leaving` (serves while it ends).
fn slice(service: &str, protocol: &str, port: u16, endpoints: &[&str]) -> Value {
    let endpoint = |text: &&str| {
        let (ip, words) = text.split_once(' ').unwrap_or((text, ""));
        let leaving = words.contains("leaving");
        json!({
            "addresses": [ip], "targetRef": { "kind": "Pod", "uid": uid(ip) },
            "nodeName": if words.contains("there") { "there" } else { "here" },
            "conditions": { "ready": !leaving, "serving": true, "terminating": leaving },
        })
    };
    json!({
        "metadata": {
            "name": format!("{service}-1"), "namespace": "d",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": if endpoints.first().is_some_and(|ip| ip.contains(':')) { "IPv6" } else { "IPv4" },
        "ports": [{ "name": "", "port": port, "protocol": protocol }],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// A node with pods a and b, a stranger outside, and the proxy on the node.
struct Node {
    name: String,
    feed: Feed,
    applied_state: AppliedState,
    shutdown: CancellationToken,
    proxy: Option<std::thread::JoinHandle<()>>,
    mode: ProxyMode,
}

impl Node {
    fn new(test: &str) -> Self {
        Self::with_mode(test, ProxyMode::Nftables)
    }

    fn with_mode(test: &str, mode: ProxyMode) -> Self {
        require_tools();
        let n = format!("minke-test-{test}-{}", std::process::id());
        let mut node = Self {
            name: n.clone(),
            feed: Feed::default(),
            applied_state: AppliedState::default(),
            shutdown: CancellationToken::new(),
            proxy: None,
            mode,
        };
        let all = [n.clone(), format!("{n}-out"), format!("{n}-a"), format!("{n}-b")];
        for name in &all {
            // Without duplicate address detection IPv6 works from the first packet.
            let quick = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad";
            shell(&format!(
                "ip netns add {name} && ip netns exec {name} sh -c '{quick}' && ip -n {name} link set lo up"
            ));
        }
        shell(&format!(
            "ip -n {n} link add up0 type veth peer name up0 netns {n}-out && \
             ip -n {n} addr add 192.0.2.1/24 dev up0 && ip -n {n}-out addr add 192.0.2.2/24 dev up0 && \
             ip -n {n} link set up0 up && ip -n {n}-out link set up0 up && \
             ip -n {n} route add default via 192.0.2.2 && ip -n {n}-out route add 198.51.100.0/24 via 192.0.2.1 && \
             ip -n {n} -6 addr add fd98::1/64 dev up0 nodad && ip -n {n} -6 route add fd96::/64 dev up0 && \
             ip netns exec {n} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward && \
             echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'"
        ));
        for (pod, last) in [("a", 2), ("b", 3)] {
            shell(&format!(
                "ip -n {n} link add name pod-{pod} type veth peer name eth0 netns {n}-{pod} && ip -n {n} link set pod-{pod} up && \
                 ip -n {n} addr add 10.244.0.1/32 dev pod-{pod} && ip -n {n}-{pod} link set eth0 up && \
                 ip -n {n}-{pod} addr add 10.244.0.{last}/32 dev eth0 && ip -n {n} route add 10.244.0.{last} dev pod-{pod} && \
                 ip -n {n}-{pod} route add 10.244.0.1 dev eth0 && ip -n {n}-{pod} route add default via 10.244.0.1 && \
                 ip -n {n}-{pod} -6 addr add fd97::{last}/128 dev eth0 nodad && \
                 ip -n {n} -6 addr add fd97::1/128 dev pod-{pod} nodad && ip -n {n} -6 route add fd97::{last} dev pod-{pod} && \
                 ip -n {n}-{pod} -6 route add fd97::1 dev eth0 && ip -n {n}-{pod} -6 route add default via fd97::1"
            ));
        }
        node.start();
        node
    }

    fn start(&mut self) {
        let config = ProxyConfig {
            node: NodeConfig {
                node_name: "here".into(),
                node_addresses: vec!["192.0.2.1".parse().unwrap()],
                node_port_addresses: vec!["192.0.2.1".parse().unwrap()],
                localhost_node_ports: true,
                pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
                ..NodeConfig::default()
            },
            table: "mk-proxy".into(),
            applied_state: self.applied_state.clone(),
            healthz: Some("0.0.0.0:10256".parse().unwrap()),
            metrics: None,
            mode: self.mode,
            ..ProxyConfig::new(NodeConfig::default())
        };
        self.shutdown = CancellationToken::new();
        let (feed, shutdown) = (self.feed.clone(), self.shutdown.clone());
        let generation = self.generation();
        self.proxy = Some(inside(&self.name, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let env = Env::real();
                let informers = InformerFactory::new(Client::new(feed), env.clone(), shutdown.clone());
                proxy::run(config, informers, env, shutdown).await.unwrap();
            });
        }));
        self.applied(generation);
    }

    fn stop(&mut self) {
        self.shutdown.cancel();
        self.proxy.take().unwrap().join().unwrap();
    }

    fn generation(&self) -> u64 {
        self.applied_state.applied().borrow().generation
    }

    fn uses(&self, ip: &str) -> bool {
        self.applied_state.uses(PodUid::parse(&uid(ip)).unwrap())
    }

    /// Waits for the next transaction after `generation`.
    fn applied(&self, generation: u64) {
        let mut receiver = self.applied_state.applied();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let wait = receiver.wait_for(|now| now.generation > generation);
        runtime.block_on(async { env::timeout(WAIT_TIMEOUT, wait).await.unwrap().unwrap() });
    }

    fn change(&self, plural: &str, value: Value) {
        let generation = self.generation();
        self.feed.put(plural, value);
        self.applied(generation);
    }

    fn service(&self, name: &str, ip: &str, extra: Value) {
        self.change("services", service(name, ip, &extra));
    }

    fn endpoints(&self, service: &str, protocol: &str, endpoints: &[&str]) {
        self.change("endpointslices", slice(service, protocol, 8080, endpoints));
    }

    /// A server in a pod that answers with its own name and the address it saw. Over UDP with its name alone, at port
    /// 8081 with its name twice.
    fn serve(&self, pod: &str) {
        let (ready, started) = std::sync::mpsc::channel();
        let name = pod.to_owned();
        // Ends with the test's process.
        let namespace = if pod.is_empty() { self.name.clone() } else { format!("{}-{pod}", self.name) };
        inside(&namespace, move || {
            let listener = TcpListener::bind("[::]:8080").unwrap();
            for (port, answer) in [(8080, name.clone()), (8081, name.repeat(2))] {
                let udp = UdpSocket::bind(("::", port)).unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                        let _ = udp.send_to(answer.as_bytes(), from);
                    }
                });
            }
            ready.send(()).unwrap();
            while let Ok((mut stream, from)) = listener.accept() {
                let _ = stream.write_all(format!("{name} {}", from.ip().to_canonical()).as_bytes());
            }
        });
        started.recv().unwrap();
    }

    fn ask(&self, from: &str, to: &str) -> String {
        self.ask_for(WAIT_TIMEOUT, from, to)
    }

    /// Whether packets disappear: not even a refusal comes back.
    fn is_dropped(&self, from: &str, to: &str) -> bool {
        self.ask_for(Duration::from_secs(2), from, to) == "TimedOut"
    }

    fn ask_for(&self, limit: Duration, from: &str, to: &str) -> String {
        let address: SocketAddr = to.parse().unwrap();
        inside(&format!("{}{from}", self.name), move || {
            let mut stream = match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => stream,
                Err(error) => return format!("{:?}", error.kind()),
            };
            stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).map_or_else(|error| error.to_string(), |_| text)
        })
        .join()
        .unwrap()
    }

    fn nft(&self, arguments: &str) -> String {
        shell(&format!("ip netns exec {} nft {arguments}", self.name))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(proxy) = self.proxy.take() {
            let _ = proxy.join();
        }
        for suffix in ["", "-out", "-a", "-b"] {
            let _ = Command::new("ip").args(["netns", "del", &format!("{}{suffix}", self.name)]).status();
        }
    }
}

#[test]
fn services_are_reached_from_everywhere() {
    let mut node = Node::new("proxy");
    node.serve("a");
    node.serve("b");
    node.service(
        "web",
        "10.96.0.10",
        json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }], "externalIPs": ["198.51.100.5"] }),
    );
    let check = |from: &str, to: &str, seen: &str| assert_eq!(node.ask(from, to), seen, "{from} -> {to}");
    check("-b", "10.96.0.10:80", "ConnectionRefused");
    check("", "10.96.0.10:80", "ConnectionRefused");
    // However often one asks.
    for _ in 0..50 {
        check("", "10.96.0.10:80", "ConnectionRefused");
    }
    check("-out", "192.0.2.1:30080", "ConnectionRefused");

    node.endpoints("web", "TCP", &["10.244.0.2"]);
    check("-b", "10.96.0.10:80", "a 10.244.0.3");
    // A pod that meets itself sees the node's address.
    check("-a", "10.96.0.10:80", "a 10.244.0.1");
    check("", "10.96.0.10:80", "a 10.244.0.1");
    check("-out", "192.0.2.1:30080", "a 10.244.0.1");
    check("-out", "198.51.100.5:80", "a 10.244.0.1");
    check("", "192.0.2.1:30080", "a 10.244.0.1");
    check("", "127.0.0.1:30080", "a 10.244.0.1");
    // A port the Service does not have.
    check("-b", "10.96.0.10:81", "ConnectionRefused");

    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let seen: BTreeSet<String> = (0..40).map(|_| node.ask("", "10.96.0.10:80")).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");

    node.service("six", "fd96::10", json!({}));
    node.endpoints("six", "TCP", &["fd97::2"]);
    assert_eq!(node.ask("-b", "[fd96::10]:80"), "a fd97::3");

    // A server on the node itself, as the API server is: from pods, from the node, from outside.
    node.serve("");
    node.service("api", "10.96.0.13", json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30083 }] }));
    node.endpoints("api", "TCP", &["192.0.2.1"]);
    for (from, to, seen) in [
        ("-a", "10.96.0.13:80", " 10.244.0.2"),
        ("", "10.96.0.13:80", " 192.0.2.1"),
        ("", "192.0.2.1:30083", " 192.0.2.1"),
        ("-out", "192.0.2.1:30083", " 192.0.2.2"),
    ] {
        assert_eq!(node.ask(from, to), seen, "{from} -> {to}");
    }

    // One client, one endpoint.
    node.service(
        "sticky",
        "10.96.0.11",
        json!({
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 3600 } },
        }),
    );
    node.endpoints("sticky", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let seen: BTreeSet<String> = (0..20).map(|_| node.ask("", "10.96.0.11:80")).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    // Its endpoint leaves: the client gets the other one.
    let (left, stays) = if seen.first().unwrap().starts_with('a') {
        ("10.244.0.2", "10.244.0.3")
    } else {
        ("10.244.0.3", "10.244.0.2")
    };
    node.endpoints("sticky", "TCP", &[stays]);
    assert_ne!(node.ask("", "10.96.0.11:80"), *seen.first().unwrap());
    node.endpoints("web", "TCP", &[stays]);
    assert!(!node.uses(left) && node.uses(stays));

    // The client's address survives policy Local, and the health check port says where to go.
    node.service(
        "local",
        "10.96.0.12",
        json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "ports": [{ "port": 80, "nodePort": 30081 }],
        }),
    );
    node.endpoints("local", "TCP", &["10.244.0.2"]);
    assert_eq!(node.ask("-out", "192.0.2.1:30081"), "a 192.0.2.2");
    assert_eq!(node.ask("-b", "192.0.2.1:30081"), "a 10.244.0.3");
    let health = trouble::http(&node, "-out", "192.0.2.1:32000", "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK") && health.contains("\"localEndpoints\":1"), "{health}");

    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");

    // A client keeps its endpoint over a restart.
    node.endpoints("sticky", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let mine = node.ask("", "10.96.0.11:80");
    node.stop();
    node.start();
    for _ in 0..12 {
        assert_eq!(node.ask("", "10.96.0.11:80"), mine);
    }

    // Rules stay while the proxy is away, and what changed meanwhile is right when it is back.
    node.stop();
    assert_eq!(node.ask("-out", "192.0.2.1:30081"), "a 192.0.2.2");
    node.feed.put("services", json!({
        "metadata": { "name": "local", "namespace": "d" }, "spec": { "type": "ExternalName", "externalName": "x.y" },
    }));
    node.start();
    assert_eq!(node.ask("-out", "192.0.2.1:30081"), "ConnectionRefused");
    assert!(node.ask("", "10.96.0.10:80").ends_with("10.244.0.1"));
}

#[test]
fn a_foreign_flush_is_repaired() {
    let node = Node::new("flush");
    node.serve("a");
    node.service("web", "10.96.0.10", json!({}));
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    assert_eq!(node.ask("-b", "10.96.0.10:80"), "a 10.244.0.3");
    for damage in ["flush ruleset", "flush map ip mk-proxy services", "flush chain ip mk-proxy dispatch"] {
        let generation = node.generation();
        node.nft(damage);
        node.applied(generation);
        assert_eq!(node.ask("-b", "10.96.0.10:80"), "a 10.244.0.3", "{damage}");
    }
    // Our own changes and strangers' tables are none of it.
    let generation = node.generation();
    node.nft("add table ip other");
    node.nft("delete table ip other");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(node.generation(), generation);
}
