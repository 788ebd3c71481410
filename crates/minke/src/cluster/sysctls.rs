//! The kernel's network switches that a node turns on: what they were before, and putting them back.
//! Recorded before a node starts, in the run directory, which a reboot empties as it resets the switches; restored by
//! `down`.
//! Only a switch that is still as we set it is put back, and only by the last of our clusters.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    certificates::pki::write_private,
    cluster::{clusters, instance::Instance},
};

/// Set by the network plugin, the switch between nodes, and the service proxy.
const SWITCHES: [&str; 3] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/all/route_localnet"];
const ON: &str = "1";
/// What the service proxy sets of connection tracking unless it is told otherwise.
const TIMEOUTS: [(&str, &str); 2] = [
    ("netfilter/nf_conntrack_tcp_timeout_established", "86400"),
    ("netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
];

/// Each with the value that we give it.
fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    SWITCHES.into_iter().map(|switch| (switch, ON)).chain(TIMEOUTS)
}

type Before = BTreeMap<String, String>;

#[derive(Serialize, Deserialize)]
struct Record {
    /// Of the cluster; where it is gone, nobody needs the switches.
    data: PathBuf,
    before: Before,
}

/// A node with a network namespace of its own needs no record: its switches go with the namespace.
pub fn record(instance: &Instance) -> Result<()> {
    record_from(Path::new("/proc/sys/net"), &file(&instance.run()), &instance.data)
}

/// Puts back what this cluster changed. While others of ours run, the last of them does it.
pub fn restore(instance: &Instance) -> Result<()> {
    let others: Vec<PathBuf> = clusters::run_directories(instance).iter().map(|run| file(run)).collect();
    restore_to(Path::new("/proc/sys/net"), &file(&instance.run()), &others)
}

fn file(run: &Path) -> PathBuf {
    run.join("sysctls.json")
}

fn read(file: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn write(file: &Path, record: &Record) -> Result<()> {
    write_private(file, &serde_json::to_string(record)?)
}

fn record_from(root: &Path, file: &Path, data: &Path) -> Result<()> {
    if file.exists() {
        return Ok(());
    }
    let now = |switch: &str| fs::read_to_string(root.join(switch)).ok().map(|value| value.trim().to_string());
    let before: Before = settings().filter_map(|(name, _)| Some((name.to_string(), now(name)?))).collect();
    write(file, &Record { data: data.to_path_buf(), before })
}

fn restore_to(root: &Path, own: &Path, others: &[PathBuf]) -> Result<()> {
    let Some(Record { before, .. }) = read(own) else { return Ok(()) };
    let others = others.iter().filter_map(|other| Some((other, read(other)?)));
    if let Some((heir, mut record)) = others.into_iter().find(|(_, record)| record.data.exists()) {
        // It recorded what we had set; what was there before us is what it must leave.
        record.before.extend(before);
        return write(heir, &record);
    }
    for (name, ours) in settings() {
        let Some(value) = before.get(name).filter(|value| *value != ours) else { continue };
        let path = root.join(name);
        if fs::read_to_string(&path).is_ok_and(|now| now.trim() == ours) {
            fs::write(&path, value).with_context(|| format!("failed to set {} to {value} again", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(root: &Path, switch: &str, value: &str) {
        fs::create_dir_all(root.join(switch).parent().unwrap()).unwrap();
        fs::write(root.join(switch), format!("{value}\n")).unwrap();
    }

    #[test]
    fn down_leaves_switches_as_they_were() {
        let directory = tempfile::tempdir().unwrap();
        let (root, one, two) =
            (directory.path().join("net"), directory.path().join("one"), directory.path().join("two"));
        let get = |switch: &str| fs::read_to_string(root.join(switch)).unwrap().trim().to_string();
        let off = || SWITCHES.iter().for_each(|switch| set(&root, switch, "0"));
        let on = || SWITCHES.iter().for_each(|switch| set(&root, switch, "1"));
        off();
        record_from(&root, &one, directory.path()).unwrap();
        on();
        // A second start, after a crash, sees what the first has set.
        record_from(&root, &one, directory.path()).unwrap();
        restore_to(&root, &one, &[]).unwrap();
        assert_eq!(SWITCHES.map(get), ["0", "0", "0"]);

        // Somebody else's doing stays.
        on();
        set(&root, SWITCHES[0], "2");
        restore_to(&root, &one, &[]).unwrap();
        assert_eq!(SWITCHES.map(get), ["2", "0", "0"]);

        // Two clusters: the last one leaves what was there before the first.
        off();
        fs::remove_file(&one).unwrap();
        record_from(&root, &one, directory.path()).unwrap();
        on();
        record_from(&root, &two, directory.path()).unwrap();
        restore_to(&root, &one, std::slice::from_ref(&two)).unwrap();
        assert_eq!(SWITCHES.map(get), ["1", "1", "1"], "the other still needs them");
        // One whose data directory is gone needs nothing.
        let gone = directory.path().join("gone");
        record_from(&root, &gone, &directory.path().join("removed")).unwrap();
        restore_to(&root, &one, std::slice::from_ref(&gone)).unwrap();
        assert_eq!(SWITCHES.map(get), ["0", "0", "0"]);
        on();
        restore_to(&root, &two, &[]).unwrap();
        assert_eq!(SWITCHES.map(get), ["0", "0", "0"]);

        // What was on before stays on.
        on();
        fs::remove_file(&one).unwrap();
        record_from(&root, &one, directory.path()).unwrap();
        restore_to(&root, &one, &[]).unwrap();
        assert_eq!(SWITCHES.map(get), ["1", "1", "1"]);
    }
}
