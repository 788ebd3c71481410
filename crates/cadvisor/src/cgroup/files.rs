//! The forms that control group files have, in both versions of the kernel's interface.
//! Used by `cgroup`.
//! Invariant: pure (tidy: `pure_files`); what is malformed counts as absent, because the kernel adds lines over time.

use std::collections::BTreeMap;

use crate::{
    devices::device_number,
    info::{PerDiskStats, PsiData, PsiStats},
};

/// Lines of a name and a number.
pub struct KeyValues<'a>(pub &'a str);

impl KeyValues<'_> {
    pub fn find(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok())
    }

    pub fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or(0)
    }
}

/// A file of one number; `max` stands for no limit.
pub fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

/// `some` and `full` lines of a pressure file.
pub fn pressure(text: &str) -> Option<PsiStats> {
    let line = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let field = |name: &str| rest.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let share = |name: &str| field(name).and_then(|number| number.parse().ok()).unwrap_or(0.0);
        let total = field("total")?.trim().parse().ok()?;
        Some(PsiData { total, avg10: share("avg10"), avg60: share("avg60"), avg300: share("avg300") })
    };
    Some(PsiStats { some: line("some ")?, full: line("full ").unwrap_or_default() })
}

type Devices = BTreeMap<(u64, u64), BTreeMap<String, u64>>;

fn disks(devices: Devices, name: impl Fn(u64, u64) -> String) -> Vec<PerDiskStats> {
    let disk = |((major, minor), stats)| PerDiskStats { device: name(major, minor), major, minor, stats };
    devices.into_iter().map(disk).collect()
}

/// Bytes and operations of an `io.stat` (v2), in which each device has one line.
pub fn io_stat(text: &str, name: impl Fn(u64, u64) -> String) -> (Vec<PerDiskStats>, Vec<PerDiskStats>) {
    let (mut bytes, mut operations) = (Devices::new(), Devices::new());
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some(device) = words.next().and_then(device_number) else { continue };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let Ok(value) = value.parse() else { continue };
            let (counts, operation) = match key {
                "rbytes" => (&mut bytes, "Read"),
                "wbytes" => (&mut bytes, "Write"),
                "rios" => (&mut operations, "Read"),
                "wios" => (&mut operations, "Write"),
                _ => continue,
            };
            counts.entry(device).or_default().insert(operation.into(), value);
        }
    }
    (disks(bytes, &name), disks(operations, &name))
}

/// A `blkio` file (v1), in which each operation of a device has one line.
pub fn blkio(text: &str, name: impl Fn(u64, u64) -> String) -> Vec<PerDiskStats> {
    let mut devices = Devices::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, operation, value] = words[..] else { continue };
        if let (Some(at), Ok(value)) = (device_number(at), value.parse()) {
            devices.entry(at).or_default().insert(operation.into(), value);
        }
    }
    disks(devices, name)
}

/// What v1 would call a group of this weight.
pub fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.clamp(1, 10_000).saturating_sub(1) * 262_142 / 9999
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lines() {
        for (text, expected) in [("12\n", Some(12)), ("max\n", Some(u64::MAX)), ("-1\n", None), ("", None)] {
            assert_eq!(number(text), expected, "{text:?}");
        }
        let stat = KeyValues("nr_periods 10\nodd\nthrottled_usec x\n");
        assert_eq!((stat.get("nr_periods"), stat.find("throttled_usec"), stat.find("nr")), (10, None, None));
        assert_eq!([1, 100, 10_000].map(shares_of_weight), [2, 2597, 262_144]);
    }

    #[test]
    fn pressure_of_both_kinds() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=42\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=7\n";
        let found = pressure(text).unwrap();
        assert_eq!((found.some.avg10, found.some.avg60, found.some.total, found.full.total), (1.5, 0.25, 42, 7));
        // Older kernels have no `full` for processors.
        assert_eq!(pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n").unwrap().full, PsiData::default());
        assert_eq!(pressure(""), None);
        assert_eq!(pressure("some total=x"), None);
    }

    #[test]
    fn devices_of_both_versions() {
        let name = |major: u64, minor: u64| format!("/dev/{major}-{minor}");
        let (bytes, operations) = io_stat("8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5\nodd\n7:1 \n", name);
        assert_eq!((bytes.len(), operations.len()), (1, 1));
        assert_eq!(
            (bytes[0].device.as_str(), bytes[0].stats["Write"], operations[0].stats["Read"]),
            ("/dev/8-0", 2, 3)
        );
        let found = blkio("8:0 Read 10\n8:0 Write 20\n8:16 Read 5\n8:0 odd x\nTotal 35\n", name);
        assert_eq!((found.len(), found[0].stats["Write"], found[1].minor), (2, 20, 16));
    }
}
