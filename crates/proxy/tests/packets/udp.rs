//! UDP through Services: a client is one flow to the kernel, and a flow goes on until somebody ends it.
//! Part of the packet tests.
//! Every client here asks from one socket, so that only a flow that was ended can change who answers.

use std::{
    io::Write,
    net::UdpSocket,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use serde_json::json;

use crate::{Node, eventually, inside, service, shell, slice};

/// Asks on the node itself; ends when it is dropped.
struct Client {
    ask: Sender<()>,
    answers: Receiver<String>,
}

impl Client {
    fn new(node: &Node, from: &'static str, to: &str) -> Self {
        let (ask, questions) = channel::<()>();
        let (answered, answers) = channel();
        let to = to.to_owned();
        inside(&node.name, move || {
            let socket = UdpSocket::bind(from).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
            while questions.recv().is_ok() {
                let mut buffer = [0; 16];
                let got = socket.send_to(b"?", &to).and_then(|_| socket.recv(&mut buffer));
                let text = got.map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
                let _ = answered.send(text.unwrap_or_else(|error| format!("{:?}", error.kind())));
            }
        });
        Self { ask, answers }
    }

    fn ask(&self) -> String {
        self.ask.send(()).unwrap();
        self.answers.recv().unwrap()
    }

    /// Ending a flow follows the transaction. Asking keeps a flow that is not ended.
    fn becomes(&self, wanted: &str) {
        eventually(wanted, || (self.ask() == wanted).then_some(()));
    }
}

const DNS: &str = "10.96.0.10:53";

fn dns(node: &Node) {
    node.serve("a");
    node.serve("b");
    node.service("dns", "10.96.0.10", json!({ "ports": [{ "port": 53, "protocol": "UDP" }] }));
}

#[test]
fn udp_clients_follow_their_service() {
    let node = Node::new("udp");
    dns(&node);
    let client = Client::new(&node, "192.0.2.1:5555", DNS);
    let refused = client.ask();
    assert!(["ConnectionRefused", "WouldBlock", "PermissionDenied"].contains(&refused.as_str()), "{refused}");
    node.endpoints("dns", "UDP", &["10.244.0.2"]);
    client.becomes("a");
    node.endpoints("dns", "UDP", &["10.244.0.3"]);
    client.becomes("b");
    // Another target port of the same pod.
    node.change("endpointslices", slice("dns", "UDP", 8081, &["10.244.0.3"]));
    client.becomes("bb");
    // The clients of one that ends stay with it, while new ones go elsewhere.
    node.endpoints("dns", "UDP", &["10.244.0.2"]);
    client.becomes("a");
    node.endpoints("dns", "UDP", &["10.244.0.2 leaving", "10.244.0.3"]);
    assert_eq!(Client::new(&node, "192.0.2.1:5556", DNS).ask(), "b");
    assert_eq!(client.ask(), "a");
    node.endpoints("dns", "UDP", &["10.244.0.3"]);
    client.becomes("b");

    node.service("six", "fd96::10", json!({ "ports": [{ "port": 53, "protocol": "UDP" }] }));
    node.endpoints("six", "UDP", &["fd97::2"]);
    let client = Client::new(&node, "[fd98::1]:5555", "[fd96::10]:53");
    client.becomes("a");
    node.endpoints("six", "UDP", &["fd97::3"]);
    client.becomes("b");
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}

#[test]
fn udp_clients_follow_changes_while_the_proxy_was_away() {
    let mut node = Node::new("away");
    dns(&node);
    // However many Services there are.
    for index in 0..40 {
        let spec = json!({ "ports": [{ "port": 53, "protocol": "UDP" }] });
        node.feed.put("services", service(&format!("more-{index}"), &format!("10.96.1.{index}"), &spec));
    }
    node.endpoints("dns", "UDP", &["10.244.0.2"]);
    let client = Client::new(&node, "192.0.2.1:5555", DNS);
    client.becomes("a");
    node.stop();
    node.feed.put("endpointslices", slice("dns", "UDP", 8080, &["10.244.0.3"]));
    assert_eq!(client.ask(), "a", "rules and flows stay while it is away");
    node.start();
    client.becomes("b");
}

#[test]
fn udp_clients_follow_changes_that_could_not_be_written_at_once() {
    let node = Node::new("refused");
    dns(&node);
    node.endpoints("dns", "UDP", &["10.244.0.2"]);
    let client = Client::new(&node, "192.0.2.1:5555", DNS);
    client.becomes("a");
    // A table with an owner is nobody else's to change. It goes when its owner does.
    let mut owner = Command::new("ip")
        .args(["netns", "exec", &node.name, "nft", "-i"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let theirs = "delete table ip mk-proxy; add table ip mk-proxy { flags owner; }\n";
    owner.stdin.as_mut().unwrap().write_all(theirs.as_bytes()).unwrap();
    eventually("taken", || node.nft("list table ip mk-proxy").contains("owner").then_some(()));
    let generation = node.generation();
    node.feed.put("endpointslices", slice("dns", "UDP", 8080, &["10.244.0.3"]));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(node.generation(), generation, "nothing could be written");
    drop(owner.stdin.take());
    owner.wait().unwrap();
    client.becomes("b");
}

/// How many flows go to `ip`.
fn flows_to(node: &Node, ip: &str) -> usize {
    let listed = shell(&format!("ip netns exec {} conntrack -L -p udp --reply-src {ip} 2>/dev/null", node.name));
    listed.lines().count()
}

#[test]
fn thousands_of_udp_flows_are_ended_and_the_rest_goes_on() {
    const MANY: u16 = 3000;
    let node = Node::new("flows");
    dns(&node);
    node.endpoints("dns", "UDP", &["10.244.0.2"]);
    node.service("other", "10.96.0.11", json!({ "ports": [{ "port": 53, "protocol": "UDP" }] }));
    node.endpoints("other", "UDP", &["10.244.0.2"]);
    let bystander = Client::new(&node, "192.0.2.1:5555", "10.96.0.11:53");
    bystander.becomes("a");
    let ask = || {
        for port in 20_000..20_000 + MANY {
            UdpSocket::bind(("192.0.2.1", port)).unwrap().send_to(b"?", DNS).unwrap();
        }
    };
    inside(&node.name, ask).join().unwrap();
    assert!(flows_to(&node, "10.244.0.2") > usize::from(MANY) / 2, "the oldest may have ended by themselves");
    node.endpoints("dns", "UDP", &["10.244.0.3"]);
    eventually("only the bystander's", || (flows_to(&node, "10.244.0.2") == 1).then_some(()));
    assert_eq!(bystander.ask(), "a");
    inside(&node.name, ask).join().unwrap();
    assert!(flows_to(&node, "10.244.0.3") > usize::from(MANY) / 2);
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}
