//! What goes wrong on a node is told and the rest goes on: ports in use, addresses claimed twice, endpoints by the
//! thousand. And how the proxy's own health is told.
//! Part of the packet tests.
//! Every trouble here leaves the Service beside it served.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use serde_json::json;

use crate::{Node, WAIT_TIMEOUT, eventually, feed::Feed, inside};

/// Asked again while nobody listens yet, and when the server gave up on a client that was slow.
pub fn http(node: &Node, from: &str, to: &'static str, path: &'static str) -> String {
    let ask = move || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let namespace = format!("{}{from}", node.name);
    eventually("an answer", || inside(&namespace, ask).join().unwrap().ok().filter(|text| !text.is_empty()))
}

/// The message of the Event with this reason, once it is written.
fn event_of(feed: &Feed, reason: &str) -> String {
    for _ in 0..2400 {
        if let Some(event) = feed.events().iter().find(|event| event["reason"] == reason) {
            return event["message"].as_str().unwrap_or_default().to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("no Event says {reason}: {:?}", feed.events())
}

#[test]
fn clashes_are_told_and_the_rest_goes_on() {
    let node = Node::new("clash");
    node.serve("a");
    node.serve("b");
    node.service("first", "10.96.0.10", json!({ "externalIPs": ["198.51.100.7"] }));
    node.endpoints("first", "TCP", &["10.244.0.2"]);
    node.service("second", "10.96.0.11", json!({ "externalIPs": ["198.51.100.7"] }));
    node.endpoints("second", "TCP", &["10.244.0.3"]);
    let said = event_of(&node.feed, "AddressInUse");
    assert!(said.contains("TCP port 80 of 198.51.100.7 is already served for Service d/first"), "{said}");
    assert_eq!(node.ask("-out", "198.51.100.7:80"), "a 10.244.0.1", "the first keeps it");
    assert!(node.ask("-a", "10.96.0.11:80").starts_with("b "), "its own address is served");

    // Somebody has the health check port.
    let taken = inside(&node.name, || TcpListener::bind("0.0.0.0:32100").unwrap()).join().unwrap();
    let local = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32100,
        "ports": [{ "port": 80, "nodePort": 30082 }],
    });
    node.service("checked", "10.96.0.12", local);
    node.endpoints("checked", "TCP", &["10.244.0.2"]);
    let said = event_of(&node.feed, "FailedToStartServiceHealthcheck");
    assert!(said.contains("node here failed to start healthcheck \"d/checked\" on port 32100"), "{said}");
    assert_eq!(node.ask("-out", "192.0.2.1:30082"), "a 192.0.2.2");
    // And leaves it, with nothing else changing.
    drop(taken);
    let health = http(&node, "-out", "192.0.2.1:32100", "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK") && health.contains("\"localEndpoints\":1"), "{health}");
}

#[test]
fn the_proxys_own_health_is_told_in_upstreams_form() {
    let node = Node::new("health");
    // The Node object is not there: nobody should send traffic here, but the proxy lives.
    let said = http(&node, "-out", "192.0.2.1:10256", "/healthz");
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("\"nodeEligible\":false"), "{said}");
    let said = http(&node, "-out", "192.0.2.1:10256", "/livez");
    assert!(said.starts_with("HTTP/1.1 200 OK") && said.contains("\"healthy\":true"), "{said}");
    node.feed.put("nodes", json!({ "metadata": { "name": "here" } }));
    for attempt in 0.. {
        let said = http(&node, "-out", "192.0.2.1:10256", "/healthz");
        if said.starts_with("HTTP/1.1 200 OK") && said.contains("\"nodeEligible\":true") {
            break;
        }
        assert!(attempt < 2400, "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(http(&node, "-out", "192.0.2.1:10256", "/else").starts_with("HTTP/1.1 404"));
}

#[test]
fn thousands_of_endpoints() {
    let node = Node::new("many");
    node.serve("a");
    node.serve("b");
    node.service("web", "10.96.0.10", json!({}));
    let many: Vec<String> = (0..3000).map(|n| format!("10.244.{}.{}", 1 + n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    node.endpoints("web", "TCP", &many);
    assert!(node.nft("list chain ip mk-proxy svc/d/web/tcp/80").contains("mod 3000"));
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    assert!(node.ask("-b", "10.96.0.10:80").starts_with("a "));
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}
