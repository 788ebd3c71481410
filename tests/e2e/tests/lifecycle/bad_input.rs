//! Bad input gets one line that says what is wrong and what to do, and leaves nothing half-started.

use std::{
    net::TcpListener,
    process::{Command, Stdio},
};

use e2e::{Cluster, Options, eventually, minke};

/// Runs `minke up` and expects one line with `text`; afterwards nothing of it runs.
#[track_caller]
fn refused(cluster: &Cluster, mut command: Command, text: &str) {
    let output = command.stdin(Stdio::null()).output().expect("minke runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it was accepted");
    let line = said.lines().find(|l| l.starts_with("minke: ")).unwrap_or_else(|| panic!("no message in {said:?}"));
    assert!(line.contains(text), "expected {text:?} in {line:?}");
    let data = cluster.data.display().to_string();
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        assert!(!words.contains(&data) || words.contains("cargo"), "still running: {words}");
    }
}

fn up(cluster: &Cluster) -> Command {
    let mut command = Command::new(minke());
    command.arg("up").args(&cluster.arguments);
    command
}

#[test]
fn a_port_in_use() {
    let mut cluster = Cluster::prepare(Options::default());
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
    let flag = cluster.arguments.iter().position(|a| a == "--port").expect("the flag");
    cluster.arguments[flag + 1] = taken.local_addr().expect("an address").port().to_string();
    refused(&cluster, up(&cluster), "choose another port with --port");
}

/// Each of a node's ports: said before anything is started, by whom it is held.
#[test]
fn a_node_port_in_use() {
    for flag in ["--kubelet-port", "--proxy-healthz-port", "--dns-metrics-port"] {
        let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = taken.local_addr().expect("an address").port().to_string();
        let mut cluster = Cluster::prepare(Options::default());
        match cluster.arguments.iter().position(|a| a == flag) {
            Some(position) => cluster.arguments[position + 1] = port,
            None => cluster.arguments.extend([flag.to_string(), port]),
        }
        let holder = format!("(process {}) does: choose another port with {flag}", std::process::id());
        refused(&cluster, up(&cluster), &holder);
        assert!(!cluster.data.join("store").exists(), "{flag}: something was started");
    }
}

#[test]
fn no_root() {
    let cluster = Cluster::prepare(Options::default());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(minke()).arg("up").args(&cluster.arguments);
    refused(&cluster, command, "must run as root");
}

#[test]
fn a_broken_data_directory() {
    let cluster = Cluster::prepare(Options::default());
    std::fs::create_dir_all(cluster.data.join("pki")).expect("a directory");
    for file in ["ca.crt", "ca.key"] {
        std::fs::write(cluster.data.join("pki").join(file), "rubbish").expect("written");
    }
    refused(&cluster, up(&cluster), "damaged");
}

#[test]
fn a_missing_tool() {
    let cluster = Cluster::prepare(Options::default());
    let mut command = up(&cluster);
    let empty = tempfile::tempdir().expect("a directory");
    command.env("PATH", empty.path());
    refused(&cluster, command, "apt-get install");
}

#[test]
fn no_free_disk() {
    let cluster = Cluster::prepare(Options::default());
    std::fs::create_dir_all(&cluster.data).expect("a directory");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&cluster.data).status();
    assert!(mount.expect("mount runs").success());
    let _unmount = Unmount(&cluster.data);
    refused(&cluster, up(&cluster), "free some space or choose another place with --data-dir");
}

struct Unmount<'a>(&'a std::path::Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        eventually(&format!("{} is unmounted", self.0.display()), || {
            let done = Command::new("umount").arg(self.0).output().expect("umount runs");
            if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
        });
    }
}

#[test]
fn an_unreadable_manifest() {
    let directory = tempfile::tempdir().expect("a directory");
    let flag = ["--pod-manifest-path".into(), directory.path().display().to_string()];
    let cluster = Cluster::prepare(Options { extra: flag.into() });
    std::fs::write(directory.path().join("web.yaml"), "kind: Pod\nmetadata: [").expect("written");
    refused(&cluster, up(&cluster), "web.yaml: couldn't parse as pod");
}

#[test]
fn an_unknown_store() {
    let cluster = Cluster::prepare(Options { extra: vec!["--store".into(), "paper".into()] });
    refused(&cluster, up(&cluster), "use `embedded` or `etcd=URL`");
}

#[test]
fn address_ranges_in_use() {
    let with = |flag: &str, range: &str| {
        let mut cluster = Cluster::prepare(Options::default());
        let position = cluster.arguments.iter().position(|a| a == flag).expect("the flag");
        cluster.arguments[position + 1] = range.into();
        cluster
    };
    // Loopback is on every machine.
    let cluster = with("--pod-cidr", "127.0.0.0/16");
    refused(&cluster, up(&cluster), "interface lo: choose another range with --pod-cidr");
    let cluster = with("--service-cidr", "127.0.0.0/16");
    refused(&cluster, up(&cluster), "choose another range with --service-cidr");
    let mut cluster = with("--pod-cidr", "10.240.0.0/12");
    let position = cluster.arguments.iter().position(|a| a == "--service-cidr").expect("the flag");
    cluster.arguments[position + 1] = "10.241.0.0/16".into();
    refused(&cluster, up(&cluster), "overlaps with --service-cidr");
    let mut cluster = with("--pod-cidr", "10.240.0.0/16");
    cluster.arguments.extend(["--nodes", "2", "--node-cidr", "10.240.7.0/24"].map(str::to_string));
    refused(&cluster, up(&cluster), "--node-cidr 10.240.7.0/24 overlaps with 10.240.0.0/16");

    // Somebody else's way to a part of the range, as a VPN makes it.
    let cluster = Cluster::prepare(Options::default());
    let position = cluster.arguments.iter().position(|a| a == "--service-cidr").expect("the flag");
    let taken = cluster.arguments[position + 1].replace("0.0/16", "7.0/24");
    let _route = Route::new(&taken);
    refused(&cluster, up(&cluster), &format!("overlaps with {taken} on this machine"));
}

/// A route to nowhere that ends with the test.
struct Route(String);

impl Route {
    fn new(to: &str) -> Self {
        let made = Command::new("ip").args(["route", "add", "unreachable", to]).output().expect("ip runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self(to.into())
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["route", "del", "unreachable", &self.0]).output();
    }
}
