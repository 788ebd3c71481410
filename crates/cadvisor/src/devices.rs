//! Block devices and the file systems on them: names, sizes, and what they have done.
//! Used by `cgroup` (names of devices), `machine` and `monitor` (file systems of the node).
//! Only local file systems are measured: one of another machine may never answer.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use crate::info::{DiskInfo, FsStats};

const DISK_TYPES: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"];
/// Of those in memory, the machine's own; pods have one for each of their secrets.
const MEMORY_MOUNTS: [&str; 4] = ["/dev/shm", "/run", "/run/lock", "/tmp"];
const SECTOR_BYTES: u64 = 512;

/// Names by device number.
#[derive(Debug, Default)]
pub struct Devices(HashMap<(u64, u64), String>);

impl Devices {
    pub fn read() -> Self {
        let entries = fs::read_dir("/sys/dev/block").into_iter().flatten().flatten();
        let named = |entry: fs::DirEntry| {
            let number = device_number(entry.file_name().to_str()?)?;
            let target = fs::read_link(entry.path()).ok()?;
            Some((number, format!("/dev/{}", target.file_name()?.to_str()?)))
        };
        Self(entries.filter_map(named).collect())
    }

    /// Empty for one that the machine does not know (any more).
    pub fn name(&self, major: u64, minor: u64) -> String {
        self.0.get(&(major, minor)).cloned().unwrap_or_default()
    }
}

/// The device that a path is on; empty where it is none of this machine's.
pub fn device_of(path: &Path) -> String {
    let Ok(about) = nix::sys::stat::stat(path) else { return String::new() };
    let (major, minor) = (nix::sys::stat::major(about.st_dev), nix::sys::stat::minor(about.st_dev));
    Devices::read().name(major, minor)
}

/// `MAJOR:MINOR`.
pub fn device_number(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A line of `mountinfo`.
#[derive(Debug, PartialEq)]
struct Mount {
    number: (u64, u64),
    place: String,
    kind: String,
    device: String,
}

fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
        let (Some(number), Some(place)) = (left.get(2).and_then(|n| device_number(n)), left.get(4)) else { continue };
        let (Some(kind), Some(source)) = (right.first(), right.get(1)) else { continue };
        let place = unescaped(place);
        let device = match *kind {
            kind if DISK_TYPES.contains(&kind) => unescaped(source),
            "tmpfs" if MEMORY_MOUNTS.contains(&place.as_str()) => place.clone(),
            "overlay" if place == "/" => "overlay".into(),
            _ => continue,
        };
        // One that is mounted in several places is one.
        if !found.iter().any(|mount| mount.device == device) {
            found.push(Mount { number, place, kind: kind.to_string(), device });
        }
    }
    found
}

/// As the kernel writes blanks and the like in paths.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The fields of `diskstats` after a device's name.
fn disk_statistics(diskstats: &str) -> HashMap<(u64, u64), Vec<u64>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
        Some((number, words.get(3..)?.iter().map(|word| word.parse().unwrap_or(0)).collect()))
    };
    diskstats.lines().filter_map(line).collect()
}

/// The node's own file systems.
pub fn filesystems() -> Vec<FsStats> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let statistics = disk_statistics(&read("/proc/diskstats"));
    let mounts = mounts(&read("/proc/self/mountinfo")).into_iter();
    mounts.filter_map(|mount| measure(mount, &statistics)).collect()
}

fn measure(mount: Mount, statistics: &HashMap<(u64, u64), Vec<u64>>) -> Option<FsStats> {
    let system = nix::sys::statvfs::statvfs(Path::new(&mount.place)).ok()?;
    let block = system.fragment_size();
    let fields = statistics.get(&mount.number);
    let field = |index: usize| fields.and_then(|fields| fields.get(index)).copied().unwrap_or(0);
    Some(FsStats {
        device: mount.device,
        kind: if mount.kind == "tmpfs" || mount.kind == "overlay" { mount.kind } else { "vfs".into() },
        capacity: system.blocks() * block,
        usage: system.blocks().saturating_sub(system.blocks_free()) * block,
        available: system.blocks_available() * block,
        has_inodes: system.files() > 0,
        inodes: system.files(),
        inodes_free: system.files_free(),
        reads_completed: field(0),
        reads_merged: field(1),
        sectors_read: field(2),
        read_time: field(3),
        writes_completed: field(4),
        writes_merged: field(5),
        sectors_written: field(6),
        write_time: field(7),
        io_in_progress: field(8),
        io_time: field(9),
        weighted_io_time: field(10),
    })
}

/// Whole disks by device number; what is only in memory or a loop is none.
pub fn disks() -> BTreeMap<String, DiskInfo> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let disk = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        if ["loop", "ram", "sr"].iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default().trim().to_string();
        let number = read("dev");
        let (major, minor) = device_number(&number)?;
        let size = read("size").parse::<u64>().unwrap_or(0) * SECTOR_BYTES;
        let scheduler = read("queue/scheduler");
        let chosen = scheduler.split('[').nth(1).and_then(|rest| rest.split(']').next());
        let scheduler = chosen.unwrap_or("none").to_string();
        Some((number, DiskInfo { name, major, minor, size, scheduler }))
    };
    entries.filter_map(disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_once_and_only_local_ones() {
        let text = "\
            22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 1 8:1 /x /mnt/again rw - ext4 /dev/sda1 rw\n\
            24 1 0:5 / /dev/shm rw shared:3 - tmpfs tmpfs rw\n\
            25 1 0:6 / /var/lib/kubelet/pods/u/secret rw - tmpfs tmpfs rw\n\
            26 1 0:7 / /nfs rw - nfs server:/x rw\n\
            27 1 8:2 / /a\\040b rw - xfs /dev/sda2 rw\n\
            odd\n";
        let found: Vec<(String, String)> = mounts(text).into_iter().map(|mount| (mount.device, mount.place)).collect();
        let expected = [("/dev/sda1", "/"), ("/dev/shm", "/dev/shm"), ("/dev/sda2", "/a b")];
        assert_eq!(found, expected.map(|(device, place)| (device.to_string(), place.to_string())));
    }

    #[test]
    fn what_devices_have_done() {
        let found = disk_statistics("   8       1 sda1 10 1 20 2 30 3 40 4 5 6 7\nodd\n");
        assert_eq!(found[&(8, 1)], [10, 1, 20, 2, 30, 3, 40, 4, 5, 6, 7]);
        assert_eq!(found.len(), 1);
        // This machine has some.
        assert!(filesystems().iter().any(|system| system.capacity > 0));
    }
}
