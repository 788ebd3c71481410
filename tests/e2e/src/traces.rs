//! Everything on this machine that carries a cluster's name: what must be gone after it.
//! Used by the tests of `minke down` and by the soak.
//! Sees nothing of other clusters, which may come and go meanwhile.

use std::{path::Path, process::Command};

use crate::Cluster;

/// The name that everything of this cluster carries, from the one file that says it.
pub fn id(cluster: &Cluster) -> String {
    id_of(&cluster.data).expect("containerd's configuration")
}

/// The same of a node's own data directory; none before its containerd was configured.
pub fn id_of(data: &Path) -> Option<String> {
    let config = std::fs::read_to_string(data.join("containerd/config.toml")).ok()?;
    let state = config.split("/run/").nth(1)?;
    Some(state.split('/').next().unwrap_or_default().to_string())
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn traces(cluster: &Cluster, id: &str) -> Vec<String> {
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

/// What the pods of one node leave on this machine while they live: nothing of it may be there without pods.
/// `data` is the node's data directory, `id` its name, `netns` the network namespace it lives in, if one of its own.
pub fn pod_traces(data: &Path, id: &str, netns: Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let pods = std::fs::read_dir(data.join("kubelet/pods")).into_iter().flatten().flatten();
    found.extend(pods.map(|pod| format!("files {}", pod.path().display())));
    let (data, state) = (data.display().to_string(), format!("/run/{id}/"));
    for line in std::fs::read_to_string("/proc/self/mounts").expect("mounts").lines() {
        let place = line.split(' ').nth(1).unwrap_or_default();
        let of_pods = place.starts_with(&format!("{data}/kubelet/pods/"));
        if of_pods || (place.starts_with(&state) && (place.contains("/netns/") || place.contains("/rootfs"))) {
            found.push(format!("mount {place}"));
        }
    }
    let shims = run("ps", &["-eo", "pid,args"]);
    for line in shims.lines().filter(|l| l.contains("containerd-shim") && l.contains(&state)) {
        found.push(format!("process {line}"));
    }
    let links = match netns {
        Some(netns) => run("ip", &["-n", netns, "-o", "link", "show", "type", "veth"]),
        None => run("ip", &["-o", "link", "show", "type", "veth"]),
    };
    // A pod's cable is plugged into the bridge of its node.
    for line in links.lines().filter(|l| l.contains(&format!(" master {id}0 "))) {
        found.push(format!("interface {line}"));
    }
    let cgroups = run("find", &["/sys/fs/cgroup", "-type", "d", "-path", &format!("*/{id}/*"), "-name", "pod*-*"]);
    found.extend(cgroups.lines().map(|line| format!("cgroup {line}")));
    found
}
