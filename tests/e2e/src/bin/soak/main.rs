//! `soak MINUTES`: churn on a real cluster of two nodes while its processes are killed; ends with a table.
//! Run by `make soak`, as root, beside whatever else runs here. `MINKE` names the binary.
//! Exit code 1: an error that no kill explains, something left behind, or memory that grew.

mod churn;
mod faults;
mod report;
mod requests;

use std::time::Duration;

use e2e::{Cluster, Options, id, id_of, pod_traces, traces};
use env::Env;
use http::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use report::{Memory, Report};
use requests::Session;

const NODES: usize = 2;
const POD_WORKERS: usize = 3;
const WATCHERS: usize = 6;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Memory at the end is compared with what it was then, or halfway through a shorter run.
const MEMORY_MARK: Duration = Duration::from_secs(300);
/// How long memory is looked at for one figure: pods and documents come and go meanwhile.
const MEMORY_WINDOW: Duration = Duration::from_secs(60);
/// How long what was deleted may take to leave the nodes.
const CLEAN_PATIENCE: Duration = Duration::from_secs(180);

fn main() {
    let minutes = std::env::args().nth(1).and_then(|text| text.parse::<f64>().ok()).unwrap_or(30.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let failed = runtime.block_on(soak(Duration::from_secs_f64(minutes * 60.0)));
    std::process::exit(i32::from(failed));
}

/// True when something is wrong.
async fn soak(length: Duration) -> bool {
    let extra = ["--nodes", &NODES.to_string()].map(str::to_string).to_vec();
    println!("soak: starting a cluster of {NODES} nodes");
    let cluster = tokio::task::block_in_place(|| {
        let cluster = Cluster::start(Options { extra });
        cluster.import_busybox();
        cluster
    });
    let names = names(&cluster);
    let env = Env::real();
    let session = match Session::new(&cluster.data.join("admin.kubeconfig"), env.clone()) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("soak: {error}");
            return true;
        }
    };
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": churn::NAMESPACE } });
    let account = format!("/api/v1/namespaces/{}/serviceaccounts/default", churn::NAMESPACE);
    let made = session.must(Method::POST, "/api/v1/namespaces", &namespace, &[]).await.is_ok()
        && session.until(&account, Duration::from_secs(60), "there", |status, _| status == 200).await.is_ok();
    let mut memory = Memory { start: report::resident(&cluster), ..Memory::default() };
    let interrupted = made && !churn_until(&session, &cluster, length, &mut memory).await;
    println!("soak: waiting until everything is gone");
    let left = if made { left_behind(&session, &names).await } else { Vec::new() };
    memory.settled = report::resident(&cluster);
    let data = cluster.data.clone();
    let after_down = tokio::task::block_in_place(|| {
        let down = cluster.down(true);
        let mut left: Vec<String> = names.iter().flat_map(|(_, id, _)| traces(&cluster, id)).collect();
        if !down.status.success() {
            left.push(format!("minke down: {}", String::from_utf8_lossy(&down.stderr)));
        }
        if data.exists() {
            left.push(format!("files {}", data.display()));
        }
        left
    });
    let report = Report { length: env.monotonic(), memory, left: [left, after_down].concat(), interrupted };
    session.tally(|tally| report.print(tally))
}

/// Data directory, name and network namespace of every node.
fn names(cluster: &Cluster) -> Vec<(std::path::PathBuf, String, Option<String>)> {
    let mut all = vec![(cluster.data.clone(), id(cluster), None)];
    for node in faults::nodes(cluster) {
        let data = cluster.data.join("nodes").join(&node.name);
        if let Some(id) = id_of(&data) {
            all.push((data, id.clone(), Some(id)));
        }
    }
    all
}

/// False when somebody interrupted it.
async fn churn_until(session: &Session, cluster: &Cluster, length: Duration, memory: &mut Memory) -> bool {
    let (began, stop) = (session.env.monotonic(), CancellationToken::new());
    let mark = MEMORY_MARK.min(length / 2);
    let kubectl = cluster.kubectl();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..POD_WORKERS {
        workers.spawn(churn::pods(session.clone(), kubectl.clone(), worker, stop.clone()));
    }
    for worker in 0..WATCHERS {
        workers.spawn(churn::watches(session.clone(), worker, stop.clone()));
    }
    workers.spawn(churn::services(session.clone(), stop.clone()));
    workers.spawn(churn::definitions(session.clone(), stop.clone()));
    workers.spawn(churn::namespaces(session.clone(), 0, stop.clone()));
    workers.spawn(churn::reads(session.clone(), stop.clone()));
    let window = MEMORY_WINDOW.min(length / 6);
    // The process that is looked at from the mark on has lived for a while by then.
    let last_kill = began + mark.saturating_sub(window * 2);
    let faults = faults::run(session.clone(), cluster, NODES, last_kill, stop.clone());
    let mut samples = Vec::new();
    let watch = async {
        let mut finished = true;
        while session.env.monotonic() - began < length {
            tokio::select! {
                () = session.env.sleep(PROGRESS_INTERVAL.min(length / 30)) => {}
                _ = tokio::signal::ctrl_c() => {
                    finished = false;
                    break;
                }
            }
            let at = session.env.monotonic() - began;
            samples.push((at, report::resident(cluster)));
            session.tally(|tally| report::progress(tally, at, length, samples.last().map_or(0, |s| s.1)));
        }
        stop.cancel();
        finished
    };
    let (finished, ()) = tokio::join!(watch, faults);
    let mean = |from: Duration, to: Duration| {
        let inside: Vec<u64> = samples.iter().filter(|(at, _)| (from..=to).contains(at)).map(|s| s.1).collect();
        inside.iter().sum::<u64>() / (inside.len() as u64).max(1)
    };
    memory.mark = mean(mark - window / 2, mark + window / 2);
    memory.end = mean(length.saturating_sub(window), length);
    while workers.join_next().await.is_some() {}
    finished
}

/// What of the deleted pods is still on the nodes.
async fn left_behind(session: &Session, names: &[(std::path::PathBuf, String, Option<String>)]) -> Vec<String> {
    let namespace = format!("/api/v1/namespaces/{}", churn::NAMESPACE);
    session.must(Method::DELETE, &namespace, &Value::Null, &[404, 409]).await.ok();
    session.until(&namespace, CLEAN_PATIENCE, "gone", |status, _| status == 404).await.ok();
    let began = session.env.monotonic();
    loop {
        let look = || names.iter().flat_map(|(data, id, netns)| pod_traces(data, id, netns.as_deref())).collect();
        let left: Vec<String> = tokio::task::block_in_place(look);
        if left.is_empty() || session.env.monotonic() - began > CLEAN_PATIENCE {
            return left;
        }
        session.env.sleep(Duration::from_secs(2)).await;
    }
}
