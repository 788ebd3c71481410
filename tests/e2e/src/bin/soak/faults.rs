//! Kills what keeps the cluster running, one thing after another, and waits until the cluster is well again.
//! Started by `main`; tells `requests` what is disturbed and for how long.
//! Ends only processes of its own cluster, each by its id.

use std::{path::Path, process::Command, time::Duration};

use e2e::{Cluster, minke};
use http::Method;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::requests::Session;

/// From one kill to the next.
const INTERVAL: Duration = Duration::from_secs(45);
const RECOVERY: Duration = Duration::from_secs(240);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Minke,
    Containerd,
    Agent,
    AgentContainerd,
}

const FAULTS: [Fault; 4] = [Fault::Minke, Fault::Containerd, Fault::Agent, Fault::AgentContainerd];

/// A node of the cluster beside its first.
pub struct Node {
    pub name: String,
    pid: Option<i32>,
}

/// What `minke node ls` says.
pub fn nodes(cluster: &Cluster) -> Vec<Node> {
    let output = Command::new(minke()).args(["node", "ls", "--data-dir"]).arg(&cluster.data).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let node = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(Node { name: words.first()?.to_string(), pid: words.get(3).and_then(|pid| pid.parse().ok()) })
    };
    text.lines().filter_map(node).filter(|node| cluster.data.join("nodes").join(&node.name).is_dir()).collect()
}

/// The containerd whose root is in the data directory `data`.
fn containerd(data: &Path) -> Option<i32> {
    let root = data.join("containerd").display().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.next().is_some_and(|program| program.ends_with("containerd"))
            && words.any(|word| word.starts_with(&format!("{root}/")))
    })
}

fn kill_by_id(pid: Option<i32>) -> bool {
    pid.is_some_and(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok())
}

impl Fault {
    /// What was done, if there was something to do it to.
    fn apply(self, cluster: &Cluster) -> Option<String> {
        let node = nodes(cluster).into_iter().next();
        let done = match self {
            Fault::Minke => {
                cluster.kill();
                let up = cluster.up();
                if !up.status.success() {
                    return Some(format!("kill -9 of minke; up failed: {}", String::from_utf8_lossy(&up.stderr)));
                }
                true
            }
            Fault::Containerd => kill_by_id(containerd(&cluster.data)),
            Fault::Agent => kill_by_id(node.as_ref()?.pid),
            Fault::AgentContainerd => kill_by_id(containerd(&cluster.data.join("nodes").join(&node?.name))),
        };
        done.then(|| self.name().to_string())
    }

    fn name(self) -> &'static str {
        match self {
            Fault::Minke => "kill -9 of minke",
            Fault::Containerd => "kill -9 of containerd",
            Fault::Agent => "kill -9 of a node's agent",
            Fault::AgentContainerd => "kill -9 of a node's containerd",
        }
    }
}

/// Whether the server is ready and every node, too.
async fn well(session: &Session, nodes: usize) -> bool {
    let ready = session.send(Method::GET, "/readyz", &Value::Null).await;
    let Ok((200, list)) = session.send(Method::GET, "/api/v1/nodes", &Value::Null).await else { return false };
    let is_ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let count = list["items"].as_array().into_iter().flatten().filter(is_ready).count();
    ready.is_ok_and(|(status, _)| status == 200) && count == nodes
}

pub async fn run(
    session: Session,
    cluster: &Cluster,
    node_count: usize,
    kill_minke_until: Duration,
    stop: CancellationToken,
) {
    let mut next = 0;
    loop {
        tokio::select! {
            () = session.env.sleep(INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let fault = FAULTS[next % FAULTS.len()];
        next += 1;
        // A new process has new memory: the comparison of memory needs one that lives from its mark to the end.
        if fault == Fault::Minke && session.env.monotonic() > kill_minke_until {
            continue;
        }
        let began = session.env.monotonic();
        session.disturb(fault.name());
        let done = tokio::task::block_in_place(|| fault.apply(cluster));
        let Some(done) = done else {
            session.recovered();
            continue;
        };
        session.done("kills");
        println!("soak: {done} at {:.0} s", began.as_secs_f64());
        // A node's silence is noticed late: only what it says after this counts.
        session.env.sleep(Duration::from_secs(2)).await;
        let mut recovered = false;
        while !recovered && session.env.monotonic() - began < RECOVERY {
            recovered = well(&session, node_count).await;
            session.env.sleep(Duration::from_millis(500)).await;
        }
        session.recovered();
        if !recovered {
            session.tally(|tally| {
                tally.unexplained += 1;
                tally.examples.push(format!("{done}: not well again within {} s", RECOVERY.as_secs()));
            });
        }
    }
}
