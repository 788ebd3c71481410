//! What the page at port 4194 costs: the share of a core that its samples take while one page shows the node and another one
//! pod, over real control groups. Run as root: `cargo run --release -p minke-cadvisor --example page_cost -- [PODS [PORT]]`.
//! With a port, it serves the page over these groups until it is interrupted.

use std::{collections::HashMap, fs, path::PathBuf, sync::Arc, time::Duration};

use cadvisor::{Cgroups, GroupKind, Identity, Monitor, Naming, ROOT, Versions};
use env::Env;
use nix::sys::resource::{UsageWho, getrusage};

const TOP: &str = "/minke-page-cost";
const ROUNDS: u32 = 10;
/// As the page asks.
const INTERVAL: Duration = Duration::from_secs(2);

struct Pods(usize);

impl Pods {
    fn pod(number: usize) -> String {
        format!("{TOP}/kubepods/besteffort/pod{number:04}")
    }
}

impl Naming for Pods {
    fn identities(&self) -> HashMap<String, Identity> {
        let mut found = HashMap::new();
        for number in 0..self.0 {
            let identity = |kind, container: &str| Identity {
                kind,
                aliases: vec![format!("{container}{number}")],
                pod: format!("pod-{number}"),
                namespace: ["default", "kube-system", "shop"][number % 3].into(),
                container: container.into(),
                has_network: kind == GroupKind::Sandbox,
                ..Identity::default()
            };
            let pod = Self::pod(number);
            found.insert(format!("{pod}/main"), identity(GroupKind::Container, "main"));
            found.insert(format!("{pod}/sandbox"), identity(GroupKind::Sandbox, ""));
            found.insert(pod, identity(GroupKind::Pod, ""));
        }
        found
    }

    fn roots(&self) -> Vec<String> {
        vec![format!("{TOP}/kubepods")]
    }
}

fn hierarchies() -> Cgroups {
    let root = PathBuf::from("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return Cgroups::Unified { root };
    }
    let of = |name: &str| (name.to_string(), root.join(name));
    Cgroups::Separate { controllers: ["cpu", "cpuacct", "memory", "pids", "blkio", "cpuset"].map(of).to_vec() }
}

fn directories(cgroups: &Cgroups, name: &str) -> Vec<PathBuf> {
    match cgroups {
        Cgroups::Unified { .. } => cgroups.directory("", name).into_iter().collect(),
        Cgroups::Separate { controllers } => {
            controllers.iter().filter_map(|(c, _)| cgroups.directory(c, name)).collect()
        }
    }
}

/// Deepest first.
fn remove(place: PathBuf) {
    for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(entry.path());
        }
    }
    let _ = fs::remove_dir(place);
}

fn busy() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage of this process");
    let of = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, 0) + Duration::from_micros(time.tv_usec() as u64)
    };
    of(usage.user_time()) + of(usage.system_time())
}

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let pods = numbers.first().copied().unwrap_or(100);
    let cgroups = hierarchies();
    for number in 0..pods {
        for group in ["main", "sandbox"] {
            for place in directories(&cgroups, &format!("{}/{group}", Pods::pod(number))) {
                fs::create_dir_all(place).expect("a control group: run this as root");
            }
        }
    }
    let env = Env::real();
    let versions = Versions { kernel: String::new(), system: String::new(), own: "page_cost".into() };
    let monitor = Arc::new(Monitor::new(cgroups.clone(), Arc::new(Pods(pods)), versions, env.clone()));
    match numbers.get(1) {
        Some(port) => {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", *port as u16)).await.expect("a free port");
            let stop = tokio_util::sync::CancellationToken::new();
            let until = stop.clone();
            env.spawn(async move {
                let _ = tokio::signal::ctrl_c().await;
                until.cancel();
            });
            cadvisor::http::serve(listener, monitor, env, stop).await;
        }
        None => {
            let mut spent = Duration::ZERO;
            for round in 0..=ROUNDS {
                let before = busy();
                monitor.view(ROOT).expect("the node");
                monitor.list(ROOT);
                monitor.view(&Pods::pod(0)).expect("a pod");
                monitor.list(&Pods::pod(0));
                // The first round finds out what the machine is.
                if round > 0 {
                    spent += busy() - before;
                }
                env.sleep(Duration::from_secs(1)).await;
            }
            let share = spent.as_secs_f64() / f64::from(ROUNDS) / INTERVAL.as_secs_f64() * 100.0;
            println!(
                "{pods} pods: {:.2} ms for each look, {share:.2} % of a core",
                spent.as_secs_f64() / f64::from(ROUNDS) * 1e3
            );
        }
    }
    for place in directories(&cgroups, TOP) {
        remove(place);
    }
}
