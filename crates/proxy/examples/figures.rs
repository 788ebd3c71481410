//! Figures of the proxy on this machine: 10,000 Services with 5 endpoints each, in a network namespace of its own.
//! Run by `tools/bench` as root: `cargo run --release -p minke-proxy --example figures`.
//! Prints ratios against a goal or a bare `nft` run beside it; fails only when something does not work.

#[path = "../tests/packets/feed.rs"]
mod feed;

use std::{process::Command, time::Duration};

use client::{Client, InformerFactory};
use env::Env;
use feed::Feed;
use nix::sched::{CloneFlags, unshare};
use proxy::{NodeConfig, ProxyConfig};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const SERVICES: usize = 10_000;
const CHANGES: usize = 100;

fn service(index: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 100 + index / 62_500, index / 250 % 250, index % 250 + 1);
    let ports = json!([{ "port": 80 }]);
    json!({
        "metadata": { "name": format!("s{index}"), "namespace": "d" },
        "spec": { "clusterIP": ip, "clusterIPs": [ip], "ports": ports },
    })
}

fn slice(index: usize, endpoints: usize) -> Value {
    let endpoint = |last: usize| {
        json!({
            "addresses": [format!("10.{}.{}.{}", 200 + last, index / 250, index % 250)],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "uid": format!("00000000-0000-4000-8000-{:012}", index * 10 + last) },
        })
    };
    json!({
        "metadata": {
            "name": format!("s{index}-1"), "namespace": "d",
            "labels": { "kubernetes.io/service-name": format!("s{index}") },
        },
        "addressType": "IPv4", "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
}

fn row(figure: &str, value: &str, goal: &str) {
    println!("{figure:<44} {value:>12}   {goal}");
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|k| k.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// The median and the 99th percentile.
fn spread(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    (milliseconds(times[times.len() / 2]), milliseconds(times[times.len() * 99 / 100]))
}

/// A bare `nft` that adds one rule to a table of its own: what a transaction costs whoever makes it.
fn bare(env: &Env) -> Duration {
    let began = env.monotonic();
    let done = Command::new("nft").args(["add", "table", "ip", "bare"]).status();
    assert!(done.is_ok_and(|status| status.success()), "nft is missing: apt-get install -y nftables");
    env.monotonic() - began
}

fn main() {
    // A namespace that ends with this process: nothing is left behind.
    unshare(CloneFlags::CLONE_NEWNET).expect("run it as root");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let env = Env::real();
    let feed = Feed::default();
    for index in 0..SERVICES {
        feed.put("services", service(index));
        feed.put("endpointslices", slice(index, 5));
    }
    let objects = resident_mib();
    let shutdown = CancellationToken::new();
    let mut config = ProxyConfig::new(NodeConfig { node_name: "here".into(), ..NodeConfig::default() });
    config.table = "mk-figures".into();
    let mut applied = config.applied_state.applied();
    let applied_state = config.applied_state.clone();
    let began = env.monotonic();
    let informers = InformerFactory::new(Client::new(feed.clone()), env.clone(), shutdown.clone());
    let running = env.spawn(proxy::run(config, informers, env.clone(), shutdown.clone()));
    applied.wait_for(|applied| applied.generation > 0).await.expect("the proxy runs");
    let first = env.monotonic() - began;
    row("10,000 services x 5: first sync", &format!("{:.2} s", first.as_secs_f64()), "< 3 s");
    row("10,000 services x 5: memory", &format!("{:.1} MiB", resident_mib() - objects), "< 80 MiB");

    let mut changes = Vec::new();
    let mut bares = Vec::new();
    for number in 0..CHANGES {
        let generation = applied.borrow_and_update().generation;
        let began = env.monotonic();
        feed.put("endpointslices", slice(number * 97 % SERVICES, 4 + number % 3));
        applied.wait_for(|applied| applied.generation > generation).await.expect("the proxy runs");
        changes.push(env.monotonic() - began);
        bares.push(bare(&env));
    }
    assert_eq!(applied_state.full_writes(), 1, "all changes were incremental");
    let ((median, late), (bare, _)) = (spread(changes), spread(bares));
    row("10,000 services x 5: one change", &format!("{median:.1} ms"), "< 20 ms");
    row("  99 of 100 within", &format!("{late:.1} ms"), "");
    row("  against a bare nft", &format!("{:.1} x", median / bare), "< 4 x");
    assert!(feed.events().is_empty(), "{:?}", feed.events());
    shutdown.cancel();
    running.await.expect("the proxy ends").expect("the proxy ran");
}
