//! Brings the kernel to the plan whenever a Node changes, through `ip` and `bridge` in batches.
//! Runs `plan` and does what it says.
//! Only routes of that protocol number and our own VXLAN device are touched: other clusters and people have theirs.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, process::Stdio, time::Duration};

use client::InformerFactory;
use env::Env;
use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};
use tokio_util::sync::CancellationToken;

use super::plan::{Device, Plan, PodRoutesConfig, PodRoutesMode, plan, record_node};

const RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum PodRoutesError {
    #[error("failed to run {0} (apt-get install -y iproute2): {1}")]
    Start(&'static str, std::io::Error),
    #[error("{0} failed: {1}")]
    Refused(&'static str, String),
}

/// Runs until `shutdown`; the routes stay.
pub fn run_pod_routes(
    config: PodRoutesConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(run_until(config, informers, env, shutdown))
}

async fn run_until(config: PodRoutesConfig, informers: InformerFactory, env: Env, shutdown: CancellationToken) {
    let informer = informers.informer::<Node>();
    tokio::select! {
        () = informer.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let mut changes = informer.subscribe();
    let mut nodes = BTreeMap::new();
    let mut applied = None;
    let mut told = Vec::new();
    loop {
        while let Some(change) = changes.try_next() {
            record_node(&config, &mut nodes, change.key, change.new.as_deref());
        }
        let mut failed = false;
        let planned = plan(&config, &nodes).map(|(wanted, refused)| {
            if refused != told {
                refused.iter().for_each(|why| tracing::warn!(why, "not routing by what a Node object says"));
                told = refused;
            }
            wanted
        });
        // A node's heartbeat changes its object all the time, but not the plan.
        if let Some(wanted) = planned.filter(|wanted| applied.as_ref() != Some(wanted)) {
            match apply_pod_routes(&config, &wanted).await {
                Ok(()) => applied = Some(wanted),
                Err(error) => {
                    (applied, failed) = (None, true);
                    tracing::error!(%error, "failed to set up routes to other nodes; will try again");
                }
            }
        }
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => record_node(&config, &mut nodes, change.key, change.new.as_deref()),
                None => return,
            },
            () = env.sleep(RETRY_INTERVAL), if failed => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Makes the kernel hold exactly the plan.
pub async fn apply_pod_routes(config: &PodRoutesConfig, plan: &Plan) -> Result<(), PodRoutesError> {
    let mut batch = String::new();
    let mut bridge = String::new();
    if let Some(device) = &plan.device {
        ensure_device(device).await?;
        neighbours(&mut batch, &mut bridge, device, plan).await?;
    }
    let protocol = config.route_protocol.to_string();
    let device = match &config.mode {
        PodRoutesMode::Vxlan { device, .. } => format!("dev {device} onlink "),
        PodRoutesMode::Routes => String::new(),
    };
    for family in ["-4", "-6"] {
        let listed = run_command("ip", &["-j", family, "route", "show", "proto", &protocol], "").await?;
        for destination in json_strings(&listed, "dst") {
            let stale = |net: &IpNet| {
                !plan.routes.contains_key(net) && config.ranges.pods.iter().any(|cluster| cluster.contains(net))
            };
            if destination.parse::<IpNet>().as_ref().is_ok_and(stale) {
                let _ = writeln!(batch, "route del {destination} proto {protocol}");
            }
        }
    }
    for (cidr, hop) in &plan.routes {
        let _ = writeln!(batch, "route replace {cidr} via {hop} {device}proto {protocol}");
    }
    run_command("bridge", &["-batch", "-"], &bridge).await?;
    run_command("ip", &["-batch", "-"], &batch).await.map(drop)
}

async fn ensure_device(device: &Device) -> Result<(), PodRoutesError> {
    let Device { name, vni, port, mtu, local, mac, addresses } = device;
    let mut batch = String::new();
    let listed = run_command("ip", &["-j", "-d", "link", "show", "type", "vxlan"], "").await?;
    let links: Vec<Value> = serde_json::from_str(&listed).unwrap_or_default();
    let present = links.iter().find(|link| link["ifname"] == name.as_str());
    let right = present.is_some_and(|link| {
        let data = &link["linkinfo"]["info_data"];
        let at = data["local"].as_str().or(data["local6"].as_str()).and_then(|ip| ip.parse::<IpAddr>().ok());
        link["address"] == mac.as_str() && data["id"] == *vni && data["port"] == *port && at == Some(*local)
    });
    if present.is_some() && !right {
        let _ = writeln!(batch, "link del {name}");
    }
    if !right {
        let _ = writeln!(
            batch,
            "link add {name} address {mac} type vxlan id {vni} dstport {port} local {local} nolearning"
        );
    }
    for address in addresses {
        let (bits, dad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
        let _ = writeln!(batch, "address replace {address}/{bits} dev {name}{dad}");
    }
    let _ = writeln!(batch, "link set {name} mtu {mtu} up");
    run_command("ip", &["-batch", "-"], &batch).await.map(drop)
}

/// Who is behind which next hop, without asking the network.
async fn neighbours(
    batch: &mut String,
    bridge: &mut String,
    device: &Device,
    plan: &Plan,
) -> Result<(), PodRoutesError> {
    let name = &device.name;
    let listed = run_command("ip", &["-j", "neigh", "show", "dev", name, "nud", "permanent"], "").await?;
    for ip in json_strings(&listed, "dst") {
        if ip.parse::<IpAddr>().is_ok_and(|ip| !ip.is_multicast() && !plan.neighbours.contains_key(&ip)) {
            let _ = writeln!(batch, "neigh del {ip} dev {name}");
        }
    }
    let listed = run_command("bridge", &["-j", "fdb", "show", "dev", name], "").await?;
    let entries: Vec<Value> = serde_json::from_str(&listed).unwrap_or_default();
    for entry in &entries {
        let (Some(mac), Some(remote)) = (entry["mac"].as_str(), entry["dst"].as_str()) else { continue };
        let wanted = plan.neighbours.values().any(|(m, r)| m == mac && r.to_string() == remote);
        if !wanted {
            let _ = writeln!(bridge, "fdb del {mac} dev {name} dst {remote}");
        }
    }
    for (ip, (mac, remote)) in &plan.neighbours {
        let _ = writeln!(batch, "neigh replace {ip} lladdr {mac} dev {name} nud permanent");
        let _ = writeln!(bridge, "fdb replace {mac} dev {name} dst {remote} self permanent");
    }
    Ok(())
}

fn json_strings(listed: &str, field: &str) -> Vec<String> {
    let entries: Vec<Value> = serde_json::from_str(listed).unwrap_or_default();
    entries.iter().filter_map(|entry| entry[field].as_str().map(str::to_owned)).collect()
}

pub async fn run_command(program: &'static str, arguments: &[&str], input: &str) -> Result<String, PodRoutesError> {
    if arguments.contains(&"-batch") && input.is_empty() {
        return Ok(String::new());
    }
    let failed = |error| PodRoutesError::Start(program, error);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that gave up early says why on stderr.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(PodRoutesError::Refused(program, String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}
