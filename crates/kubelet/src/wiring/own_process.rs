//! What the kubelet's own process is told to be: its limits, its group, and the kernel settings it relies on.
//! Used by `wiring` before anything is started.
//! Nothing is changed that the configuration does not name.

use std::{fs, io, path::Path};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{Config, Error, resources::container_manager::hierarchy::Hierarchy};

const SYSCTLS: &str = "/proc/sys";
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
    if let (Some(verbosity), Some(set)) = (config.log_verbosity, config.set_log_verbosity) {
        set(verbosity).map_err(|error| failed("logging.verbosity", &error))?;
    }
    if let Some(wanted) = config.max_open_files
        && let Err(error) = allow_open_files(wanted)
    {
        // As upstream, here and below: a kubelet without the right to it runs all the same.
        tracing::warn!(%error, wanted, "failed to set how many files the kubelet may have open");
    }
    if let Some(score) = config.oom_score_adj
        && let Err(error) = fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!(%error, score, "failed to set the kubelet's oom_score_adj");
    }
    if !config.kubelet_cgroups.is_empty() {
        join_group(&Hierarchy::detect(), &config.kubelet_cgroups).map_err(|error| failed("kubeletCgroups", &error))?;
    }
    match config.protect_kernel_defaults {
        Some(protect) => kernel_defaults(Path::new(SYSCTLS), protect),
        None => Ok(()),
    }
}

/// As many as are wanted, or as many as may be had.
fn allow_open_files(wanted: u64) -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).or_else(|error| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        Err(error)
    })
}

fn join_group(groups: &Hierarchy, group: &str) -> io::Result<()> {
    let path: Vec<String> = group.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
    groups.join(&path, std::process::id())
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
        let own = std::process::id().to_string();
        let written = |place: &Path| fs::read_to_string(place.join("system/kubelet/cgroup.procs")).ok();
        let root = tempfile::tempdir().unwrap();
        join_group(&Hierarchy::unified(root.path()), "/system/kubelet").unwrap();
        assert_eq!(written(root.path()), Some(own.clone()));
        // Beside the trees there are directories of controllers that are not mounted.
        let root = tempfile::tempdir().unwrap();
        let names = ["memory", "cpuset", "name=systemd"];
        names.iter().for_each(|name| fs::create_dir(root.path().join(name)).unwrap());
        join_group(&Hierarchy::separate(root.path(), &names), "/system/kubelet").unwrap();
        let found = names.map(|name| written(&root.path().join(name)));
        assert_eq!(found, [Some(own), None, None]);
    }
}
