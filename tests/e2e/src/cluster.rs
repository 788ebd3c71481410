//! A cluster of a test's own: other ports, data directory, ranges and names than anyone else's.
//! Shared by `tests/cluster` (started by `tests/e2e/run`), made one by one in `tests/lifecycle`.
//! `down --purge` runs when it is dropped.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{BUSYBOX, Kubectl, busybox_archive, eventually};

/// The binary under test.
pub fn minke() -> PathBuf {
    std::env::var_os("MINKE").map(PathBuf::from).expect("set MINKE to the binary, or use tests/e2e/run")
}

/// A port that nobody listens on, another one each time. None of those that the kernel gives to whoever asks for any:
/// they might be taken before the one who is told of it listens.
pub fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let start = std::process::id() as usize * 37;
    (0..PORTS)
        .map(|_| FIRST_PORT + ((start + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS) as u16)
        .find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .expect("a port that is free")
}

/// Below the ports of Services and of outgoing connections.
const FIRST_PORT: u16 = 20_000;
const PORTS: usize = 9_000;

/// How far a test cluster's service range lies from its pod range.
const SERVICES: usize = 110;

/// The second byte of a pod range that no address or route of this machine lies in, nor in that of its Services.
fn free_range() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let taken = Command::new("ip").args(["-4", "route", "show", "table", "all"]).output().expect("ip runs");
    let taken = text(&taken.stdout);
    let start = std::process::id() as usize % 20 * 5;
    let free =
        |number: usize| !taken.contains(&format!(" 10.{number}.")) && !taken.contains(&format!("\n10.{number}."));
    (0..100)
        .map(|_| 20 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 100)
        .find(|number| free(*number) && free(*number + SERVICES))
        .expect("a range that is free")
}

/// For a node: where the disk is nearly full it must not lose the images and pods under test.
pub const KEEP: [&str; 4] = ["--image-gc-high-threshold", "100", "--eviction-hard", "memory.available<100Mi"];

pub struct Cluster {
    pub data: PathBuf,
    pub arguments: Vec<String>,
    owned: bool,
    _directory: Option<tempfile::TempDir>,
}

#[derive(Default)]
pub struct Options {
    pub extra: Vec<String>,
}

impl Cluster {
    /// The one that `tests/e2e/run` started.
    pub fn shared() -> Self {
        let data =
            std::env::var_os("MINKE_E2E_DATA").expect("use tests/e2e/run, or set MINKE_E2E_DATA to a data directory");
        Self { data: data.into(), arguments: Vec::new(), owned: false, _directory: None }
    }

    /// Flags for a cluster that clashes with nobody, not yet started.
    pub fn prepare(options: Options) -> Self {
        let directory = tempfile::Builder::new().prefix("mk-e2e-").tempdir().expect("a temporary directory");
        let number = free_range();
        let mut arguments = vec![
            "--data-dir".into(),
            directory.path().display().to_string(),
            "--port".into(),
            free_port().to_string(),
            "--kubelet-port".into(),
            free_port().to_string(),
            "--healthz-port".into(),
            "0".into(),
            "--node-name".into(),
            "node-1".into(),
            "--pod-cidr".into(),
            format!("10.{number}.0.0/16"),
            "--service-cidr".into(),
            format!("10.{}.0.0/16", number + SERVICES),
        ];
        arguments.extend(KEEP.map(str::to_string));
        arguments.extend(options.extra);
        Self { data: directory.path().to_path_buf(), arguments, owned: true, _directory: Some(directory) }
    }

    /// IPv6 ranges beside those that are there.
    pub fn both_families(mut self) -> Self {
        for (flag, prefix, bits) in [("--pod-cidr", "fd77", 56), ("--service-cidr", "fd78", 112)] {
            let position = self.arguments.iter().position(|a| a == flag).expect("the flag");
            let number = self.arguments[position + 1].split('.').nth(1).expect("four parts").to_string();
            self.arguments[position + 1] += &format!(",{prefix}:{number}::/{bits}");
        }
        self
    }

    /// IPv6 ranges in place of those that are there.
    pub fn six_alone(mut self) -> Self {
        self = self.both_families();
        for argument in &mut self.arguments {
            if let Some((_, six)) = argument.split_once(',').filter(|(four, _)| four.starts_with("10.")) {
                *argument = six.to_string();
            }
        }
        self
    }

    pub fn start(options: Options) -> Self {
        Self::prepare(options).started()
    }

    pub fn started(self) -> Self {
        let output = self.up();
        assert!(output.status.success(), "minke up failed:\n{}\n{}", text(&output.stdout), text(&output.stderr));
        self
    }

    pub fn up(&self) -> std::process::Output {
        let mut command = Command::new(minke());
        let output = command.arg("up").args(&self.arguments).stdin(Stdio::null()).output().expect("minke runs");
        if output.status.success() {
            self.kubectl().has_account();
        }
        output
    }

    pub fn down(&self, purge: bool) -> std::process::Output {
        let mut command = Command::new(minke());
        command.arg("down").arg("--data-dir").arg(&self.data);
        if purge {
            command.arg("--purge");
        }
        command.stdin(Stdio::null()).output().expect("minke runs")
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.data.join("admin.kubeconfig"))
    }

    pub fn pid(&self) -> i32 {
        let text = std::fs::read_to_string(self.data.join("minke.pid")).expect("a pid file");
        text.trim().parse().expect("a process id")
    }

    /// kill -9, and waits until it is dead: a process that is about to die still holds its lock.
    pub fn kill(&self) {
        let pid = self.pid();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("minke runs");
        eventually("the process is dead", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            if matches!(state, None | Some('Z' | 'X')) { Ok(()) } else { Err(stat) }
        });
    }

    pub fn import_busybox(&self) {
        self.import_bytes(&busybox_archive(BUSYBOX));
    }

    pub fn import_bytes(&self, archive: &[u8]) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), archive).expect("room for an image");
        self.import(file.path());
    }

    pub fn import(&self, archive: &Path) {
        let output =
            Command::new(minke()).args(["image", "import", "--data-dir"]).arg(&self.data).arg(archive).output();
        let output = output.expect("minke runs");
        assert!(output.status.success(), "import failed: {}", text(&output.stderr));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owned {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.data.join("minke.log")).unwrap_or_default();
                let lines: Vec<_> = log.lines().rev().take(60).collect();
                eprintln!("the end of minke.log:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
            self.down(true);
        }
    }
}
