//! The kernel's limits on tracked flows and how long it keeps them, as upstream's proxy sets them.
//! Applied by `run` at its start.
//! A limit is only raised: others on the machine may need theirs.

use std::{fs, path::Path, time::Duration};

/// A timeout of zero leaves the kernel's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConntrackLimits {
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

impl Default for ConntrackLimits {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: Duration::from_secs(24 * 3600),
            tcp_close_wait_timeout: Duration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }
}

impl ConntrackLimits {
    /// Zero: the kernel's own.
    fn max(&self, cores: usize) -> u64 {
        if self.max_per_core == 0 {
            return 0;
        }
        (u64::from(self.max_per_core) * cores as u64).max(u64::from(self.min))
    }

    /// Sets what differs. What the kernel does not let us is told and goes on as it is.
    pub fn apply(&self) {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.apply_to(Path::new("/proc/sys/net/netfilter"), cores);
    }

    fn apply_to(&self, directory: &Path, cores: usize) {
        let mut wanted = vec![("nf_conntrack_max", self.max(cores))];
        for (name, timeout) in [
            ("nf_conntrack_tcp_timeout_established", self.tcp_established_timeout),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait_timeout),
            ("nf_conntrack_udp_timeout", self.udp_timeout),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream_timeout),
        ] {
            wanted.push((name, timeout.as_secs()));
        }
        wanted.push(("nf_conntrack_tcp_be_liberal", u64::from(self.tcp_be_liberal)));
        for (name, value) in wanted.into_iter().filter(|(_, value)| *value != 0) {
            let path = directory.join(name);
            let now = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
            let enough = if name == "nf_conntrack_max" { now >= Some(value) } else { now == Some(value) };
            if enough {
                continue;
            }
            if let Err(error) = fs::write(&path, value.to_string()) {
                // In a network namespace of its own a node has its machine's limit.
                tracing::info!(%error, path = %path.display(), value, "leaving a setting of connection tracking as it is");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_upstreams_and_limits_only_rise() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let get = |name: &str| fs::read_to_string(file(name)).unwrap().trim().parse::<u64>().unwrap();
        let names = ["max", "tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "tcp_be_liberal"];
        let names = names.map(|name| format!("nf_conntrack_{name}"));
        let check = |before: [u64; 5], limits: &ConntrackLimits, cores: usize, after: [u64; 5]| {
            names.iter().zip(before).for_each(|(name, value)| fs::write(file(name), format!("{value}\n")).unwrap());
            limits.apply_to(directory.path(), cores);
            assert_eq!(names.each_ref().map(|name| get(name)), after);
        };
        let usual = ConntrackLimits::default();
        check([65536, 432_000, 60, 30, 0], &usual, 2, [131_072, 86400, 3600, 30, 0]);
        check([65536, 432_000, 60, 30, 0], &usual, 8, [262_144, 86400, 3600, 30, 0]);
        check([1_000_000, 86400, 3600, 30, 1], &usual, 8, [1_000_000, 86400, 3600, 30, 1]);
        let own = ConntrackLimits {
            max_per_core: 0,
            udp_timeout: Duration::from_secs(10),
            tcp_close_wait_timeout: Duration::ZERO,
            tcp_be_liberal: true,
            ..usual
        };
        check([65536, 432_000, 60, 30, 0], &own, 8, [65536, 86400, 60, 10, 1]);
    }
}
