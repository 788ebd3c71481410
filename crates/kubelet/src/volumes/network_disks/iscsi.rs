//! iSCSI disks, by the host's `iscsiadm`: discovery, login and logout, CHAP, interfaces with an initiator's name of their own,
//! several portals.
//! Part of `network_disks`, which says when.
//! Secrets go to `iscsiadm` alone: they are neither logged nor kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, ISCSIVolumeSource};
use serde::{Deserialize, Serialize};

use super::{Disk, DiskError, Host, sysfs};

const DEFAULT_INTERFACE: &str = "default";
const DEFAULT_PORT: &str = "3260";
const MULTIPATH_WAIT: Duration = Duration::from_secs(10);
const PATH_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// `iscsiadm` ends so where there is already what was to be made.
const SESSION_EXISTS: i32 = 15;
/// … and so where there is nothing of what was to go.
const SESSION_NOT_FOUND: i32 = 2;
const NO_OBJECTS_FOUND: i32 = 21;
const CREDENTIALS: [&str; 4] = ["username", "password", "username_in", "password_in"];

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IscsiDisk {
    pub volume: String,
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: i32,
    /// The one that was configured; sessions go through `interface()`.
    pub base_interface: String,
    pub initiator_name: Option<String>,
    pub chap_discovery: bool,
    pub chap_session: bool,
}

impl IscsiDisk {
    pub fn inline(volume: &str, source: &ISCSIVolumeSource) -> Self {
        Self {
            volume: volume.into(),
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            base_interface: interface(source.iscsi_interface.as_deref()),
            initiator_name: source.initiator_name.clone().filter(|name| !name.is_empty()),
            chap_discovery: source.chap_auth_discovery.unwrap_or(false),
            chap_session: source.chap_auth_session.unwrap_or(false),
        }
    }

    pub fn persistent(volume: &str, source: &ISCSIPersistentVolumeSource) -> Self {
        Self {
            volume: volume.into(),
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            base_interface: interface(source.iscsi_interface.as_deref()),
            initiator_name: source.initiator_name.clone().filter(|name| !name.is_empty()),
            chap_discovery: source.chap_auth_discovery.unwrap_or(false),
            chap_session: source.chap_auth_session.unwrap_or(false),
        }
    }

    fn portal(&self) -> &str {
        self.portals.first().map(String::as_str).unwrap_or_default()
    }

    /// The one that sessions go through: a volume with an initiator's name has its own.
    fn interface(&self) -> String {
        match self.initiator_name {
            Some(_) => format!("{}:{}", self.portal(), self.volume),
            None => self.base_interface.clone(),
        }
    }

    pub fn directory_name(&self) -> PathBuf {
        // What comes from a pod must not lead elsewhere.
        let plain = |text: &str| text.replace(['/', '\0'], "_");
        let disk = format!("{}-{}-lun-{}", self.portal(), self.iqn, self.lun);
        Path::new(&format!("iface-{}", plain(&self.interface()))).join(plain(&disk))
    }

    fn lun(&self) -> Result<u32, DiskError> {
        u32::try_from(self.lun).map_err(|_| DiskError::Other(format!("lun {} is not a number of one", self.lun)))
    }

    /// The device at which the disk is.
    pub fn attach(&self, host: &Host, secret: &BTreeMap<String, String>) -> Result<PathBuf, DiskError> {
        // What `iscsiadm` would take for one of its options is none.
        let named = self.portals.iter().chain([&self.iqn, &self.base_interface]).chain(&self.initiator_name);
        if let Some(strange) = named.into_iter().find(|name| name.starts_with('-') || name.is_empty()) {
            return Err(DiskError::Other(format!("iscsi: {strange:?} is no name of a portal, target or interface")));
        }
        let shown = host.succeed(
            &format!("iscsi: failed to read iface {}", self.base_interface),
            "iscsiadm",
            &["-m", "iface", "-I", &self.base_interface, "-o", "show"],
        )?;
        let transport = setting(&shown, "iface.transport_name");
        let transport = transport.filter(|name| !name.is_empty());
        let transport = transport
            .ok_or_else(|| DiskError::Other(format!("could not parse iface file for {}", self.base_interface)))?;
        if let Some(name) = &self.initiator_name {
            self.clone_interface(host, &shown, name)?;
        }
        let (mut found, mut last): (Vec<PathBuf>, Option<DiskError>) = (Vec::new(), None);
        for portal in &self.portals {
            match self.attach_portal(host, portal, &transport, secret) {
                Ok(device) => found.push(device),
                Err(error) => last = Some(error),
            }
        }
        let Some(first) = found.first() else {
            if self.initiator_name.is_some() {
                host.run("iscsiadm", &["-m", "iface", "-I", &self.interface(), "-o", "delete"])?;
            }
            let last = last.map(|error| error.to_string()).unwrap_or_default();
            let what = format!("failed to get any path for iscsi disk, last err seen:\n{last}");
            return Err(DiskError::Other(what));
        };
        if let Some(error) = last {
            tracing::warn!(volume = self.volume, %error, "an iSCSI disk is reached by some of its portals only");
        }
        let wait = if self.portals.len() > 1 { MULTIPATH_WAIT } else { Duration::ZERO };
        let several = wait_for(wait, || found.iter().find_map(|path| sysfs::multipath_device(host, path)));
        Ok(several.unwrap_or_else(|| first.clone()))
    }

    fn attach_portal(
        &self,
        host: &Host,
        portal: &str,
        transport: &str,
        secret: &BTreeMap<String, String>,
    ) -> Result<PathBuf, DiskError> {
        let known = sysfs::portal_hosts(host, &self.iqn).get(portal).copied();
        let host_number = match known {
            Some(number) => number,
            None => {
                self.log_in(host, portal, secret)?;
                let hosts = sysfs::portal_hosts(host, &self.iqn);
                *hosts.get(portal).ok_or_else(|| {
                    DiskError::Other(format!("iscsi: no SCSI host for portal {portal} after logging in"))
                })?
            }
        };
        sysfs::scan_lun(host, host_number, self.lun()?)?;
        let address = portal.replace(['[', ']'], "");
        let name = format!("ip-{address}-iscsi-{}-lun-{}", self.iqn, self.lun);
        let directory = host.dev.join("disk/by-path");
        let find = || match transport {
            "tcp" => Some(directory.join(&name)).filter(|path| path.exists()),
            _ => {
                let is_it = |found: &String| found.starts_with("pci-") && found.ends_with(&format!("-{name}"));
                sysfs::names(&directory).into_iter().find(is_it).map(|found| directory.join(found))
            }
        };
        wait_for(Duration::from_secs(host.device_wait_seconds), find).ok_or_else(|| {
            let (path, seconds) = (directory.join(&name), host.device_wait_seconds);
            DiskError::Other(format!("Timed out waiting for device at path {} after {seconds}s", path.display()))
        })
    }

    fn log_in(&self, host: &Host, portal: &str, secret: &BTreeMap<String, String>) -> Result<(), DiskError> {
        let interface = self.interface();
        let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &interface];
        let node = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &interface];
        let iscsiadm =
            |what: &str, base: &[&str], more: &[&str]| host.succeed(what, "iscsiadm", &[base, more].concat()).map(drop);
        // There may be one already; discovery tells.
        host.run("iscsiadm", &[&discovery[..], &["-o", "new"]].concat())?;
        if self.chap_discovery {
            let what = format!("iscsi: failed to update discoverydb to portal {portal}");
            update_credentials(host, &what, &discovery, "discovery.sendtargets.auth", secret)?;
        }
        let what = format!("iscsi: failed to sendtargets to portal {portal}");
        if let Err(error) = iscsiadm(&what, &discovery, &["--discover"]) {
            host.run("iscsiadm", &[&discovery[..], &["-o", "delete"]].concat())?;
            return Err(error);
        }
        // So that the kernel does not look for disks that are not ours. Old versions don't know it.
        let manual = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        if let Err(error) = iscsiadm("node.session.scan", &node, &manual) {
            tracing::warn!(portal, %error, "all disks of an iSCSI target are looked for");
        }
        if self.chap_session {
            let what = format!("iscsi: failed to update iscsi node to portal {portal}");
            update_credentials(host, &what, &node, "node.session.auth", secret)?;
        }
        if let Err(error) = iscsiadm("iscsi: failed to attach disk", &node, &["--login"]) {
            host.run("iscsiadm", &[&node[..], &["-o", "delete"]].concat())?;
            return Err(error);
        }
        // A node that starts must not wait for a target that is gone.
        let manual = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        if let Err(error) = iscsiadm("node.startup", &node, &manual) {
            tracing::warn!(portal, %error, "an iSCSI target may be logged in to when the machine starts");
        }
        Ok(())
    }

    /// The interface that was configured, with another initiator's name.
    fn clone_interface(&self, host: &Host, shown: &str, initiator: &str) -> Result<(), DiskError> {
        let interface = self.interface();
        let base = ["-m", "iface", "-I", &interface];
        let made = host.run("iscsiadm", &[&base[..], &["-o", "new"]].concat())?;
        if !made.status.success() && made.status.code() != Some(SESSION_EXISTS) {
            return Err(DiskError::failed("iscsi: failed to create new iface", &made));
        }
        let mut settings: BTreeMap<&str, &str> = shown.lines().filter_map(setting_of).collect();
        settings.insert("iface.initiatorname", initiator);
        for (key, value) in settings {
            let update = ["-o", "update", "-n", key, "-v", value];
            let done =
                host.succeed("iscsi: failed to update iface records", "iscsiadm", &[&base[..], &update].concat());
            if let Err(error) = done {
                host.run("iscsiadm", &[&base[..], &["-o", "delete"]].concat())?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has the kernel forget the disk, and logs out where no other disk of the target is used.
    pub fn detach(&self, host: &Host, others: &[Disk]) -> Result<(), DiskError> {
        let devices = sysfs::lun_devices(host, &self.iqn, self.lun()?);
        let maps = devices.iter().filter_map(|name| sysfs::multipath_device(host, &host.dev.join(name)));
        for map in maps.collect::<BTreeSet<_>>() {
            let output = host.run("multipath", &["-f", &map.to_string_lossy()])?;
            if !output.status.success() {
                tracing::warn!(map = %map.display(), "a device of several paths was not flushed");
            }
        }
        for name in devices {
            sysfs::delete_device(host, &name)?;
        }
        let shares = |disk: &Disk| matches!(disk, Disk::Iscsi(other) if other.iqn == self.iqn);
        if others.iter().any(shares) {
            return Ok(());
        }
        let interface = self.interface();
        for portal in self.portals.iter().collect::<BTreeSet<_>>() {
            let node = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &interface];
            for (what, last) in [
                ("iscsi: failed to detach disk", &["--logout"][..]),
                ("iscsi: failed to delete node record", &["-o", "delete"][..]),
            ] {
                gone(what, host.run("iscsiadm", &[&node[..], last].concat())?)?;
            }
        }
        match self.initiator_name {
            None => Ok(()),
            Some(_) => {
                let output = host.run("iscsiadm", &["-m", "iface", "-I", &interface, "-o", "delete"])?;
                gone("iscsi: failed to delete iface", output)
            }
        }
    }
}

fn update_credentials(
    host: &Host,
    what: &str,
    base: &[&str],
    prefix: &str,
    secret: &BTreeMap<String, String>,
) -> Result<(), DiskError> {
    let update = |key: &str, value: &str| {
        let output = host.run("iscsiadm", &[base, &["-o", "update", "-n", key, "-v", value]].concat())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(DiskError::failed(&format!("{what} with CHAP, key {key:?}"), &output)),
        }
    };
    update(&format!("{prefix}.authmethod"), "CHAP")?;
    for key in CREDENTIALS.map(|name| format!("{prefix}.{name}")) {
        if let Some(value) = secret.get(&key).filter(|value| !value.is_empty()) {
            update(&key, value)?;
        }
    }
    Ok(())
}

/// What was not there is gone as well.
fn gone(what: &str, output: Output) -> Result<(), DiskError> {
    match output.status.code() {
        Some(0 | SESSION_NOT_FOUND | NO_OBJECTS_FOUND) => Ok(()),
        _ => Err(DiskError::failed(what, &output)),
    }
}

fn portals(first: &str, others: Option<&[String]>) -> Vec<String> {
    let with_port = |portal: &String| match portal.contains(':') {
        true => portal.clone(),
        false => format!("{portal}:{DEFAULT_PORT}"),
    };
    let mut seen = BTreeSet::new();
    let all = std::iter::once(first.to_string()).chain(others.unwrap_or_default().iter().cloned());
    all.map(|portal| with_port(&portal)).filter(|portal| seen.insert(portal.clone())).collect()
}

fn interface(named: Option<&str>) -> String {
    named.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_INTERFACE).into()
}

fn setting_of(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(" = ")?;
    // Settings without a value are shown so.
    (!line.starts_with('#') && value != "<empty>").then_some((key.trim(), value.trim()))
}

fn setting(shown: &str, key: &str) -> Option<String> {
    shown.lines().filter_map(setting_of).find(|(found, _)| *found == key).map(|(_, value)| value.to_string())
}

/// Looks until it is there. The kernel and udev tell nobody when a link appears; this thread may hang.
fn wait_for<T>(wait: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
    let mut waited = Duration::ZERO;
    loop {
        match look() {
            None if waited < wait => std::thread::sleep(PATH_LOOK_INTERVAL),
            found => return found,
        }
        waited += PATH_LOOK_INTERVAL;
    }
}
