//! `minke status`: what runs, how it is, and what to look after.
//! Asks the API server and the health ports; `support_bundle` keeps the same answer.
//! Looks only, and gives up on what does not answer.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, bail};
use client::{Client, HttpsTransport, ListParams, from_kubeconfig};
use env::Env;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    certificates::inventory,
    cluster::{
        data_version,
        instance::Instance,
        members::{self, Kind},
        ports, preflight, process,
    },
    commands::versions,
    flags::{Look, OutputForm},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const DISK_FREE_PERCENT_MIN: u64 = 10;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: String,
    pub data_dir: String,
    pub running: Option<Running>,
    pub components: Vec<Component>,
    pub nodes: Vec<NodeStatus>,
    pub pods: Pods,
    pub certificates: Vec<inventory::Found>,
    pub store_bytes: u64,
    pub disk_free_bytes: u64,
    pub versions: Vec<(String, String)>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    pub pid: i32,
    pub program: String,
    pub resident_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct Component {
    pub name: String,
    pub healthy: bool,
    pub message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub ready: bool,
    pub version: String,
    pub address: String,
    pub problems: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    pub total: usize,
    pub running: usize,
    pub pending: usize,
    pub succeeded: usize,
    pub failed: usize,
}

/// Ends with an error if something is wrong, so that scripts can go by it.
pub async fn run(look: &Look) -> Result<()> {
    preflight::root()?;
    let instance = look.data.instance();
    let status = gather(&instance, &Env::real()).await;
    match look.output {
        OutputForm::Json => println!("{}", serde_json::to_string_pretty(&status)?),
        OutputForm::Text => print!("{}", text(&status)),
    }
    let unhealthy = status.components.iter().filter(|c| !c.healthy).count();
    let unready = status.nodes.iter().filter(|node| !node.ready).count();
    match (&status.running, unhealthy + unready) {
        (None, _) => bail!("no cluster runs in {}: start one with `minke up`", status.data_dir),
        (_, 0) => Ok(()),
        _ => bail!(
            "{unhealthy} components and {unready} nodes are not well: see `minke logs`, and `minke doctor` for this machine"
        ),
    }
}

pub async fn gather(instance: &Instance, env: &Env) -> Status {
    let mut status = Status {
        version: env!("CARGO_PKG_VERSION").into(),
        data_dir: instance.data.display().to_string(),
        certificates: inventory::list(instance, env),
        store_bytes: directory_bytes(&instance.store()),
        disk_free_bytes: disk_free(&instance.data).map_or(0, |(free, _)| free),
        versions: versions::of_machine().await,
        ..Status::default()
    };
    status.warnings.extend(status.certificates.iter().filter_map(inventory::Found::warning));
    if let Some((free, total)) = disk_free(&instance.data)
        && free < total / 100 * DISK_FREE_PERCENT_MIN
    {
        let text = format!("only {} are free at {}: pods are evicted soon", bytes(free), instance.data.display());
        status.warnings.push(text);
    }
    if let Some(newer) = data_version::newer(&instance.data) {
        status
            .warnings
            .push(format!("the data directory was last used by minke {newer}, which is newer than this one"));
    }
    match process::running(instance) {
        Ok(Some(pid)) => {
            let running = running(pid);
            if running.program.ends_with(" (deleted)") {
                status
                    .warnings
                    .push("the running program was replaced: restart it to run the new one (containers go on)".into());
            }
            status.running = Some(running);
        }
        Ok(None) => return status,
        Err(error) => {
            status.warnings.push(format!("{error:#}"));
            return status;
        }
    }
    // Nodes are known by their objects.
    for (member, state) in members::states(instance).into_iter().filter(|(member, _)| member.kind != Kind::Node) {
        match state {
            Ok(state) => {
                let text = format!("{} at {}", state.text, state.address);
                component(&mut status, &member.name, state.text == "running", text);
            }
            Err(error) => component(&mut status, &member.name, false, format!("{error:#}")),
        }
    }
    if instance.admin_kubeconfig().exists() {
        ask_api_server(instance, env, &mut status).await;
    }
    ask_node(instance, env, &mut status).await;
    status
}

fn running(pid: i32) -> Running {
    let program = fs::read_link(format!("/proc/{pid}/exe")).map(|p| p.display().to_string()).unwrap_or_default();
    let memory = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib =
        memory.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    Running { pid, program, resident_bytes: kib.unwrap_or(0) << 10 }
}

async fn ask_api_server(instance: &Instance, env: &Env, status: &mut Status) {
    let client = match from_kubeconfig(&instance.admin_kubeconfig(), "minke-status").map_err(anyhow::Error::from) {
        Ok(connection) => HttpsTransport::new(connection).map(Client::new).map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    let client = match client {
        Ok(client) => client,
        Err(error) => return component(status, "API server", false, format!("{error:#}")),
    };
    let get = async |path: &str| -> Result<String> {
        let request = http::Request::get(path).body(bytes::Bytes::new())?;
        let answer = env.timeout(ANSWER_TIMEOUT, client.transport().send(request)).await;
        let answer = answer.ok_or_else(|| anyhow::anyhow!("no answer within {ANSWER_TIMEOUT:?}"))??;
        let body = String::from_utf8_lossy(answer.body()).into_owned();
        if answer.status().is_success() { Ok(body) } else { bail!("{body}") }
    };
    match get("/readyz?verbose").await {
        Ok(_) => component(status, "API server", true, "ready".into()),
        Err(error) => component(status, "API server", false, failed_checks(&error.to_string())),
    }
    if let Ok(version) = get("/version").await
        && let Ok(version) = serde_json::from_str::<serde_json::Value>(&version)
    {
        let text = version["gitVersion"].as_str().unwrap_or_default().to_string();
        status.versions.insert(0, ("kubernetes".into(), text));
    }
    let nodes = client.api::<Node>();
    match env.timeout(ANSWER_TIMEOUT, nodes.list(&ListParams::default())).await {
        Some(Ok(list)) => status.nodes = list.items.iter().map(node_status).collect(),
        Some(Err(error)) => status.warnings.push(format!("nodes can't be listed: {error}")),
        None => status.warnings.push(format!("nodes can't be listed: no answer within {ANSWER_TIMEOUT:?}")),
    }
    let pods = client.api::<Pod>();
    if let Some(Ok(list)) = env.timeout(ANSWER_TIMEOUT, pods.list(&ListParams::default())).await {
        let phases: Vec<&str> = list.items.iter().filter_map(|pod| pod.status.as_ref()?.phase.as_deref()).collect();
        let count = |wanted: &str| phases.iter().filter(|phase| **phase == wanted).count();
        status.pods = Pods {
            total: list.items.len(),
            running: count("Running"),
            pending: count("Pending"),
            succeeded: count("Succeeded"),
            failed: count("Failed"),
        };
        if status.pods.pending > 0 {
            let text = format!("{} pods are Pending: `minke why pod/NAME` says what for", status.pods.pending);
            status.warnings.push(text);
        }
    }
}

/// The lines of `/readyz?verbose` that failed.
fn failed_checks(answer: &str) -> String {
    let failed: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("[-]")).collect();
    if failed.is_empty() { answer.lines().next().unwrap_or_default().to_string() } else { failed.join("; ") }
}

fn node_status(node: &Node) -> NodeStatus {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let (ready, others): (Vec<_>, Vec<_>) = conditions.partition(|c| c.type_ == "Ready");
    let is_ready = ready.iter().any(|c| c.status == "True");
    let told = |c: &&k8s_openapi::api::core::v1::NodeCondition| {
        format!("{}: {}", c.type_, c.message.as_deref().or(c.reason.as_deref()).unwrap_or("no reason given"))
    };
    let not_ready = ready.iter().filter(|c| c.status != "True");
    let pressed = others.iter().filter(|c| c.status == "True");
    let mut problems: Vec<String> = not_ready.chain(pressed).map(told).collect();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        problems.push("cordoned".into());
    }
    let info = node.status.as_ref().and_then(|s| s.node_info.as_ref());
    let address = node.status.iter().flat_map(|s| s.addresses.iter().flatten()).find(|a| a.type_ == "InternalIP");
    NodeStatus {
        name: node.metadata.name.clone().unwrap_or_default(),
        ready: is_ready,
        version: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        address: address.map(|a| a.address.clone()).unwrap_or_default(),
        problems,
    }
}

/// The parts of the node in that process, by their health ports on loopback.
async fn ask_node(instance: &Instance, env: &Env, status: &mut Status) {
    for (name, port) in ports::health_ports(instance).into_iter().filter(|(_, port)| *port != 0) {
        match env.timeout(ANSWER_TIMEOUT, get_health(port)).await {
            Some(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => component(status, &name, true, "healthy".into()),
            Some(Ok(answer)) => component(status, &name, false, answer.lines().next().unwrap_or_default().to_string()),
            Some(Err(error)) => component(status, &name, false, format!("port {port}: {error}")),
            None => component(status, &name, false, format!("no answer within {ANSWER_TIMEOUT:?}")),
        }
    }
    let socket = instance.containerd_socket();
    if socket.exists() {
        let runtime = cri::RemoteRuntime::new(&socket.display().to_string(), None);
        match env.timeout(ANSWER_TIMEOUT, cri::Runtime::version(&runtime)).await {
            Some(Ok(version)) => {
                let text = format!("{} {}", version.runtime_name, version.runtime_version);
                component(status, "container runtime", true, text);
            }
            Some(Err(error)) => component(status, "container runtime", false, error.to_string()),
            None => component(status, "container runtime", false, format!("no answer within {ANSWER_TIMEOUT:?}")),
        }
    }
}

async fn get_health(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn component(status: &mut Status, name: &str, healthy: bool, message: String) {
    status.components.push(Component { name: name.into(), healthy, message });
}

pub fn directory_bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            match kind.is_dir() {
                true => Some(directory_bytes(&entry.path())),
                false => Some(entry.metadata().ok()?.len()),
            }
        })
        .sum()
}

/// Free and all bytes of the file system.
pub fn disk_free(path: &Path) -> Option<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let block = stat.fragment_size() as u64;
    Some((stat.blocks_available() as u64 * block, stat.blocks() as u64 * block))
}

pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

fn text(status: &Status) -> String {
    let mark = |good: bool| if good { "✓" } else { "✗" };
    let mut lines = vec![match &status.running {
        Some(running) => format!(
            "minke {} runs as process {} ({}), {} resident",
            status.version,
            running.pid,
            running.program,
            bytes(running.resident_bytes)
        ),
        None => format!("minke {}: nothing runs", status.version),
    }];
    lines.push(format!(
        "data in {}: store {}, {} free",
        status.data_dir,
        bytes(status.store_bytes),
        bytes(status.disk_free_bytes)
    ));
    let versions: Vec<String> = status.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    lines.push(format!("versions: {}", versions.join(", ")));
    if !status.components.is_empty() {
        lines.push("\nCOMPONENTS".into());
        lines.extend(status.components.iter().map(|c| format!("{} {:<20} {}", mark(c.healthy), c.name, c.message)));
    }
    if !status.nodes.is_empty() {
        lines.push("\nNODES".into());
        lines.extend(status.nodes.iter().map(|node| {
            let problems = if node.problems.is_empty() { "ready".to_string() } else { node.problems.join("; ") };
            format!("{} {:<20} {:<16} {:<18} {problems}", mark(node.ready), node.name, node.address, node.version)
        }));
        let Pods { total, running, pending, succeeded, failed } = &status.pods;
        lines.push(format!(
            "\n{total} pods: {running} running, {pending} pending, {succeeded} succeeded, {failed} failed"
        ));
    }
    if let Some(first) = status.certificates.first() {
        lines.push(format!(
            "{} certificates; the first to end is {} in {} days ({})",
            status.certificates.len(),
            first.subject,
            first.days_left,
            first.not_after
        ));
    }
    lines.extend(status.warnings.iter().map(|warning| format!("! {warning}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_tells_its_problems() {
        let node = |conditions: serde_json::Value| -> NodeStatus {
            let object = serde_json::json!({"metadata": {"name": "n"}, "status": {
                "conditions": conditions, "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
            node_status(&serde_json::from_value(object).unwrap())
        };
        let good =
            node(serde_json::json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]));
        assert!(good.ready && good.problems.is_empty() && good.address == "192.0.2.1");
        let bad = node(serde_json::json!([
            {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."},
            {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure"}]));
        assert!(!bad.ready);
        assert_eq!(
            bad.problems,
            ["Ready: Kubelet stopped posting node status.", "DiskPressure: KubeletHasDiskPressure"]
        );
    }

    #[test]
    fn only_failed_checks_are_told() {
        assert_eq!(
            failed_checks("[+]ping ok\n[-]etcd-readiness failed: reason withheld\nreadyz check failed"),
            "etcd-readiness failed: reason withheld"
        );
        assert_eq!(failed_checks("connection refused"), "connection refused");
    }

    #[tokio::test]
    async fn a_directory_without_a_cluster_has_a_status_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("store/a")).unwrap();
        fs::write(directory.path().join("store/a/b"), [0; 3000]).unwrap();
        let status = gather(&Instance::new(directory.path()), &Env::real()).await;
        assert!(status.running.is_none() && status.store_bytes == 3000 && status.components.is_empty());
        let shown = text(&status);
        assert!(shown.contains("nothing runs") && shown.contains("store 3 KiB"), "{shown}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((json["running"].is_null(), json["storeBytes"].as_u64()), (true, Some(3000)));
    }
}
