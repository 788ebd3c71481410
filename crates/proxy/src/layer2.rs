//! Announces addresses of load balancers on this node's link, by ARP and NDP, where the Service's status names this node.
//! The service-lb-controller chooses the node; what answers at the addresses are the rules of `rules`.
//! Only addresses in our own record are touched: other clusters and people have theirs. Stopping withdraws them.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use client::{Client, InformerFactory};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    layer2_heartbeat::beat,
    pod_routes::{PodRoutesError, run_command},
};

/// The condition whose message names the node that announces the addresses.
const ANNOUNCED: &str = "minke.io/Layer2Announced";
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Layer2Config {
    pub node_name: String,
    /// Whose links the addresses are announced on.
    pub node_addresses: Vec<IpAddr>,
    /// Which addresses are ours, as lines `address/bits link`: written before they are added.
    pub record: PathBuf,
}

/// What this node has to announce for one Service.
fn announced(service: &Service, node_name: &str) -> Vec<IpAddr> {
    let Some(status) = &service.status else { return Vec::new() };
    let balanced = service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
    let mut conditions = status.conditions.iter().flatten();
    let chosen = conditions.any(|c| c.type_ == ANNOUNCED && c.status == "True" && c.message == node_name);
    let ingress = status.load_balancer.as_ref().and_then(|balancer| balancer.ingress.as_ref());
    let ips = ingress.into_iter().flatten().filter_map(|ingress| ingress.ip.as_ref()?.parse().ok());
    if balanced && chosen { ips.collect() } else { Vec::new() }
}

/// Runs until `shutdown`. `own` is the node itself, who may renew its Lease.
pub fn run_layer2(
    config: Layer2Config,
    own: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(run_until(config, own, informers, env, shutdown))
}

async fn run_until(
    config: Layer2Config,
    own: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) {
    let services = informers.informer::<Service>();
    tokio::select! {
        () = services.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let (announces, told) = watch::channel(false);
    let beating = env.spawn(beat(own, config.node_name.clone(), told, env.clone()));
    let mut changes = services.subscribe();
    let mut wanted: HashMap<String, Vec<IpAddr>> = HashMap::new();
    let mut applied: Option<BTreeSet<IpAddr>> = None;
    loop {
        while let Some(change) = changes.try_next() {
            record(&config, &mut wanted, &change);
        }
        let all: BTreeSet<IpAddr> = wanted.values().flatten().copied().collect();
        let mut failed = false;
        if applied.as_ref() != Some(&all) {
            match announce(&config, &all).await {
                Ok(()) => {
                    announces.send_if_modified(|before| std::mem::replace(before, !all.is_empty()) == all.is_empty());
                    applied = Some(all);
                }
                Err(error) => {
                    (applied, failed) = (None, true);
                    tracing::error!(%error, "failed to announce load balancer addresses; will try again");
                }
            }
        }
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => record(&config, &mut wanted, &change),
                None => break,
            },
            () = env.sleep(RETRY_INTERVAL), if failed => {}
            () = shutdown.cancelled() => break,
        }
    }
    if applied.is_some_and(|all| !all.is_empty())
        && let Err(error) = announce(&config, &BTreeSet::new()).await
    {
        tracing::warn!(%error, "load balancer addresses stay on this node");
    }
    drop(announces);
    let _ = beating.await;
}

fn record(config: &Layer2Config, wanted: &mut HashMap<String, Vec<IpAddr>>, change: &client::Change<Service>) {
    let ips = change.new.as_deref().map(|service| announced(service, &config.node_name)).unwrap_or_default();
    match ips.is_empty() {
        true => drop(wanted.remove(&change.key)),
        false => drop(wanted.insert(change.key.clone(), ips)),
    }
}

/// Makes the node hold exactly these addresses. The kernel answers who asks for them; neighbours that know another node
/// are told.
async fn announce(config: &Layer2Config, wanted: &BTreeSet<IpAddr>) -> Result<(), PodRoutesError> {
    let listed = run_command("ip", &["-j", "address", "show"], "").await?;
    let links: Vec<Value> = serde_json::from_str(&listed).unwrap_or_default();
    let present: BTreeSet<(String, IpAddr)> = addresses(&links).collect();
    let recorded = read_record(&config.record);
    let mut batch = String::new();
    let mut ours: BTreeSet<(String, IpAddr)> = BTreeSet::new();
    for (link, address) in recorded.into_iter().filter(|held| present.contains(held)) {
        if wanted.contains(&address) {
            ours.insert((link, address));
        } else {
            let _ = writeln!(batch, "address del {address}/{} dev {link}", bits(address));
        }
    }
    let kept = ours.clone();
    let mut links_to_notify = BTreeSet::new();
    // What the machine has anyway needs no announcement.
    for address in wanted.iter().filter(|address| !present.iter().any(|(_, held)| held == *address)) {
        let uplink =
            present.iter().find(|(_, ip)| ip.is_ipv4() == address.is_ipv4() && config.node_addresses.contains(ip));
        let Some((link, _)) = uplink else {
            tracing::warn!(%address, "no link of this node has an address of that family to announce it on");
            continue;
        };
        let dad = if address.is_ipv4() { "" } else { " nodad" };
        let _ = writeln!(batch, "address replace {address}/{} dev {link}{dad}", bits(*address));
        ours.insert((link.clone(), *address));
        links_to_notify.insert(link.clone());
    }
    if ours != kept {
        write_record(&config.record, &ours)?;
    }
    run_command("ip", &["-batch", "-"], &batch).await?;
    write_record(&config.record, &ours)?;
    let mut notify = String::new();
    for link in &links_to_notify {
        for switch in [format!("ipv4/conf/{link}/arp_notify"), format!("ipv6/conf/{link}/ndisc_notify")] {
            // Without IPv6 the second is not there.
            let _ = fs::write(format!("/proc/sys/net/{switch}"), "1");
        }
        // Its own hardware address set once more is what makes the kernel tell the neighbours.
        let mac = links.iter().find(|l| l["ifname"] == link.as_str()).and_then(|l| l["address"].as_str());
        if let Some(mac) = mac {
            let _ = writeln!(notify, "link set dev {link} address {mac}");
        }
    }
    run_command("ip", &["-batch", "-"], &notify).await.map(drop)
}

/// Takes away what a process that was killed left behind. Blocks.
pub fn withdraw_recorded(record: &Path) {
    for (link, address) in read_record(record) {
        let address = format!("{address}/{}", bits(address));
        // Gone already is fine.
        let _ = std::process::Command::new("ip").args(["address", "del", &address, "dev", &link]).output();
    }
}

fn read_record(record: &Path) -> BTreeSet<(String, IpAddr)> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let entry = |line: &str| {
        let (address, link) = line.split_once(' ')?;
        Some((link.to_owned(), address.split_once('/')?.0.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn write_record(record: &Path, ours: &BTreeSet<(String, IpAddr)>) -> Result<(), PodRoutesError> {
    let lines: Vec<String> = ours.iter().map(|(link, ip)| format!("{ip}/{} {link}\n", bits(*ip))).collect();
    if lines.is_empty() && !record.exists() {
        return Ok(());
    }
    fs::write(record, lines.concat())
        .map_err(|error| PodRoutesError::Refused("the record of announced addresses", error.to_string()))
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn addresses(links: &[Value]) -> impl Iterator<Item = (String, IpAddr)> {
    links.iter().flat_map(|link| {
        let name = link["ifname"].as_str().unwrap_or_default();
        let infos = link["addr_info"].as_array().into_iter().flatten();
        infos.filter_map(move |info| Some((name.to_owned(), info["local"].as_str()?.parse().ok()?)))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_chosen_node_announces() {
        let service = |kind: &str, status: &str, node: &str| -> Service {
            let condition = json!({ "type": ANNOUNCED, "status": status, "message": node, "reason": "NodeElected",
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let balancer = json!({ "ingress": [{ "ip": "192.0.2.7", "ipMode": "VIP" }, { "ip": "fd00::7" }] });
            serde_json::from_value(json!({
                "metadata": { "name": "s" }, "spec": { "type": kind },
                "status": { "loadBalancer": balancer, "conditions": [condition] },
            }))
            .unwrap()
        };
        for (kind, status, node, count) in [
            ("LoadBalancer", "True", "here", 2),
            ("LoadBalancer", "True", "there", 0),
            ("LoadBalancer", "False", "here", 0),
            ("NodePort", "True", "here", 0),
        ] {
            assert_eq!(announced(&service(kind, status, node), "here").len(), count, "{kind} {status} {node}");
        }
    }
}
