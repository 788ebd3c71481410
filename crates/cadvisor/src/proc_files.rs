//! The kernel's files about the machine and its processes, as text becomes numbers.
//! Used by `cgroup`, `machine`, `processes` and the kubelet.
//! Parsers are plain functions of text; what is malformed counts as absent.

use std::fs;

use crate::info::InterfaceStats;

/// Bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Meminfo {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Meminfo {
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    pub fn parse(text: &str) -> Self {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kilobytes| kilobytes * 1024)
        };
        Self {
            total: bytes("MemTotal"),
            free: bytes("MemFree"),
            available: bytes("MemAvailable"),
            swap_total: bytes("SwapTotal"),
            swap_free: bytes("SwapFree"),
        }
    }
}

/// Interfaces that are no traffic of the machine's or the pod's own: loopback, and the near ends of pods' interfaces.
const IGNORED_INTERFACES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Those of a network namespace, from its `net/dev`.
pub fn interfaces(text: &str) -> Vec<InterfaceStats> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let own = lines.map(|(name, rest)| (name.trim(), rest));
    own.filter(|(name, _)| !IGNORED_INTERFACES.iter().any(|ignored| name.to_lowercase().starts_with(ignored)))
        .map(|(name, rest)| {
            let fields: Vec<u64> = rest.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
            let field = |index: usize| fields.get(index).copied().unwrap_or(0);
            InterfaceStats {
                name: name.into(),
                rx_bytes: field(0),
                rx_packets: field(1),
                rx_errors: field(2),
                rx_dropped: field(3),
                tx_bytes: field(8),
                tx_packets: field(9),
                tx_errors: field(10),
                tx_dropped: field(11),
            }
        })
        .collect()
}

/// Those that a process sees; none when it is gone.
pub fn interfaces_of(process: &str) -> Vec<InterfaceStats> {
    interfaces(&fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default())
}

/// What is used of `/proc/PID/stat`; times in hundredths of a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessStat {
    pub command: String,
    pub state: char,
    pub parent: u32,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub start_ticks: u64,
    pub virtual_bytes: u64,
    pub rss_pages: u64,
}

impl ProcessStat {
    pub fn read(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// A command may hold spaces, brackets and line ends, so the fields are counted from its last bracket.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(')')?;
        let command = head.split_once('(')?.1.to_string();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| fields.get(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        Some(Self {
            command,
            state: fields.first()?.chars().next()?,
            parent: number(1) as u32,
            minor_faults: number(7),
            major_faults: number(9),
            user_ticks: number(11),
            system_ticks: number(12),
            start_ticks: number(19),
            virtual_bytes: number(20),
            rss_pages: number(21),
        })
    }
}

/// Seconds of Unix time at which the machine was started.
pub fn boot_time() -> i64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    metrics::boot_time(&stat).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_bytes() {
        let text = "MemTotal: 4 kB\nMemFree:  1 kB\nMemAvailable: 3 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n";
        let expected = Meminfo { total: 4096, free: 1024, available: 3072, swap_total: 8192, swap_free: 5120 };
        assert_eq!(Meminfo::parse(text), expected);
        assert_eq!(Meminfo::parse("MemTotal: x kB\nMemTotalish: 5 kB\n"), Meminfo::default());
    }

    #[test]
    fn interfaces_of_a_namespace() {
        let text = "Inter-| x\n face |bytes\n lo: 9 9 9 9 0 0 0 0 9 9 9 9\n veth1: 9\n eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        let eth0 = &found[0];
        assert_eq!(
            (eth0.name.as_str(), eth0.rx_bytes, eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped),
            ("eth0", 1, 2, 3, 4)
        );
        assert_eq!((eth0.tx_bytes, eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped), (5, 6, 7, 8));
    }

    #[test]
    fn a_process_whose_name_is_odd() {
        let text = "7 (a) b\n(c) S 1 2 3 4 5 6 10 0 20 0 30 40 0 0 20 0 1 0 500 6000 70 0";
        let found = ProcessStat::parse(text).unwrap();
        assert_eq!((found.command.as_str(), found.state, found.parent), ("a) b\n(c", 'S', 1));
        assert_eq!((found.minor_faults, found.major_faults, found.user_ticks, found.system_ticks), (10, 20, 30, 40));
        assert_eq!((found.start_ticks, found.virtual_bytes, found.rss_pages), (500, 6000, 70));
        assert_eq!(ProcessStat::parse("7 no brackets"), None);
    }
}
