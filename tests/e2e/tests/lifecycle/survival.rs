//! kill -9 at any moment: containers go on, nothing acknowledged is lost, the same pods are adopted.

use std::collections::BTreeMap;

use e2e::{BUSYBOX, Cluster, Kubectl, Options, eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Per pod: uid, container id, restart count.
fn pods(kubectl: &Kubectl) -> BTreeMap<String, (String, String, u64)> {
    let list = kubectl.json(&["get", "pods"]);
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_string();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let entry = |pod: &serde_json::Value| {
        let status = &pod["status"]["containerStatuses"][0];
        let identity = (
            text(&pod["metadata"]["uid"]),
            text(&status["containerID"]),
            status["restartCount"].as_u64().unwrap_or(99),
        );
        (text(&pod["metadata"]["name"]), identity)
    };
    items.iter().map(entry).collect()
}

fn ready(kubectl: &Kubectl, replicas: u64) {
    eventually("every replica is ready", || {
        let status = kubectl.try_run(&["get", "deployment", "steady", "-o", "jsonpath={.status.readyReplicas}"], "");
        if status.ok && status.stdout == replicas.to_string() { Ok(()) } else { Err(status) }
    });
}

#[test]
fn killed_processes_lose_nothing_and_containers_go_on() {
    let cluster = Cluster::start(Options::default());
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    kubectl.run(&["create", "deployment", "steady", "--image", BUSYBOX, "--replicas=3", "--", "sleep", "100000"]);
    kubectl.run(&["rollout", "status", "deployment/steady", "--timeout=180s"]);
    let before = pods(&kubectl);
    assert_eq!(before.len(), 3);

    // Writes until the moment of death; each one that was acknowledged must be there afterwards.
    let mut acknowledged = Vec::new();
    for i in 0..5 {
        let name = format!("written-{i}");
        kubectl.run(&["create", "configmap", &name, &format!("--from-literal=n={i}")]);
        acknowledged.push(name);
    }
    cluster.kill();
    let again = cluster.up();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    ready(&kubectl, 3);
    assert_eq!(pods(&kubectl), before, "the same pods and containers");
    for name in &acknowledged {
        kubectl.run(&["get", "configmap", name]);
    }
    let name = before.keys().next().expect("a pod");
    assert_eq!(kubectl.run(&["exec", name, "--", "hostname"]).trim(), name, "an adopted pod can be used");

    // containerd dies: it is started again and the node recovers; containers do not notice.
    let containerd = containerd_pid(&cluster);
    kill(Pid::from_raw(containerd), Signal::SIGKILL).expect("containerd runs");
    eventually("containerd is back", || {
        let now = containerd_pid(&cluster);
        if now != containerd && now != 0 { Ok(()) } else { Err(now) }
    });
    eventually("the node is ready", || {
        let node = kubectl.run(&["get", "node", "node-1"]);
        if node.contains(" Ready ") { Ok(()) } else { Err(node) }
    });
    kubectl.run(&["scale", "deployment/steady", "--replicas=4"]);
    ready(&kubectl, 4);
    let after = pods(&kubectl);
    for (name, identity) in &before {
        assert_eq!(after.get(name), Some(identity), "{name} is the same pod");
    }
}

fn containerd_pid(cluster: &Cluster) -> i32 {
    let root = cluster.data.join("containerd").display().to_string();
    let entries = std::fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    pids.into_iter()
        .find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
            words.first().is_some_and(|w| w.ends_with("containerd")) && words.iter().any(|w| w.contains(&root))
        })
        .unwrap_or(0)
}
