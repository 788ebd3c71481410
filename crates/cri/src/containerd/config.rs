//! The configuration file of our own containerd.
//! Used by the supervisor next door.
//! Names nothing outside the directories it is given, so several of these live on one machine.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// What our containerd is told. Everything it owns is below `data_dir`.
#[derive(Debug, Clone)]
pub struct ContainerdConfig {
    /// The program; looked up in `PATH` when it has no slash.
    pub program: PathBuf,
    pub data_dir: PathBuf,
    /// Where sockets, the pid file and the shims' state are. On a tmpfs usually; must be short (socket paths are
    /// limited to 107 bytes).
    pub state_dir: PathBuf,
    pub sandbox_image: String,
    pub cni_bin_dir: PathBuf,
    pub cni_conf_dir: PathBuf,
    /// Holds `<registry host>/hosts.toml` files.
    pub registry_config_dir: PathBuf,
    pub systemd_cgroup: bool,
    /// `None` probes whether overlayfs works in `data_dir` and otherwise copies.
    pub snapshotter: Option<String>,
}

impl ContainerdConfig {
    pub fn new(data_dir: impl Into<PathBuf>, state_dir: impl Into<PathBuf>, sandbox_image: &str) -> Self {
        let data_dir = data_dir.into();
        Self {
            program: "containerd".into(),
            state_dir: state_dir.into(),
            sandbox_image: sandbox_image.into(),
            cni_bin_dir: data_dir.join("cni/bin"),
            cni_conf_dir: data_dir.join("cni/net.d"),
            registry_config_dir: data_dir.join("certs.d"),
            systemd_cgroup: false,
            snapshotter: None,
            data_dir,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.state_dir.join("containerd.sock")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.state_dir.join("containerd.pid")
    }

    pub(super) fn file(&self) -> PathBuf {
        self.data_dir.join("config.toml")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.data_dir.join("containerd.log")
    }
}

/// What was found out about the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    pub can_lower_oom_score: bool,
    pub overlay_works: bool,
}

impl Machine {
    pub fn probe(data_dir: &Path) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { can_lower_oom_score: has_sys_resource(&status), overlay_works: overlay_works(data_dir) }
    }
}

/// Without CAP_SYS_RESOURCE runc cannot write a negative oom_score_adj and dies with an unrelated message.
fn has_sys_resource(proc_status: &str) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    proc_status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << CAP_SYS_RESOURCE) != 0)
}

/// Overlay over overlay (a container without a volume) is refused by the kernel: try rather than guess.
fn overlay_works(data_dir: &Path) -> bool {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let base = data_dir.join("overlay-probe");
    let dir = |name: &str| base.join(name);
    let attempt = || -> std::io::Result<()> {
        for name in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir_all(dir(name))?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            dir("lower").display(),
            dir("upper").display(),
            dir("work").display()
        );
        mount(Some("overlay"), &dir("merged"), Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
        umount2(&dir("merged"), MntFlags::MNT_DETACH)?;
        Ok(())
    };
    let works = attempt().is_ok();
    let _ = std::fs::remove_dir_all(&base);
    works
}

pub(super) fn render(config: &ContainerdConfig, machine: Machine) -> String {
    let snapshotter = match &config.snapshotter {
        Some(name) => name.as_str(),
        None if machine.overlay_works => "overlayfs",
        None => "native",
    };
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let mut text = String::from("# Written by minke at every start: edits are lost.\nversion = 2\n");
    let mut line = |text_line: String| {
        let _ = writeln!(text, "{text_line}");
    };
    line(format!("root = {}", quoted(&config.data_dir.join("root"))));
    line(format!("state = {}", quoted(&config.state_dir.join("state"))));
    // Snapshotters and the shim-less runtime that we never use cost start-up time.
    line(
        "disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
         \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\", \
         \"io.containerd.internal.v1.opt\", \"io.containerd.tracing.processor.v1.otlp\", \
         \"io.containerd.internal.v1.tracing\"]"
            .into(),
    );
    line(format!("[grpc]\n  address = {}", quoted(&config.socket())));
    line(format!("[ttrpc]\n  address = {}", quoted(&config.state_dir.join("containerd.sock.ttrpc"))));
    line("[debug]\n  level = \"warn\"".into());
    line("[plugins.\"io.containerd.grpc.v1.cri\"]".into());
    line(format!("  sandbox_image = {:?}", config.sandbox_image));
    // Network namespaces then lie below our own state directory, where `minke down` finds them.
    line("  disable_tcp_service = true\n  netns_mounts_under_state_dir = true".into());
    line("  stream_server_address = \"127.0.0.1\"\n  stream_server_port = \"0\"".into());
    // Releases before 1.7 do not know it and leave it aside.
    line("  enable_cdi = true".into());
    line(format!("  restrict_oom_score_adj = {}", !machine.can_lower_oom_score));
    line("[plugins.\"io.containerd.grpc.v1.cri\".containerd]".into());
    line(format!("  snapshotter = {snapshotter:?}\n  default_runtime_name = \"runc\""));
    line("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]".into());
    line("  runtime_type = \"io.containerd.runc.v2\"".into());
    line("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]".into());
    line(format!("  SystemdCgroup = {}", config.systemd_cgroup));
    line("[plugins.\"io.containerd.grpc.v1.cri\".cni]".into());
    line(format!("  bin_dir = {}", quoted(&config.cni_bin_dir)));
    line(format!("  conf_dir = {}\n  max_conf_num = 1", quoted(&config.cni_conf_dir)));
    line("[plugins.\"io.containerd.grpc.v1.cri\".registry]".into());
    line(format!("  config_path = {}", quoted(&config.registry_config_dir)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_decides_what_the_file_says() {
        let config = ContainerdConfig::new("/d", "/s", "minke/pause:1");
        let check = |can_lower_oom_score, overlay_works, expected: &[&str]| {
            let text = render(&config, Machine { can_lower_oom_score, overlay_works });
            for line in expected {
                assert!(text.lines().any(|l| l.trim() == *line), "{line} is missing in\n{text}");
            }
        };
        check(true, true, &["restrict_oom_score_adj = false", "snapshotter = \"overlayfs\"", "root = \"/d/root\""]);
        check(false, false, &["restrict_oom_score_adj = true", "snapshotter = \"native\"", "SystemdCgroup = false"]);
        check(true, true, &["sandbox_image = \"minke/pause:1\"", "address = \"/s/containerd.sock\""]);
    }

    #[test]
    fn capabilities_are_read_from_the_effective_mask() {
        let check = |text: &str, expected| assert_eq!(has_sys_resource(text), expected, "{text}");
        check("CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n", true);
        check("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", false);
        check("", false);
    }
}
