//! What the configuration asks for that this machine can't give.
//! Used by `dependencies` before anything is made on disk or in control groups.

use crate::{Config, Error};

pub fn check_machine(config: &Config, has_cgroup_v2: bool) -> Result<(), Error> {
    if config.single_process_oom_kill == Some(false) && !has_cgroup_v2 {
        let message = "singleProcessOOMKill must not be explicitly set to false when using cgroup v1";
        return Err(Error::Config(message.into()));
    }
    if config.fail_cgroup_v1 && !has_cgroup_v2 {
        let message = "kubelet is configured to not run on a host using cgroup v1. \
            cgroup v1 support is unsupported and will be removed in a future release";
        return Err(Error::Config(message.into()));
    }
    if config.fail_swap_on && has_swap() {
        let message = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false";
        return Err(Error::Config(message.into()));
    }
    Ok(())
}

/// Whether the machine swaps to anything.
pub fn has_swap() -> bool {
    // The first line has the columns' names.
    std::fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() > 1
}
