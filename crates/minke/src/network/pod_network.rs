//! The pods' network on this node: bridge, rules and the runtime's configuration, by the ranges that the Node object has.
//! Run by `agent`; the plugin itself is the crate `cni`, the way to other nodes `proxy::run_pod_routes`.
//! The configuration names a range only while the Node object does, or until it names another.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use cni::Attachment;
use env::Env;
use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use proxy::{AppliedState, ClusterRanges};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::pki::write_private,
    cluster::{host, instance::Instance},
    flags::{self, Choice},
    network::{cni_directories, nft_repair, retry_with_events::RetryWithEvents},
    node::own_node::OwnNode,
};

/// Marks our routes to other nodes' pods; not among those the kernel or routing daemons use.
pub const ROUTE_PROTOCOL: u8 = 77;
const VXLAN_PORT: u16 = 8472;
/// For so long at most the pods' rules are not watched over for the sake of those of Services.
const QUIET_INTERVAL_MAX: Duration = Duration::from_secs(10);

fn vxlan_mtu(flags: &flags::Node) -> u32 {
    // Pod routes choose in the same way.
    let address = flags.node_ip.iter().find(|ip| ip.is_ipv4()).or(flags.node_ip.first());
    host::vxlan_mtu(address.and_then(|ip| host::mtu(*ip)), address.is_none_or(IpAddr::is_ipv4))
}

/// Of the pods' interfaces, where it is not the usual one.
fn mtu(flags: &flags::Node) -> Option<u32> {
    (flags.pod_network == flags::PodNetwork::Vxlan).then(|| vxlan_mtu(flags))
}

/// In the directory where the runtime looks.
const NETWORK_FILE: &str = "10-minke.conflist";

/// Pods that start before the network is configured anew must not get one of another kind from last time.
pub fn forget_other_kind(flags: &flags::Node, instance: &Instance) -> Result<()> {
    let file = cni_directories::conf_dir(flags, instance).join(NETWORK_FILE);
    let Ok(text) = std::fs::read(&file) else { return Ok(()) };
    let kept: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let kept = kept["plugins"][0]["mtu"].as_u64();
    if flags.cni != Choice::Minke || kept != mtu(flags).map(u64::from) {
        std::fs::remove_file(&file).with_context(|| format!("failed to remove {}", file.display()))?;
    }
    Ok(())
}

/// None until the node has been given any.
fn ranges(node: &Node) -> Option<Vec<IpNet>> {
    Some(proxy::pod_cidrs(node)).filter(|ranges| !ranges.is_empty())
}

pub struct Network {
    pub instance: Instance,
    /// Where the runtime looks for configurations.
    pub conf_dir: PathBuf,
    pub mtu: Option<u32>,
    /// Pods and Services of the whole cluster.
    pub cluster_cidrs: Vec<IpNet>,
    /// What the service proxy has written.
    pub service_rules: AppliedState,
    /// Where the enforcement of NetworkPolicies hears of new pods, if it is ours.
    pub policy_socket: Option<PathBuf>,
}

impl Network {
    pub fn new(
        flags: &flags::Node,
        instance: &Instance,
        cluster_cidrs: Vec<IpNet>,
        service_rules: AppliedState,
    ) -> Self {
        let policy_socket = flags.enforces_network_policy().then(|| instance.policy_socket());
        let conf_dir = cni_directories::conf_dir(flags, instance);
        Self { instance: instance.clone(), conf_dir, mtu: mtu(flags), cluster_cidrs, service_rules, policy_socket }
    }

    /// Who has addresses of it.
    pub fn attachments(&self) -> Vec<Attachment> {
        cni::attachments(&self.instance.cni_data(), &self.instance.id).unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to see which pods have addresses");
            Vec::new()
        })
    }

    fn conflist(&self, ranges: &[IpNet]) -> Value {
        cni::conflist(&cni::ConfListParams {
            name: self.instance.id.clone(),
            bridge: self.instance.bridge(),
            pod_cidrs: ranges.to_vec(),
            mtu: self.mtu,
            data_dir: self.instance.cni_data(),
            table: self.instance.cni_table(),
            cluster_cidrs: self.cluster_cidrs.clone(),
            policy_socket: self.policy_socket.clone(),
        })
    }

    /// Until shutdown: waits for the node's ranges, makes the network and has `serve` work in it, until it is told that
    /// the node has others (it was deleted and made again).
    pub async fn follow<'a>(
        &'a self,
        own: &'a OwnNode,
        env: &'a Env,
        shutdown: &CancellationToken,
        mut serve: impl FnMut(Vec<IpNet>, Value, CancellationToken) -> BoxFuture<'a, ()>,
    ) {
        let work = |ranges: Vec<IpNet>, until: CancellationToken| -> BoxFuture<'a, ()> {
            let conflist = self.conflist(&ranges);
            let serving = serve(ranges, conflist.clone(), until.clone());
            Box::pin(async move {
                self.make_until_done(&conflist, own, env, &until).await;
                if until.is_cancelled() {
                    return;
                }
                let tables = cni::tables(&self.instance.cni_table());
                let restore = move || Ok(cni::restore(&conflist)?);
                let kept = nft_repair::repair_on_change(tables, restore, env.clone(), until);
                let (service_rules, timer) = (self.service_rules.clone(), env.clone());
                env.spawn(async move {
                    // The kernel writes the rules of many Services much faster while nobody listens.
                    timer.timeout(QUIET_INTERVAL_MAX, service_rules.begun()).await;
                    kept.await;
                });
                serving.await;
            })
        };
        own.follow(env, shutdown, ranges, work).await;
    }

    async fn make_until_done(&self, conflist: &Value, own: &OwnNode, env: &Env, until: &CancellationToken) {
        let trying = RetryWithEvents::new(own.client.clone(), &own.name, env, until);
        let advice = "no pod of this node gets a network until this works; a range in use is changed with --pod-cidr";
        let attempt = || Box::pin(self.set_up(conflist)) as BoxFuture<'_, _>;
        trying.until_done("FailedToMakePodNetwork", advice, attempt).await;
    }

    /// The bridge and its rules first: with the configuration there, containerd calls the node's network ready.
    async fn set_up(&self, conflist: &Value) -> Result<()> {
        let network = conflist.clone();
        let made = env::spawn_blocking(move || cni::prepare(&network)).await?;
        made.context("failed to make the pod network")?;
        std::fs::create_dir_all(&self.conf_dir)?;
        let file = self.conf_dir.join(NETWORK_FILE);
        cni_directories::record(&file, &self.instance)?;
        write_private(&file, &serde_json::to_string_pretty(conflist)?)
    }
}

/// The way to the pods of other nodes.
pub fn pod_routes(
    flags: &flags::Node,
    instance: &Instance,
    node_name: &str,
    ranges: ClusterRanges,
) -> proxy::PodRoutesConfig {
    proxy::PodRoutesConfig {
        node_name: node_name.to_string(),
        mode: match flags.pod_network {
            flags::PodNetwork::Routes => proxy::PodRoutesMode::Routes,
            flags::PodNetwork::Vxlan => proxy::PodRoutesMode::Vxlan {
                device: instance.vxlan(),
                vni: network_identifier(&ranges.pods),
                port: VXLAN_PORT,
                mtu: vxlan_mtu(flags),
            },
        },
        route_protocol: ROUTE_PROTOCOL,
        ranges,
    }
}

/// The same on every node of a cluster, and another for every other cluster on the machine.
fn network_identifier(pod_cidrs: &[IpNet]) -> u32 {
    let text: Vec<String> = pod_cidrs.iter().map(|c| c.to_string()).collect();
    let hash = Sha256::digest(text.join(","));
    u32::from_be_bytes([0, hash[0], hash[1], hash[2]]).max(1)
}

#[cfg(test)]
mod tests {
    use std::{process::Command, sync::Arc};

    use apiserver::ApiServer;
    use client::{Client, ListParams};
    use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::DeleteOptions};
    use nix::sched::{CloneFlags, unshare};
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    /// How long a busy machine may take for what must happen.
    const TEST_TIMEOUT: Duration = Duration::from_secs(120);

    async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let end = env::instant_now() + TEST_TIMEOUT;
        while !holds() {
            assert!(env::instant_now() < end, "{what}");
            env::sleep(Duration::from_millis(20)).await;
        }
    }

    fn ip(arguments: &str) -> String {
        let output = Command::new("ip").args(arguments.split(' ')).output().expect("apt-get install -y iproute2");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn event(client: &Client, reason: &str) -> String {
        let end = env::instant_now() + TEST_TIMEOUT;
        loop {
            let events = client.namespaced::<Event>("default").list(&ListParams::default()).await.unwrap();
            if let Some(event) = events.items.into_iter().find(|event| event.reason.as_deref() == Some(reason)) {
                return event.message.unwrap_or_default();
            }
            assert!(env::instant_now() < end, "no Event says {reason}");
            env::sleep(Duration::from_millis(20)).await;
        }
    }

    /// In a network namespace that ends with its thread.
    #[test]
    fn a_node_that_is_made_again_gets_the_network_of_its_new_range() {
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("run this test as root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(check());
        });
        thread.join().unwrap();
    }

    async fn check() {
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let api = ApiServer::new(apiserver::Config::in_process(key), store, env.clone()).await.unwrap();
        let client = in_process::client(&api, "admin", &[crate::control_plane::server::MASTERS]);
        let nodes = client.api::<Node>();
        let node = |ranges: &[&str]| -> Node {
            let spec = json!({ "podCIDR": ranges.first(), "podCIDRs": ranges });
            serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": spec })).unwrap()
        };
        let data = tempfile::tempdir().unwrap();
        let cluster_cidrs = ["10.99.0.0/16", "fd99::/48"].map(|range| range.parse().unwrap()).to_vec();
        let (instance, service_rules) = (Instance::new(data.path()), AppliedState::default());
        let conf_dir = instance.cni_conf();
        let network = Network { instance, conf_dir, mtu: None, cluster_cidrs, service_rules, policy_socket: None };
        let (file, bridge) = (network.conf_dir.join(NETWORK_FILE), network.instance.bridge());
        let own = OwnNode { client: client.clone(), name: "n".into() };
        let served = Arc::new(Mutex::new(Vec::new()));
        let (log, until, task_env) = (served.clone(), shutdown.clone(), env.clone());
        let running = env::spawn(async move {
            let serve = |ranges: Vec<IpNet>, _: Value, until: CancellationToken| -> BoxFuture<'_, ()> {
                let log = log.clone();
                Box::pin(async move {
                    log.lock().push(format!("+{}", ranges[0]));
                    until.cancelled().await;
                    log.lock().push(format!("-{}", ranges[0]));
                })
            };
            network.follow(&own, &task_env, &until, serve).await;
        });

        let configured = || {
            let text = std::fs::read(&file).unwrap_or_default();
            serde_json::from_slice::<Value>(&text).unwrap_or_default()["plugins"][0]["podCIDRs"].clone()
        };
        let addresses = || ip(&format!("-o address show dev {bridge} scope global"));
        let configures = |ranges: Value| move || configured() == ranges;
        // A range that the node itself lives in is told, and used once it is free.
        ip("address add 10.99.3.7/32 dev lo");
        nodes.create(&node(&["10.99.3.0/24"])).await.unwrap();
        let said = event(&client, "FailedToMakePodNetwork").await;
        let clash = "pod network 10.99.3.0/24 is in use: the node has 10.99.3.7 on another interface";
        assert!(said.contains(clash) && said.contains("--pod-cidr"), "{said}");
        assert_eq!(configured(), Value::Null, "no pod gets such a network");
        ip("address del 10.99.3.7/32 dev lo");
        eventually("the range that was in use", configures(json!(["10.99.3.0/24"]))).await;

        nodes.delete("n", &DeleteOptions::default()).await.unwrap();
        nodes.create(&node(&["10.99.1.0/24", "fd99:0:0:1::/64"])).await.unwrap();
        eventually("the first range", configures(json!(["10.99.1.0/24", "fd99:0:0:1::/64"]))).await;
        assert!(addresses().contains("10.99.1.1/24") && addresses().contains("fd99:0:0:1::1/64"), "{}", addresses());

        nodes.delete("n", &DeleteOptions::default()).await.unwrap();
        nodes.create(&node(&[])).await.unwrap();
        env::sleep(Duration::from_millis(100)).await;
        assert_eq!(configured()[0], "10.99.1.0/24", "without another range the network stays");
        nodes.delete("n", &DeleteOptions::default()).await.unwrap();
        nodes.create(&node(&["10.99.2.0/24", "fd99:0:0:2::/64"])).await.unwrap();
        eventually("the second range", configures(json!(["10.99.2.0/24", "fd99:0:0:2::/64"]))).await;
        assert!(addresses().contains("10.99.2.1/24") && addresses().contains("fd99:0:0:2::1/64"), "{}", addresses());
        assert_eq!(addresses().lines().count(), 2, "{}", addresses());
        let rules =
            || String::from_utf8(Command::new("nft").args(["list", "ruleset"]).output().unwrap().stdout).unwrap();
        eventually("its masquerade alone", || rules().contains("10.99.2.0/24") && !rules().contains("10.99.1.0")).await;
        eventually("work in it", || served.lock().last().is_some_and(|last| last == "+10.99.2.0/24")).await;
        shutdown.cancel();
        running.await.unwrap();
        let expected = [3, 1, 2].map(|n| [format!("+10.99.{n}.0/24"), format!("-10.99.{n}.0/24")]).concat();
        assert_eq!(*served.lock(), expected, "one after the other");
    }
}
