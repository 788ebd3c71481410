//! Configurations of upstream's standard plugins, taken as they are: addresses, packets, host ports, limits, clean-up.
//! Part of the tests in `main`; the plugins are this binary, called by their names.
//! `/var/lib` is one of the test's own while a plugin runs.

use std::{
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::node::*;

/// Where the plugins are, by their names.
fn plugins(node: &Node) -> String {
    let directory = node.data.path().join("bin");
    if !directory.exists() {
        std::fs::create_dir_all(&directory).unwrap();
        for name in cni::STANDARD_NAMES {
            symlink(env!("CARGO_BIN_EXE_minke-cni"), directory.join(name)).unwrap();
        }
    }
    directory.display().to_string()
}

/// One plugin of a list, as a runtime calls it.
fn call(node: &Node, plugin: &str, verb: &str, id: &str, conf: &Value) -> Result<Value, Value> {
    let (plugins, kept) = (plugins(node), node.data.path().join("kept"));
    std::fs::create_dir_all(&kept).unwrap();
    let script = format!(
        "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/cni/networks && mount --bind {} /var/lib/cni/networks && \
         exec ip netns exec {} {plugins}/{plugin}",
        kept.display(),
        node.name
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]);
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", id).env("CNI_IFNAME", "eth0").env("CNI_PATH", plugins);
    command.env("CNI_NETNS", format!("/run/netns/{}-{id}", node.name));
    command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=d;K8S_POD_NAME=a");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    node.finish(command, conf)
}

/// The file in which kubernetes.io's readers have it.
fn bridge() -> Value {
    json!({
        "cniVersion": "0.3.1", "name": "bridge", "type": "bridge", "bridge": "cnio0", "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local", "ranges": [[{ "subnet": "10.98.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
        },
    })
}

#[test]
fn upstreams_configurations_are_taken_as_they_are() {
    let node = Node::new("std");
    let (a, b, out) = (node.pod("a"), node.pod("b"), format!("{}-out", node.name));
    for pod in [&a, &b] {
        shell(&format!("ip -n {pod} link set lo up"));
    }
    let conf = bridge();
    let result = call(&node, "bridge", "ADD", "a", &conf).unwrap();
    let names = result["interfaces"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    assert!(names[0] == "cnio0" && names[1].starts_with("veth") && names[2] == "eth0", "{result}");
    assert_eq!(
        result["ips"],
        json!([{ "address": "10.98.0.2/24", "gateway": "10.98.0.1", "interface": 2, "version": "4" }])
    );
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }]));
    let kept = node.data.path().join("kept/bridge");
    assert_eq!(std::fs::read_to_string(kept.join("10.98.0.2")).unwrap(), "a\r\neth0", "upstream's form");
    let mut check = conf.clone();
    check["prevResult"] = result.clone();
    call(&node, "bridge", "CHECK", "a", &check).unwrap();

    // The rest of a list, with what the runtime adds to each.
    let result = call(&node, "bridge", "ADD", "b", &conf).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.98.0.3/24");
    let ports = json!([
        { "hostPort": 8081, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1" },
    ]);
    let portmap = json!({
        "cniVersion": "0.3.1", "name": "bridge", "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": ports }, "prevResult": result,
    });
    assert_eq!(call(&node, "portmap", "ADD", "b", &portmap).unwrap(), result, "what came before is handed on");
    call(&node, "portmap", "CHECK", "b", &portmap).unwrap();

    let (server, outside) = (serve(&b, "0.0.0.0:80", 5), serve(&out, "0.0.0.0:80", 1));
    let asked = |from: &str, to: &str, seen: &str| assert_eq!(ask(from, to), seen, "{from} -> {to}");
    asked(&a, "10.98.0.3:80", "10.98.0.2");
    asked(&node.name, "10.98.0.3:80", "10.98.0.1");
    asked(&a, "192.0.2.2:80", "192.0.2.1");
    asked(&out, "192.0.2.1:8081", "192.0.2.2");
    // A neighbour's answer has to come back by the node.
    asked(&a, "192.0.2.1:8081", "10.98.0.1");
    asked(&node.name, "127.0.0.1:8082", "10.98.0.1");
    asked(&out, "192.0.2.1:8082", "ConnectionRefused");
    server.join().unwrap();
    outside.join().unwrap();

    for _ in 0..2 {
        call(&node, "portmap", "DEL", "b", &portmap).unwrap();
        call(&node, "bridge", "DEL", "b", &conf).unwrap();
    }
    let rules = node.nft("list ruleset");
    assert!(!rules.contains("10.98.0.3") && rules.contains("10.98.0.2"), "{rules}");
    shell(&format!("ip -n {a} route del default"));
    assert_eq!(call(&node, "bridge", "CHECK", "a", &check).unwrap_err()["code"], 100);
    // Forgotten by the runtime.
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([]);
    call(&node, "bridge", "GC", "", &gc).unwrap();
    assert!(!kept.join("10.98.0.2").exists() && node.veths() == 0, "it is garbage");
    assert!(!node.nft("list ruleset").contains("10.98.0.2"));
}

#[test]
fn a_default_gateway_of_both_families_with_limits() {
    let node = Node::new("dual");
    let a = node.pod("a");
    let conf = json!({
        "cniVersion": "1.0.0", "name": "dual", "type": "bridge", "bridge": "cni1", "isDefaultGateway": true,
        "hairpinMode": true, "mtu": 1400,
        "ipam": { "type": "host-local", "ranges": [
            [{ "subnet": "10.97.0.0/24", "rangeStart": "10.97.0.9", "rangeEnd": "10.97.0.9" }],
            [{ "subnet": "fd97::/64", "gateway": "fd97::ff" }],
        ] },
        "runtimeConfig": { "ips": ["fd97::7/64"] },
    });
    let result = call(&node, "bridge", "ADD", "a", &conf).unwrap();
    let addresses: Vec<&Value> = result["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect();
    assert_eq!(addresses, ["10.97.0.9/24", "fd97::7/64"]);
    assert_eq!(result["routes"][1], json!({ "dst": "::/0", "gw": "fd97::ff" }));
    let routes = shell(&format!("ip -n {a} route; ip -n {a} -6 route"));
    assert!(routes.contains("default via 10.97.0.1 dev eth0") && routes.contains("default via fd97::ff dev eth0"));
    assert!(shell(&format!("ip -n {} address show dev cni1", node.name)).contains("fd97::ff/64"));

    let limits = json!({
        "cniVersion": "1.0.0", "name": "dual", "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000,
        "egressRate": 4_000_000, "egressBurst": 4_000_000, "prevResult": result,
    });
    assert_eq!(call(&node, "bandwidth", "ADD", "a", &limits).unwrap(), result);
    assert!(shell(&format!("ip netns exec {a} tc qdisc show dev eth0")).contains("rate 4Mbit"));
    let host = result["interfaces"][1]["name"].as_str().unwrap();
    assert!(shell(&format!("ip netns exec {} tc qdisc show dev {host}", node.name)).contains("rate 8Mbit"));

    // The range has one address, and the other is taken.
    node.pod("b");
    let error = call(&node, "bridge", "ADD", "b", &conf).unwrap_err();
    assert_eq!(error["code"], 11, "{error}");
    assert_eq!(node.veths(), 1, "what failed leaves nothing");
    // Alone, as macvlan and others call it.
    let delegated = json!({
        "cniVersion": "1.0.0", "name": "other", "type": "macvlan",
        "ipam": { "type": "host-local", "subnet": "10.96.0.0/24", "routes": [{ "dst": "192.0.2.0/24" }] },
    });
    let result = call(&node, "host-local", "ADD", "b", &delegated).unwrap();
    assert_eq!(result["ips"], json!([{ "address": "10.96.0.2/24", "gateway": "10.96.0.1" }]));
    assert!(result.get("interfaces").is_none(), "{result}");
    call(&node, "host-local", "CHECK", "b", &delegated).unwrap();
    call(&node, "host-local", "DEL", "b", &delegated).unwrap();
    assert_eq!(call(&node, "host-local", "CHECK", "b", &delegated).unwrap_err()["code"], 100);

    let mut odd = conf.clone();
    odd["vlan"] = json!(7);
    let error = call(&node, "bridge", "ADD", "b", &odd).unwrap_err();
    assert!(error["msg"].as_str().unwrap().contains("vlan"), "{error}");
    let mut missing = conf.clone();
    missing["ipam"]["type"] = json!("nowhere");
    let error = call(&node, "bridge", "ADD", "b", &missing).unwrap_err();
    assert!(error["msg"].as_str().unwrap().contains("failed to find plugin"), "{error}");
}
