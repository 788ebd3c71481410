//! The server as `dig` sees it: UDP, TCP, EDNS, truncation, forwarding. Loopback only.
//! Upstream is a second server of ours with another zone.
//! No question leaves the machine.

use std::{net::SocketAddr, process::Command, sync::Arc, time::Duration};

use dns::{Forwarder, HostFiles, PodRecords, Server, Upstreams, Zone};
use env::Env;
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long a busy machine may take for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// What is learned stays longer than any test runs.
const TIME_TO_LIVE: Duration = Duration::from_secs(3600);

struct Running {
    address: SocketAddr,
    zone: Arc<RwLock<Zone>>,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn start(domain: &str, upstreams: Vec<SocketAddr>) -> Running {
    start_at("127.0.0.1:0".parse().unwrap(), domain, Upstreams::fixed(&upstreams)).await
}

async fn start_at(address: SocketAddr, domain: &str, upstreams: Upstreams) -> Running {
    let env = Env::real();
    let zone = Arc::new(RwLock::new(Zone::new(domain, TIME_TO_LIVE.as_secs() as u32, PodRecords::Insecure).unwrap()));
    let forwarder = Forwarder::new(env.clone(), upstreams, TIME_TO_LIVE);
    let server = Server::bind(&[address], zone.clone(), forwarder, env).await.unwrap();
    let (address, stop) = (server.addresses()[0], CancellationToken::new());
    env::spawn(server.serve(stop.clone()));
    Running { address, zone, stop }
}

fn service(running: &Running, key: &str, spec: Value) {
    let object = json!({ "metadata": {}, "spec": spec });
    running.zone.write().apply_service(key, &serde_json::from_value(object).unwrap());
}

fn endpoints(running: &Running, key: &str, service: &str, count: usize) {
    let endpoints: Vec<Value> = (0..count)
        .map(|index| json!({ "addresses": [format!("10.244.{}.{}", index / 250, index % 250 + 1)] }))
        .collect();
    let slice = json!({
        "metadata": { "labels": { "kubernetes.io/service-name": service } }, "addressType": "IPv4",
        "ports": [{ "name": "sql", "port": 5432 }], "endpoints": endpoints,
    });
    running.zone.write().apply_endpoint_slice(key, &serde_json::from_value(slice).unwrap());
}

async fn dig(to: SocketAddr, arguments: &str) -> String {
    let mut command = Command::new("dig");
    command.arg(format!("@{}", to.ip())).arg("-p").arg(to.port().to_string()).args(["+time=60", "+tries=1"]);
    command.args(arguments.split(' '));
    let output = env::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.expect("dig is missing: apt-get install -y bind9-dnsutils");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asks until the answer fits: an upstream that a busy machine holds up for seconds counts as silent.
async fn dig_until(to: SocketAddr, arguments: &str, fits: impl Fn(&str) -> bool) -> String {
    let end = env::instant_now() + WAIT_TIMEOUT;
    loop {
        let got = dig(to, arguments).await;
        if fits(&got) || env::instant_now() >= end {
            return got;
        }
        env::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dig_gets_its_answers() {
    let upstream = start("example.test", vec![]).await;
    service(&upstream, "d/www", json!({ "clusterIP": "192.0.2.80" }));
    let ours = start("cluster.local", vec!["127.0.0.1:1".parse().unwrap(), upstream.address]).await;
    service(
        &ours,
        "d/web",
        json!({
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{ "name": "http", "port": 80 }],
        }),
    );
    service(&ours, "d/db", json!({ "clusterIP": "None" }));
    service(&ours, "d/ext", json!({ "type": "ExternalName", "externalName": "www.d.svc.example.test" }));
    service(&ours, "d/near", json!({ "type": "ExternalName", "externalName": "web.d.svc.cluster.local" }));
    service(&ours, "d/loop", json!({ "type": "ExternalName", "externalName": "loop.d.svc.cluster.local" }));
    endpoints(&ours, "d/db-1", "db", 3);

    for (arguments, expected) in [
        ("+short web.d.svc.cluster.local A", "10.96.0.1\n"),
        ("+short +tcp web.d.svc.cluster.local AAAA", "fd00::1\n"),
        ("+short _http._tcp.web.d.svc.cluster.local SRV", "0 100 80 web.d.svc.cluster.local.\n"),
        ("+short -x 10.96.0.1", "web.d.svc.cluster.local.\n"),
        ("+short 1-2-3-4.d.pod.cluster.local", "1.2.3.4\n"),
        ("+short www.d.svc.example.test", "192.0.2.80\n"),
        ("+short ext.d.svc.cluster.local", "www.d.svc.example.test.\n192.0.2.80\n"),
        ("+short near.d.svc.cluster.local", "web.d.svc.cluster.local.\n10.96.0.1\n"),
        ("+short ext.d.svc.cluster.local CNAME", "www.d.svc.example.test.\n"),
    ] {
        assert_eq!(dig_until(ours.address, arguments, |got| got == expected).await, expected, "dig {arguments}");
    }
    for (arguments, parts) in [
        ("web.d.svc.cluster.local", &["status: NOERROR", "flags: qr aa rd ra", "udp: 1232"][..]),
        ("+noedns web.d.svc.cluster.local", &["status: NOERROR", "ADDITIONAL: 0"]),
        ("no.d.svc.cluster.local", &["status: NXDOMAIN", "SOA\tns.dns.cluster.local. hostmaster.cluster.local."]),
        ("db.d.svc.cluster.local AAAA", &["status: NOERROR", "ANSWER: 0", "SOA\tns.dns.cluster.local."]),
        ("no.d.svc.example.test", &["status: NXDOMAIN", "SOA\tns.dns.example.test."]),
        ("loop.d.svc.cluster.local", &["status: SERVFAIL"]),
        ("+edns=1 +noednsneg web.d.svc.cluster.local", &["status: BADVERS"]),
        ("web.d.svc.cluster.local CH A", &["status: REFUSED"]),
        ("+opcode=status web.d.svc.cluster.local", &["status: NOTIMP"]),
    ] {
        let got = dig_until(ours.address, arguments, |got| parts.iter().all(|part| got.contains(part))).await;
        for part in parts {
            assert!(got.contains(part), "dig {arguments}: no {part:?} in {got}");
        }
    }

    // More than a datagram holds.
    endpoints(&ours, "d/db-1", "db", 300);
    for (options, limit, least) in [("+ignore", 1232, 60), ("+ignore +noedns", 512, 20)] {
        let cut = dig(ours.address, &format!("{options} db.d.svc.cluster.local")).await;
        assert!(cut.contains("flags: qr aa tc rd ra"), "{cut}");
        let answers = cut.matches("\tA\t10.244.").count();
        assert!((least..300).contains(&answers), "{options}: {cut}");
        let size = cut.rsplit("rcvd: ").next().unwrap().trim().parse::<usize>().unwrap();
        assert!(size <= limit, "{options}: {cut}");
    }
    let whole = dig(ours.address, "+short db.d.svc.cluster.local").await;
    assert_eq!(whole.lines().count(), 300);

    // The next question sees the change.
    endpoints(&ours, "d/db-1", "db", 1);
    assert_eq!(dig(ours.address, "+short db.d.svc.cluster.local").await, "10.244.0.1\n");

    // Upstream is gone: what was learned stays for its time, the rest fails at once.
    drop(upstream);
    let end = env::instant_now() + WAIT_TIMEOUT;
    for number in 0.. {
        // Another name each time: it may still learn that one is not there.
        let got = dig(ours.address, &format!("other-{number}.d.svc.example.test")).await;
        if got.contains("status: SERVFAIL") {
            break;
        }
        assert!(env::instant_now() < end, "{got}");
        env::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(dig(ours.address, "+short www.d.svc.example.test").await, "192.0.2.80\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_the_node_asks_may_change() {
    let files = tempfile::tempdir().unwrap();
    let own = files.path().join("resolv.conf");
    std::fs::write(&own, "nameserver 127.0.0.2\n").unwrap();
    let first = start_at("127.0.0.2:0".parse().unwrap(), "example.test", Upstreams::fixed(&[])).await;
    let port = first.address.port();
    let second = start_at(([127, 0, 0, 3], port).into(), "example.test", Upstreams::fixed(&[])).await;
    service(&first, "d/www", json!({ "clusterIP": "192.0.2.1" }));
    service(&second, "d/www", json!({ "clusterIP": "192.0.2.2" }));
    service(&second, "d/new", json!({ "clusterIP": "192.0.2.3" }));
    let host = HostFiles { own: own.clone(), behind_resolved: files.path().join("none") };
    let any = "127.0.0.1:0".parse().unwrap();
    let ours = start_at(any, "cluster.local", Upstreams::of_host(host, port)).await;
    let www = "+short www.d.svc.example.test";
    assert_eq!(dig_until(ours.address, www, |got| got == "192.0.2.1\n").await, "192.0.2.1\n");
    std::fs::write(&own, "# another network\nnameserver 127.0.0.3\n").unwrap();
    let new = "+short new.d.svc.example.test";
    assert_eq!(dig_until(ours.address, new, |got| got == "192.0.2.3\n").await, "192.0.2.3\n");
    assert_eq!(dig(ours.address, www).await, "192.0.2.1\n", "what was learned stays for its time");
}
