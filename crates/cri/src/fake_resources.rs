//! What an update of a container's resources makes of those it had, in the fake runtime.
//! Used by `fake`.

use crate::v1;

/// As containerd does it: what is not named stays.
pub fn updated(before: v1::LinuxContainerResources, new: v1::LinuxContainerResources) -> v1::LinuxContainerResources {
    let number = |before: i64, new: i64| if new == 0 { before } else { new };
    let text = |before: String, new: String| if new.is_empty() { before } else { new };
    v1::LinuxContainerResources {
        cpu_period: number(before.cpu_period, new.cpu_period),
        cpu_quota: number(before.cpu_quota, new.cpu_quota),
        cpu_shares: number(before.cpu_shares, new.cpu_shares),
        memory_limit_in_bytes: number(before.memory_limit_in_bytes, new.memory_limit_in_bytes),
        oom_score_adj: number(before.oom_score_adj, new.oom_score_adj),
        cpuset_cpus: text(before.cpuset_cpus, new.cpuset_cpus),
        cpuset_mems: text(before.cpuset_mems, new.cpuset_mems),
        ..new
    }
}
