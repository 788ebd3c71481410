//! Fibre Channel disks: found by the names that the fabric gave them, looked for where they are not known yet.
//! Part of `network_disks`, which says when.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::FCVolumeSource;
use serde::{Deserialize, Serialize};

use super::{DiskError, Host, sysfs};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FibreChannelDisk {
    pub target_names: Vec<String>,
    pub lun: i32,
    /// In place of both.
    pub disk_ids: Vec<String>,
}

impl FibreChannelDisk {
    pub fn new(source: &FCVolumeSource) -> Self {
        // The names of disks have no blanks in /dev.
        let ids = source.wwids.iter().flatten().map(|id| id.replace(' ', "_"));
        Self {
            target_names: source.target_wwns.clone().unwrap_or_default(),
            lun: source.lun.unwrap_or_default(),
            disk_ids: ids.collect(),
        }
    }

    pub fn directory_name(&self) -> PathBuf {
        let name = match self.target_names.is_empty() {
            true => self.disk_ids.join("-"),
            false => format!("{}-lun-{}", self.target_names.join("-"), self.lun),
        };
        // What comes from a pod must not lead elsewhere.
        PathBuf::from(format!("disk-{}", name.replace(['/', '\0'], "_")))
    }

    /// The device at which the disk is: that of all its paths where there are several.
    pub fn attach(&self, host: &Host) -> Result<PathBuf, DiskError> {
        if let Some(several) = self.find(host).into_iter().find_map(|path| sysfs::multipath_device(host, &path)) {
            return Ok(several);
        }
        sysfs::scan_all(host);
        let found = self.find(host);
        let several = found.iter().find_map(|path| sysfs::multipath_device(host, path));
        several.or(found.into_iter().next()).ok_or_else(|| DiskError::Other("no fc disk found".into()))
    }

    /// The devices that have the disk's names.
    fn find(&self, host: &Host) -> Vec<PathBuf> {
        let links = |directory: &str, is_it: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
            let directory = host.dev.join(directory);
            let found = sysfs::names(&directory).into_iter().filter(|name| is_it(name));
            found.filter_map(|name| directory.join(name).canonicalize().ok()).collect()
        };
        if self.target_names.is_empty() {
            return links("disk/by-id", &|name| self.disk_ids.iter().any(|id| name == format!("scsi-{id}")));
        }
        let is_path = |name: &str, target: &String| {
            let end = format!("fc-0x{target}-lun-{}", self.lun);
            name == end || (name.starts_with("pci-") && name.ends_with(&format!("-{end}")))
        };
        links("disk/by-path", &|name| self.target_names.iter().any(|target| is_path(name, target)))
    }

    /// Has the kernel write what it holds, and forget the disk.
    pub fn detach(&self, host: &Host) -> Result<(), DiskError> {
        let mut devices: Vec<String> = Vec::new();
        for path in self.find(host) {
            match sysfs::multipath_device(host, &path) {
                Some(several) => {
                    devices.extend(sysfs::slaves(host, &several));
                    let what = format!("failed to flush multipath device {}", several.display());
                    host.succeed(&what, "multipath", &["-f", &several.to_string_lossy()])?;
                }
                None => devices.extend(sysfs::block_name(host, &path)),
            }
        }
        devices.sort();
        devices.dedup();
        for name in devices {
            let device = Path::new(&host.dev).join(&name);
            let flushed = host.run("blockdev", &["--flushbufs", &device.to_string_lossy()])?;
            if !flushed.status.success() {
                tracing::warn!(device = %device.display(), "a Fibre Channel disk was not flushed");
            }
            sysfs::delete_device(host, &name)?;
        }
        Ok(())
    }
}
