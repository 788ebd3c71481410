//! `minke down` leaves nothing of ours behind; a second `up` says that the cluster runs.

use std::process::Command;

use e2e::{BUSYBOX, Cluster, Options};

/// Everything on this machine that could carry a cluster's name.
fn traces(cluster: &Cluster) -> Vec<String> {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let data = cluster.data.display().to_string();
    let mut found = Vec::new();
    for line in run("ps", &["-eo", "pid,args"]).lines().filter(|l| l.contains(&data)) {
        found.push(format!("process {line}"));
    }
    for line in std::fs::read_to_string("/proc/self/mounts").expect("mounts").lines().filter(|l| l.contains(&data)) {
        found.push(format!("mount {line}"));
    }
    for line in run("ip", &["-o", "link"]).lines().filter(|l| l.contains(": mk")) {
        found.push(format!("interface {line}"));
    }
    for line in run("nft", &["list", "tables"]).lines().filter(|l| l.contains(" mk")) {
        found.push(format!("table {line}"));
    }
    for line in run("find", &["/sys/fs/cgroup", "-maxdepth", "2", "-name", "mk*"]).lines() {
        found.push(format!("cgroup {line}"));
    }
    for line in run("find", &["/run", "-maxdepth", "1", "-name", "mk*"]).lines() {
        found.push(format!("directory {line}"));
    }
    found
}

#[test]
fn down_leaves_nothing_behind_and_up_twice_changes_nothing() {
    // Other clusters of this test run may be up: only what is new counts.
    let cluster = Cluster::prepare(Options::default());
    let before = traces(&cluster);
    let first = cluster.up();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(text.contains("export KUBECONFIG="), "{text}");
    let pid = cluster.pid();
    let second = cluster.up();
    let text = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(second.status.success() && text.contains("already running"), "{text}");
    assert_eq!(cluster.pid(), pid);

    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    kubectl.run(&["create", "configmap", "kept"]);
    kubectl.run(&["create", "deployment", "busy", "--image", BUSYBOX, "--replicas=2", "--", "sleep", "1000"]);
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=60s"]);
    assert!(traces(&cluster).len() > before.len(), "a running cluster leaves traces, or this test sees nothing");

    assert!(cluster.down(false).status.success());
    assert_eq!(traces(&cluster), before, "after down");
    assert!(cluster.data.join("store").exists(), "down keeps the data");
    assert!(cluster.up().status.success(), "up again on the same data");
    kubectl.run(&["get", "configmap", "kept"]);
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=60s"]);
    assert!(cluster.down(true).status.success());
    assert_eq!(traces(&cluster), before, "after down --purge");
    assert!(!cluster.data.exists(), "purge removes the data");
}
