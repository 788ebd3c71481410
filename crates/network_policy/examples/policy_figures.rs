//! Figures of NetworkPolicy on this machine: 1,000 policies and 10,000 pods, all of them this node's, in a network
//! namespace of its own.
//! Run by `tools/bench` as root: `cargo run --release -p minke-network-policy --example policy_figures`.
//! Prints times against a goal; fails only when something does not work.

#[path = "../../proxy/tests/packets/feed.rs"]
mod feed;

use std::{path::Path, time::Duration};

use client::{Client, InformerFactory};
use env::Env;
use feed::Feed;
use metrics::Metrics;
use network_policy::{NetworkPolicyConfig, PodClaims};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tokio_util::sync::CancellationToken;

const POLICIES: usize = 1_000;
const PODS: usize = 10_000;
const NAMESPACES: usize = 100;
const CHANGES: usize = 100;

fn pod(index: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("p{index}"), "namespace": format!("n{}", index % NAMESPACES),
            "labels": { "app": format!("a{}", index / NAMESPACES % 10) },
        },
        "spec": { "nodeName": "here", "containers": [] },
        "status": { "podIPs": [{ "ip": format!("10.{}.{}.{}", index / 62_500, index / 250 % 250, index % 250 + 1) }] },
    })
}

/// Ten in each namespace: from a neighbour at one port, from all of one other namespace, and from a network.
fn policy(index: usize, port: usize) -> Value {
    let (namespace, app) = (index % NAMESPACES, index / NAMESPACES % 10);
    let near = json!({ "podSelector": { "matchLabels": { "app": format!("a{}", (app + 1) % 10) } } });
    let other = format!("n{}", (namespace + 1) % NAMESPACES);
    let far = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": other } } });
    let block = json!({ "ipBlock": { "cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"] } });
    json!({
        "metadata": { "name": format!("p{index}"), "namespace": format!("n{namespace}") },
        "spec": {
            "podSelector": { "matchLabels": { "app": format!("a{app}") } }, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [near], "ports": [{ "port": port }] }, { "from": [far, block] }],
        },
    })
}

/// Returns once the rules hold all that was put before.
async fn written(socket: &Path) {
    let mut stream = loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(_) => env::sleep(Duration::from_millis(1)).await,
        }
    };
    stream.write_all(b"{\"namespace\":\"none\",\"name\":\"x\",\"ips\":[\"10.99.0.1\"]}\n").await.expect("a claim");
    stream.read_to_end(&mut Vec::new()).await.expect("an answer");
}

fn row(figure: &str, times: &mut [Duration], goal: &str) {
    times.sort();
    let milliseconds = |at: usize| times[at].as_secs_f64() * 1000.0;
    let (median, p99) = (milliseconds(times.len() / 2), milliseconds(times.len() * 99 / 100));
    println!("{figure:<52} {median:>9.1} ms  p99 {p99:>9.1} ms   {goal}");
}

fn main() {
    // A namespace that ends with this process: nothing is left behind.
    unshare(CloneFlags::CLONE_NEWNET).expect("run it as root");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let (env, feed, shutdown) = (Env::real(), Feed::default(), CancellationToken::new());
    for namespace in 0..NAMESPACES {
        let name = format!("n{namespace}");
        let labels = json!({ "kubernetes.io/metadata.name": name });
        feed.put("namespaces", json!({ "metadata": { "name": name, "labels": labels } }));
    }
    (0..PODS).for_each(|index| feed.put("pods", pod(index)));
    (0..POLICIES).for_each(|index| feed.put("networkpolicies", policy(index, 80)));
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("policy.sock");
    let claims = PodClaims::default();
    env.spawn(claims.serve(&socket, env.clone()));
    let config = NetworkPolicyConfig {
        node_name: "here".into(),
        table: "figures".into(),
        claims,
        claims_directory: directory.path().join("claims"),
        metrics: Metrics::default(),
    };
    let informers = InformerFactory::new(Client::new(feed.clone()), env.clone(), shutdown.clone());
    let began = env.monotonic();
    env.spawn(network_policy::run(config, informers, env.clone(), shutdown.clone()));
    written(&socket).await;
    row(&format!("{POLICIES} policies, {PODS} pods, from nothing"), &mut [env.monotonic() - began], "goal 3000 ms");

    let mut pods = Vec::new();
    let mut policies = Vec::new();
    for change in 0..CHANGES {
        let mut one = pod(PODS + change);
        one["metadata"]["labels"]["app"] = json!("a3");
        let began = env.monotonic();
        feed.put("pods", one);
        tokio::task::yield_now().await;
        written(&socket).await;
        pods.push(env.monotonic() - began);
        let began = env.monotonic();
        feed.put("networkpolicies", policy(change, 8080 + change));
        tokio::task::yield_now().await;
        written(&socket).await;
        policies.push(env.monotonic() - began);
    }
    row("one pod more", &mut pods, "goal 20 ms");
    row("one policy changed", &mut policies, "goal 20 ms");
    shutdown.cancel();
}
