//! What the kernel says of disks of the network: which are one device, and behind which session each is.
//! Used by `iscsi` and `fibre_channel`.
//! Reads, and writes only what makes the kernel look for a disk or forget one.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use super::Host;

/// The names in a directory, none where there is no such.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn line(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_string()
}

/// The name of the block device that a path leads to.
pub fn block_name(host: &Host, path: &Path) -> Option<String> {
    let device = path.canonicalize().ok()?;
    (device.parent()? == host.dev).then(|| device.file_name().map(|name| name.to_string_lossy().into_owned()))?
}

/// The device that several paths to one disk make together.
pub fn multipath_device(host: &Host, path: &Path) -> Option<PathBuf> {
    let disk = block_name(host, path)?;
    let blocks = host.sys.join("block");
    let maps = names(&blocks).into_iter().filter(|name| name.starts_with("dm-"));
    let mut maps = maps.filter(|name| blocks.join(name).join("slaves").join(&disk).exists());
    maps.next().map(|name| host.dev.join(name))
}

/// The block devices behind a device of several paths.
pub fn slaves(host: &Host, multipath: &Path) -> Vec<String> {
    let name = multipath.file_name().unwrap_or_default();
    names(&host.sys.join("block").join(name).join("slaves"))
}

/// Has the kernel forget a disk that is used no more.
pub fn delete_device(host: &Host, name: &str) -> io::Result<()> {
    match std::fs::write(host.sys.join("block").join(name).join("device/delete"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Of a target that this node has logged in to.
struct Session {
    host_number: u32,
    path: PathBuf,
}

fn sessions(host: &Host, target: &str) -> Vec<Session> {
    let hosts = host.sys.join("class/iscsi_host");
    let mut found = Vec::new();
    for name in names(&hosts) {
        let Some(host_number) = name.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
        let device = hosts.join(&name).join("device");
        for session in names(&device).into_iter().filter(|name| name.starts_with("session")) {
            let path = device.join(&session);
            if line(&path.join("iscsi_session").join(&session).join("targetname")) == target {
                found.push(Session { host_number, path });
            }
        }
    }
    found
}

/// The SCSI hosts of a target's sessions, by portal.
pub fn portal_hosts(host: &Host, target: &str) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for session in sessions(host, target) {
        for name in names(&session.path).into_iter().filter(|name| name.starts_with("connection")) {
            let connection = session.path.join(&name).join("iscsi_connection").join(&name);
            for kind in ["", "persistent_"] {
                let part = |of: &str| line(&connection.join(format!("{kind}{of}")));
                let (address, port) = (part("address"), part("port"));
                let portal =
                    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
                found.insert(portal, session.host_number);
            }
        }
    }
    found
}

/// The block devices of one LUN of a target.
pub fn lun_devices(host: &Host, target: &str, lun: u32) -> Vec<String> {
    let mut found = Vec::new();
    for session in sessions(host, target) {
        for name in names(&session.path).into_iter().filter(|name| name.starts_with("target")) {
            let path = session.path.join(name);
            let is_lun = |name: &String| {
                let parts: Vec<&str> = name.split(':').collect();
                parts.len() == 4 && parts[3].parse() == Ok(lun)
            };
            for address in names(&path).into_iter().filter(is_lun) {
                found.extend(names(&path.join(address).join("block")));
            }
        }
    }
    found
}

/// Has the kernel look for one LUN behind a session, and for no other.
pub fn scan_lun(host: &Host, host_number: u32, lun: u32) -> io::Result<()> {
    let file = host.sys.join(format!("class/scsi_host/host{host_number}/scan"));
    std::fs::write(file, format!("0 0 {lun}"))
}

/// Has the kernel look for disks everywhere.
pub fn scan_all(host: &Host) {
    let hosts = host.sys.join("class/scsi_host");
    for name in names(&hosts) {
        if let Err(error) = std::fs::write(hosts.join(&name).join("scan"), "- - -") {
            tracing::debug!(host = name, %error, "a SCSI host was not scanned");
        }
    }
}
