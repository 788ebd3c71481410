//! `minke down` leaves nothing of ours behind; a second `up` says that the cluster runs.

use std::process::Command;

use e2e::{BUSYBOX, Cluster, Options};

/// The name that everything of this cluster carries, from the one file that says it.
fn id(cluster: &Cluster) -> String {
    let config =
        std::fs::read_to_string(cluster.data.join("containerd/config.toml")).expect("containerd's configuration");
    let state = config.split("/run/").nth(1).expect("a run directory");
    state.split('/').next().unwrap_or_default().to_string()
}

/// Everything on this machine that carries the cluster's name. Others may come and go meanwhile.
fn traces(cluster: &Cluster, id: &str) -> Vec<String> {
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
    for line in run("ip", &["-o", "link"]).lines().filter(|l| l.contains(id)) {
        found.push(format!("interface {line}"));
    }
    for line in run("nft", &["list", "tables"]).lines().filter(|l| l.contains(id)) {
        found.push(format!("table {line}"));
    }
    for line in run("find", &["/sys/fs/cgroup", "-maxdepth", "2", "-name", &format!("{id}*")]).lines() {
        found.push(format!("cgroup {line}"));
    }
    for line in run("find", &["/run", "-maxdepth", "1", "-name", &format!("{id}*")]).lines() {
        found.push(format!("directory {line}"));
    }
    found
}

#[test]
fn down_leaves_nothing_behind_and_up_twice_changes_nothing() {
    let cluster = Cluster::prepare(Options::default());
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
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=180s"]);
    let id = id(&cluster);
    for kind in ["process", "mount", "interface", "table", "cgroup", "directory"] {
        let found = traces(&cluster, &id);
        assert!(
            found.iter().any(|t| t.starts_with(kind)),
            "a running cluster has a {kind}, or this test sees nothing: {found:#?}"
        );
    }

    assert!(cluster.down(false).status.success());
    assert_eq!(traces(&cluster, &id), [] as [String; 0], "after down");
    assert!(cluster.data.join("store").exists(), "down keeps the data");
    assert!(cluster.up().status.success(), "up again on the same data");
    kubectl.run(&["get", "configmap", "kept"]);
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=180s"]);
    assert!(cluster.down(true).status.success());
    assert_eq!(traces(&cluster, &id), [] as [String; 0], "after down --purge");
    assert!(!cluster.data.exists(), "purge removes the data");
}
