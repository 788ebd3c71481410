//! The plugin against real network namespaces: packets, host ports, masquerade, and death in the middle.
//! Every namespace here is made by the test and removed at its end.
//! Nothing touches the machine's own namespace.

mod node;
mod policies;
mod standard;

use std::{
    fs,
    io::Write,
    net::{TcpListener, UdpSocket},
    time::Duration,
};

use serde_json::json;

use node::*;

#[test]
fn pods_reach_each_other_and_the_world() {
    let node = Node::new("net");
    let (a, b, out) = (node.pod("a"), node.pod("b"), format!("{}-out", node.name));
    let conf = node.conf(json!([]));
    let result = node.call("ADD", "a", &conf).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.99.0.2/32", "{result}");
    assert_eq!(result["ips"][1]["address"], "fd99::2/128");
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    let ports = json!([
        { "hostPort": 8081, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1" },
        { "hostPort": 8083, "containerPort": 53, "protocol": "udp" },
    ]);
    let with_ports = node.conf(ports);
    node.call("ADD", "b", &with_ports).unwrap();
    node.call("CHECK", "b", &with_ports).unwrap();

    let server = serve(&b, "[::]:80", 8);
    let outside = serve(&out, "[::]:80", 2);
    let check = |from: &str, to: &str, seen: &str| assert_eq!(ask(from, to), seen, "{from} -> {to}");
    check(&a, "10.99.0.3:80", "10.99.0.2");
    check(&a, "[fd99::3]:80", "fd99::2");
    check(&a, "192.0.2.2:80", "192.0.2.1");
    check(&a, "[2001:db8::2]:80", "2001:db8::1");
    check(&out, "192.0.2.1:8081", "192.0.2.2");
    check(&out, "[2001:db8::1]:8081", "2001:db8::2");
    check(&a, "192.0.2.1:8081", "10.99.0.2");
    check(&node.name, "192.0.2.1:8081", "192.0.2.1");
    check(&node.name, "127.0.0.1:8082", "10.99.0.1");
    // A pod through its own host port: hairpin, masqueraded.
    check(&b, "192.0.2.1:8081", "10.99.0.1");
    check(&out, "192.0.2.1:8082", "ConnectionRefused");
    server.join().unwrap();
    outside.join().unwrap();

    let (ready, started) = std::sync::mpsc::channel();
    let udp = inside(&b, move || {
        let socket = UdpSocket::bind("0.0.0.0:53").unwrap();
        ready.send(()).unwrap();
        let (_, from) = socket.recv_from(&mut [0; 9]).unwrap();
        socket.send_to(b"yes", from).unwrap();
    });
    started.recv().unwrap();
    let answer = inside(&out, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        socket.send_to(b"there?", "192.0.2.1:8083").unwrap();
        socket.recv_from(&mut [0; 9]).unwrap().0
    });
    assert_eq!(answer.join().unwrap(), 3);
    udp.join().unwrap();

    // A pod that routes 127.0.0.0/8 to the node must not get at what listens on the node's loopback.
    let (address, route) = ("ip addr del 127.0.0.1/8 dev lo", "ip route add 127.0.0.0/8 via 10.99.0.1");
    shell(&format!(
        "ip netns exec {a} sh -c 'echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet && {address} && {route}'"
    ));
    let listener = inside(&node.name, || TcpListener::bind("127.0.0.1:7000").unwrap()).join().unwrap();
    assert_eq!(ask_within(Duration::from_secs(3), &a, "127.0.0.1:7000"), "TimedOut");
    drop(listener);

    for _ in 0..2 {
        node.call("DEL", "b", &with_ports).unwrap();
    }
    let rules = node.nft("list ruleset");
    assert!(!rules.contains("10.99.0.3"), "{rules}");
    assert_eq!(node.allocated(), ["10.99.0.2", "fd99::2"]);
    assert_eq!(node.call("CHECK", "b", &with_ports).unwrap_err()["code"], 100);

    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([]);
    node.call("GC", "", &gc).unwrap();
    assert!(node.allocated().is_empty());
    assert_eq!(node.veths(), 0);
    node.call("STATUS", "", &conf).unwrap();
}

/// How long a whole ADD takes on this machine now, the first on its node.
fn time_of_add() -> Duration {
    let node = Node::new("time");
    node.pod("a");
    let began = env::instant_now();
    node.call("ADD", "a", &node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]))).unwrap();
    began.elapsed()
}

#[test]
fn death_in_the_middle_leaks_nothing() {
    const STEPS: u32 = 60;
    let whole = time_of_add();
    let node = Node::new("kill");
    node.pod("a");
    let conf = node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]));
    let mut died_during_add = 0;
    for step in 0..20 * STEPS {
        // Longer only when the machine has become so much slower or faster that no kill has hit the middle.
        if step >= STEPS && died_during_add > 0 {
            break;
        }
        for verb in ["ADD", "DEL"] {
            if verb == "DEL" {
                // So that DEL has something to do when it dies.
                node.call("ADD", "a", &conf).unwrap();
            }
            let mut child = node.command(verb, "a").spawn().unwrap();
            child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
            // Over the whole ADD; if that was not it, over a time that doubles from round to round.
            std::thread::sleep(whole * (step % STEPS) / STEPS * (1 << (step / STEPS).min(5)));
            child.kill().unwrap();
            if !child.wait().unwrap().success() && !node.allocated().is_empty() && verb == "ADD" {
                died_during_add += 1;
            }
            node.call("DEL", "a", &conf).unwrap();
            assert_eq!(node.allocated(), Vec::<String>::new(), "{verb} {step}");
            assert_eq!(node.veths(), 0, "{verb} {step}");
            let rules = node.nft("list ruleset");
            assert!(!rules.contains("8081 : 10.99.0."), "{verb} {step}: {rules}");
        }
    }
    println!("{died_during_add} died with an address in hand");
    assert!(died_during_add > 0, "no kill hit the middle of ADD");
    node.call("ADD", "a", &conf).unwrap();
    node.call("CHECK", "a", &conf).unwrap();
}

#[test]
fn what_nft_refused_is_done_by_whoever_comes_next() {
    let node = Node::new("refused");
    node.pod("a");
    let conf = node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]));
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([]);
    let mapped = || node.nft("list ruleset").contains("8081 : 10.99.0.");
    for (verb, conf) in [("DEL", &conf), ("GC", &gc)] {
        node.call("ADD", "a", conf).unwrap();
        assert!(mapped());
        let error = node.call_without_nft(verb, "a", conf).unwrap_err();
        assert!(error["msg"].as_str().unwrap().contains("no room"), "{error}");
        node.call(verb, "a", conf).unwrap();
        assert!(!mapped(), "{verb}");
    }
    // Rules that nobody has on record go as well.
    let prepare = || {
        let list = node.conflist();
        inside(&node.name, move || cni::prepare(&list)).join().unwrap().unwrap();
    };
    let del = || drop(node.call("DEL", "a", &conf).unwrap());
    for (name, repair) in [("DEL", &del as &dyn Fn()), ("prepare", &prepare)] {
        node.call("ADD", "a", &conf).unwrap();
        fs::remove_file(node.data.path().join("test/host_ports.json")).unwrap();
        assert!(mapped());
        repair();
        assert!(!mapped(), "{name}");
    }
}

#[test]
fn what_a_stranger_deletes_is_restored() {
    let node = Node::new("restore");
    node.pod("a");
    let conf = node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]));
    node.call("ADD", "a", &conf).unwrap();
    let restore = || {
        let list = node.conflist();
        inside(&node.name, move || cni::restore(&list)).join().unwrap().unwrap()
    };
    assert!(!restore(), "nothing was missing");
    let tables = cni::tables("mk-cni");
    let rules = || tables.iter().map(|table| node.nft(&format!("list table inet {table}"))).collect::<String>();
    let before = rules();
    assert!(before.contains("8081 : 10.99.0.2") && before.contains("masquerade"), "{before}");
    for flush in [
        "flush ruleset",
        "delete table inet mk-cni-ports",
        "flush table inet mk-cni",
        "flush chain inet mk-cni-ports hostports",
    ] {
        node.nft(flush);
        assert!(restore(), "{flush}");
        assert_eq!(rules(), before, "{flush}");
        assert!(!restore(), "{flush}");
    }
}

#[test]
fn a_udp_client_follows_its_host_port() {
    let node = Node::new("udp");
    let conf = node.conf(json!([{ "hostPort": 8083, "containerPort": 53, "protocol": "udp" }]));
    let client = |namespace: &str, address: &'static str| {
        let socket = inside(namespace, move || UdpSocket::bind(address).unwrap()).join().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    };
    let out = format!("{}-out", node.name);
    let clients = [(client(&out, "0.0.0.0:0"), "192.0.2.1:8083"), (client(&out, "[::]:0"), "[2001:db8::1]:8083")];
    for id in ["a", "b"] {
        let pod = node.pod(id);
        // Before there is a pod: this flow goes to the node itself, and must not stay there.
        clients.iter().for_each(|(socket, to)| drop(socket.send_to(b"early", to)));
        node.call("ADD", id, &conf).unwrap();
        let (ready, started) = std::sync::mpsc::channel();
        let server = inside(&pod, move || {
            let socket = UdpSocket::bind("[::]:53").unwrap();
            ready.send(()).unwrap();
            let mut bytes = [0; 9];
            loop {
                let (length, from) = socket.recv_from(&mut bytes).unwrap();
                socket.send_to(id.as_bytes(), from).unwrap();
                if &bytes[..length] == b"end" {
                    return;
                }
            }
        });
        started.recv().unwrap();
        for (socket, to) in &clients {
            let answered = |text: &[u8]| {
                let mut answer = [0; 9];
                let _ = socket.send_to(text, to);
                socket.recv_from(&mut answer).is_ok_and(|(length, _)| &answer[..length] == id.as_bytes())
            };
            assert!((0..600).any(|_| answered(b"there?")), "{id} through {to}");
        }
        let end = inside(&pod, || UdpSocket::bind("[::]:0").unwrap()).join().unwrap();
        end.send_to(b"end", "[::1]:53").unwrap();
        server.join().unwrap();
        node.call("DEL", id, &conf).unwrap();
    }
}

#[test]
fn check_finds_what_is_gone() {
    let node = Node::new("check");
    let (pod, n) = (node.pod("a"), &node.name);
    let conf = node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]));
    for (damage, complaint) in [
        (format!("ip netns exec {n} nft flush table inet mk-cni"), "masquerade"),
        (format!("ip netns exec {n} nft flush chain inet mk-cni-ports hostports"), "host ports"),
        (format!("ip -n {pod} route del default"), "the route to 0.0.0.0/0"),
        (format!("ip -n {pod} -6 route del default"), "the route to ::/0"),
        (format!("ip -n {pod} -6 route del fd99::1"), "the route to fd99::1/128"),
        (format!("ip -n {pod} address flush dev eth0 scope global"), "is not on eth0"),
        (
            format!(
                "ip -n {n} link set $(ip -n {n} -o link show master mk0 | sed 's/^[0-9]*: \\([^@]*\\)@.*/\\1/') nomaster"
            ),
            "not a port of mk0",
        ),
        (format!("ip -n {pod} link del eth0"), "is missing"),
    ] {
        node.call("ADD", "a", &conf).unwrap();
        node.call("CHECK", "a", &conf).unwrap();
        shell(&damage);
        let error = node.call("CHECK", "a", &conf).unwrap_err();
        assert_eq!(error["code"], 100, "{damage}: {error}");
        assert!(error["msg"].as_str().unwrap().contains(complaint), "{damage}: {error}");
    }
    node.call("ADD", "a", &conf).unwrap();
    let other = node.conf(json!([{ "hostPort": 8082, "containerPort": 80 }]));
    assert_eq!(node.call("CHECK", "a", &other).unwrap_err()["code"], 100, "other host ports");
}

#[test]
fn garbage_is_what_is_not_valid() {
    let node = Node::new("gc");
    let port = |port: u16| node.conf(json!([{ "hostPort": port, "containerPort": 80 }]));
    for (id, number) in [("a", 8081), ("b", 8082)] {
        node.pod(id);
        node.call("ADD", id, &port(number)).unwrap();
    }
    let mut gc = node.conf(json!([]));
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": "b", "ifname": "eth0" }]);
    for _ in 0..2 {
        node.call("GC", "", &gc).unwrap();
        assert_eq!(node.allocated(), ["10.99.0.3", "fd99::3"]);
        assert_eq!(node.veths(), 1);
        node.call("CHECK", "b", &port(8082)).unwrap();
        let rules = node.nft("list ruleset");
        assert!(rules.contains("8082 : 10.99.0.3") && !rules.contains("8081 :"), "{rules}");
    }
    let without = node.conf(json!([]));
    assert_eq!(node.call("GC", "", &without).unwrap_err()["code"], 7);
}

#[test]
fn a_network_of_ipv6_alone() {
    let node = Node::new("six");
    let (a, out) = (node.pod("a"), format!("{}-out", node.name));
    let mut conf = node.conf(json!([{ "hostPort": 8081, "containerPort": 80 }]));
    conf["podCIDRs"] = json!(["fd99::/64"]);
    conf["clusterCIDRs"] = json!(["fd99::/56"]);
    let result = node.call("ADD", "a", &conf).unwrap();
    assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result}");
    assert_eq!(result["ips"][0]["address"], "fd99::2/128");
    assert_eq!(result["ips"][0]["gateway"], "fd99::1");
    assert_eq!(result["routes"][0]["dst"], "::/0");
    node.call("CHECK", "a", &conf).unwrap();
    let (server, outside) = (serve(&a, "[::]:80", 1), serve(&out, "[::]:80", 1));
    assert_eq!(ask(&out, "[2001:db8::1]:8081"), "2001:db8::2");
    assert_eq!(ask(&a, "[2001:db8::2]:80"), "2001:db8::1");
    server.join().unwrap();
    outside.join().unwrap();
    node.call("DEL", "a", &conf).unwrap();
    assert_eq!(node.allocated(), Vec::<String>::new());
}

/// The node was deleted and made again.
#[test]
fn another_range_takes_the_place_of_the_former() {
    let node = Node::new("range");
    let bridge = || shell(&format!("ip -n {} -o address show dev mk0 scope global", node.name));
    let prepare = |range: &str| {
        let mut list = node.conflist();
        list["plugins"][0]["podCIDRs"] = json!([range]);
        inside(&node.name, move || cni::prepare(&list)).join().unwrap().unwrap();
    };
    let conf = |range: &str| {
        let mut conf = node.conf(json!([]));
        conf["podCIDRs"] = json!([range]);
        conf
    };
    prepare("10.99.0.0/24");
    let (a, b) = (node.pod("a"), node.pod("b"));
    node.call("ADD", "a", &conf("10.99.0.0/24")).unwrap();
    prepare("10.99.7.0/24");
    assert!(bridge().contains("10.99.0.1/24") && bridge().contains("10.99.7.1/24"), "{}", bridge());
    let result = node.call("ADD", "b", &conf("10.99.7.0/24")).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.99.7.2/32", "{result}");
    let server = serve(&a, "10.99.0.2:80", 1);
    assert_eq!(ask(&b, "10.99.0.2:80"), "10.99.7.2", "a pod keeps its address while it lives");
    server.join().unwrap();
    let outside = serve(&format!("{}-out", node.name), "192.0.2.2:80", 3);
    assert_eq!(ask(&a, "192.0.2.2:80"), "192.0.2.1", "the world can't answer a pod's own address");
    assert_eq!(ask(&b, "192.0.2.2:80"), "192.0.2.1");
    node.nft("flush ruleset");
    let mut list = node.conflist();
    list["plugins"][0]["podCIDRs"] = json!(["10.99.7.0/24"]);
    assert!(inside(&node.name, move || cni::restore(&list)).join().unwrap().unwrap());
    assert_eq!(ask(&a, "192.0.2.2:80"), "192.0.2.1", "nor after the rules were written anew");
    outside.join().unwrap();
    node.call("DEL", "a", &conf("10.99.7.0/24")).unwrap();
    assert!(!bridge().contains("10.99.0.1") && bridge().contains("10.99.7.1/24"), "{}", bridge());
    assert!(!node.nft("list ruleset").contains("10.99.0.2"), "{}", node.nft("list ruleset"));
    prepare("10.99.9.0/24");
    node.call("DEL", "b", &conf("10.99.9.0/24")).unwrap();
    prepare("10.99.8.0/24");
    assert_eq!(bridge().lines().count(), 1, "{}", bridge());
    assert!(bridge().contains("10.99.8.1/24"), "{}", bridge());
}

#[test]
fn many_at_once_get_different_addresses() {
    let node = Node::new("many");
    let ids: Vec<String> = (0..12).map(|index| format!("p{index}")).collect();
    for id in &ids {
        node.pod(id);
    }
    let conf = node.conf(json!([]));
    let children: Vec<_> = ids
        .iter()
        .map(|id| {
            let mut child = node.command("ADD", id).spawn().unwrap();
            child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
            child
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(node.allocated().len(), 24);
    for id in &ids {
        node.call("CHECK", id, &conf).unwrap();
    }

    // A foreign flush is repaired by the next ADD.
    for flush in ["flush ruleset", "flush table inet mk-cni"] {
        node.nft(flush);
        node.call("ADD", "p0", &conf).unwrap();
        assert!(node.nft("list ruleset").contains("masquerade"), "{flush}");
    }

    let params = cni::CleanupParams {
        name: "test".into(),
        bridge: "mk0".into(),
        table: "mk-cni".into(),
        data_dir: node.data.path().into(),
    };
    for _ in 0..2 {
        let params = params.clone();
        inside(&node.name, move || cni::cleanup(&params)).join().unwrap().unwrap();
    }
    assert_eq!(node.nft("list ruleset"), "");
    assert_eq!(node.veths(), 0);
    assert!(node.allocated().is_empty());
    assert!(!shell(&format!("ip -n {} link show", node.name)).contains("mk0"));
}

#[test]
fn speaks_every_version() {
    let node = Node::new("version");
    node.pod("a");
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut conf = node.conf(json!([]));
        conf["cniVersion"] = json!(version);
        let result = node.call("ADD", "a", &conf).unwrap();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["ips"][0].get("version").is_some(), version.starts_with('0'));
        node.call("DEL", "a", &conf).unwrap();
    }
    let mut conf = node.conf(json!([]));
    conf["cniVersion"] = json!("9.0.0");
    assert_eq!(node.call("ADD", "a", &conf).unwrap_err()["code"], 1);
    assert_eq!(node.call("NONSENSE", "a", &node.conf(json!([]))).unwrap_err()["code"], 4);
    // A pod network that the node itself lives in.
    let mut clash = node.conf(json!([]));
    clash["bridge"] = json!("mk1");
    clash["name"] = json!("clash");
    clash["podCIDRs"] = json!(["192.0.2.0/24"]);
    let error = node.call("ADD", "a", &clash).unwrap_err();
    assert_eq!(error["code"], 7, "{error}");
    assert!(error["msg"].as_str().unwrap().contains("192.0.2.1"), "{error}");
    let error = node.call("STATUS", "", &clash).unwrap_err();
    assert_eq!(error["code"], 50, "{error}");
    assert!(error["msg"].as_str().unwrap().contains("192.0.2.1"), "{error}");
    let versions = node.call("VERSION", "", &json!({ "cniVersion": "1.0.0" })).unwrap();
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));
    let loopback = json!({ "cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback" });
    assert_eq!(node.call("ADD", "a", &loopback).unwrap()["interfaces"][0]["name"], "lo");
    node.call("DEL", "a", &loopback).unwrap();
}
