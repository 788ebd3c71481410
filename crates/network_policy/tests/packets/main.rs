//! NetworkPolicies with real packets: a node, its pods and a stranger outside, each in a network namespace of its own.
//! Every namespace here is made by the test and removed at its end.
//! Nothing touches the machine's own namespace.

#[path = "../../../proxy/tests/packets/feed.rs"]
mod feed;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{fd::AsFd, unix::net::UnixStream},
    process::Command,
    time::Duration,
};

use client::{Client, InformerFactory};
use env::Env;
use feed::Feed;
use metrics::Metrics;
use network_policy::{NetworkPolicyConfig, PodClaims};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long a busy machine may take for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a packet may take that nobody drops.
const PACKET_TIMEOUT: Duration = Duration::from_millis(700);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = env::instant_now() + WAIT_TIMEOUT;
    while !holds() {
        assert!(env::instant_now() < end, "never {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inside<T: Send + 'static>(namespace: &str, run: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    let file = fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::spawn(move || {
        setns(file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        run()
    })
}

/// Pods a and b of namespace d, c of namespace x, all behind one bridge; a stranger outside.
struct Node {
    name: String,
    feed: Feed,
    shutdown: CancellationToken,
    enforcer: Option<std::thread::JoinHandle<()>>,
    directory: tempfile::TempDir,
}

const PODS: [(&str, &str, u8); 3] = [("a", "d", 2), ("b", "d", 3), ("c", "x", 4)];

impl Node {
    fn new(test: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes network namespaces: run it as root");
        let n = format!("minke-np-{test}-{}", std::process::id());
        let mut node = Self {
            name: n.clone(),
            feed: Feed::default(),
            shutdown: CancellationToken::new(),
            enforcer: None,
            directory: tempfile::tempdir().unwrap(),
        };
        for suffix in ["", "-out", "-a", "-b", "-c"] {
            let quick = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad";
            shell(&format!(
                "ip netns add {n}{suffix} && ip netns exec {n}{suffix} sh -c '{quick}' && ip -n {n}{suffix} link set lo up"
            ));
        }
        shell(&format!(
            "ip -n {n} link add up0 type veth peer name up0 netns {n}-out && \
             ip -n {n} addr add 192.0.2.1/24 dev up0 && ip -n {n}-out addr add 192.0.2.2/24 dev up0 && \
             ip -n {n} link set up0 up && ip -n {n}-out link set up0 up && \
             ip -n {n}-out route add 10.244.0.0/24 via 192.0.2.1 && \
             ip netns exec {n} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward && \
             echo 1 > /proc/sys/net/ipv6/conf/all/forwarding' && ip -n {n} link add br0 type bridge && \
             ip -n {n} addr add 10.244.0.1/24 dev br0 && ip -n {n} -6 addr add fd97::1/64 dev br0 nodad && \
             ip -n {n} link set br0 up && ip netns exec {n} sh -c 'echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects; \
             echo 0 > /proc/sys/net/ipv4/conf/br0/send_redirects'"
        ));
        // As the network plugin does it: an address of its own width, everything by way of the node.
        for (pod, namespace, last) in PODS {
            shell(&format!(
                "ip -n {n} link add name pod-{pod} type veth peer name eth0 netns {n}-{pod} && \
                 ip -n {n} link set pod-{pod} master br0 up && ip -n {n}-{pod} link set eth0 up && \
                 ip -n {n}-{pod} addr add 10.244.0.{last}/32 dev eth0 && ip -n {n}-{pod} route add 10.244.0.1 dev eth0 && \
                 ip -n {n}-{pod} route add default via 10.244.0.1 && \
                 ip -n {n}-{pod} -6 addr add fd97::{last}/128 dev eth0 nodad && \
                 ip -n {n}-{pod} -6 route add fd97::1 dev eth0 && ip -n {n}-{pod} -6 route add default via fd97::1"
            ));
            node.serve(pod);
            node.pod(pod, namespace, &[&format!("10.244.0.{last}"), &format!("fd97::{last}")]);
        }
        for namespace in ["d", "x"] {
            let labels = json!({ "kubernetes.io/metadata.name": namespace });
            node.feed.put("namespaces", json!({ "metadata": { "name": namespace, "labels": labels } }));
        }
        node.start();
        node
    }

    fn start(&mut self) {
        let claims = PodClaims::default();
        let claims_directory = self.directory.path().join("claims");
        let config = |claims| NetworkPolicyConfig {
            node_name: "here".into(),
            table: "mk-policy".into(),
            claims,
            claims_directory,
            metrics: Metrics::default(),
        };
        self.shutdown = CancellationToken::new();
        let (feed, shutdown, socket) = (self.feed.clone(), self.shutdown.clone(), self.socket());
        self.enforcer = Some(inside(&self.name, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let env = Env::real();
                let serving = env.spawn(claims.serve(&socket, env.clone()));
                let informers = InformerFactory::new(Client::new(feed), env.clone(), shutdown.clone());
                network_policy::run(config(claims), informers, env, shutdown).await.unwrap();
                serving.abort();
            });
        }));
        self.claim("warm", "up", "10.244.0.99");
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("policy.sock")
    }

    /// Returns once the rules cover it, and with them all that was put before.
    fn claim(&self, namespace: &str, name: &str, ip: &str) {
        let mut stream = None;
        eventually("a socket", || {
            stream = UnixStream::connect(self.socket()).ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let claim = json!({ "namespace": namespace, "name": name, "uid": name, "ips": [ip] });
        stream.write_all(format!("{claim}\n").as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert_eq!(said, "covered\n");
    }

    fn pod(&self, name: &str, namespace: &str, ips: &[&str]) {
        let ports = json!([{ "name": "http", "containerPort": 8080 }]);
        self.feed.put(
            "pods",
            json!({
                "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
                "spec": { "nodeName": "here", "containers": [{ "name": "c", "ports": ports }] },
                "status": { "podIPs": ips.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>() },
            }),
        );
    }

    fn policy(&self, name: &str, spec: Value) {
        self.feed.put("networkpolicies", json!({ "metadata": { "name": name, "namespace": "d" }, "spec": spec }));
    }

    fn remove_policy(&self, name: &str) {
        self.feed.remove("networkpolicies", &format!("d/{name}"));
    }

    /// Echoes, over TCP and UDP, at 8080 and 8081. Ends with the test's process.
    fn serve(&self, pod: &str) {
        let (ready, started) = std::sync::mpsc::channel();
        inside(&format!("{}-{pod}", self.name), move || {
            for port in [8080, 8081] {
                let udp = UdpSocket::bind(("::", port)).unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                        let _ = udp.send_to(&buffer[..length], from);
                    }
                });
                let listener = TcpListener::bind(("::", port)).unwrap();
                std::thread::spawn(move || {
                    while let Ok((mut stream, _)) = listener.accept() {
                        std::thread::spawn(move || {
                            let mut buffer = [0; 64];
                            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                                if stream.write_all(&buffer[..length]).is_err() {
                                    return;
                                }
                            }
                        });
                    }
                });
            }
            ready.send(()).unwrap();
        });
        started.recv().unwrap();
    }

    fn connect(&self, from: &str, to: &str) -> Option<TcpStream> {
        let address: SocketAddr = to.parse().unwrap();
        let connected = inside(&format!("{}{from}", self.name), move || {
            let stream = TcpStream::connect_timeout(&address, PACKET_TIMEOUT).ok()?;
            stream.set_read_timeout(Some(PACKET_TIMEOUT)).unwrap();
            Some(stream)
        });
        connected.join().unwrap()
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        self.connect(from, to).is_some_and(|mut stream| echoes(&mut stream))
    }

    fn check(&self, from: &str, to: &str, expected: bool) {
        let what = if expected { "reached" } else { "stopped" };
        eventually(&format!("{what}: {from} -> {to}"), || self.reaches(from, to) == expected);
    }

    fn udp(&self, from: &str) -> UdpSocket {
        inside(&format!("{}{from}", self.name), || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(PACKET_TIMEOUT)).unwrap();
            socket
        })
        .join()
        .unwrap()
    }
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok()
}

fn answers(socket: &UdpSocket, to: &str) -> bool {
    let _ = socket.send_to(b"ping", to);
    socket.recv_from(&mut [0; 8]).is_ok()
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(enforcer) = self.enforcer.take() {
            let _ = enforcer.join();
        }
        for suffix in ["", "-out", "-a", "-b", "-c"] {
            let _ = Command::new("ip").args(["netns", "del", &format!("{}{suffix}", self.name)]).status();
        }
    }
}

fn ingress(app: &str, rules: Value) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": app } }, "policyTypes": ["Ingress"], "ingress": rules })
}

fn egress(app: &str, rules: Value) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": app } }, "policyTypes": ["Egress"], "egress": rules })
}

fn app(name: &str) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": name } } })
}

#[test]
fn policies_admit_and_stop() {
    let node = Node::new("admit");
    let (a, a6, b) = ("10.244.0.2:8080", "[fd97::2]:8080", "10.244.0.3:8080");
    for (from, to) in [("-b", a), ("-c", a), ("-out", a), ("", a), ("-b", a6)] {
        node.check(from, to, true);
    }
    // Default deny: the node still reaches its pods, and a pod still calls out and hears the answers.
    node.policy("deny", ingress("a", json!([])));
    node.check("-b", a, false);
    for from in ["-c", "-out"] {
        assert!(!node.reaches(from, a), "{from}");
    }
    assert!(!node.reaches("-b", a6));
    node.check("", a, true);
    node.check("", a6, true);
    node.check("-a", b, true);

    node.policy("pods", ingress("a", json!([{ "from": [app("b")], "ports": [{ "port": "http" }] }])));
    node.check("-b", a, true);
    node.check("-b", a6, true);
    assert!(!node.reaches("-b", "10.244.0.2:8081") && !node.reaches("-c", a) && !node.reaches("-out", a));
    let x = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "x" } } });
    node.policy("namespaces", ingress("a", json!([{ "from": [x], "ports": [{ "port": 8081, "endPort": 8090 }] }])));
    node.check("-c", "10.244.0.2:8081", true);
    assert!(!node.reaches("-c", a) && !node.reaches("-b", "10.244.0.2:8081"));
    let block = |except: Value| json!([{ "from": [{ "ipBlock": { "cidr": "192.0.2.0/24", "except": except } }] }]);
    node.policy("block", ingress("a", block(json!([]))));
    node.check("-out", a, true);
    node.policy("block", ingress("a", block(json!(["192.0.2.2/32"]))));
    node.check("-out", a, false);

    // The other way; what a pod itself calls is judged by both ends.
    node.policy("out", egress("b", json!([{ "to": [app("a")], "ports": [{ "port": "http" }] }])));
    node.check("-b", "10.244.0.4:8080", false);
    node.check("-b", a, true);
    assert!(!node.reaches("-b", "192.0.2.2:8080"));
    for policy in ["deny", "pods", "namespaces", "block", "out"] {
        node.remove_policy(policy);
    }
    for (from, to) in [("-c", a), ("-out", a), ("-b", a6), ("-b", "10.244.0.4:8080")] {
        node.check(from, to, true);
    }
}

#[test]
fn connections_outlive_loosening_and_not_tightening() {
    let node = Node::new("cut");
    let a = "10.244.0.2:8080";
    node.policy("p", ingress("a", json!([{ "from": [app("b")] }])));
    node.check("-c", a, false);
    let mut kept = node.connect("-b", a).unwrap();
    let udp = node.udp("-b");
    assert!(echoes(&mut kept) && answers(&udp, a));
    node.policy("q", ingress("a", json!([{ "from": [{ "namespaceSelector": {} }] }])));
    node.check("-c", a, true);
    assert!(echoes(&mut kept) && answers(&udp, a), "more is allowed than before");
    node.remove_policy("q");
    node.check("-c", a, false);
    assert!(echoes(&mut kept) && answers(&udp, a), "what the other policy allows goes on");

    node.policy("p", ingress("a", json!([])));
    node.check("-b", a, false);
    assert!(!answers(&udp, a));
    let error = loop {
        if let Err(error) = kept.write_all(b"ping") {
            break error;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let told = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::BrokenPipe];
    assert!(told.contains(&error.kind()), "the client is told: {error}");
}

#[test]
fn pods_are_covered_before_their_first_packet() {
    let mut node = Node::new("claim");
    let a = "10.244.0.2:8080";
    node.feed.remove("pods", "d/a");
    node.policy("deny", ingress("a", json!([])));
    node.check("-b", a, true);
    // Scheduled here, without an address in its status yet.
    node.pod("a", "d", &[]);
    node.claim("d", "a", "10.244.0.2");
    assert!(!node.reaches("-b", a), "at once");
    assert!(node.reaches("", a));
    // Whoever takes our rules away, and an agent that starts anew.
    shell(&format!("ip netns exec {} nft flush ruleset", node.name));
    node.check("-b", a, false);
    node.shutdown.cancel();
    node.enforcer.take().unwrap().join().unwrap();
    assert!(!node.reaches("-b", a), "rules outlive the agent");
    // Its status has no address still: the agent knows it from what the plugin told the one before.
    node.start();
    assert!(!node.reaches("-b", a) && node.reaches("", a));
}
