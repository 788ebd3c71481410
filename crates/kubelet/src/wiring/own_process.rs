//! What the kubelet's own process is told to be: its limits, its group, and the kernel settings it relies on.
//! Used by `wiring` before anything is started.
//! Nothing is changed that the configuration does not name.

use std::{fs, io, path::Path};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{Config, Error};

const SYSCTLS: &str = "/proc/sys";
const CGROUPS: &str = "/sys/fs/cgroup";
/// Upstream's list: what keeps a node that runs out of memory, or whose kernel fails, from staying half alive.
const KERNEL_DEFAULTS: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

pub fn apply(config: &Config) -> Result<(), Error> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Error::Config(format!("{what}: {error}"));
    if let Some(wanted) = config.max_open_files {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| failed("maxOpenFiles", &error))?;
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).map_err(|error| failed("maxOpenFiles", &error))?;
    }
    if let Some(score) = config.oom_score_adj
        && let Err(error) = fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        // As upstream: a kubelet without the right to it runs all the same.
        tracing::warn!(%error, score, "failed to set the kubelet's oom_score_adj");
    }
    if !config.kubelet_cgroups.is_empty() {
        join_group(Path::new(CGROUPS), &config.kubelet_cgroups).map_err(|error| failed("kubeletCgroups", &error))?;
    }
    match config.protect_kernel_defaults {
        Some(protect) => kernel_defaults(Path::new(SYSCTLS), protect),
        None => Ok(()),
    }
}

/// In every hierarchy there is.
fn join_group(root: &Path, group: &str) -> io::Result<()> {
    let own = std::process::id().to_string();
    let unified = root.join("cgroup.controllers").exists();
    let hierarchies = match unified {
        true => vec![root.to_path_buf()],
        false => fs::read_dir(root)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect(),
    };
    for hierarchy in hierarchies {
        let place = hierarchy.join(group.trim_start_matches('/'));
        fs::create_dir_all(&place)?;
        fs::write(place.join("cgroup.procs"), &own)?;
    }
    Ok(())
}

fn kernel_defaults(root: &Path, protect: bool) -> Result<(), Error> {
    let mut wrong = Vec::new();
    for (name, expected) in KERNEL_DEFAULTS {
        let path = root.join(name);
        // A kernel without the setting has nothing to protect.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let Some(actual) = text.trim().parse::<i64>().ok().filter(|actual| *actual != expected) else { continue };
        if protect {
            wrong.push(format!("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}"));
        } else if let Err(error) = fs::write(&path, expected.to_string()) {
            wrong.push(format!("failed to set kernel flag: {name}, expected value: {expected}: {error}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Config(format!("[{}]", wrong.join(", ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_settings_are_protected_or_set() {
        let root = tempfile::tempdir().unwrap();
        let panic = root.path().join("kernel/panic");
        fs::create_dir_all(panic.parent().unwrap()).unwrap();
        fs::write(&panic, "10\n").unwrap();
        assert!(kernel_defaults(root.path(), true).is_ok());
        fs::write(&panic, "0\n").unwrap();
        let refused = kernel_defaults(root.path(), true).unwrap_err().to_string();
        assert!(
            refused.contains("invalid kernel flag: kernel/panic, expected value: 10, actual value: 0"),
            "{refused}"
        );
        kernel_defaults(root.path(), false).unwrap();
        assert_eq!(fs::read_to_string(&panic).unwrap(), "10");
    }

    #[test]
    fn the_process_goes_to_its_group() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory").unwrap();
        join_group(root.path(), "/system/kubelet").unwrap();
        let written = fs::read_to_string(root.path().join("system/kubelet/cgroup.procs")).unwrap();
        assert_eq!(written, std::process::id().to_string());
    }
}
