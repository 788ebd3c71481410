//! Disks of the network: brought to this node by the host's tools when the first pod wants one, and let go after the last.
//! `iscsi` and `fibre_channel` say how; `sysfs` finds devices; `plugins` has their volume types.
//! A record beside the mount names the pods that have a disk, so that a restart changes nothing. A disk that a pod still has
//! never goes; what is on it is touched only through `devices`.

pub mod fibre_channel;
pub mod iscsi;
mod sysfs;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use fibre_channel::FibreChannelDisk;
use iscsi::IscsiDisk;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    devices::{self, FileSystem},
    error::VolumeError,
    file_system,
};
use crate::files::{directories, safe_open};

const RECORD_BYTES_MAX: u64 = 1 << 20;
const RECORD_EXTENSION: &str = "json";
/// Below the kubelet's directory, each with the type's name.
const PLUGINS: &str = "plugins/kubernetes.io";
pub const TYPES: [&str; 2] = ["iscsi", "fc"];

/// The machine as far as disks are concerned. Tests have one of their own.
#[derive(Debug, Clone)]
pub struct Host {
    sys: PathBuf,
    dev: PathBuf,
    programs: String,
    /// How long a device may take to appear after a login.
    device_wait_seconds: u64,
}

impl Default for Host {
    fn default() -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        // Services are often started without what is for administrators.
        let programs = format!("{path}:/usr/sbin:/sbin");
        Self { sys: "/sys".into(), dev: "/dev".into(), programs, device_wait_seconds: 30 }
    }
}

impl Host {
    /// What a program says, however it ends. Arguments may be secret, so none is logged.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<Output, DiskError> {
        let output = Command::new(program).args(arguments).env("PATH", &self.programs).output();
        output.map_err(|source| DiskError::Run { program: program.into(), source })
    }

    /// What it says when all is well; `what` names the attempt.
    fn succeed(&self, what: &str, program: &str, arguments: &[&str]) -> Result<String, DiskError> {
        let output = self.run(program, arguments)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(DiskError::failed(what, &output)),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("failed to run {program}: {source}; install it on the node")]
    Run { program: String, source: io::Error },
    #[error("{what}: {output}")]
    Failed { what: String, output: String },
    #[error("{0}")]
    Other(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DiskError {
    fn failed(what: &str, output: &Output) -> Self {
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let text = String::from_utf8_lossy(&text).trim().to_string();
        Self::Failed { what: what.into(), output: format!("{text} ({})", output.status) }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Disk {
    Iscsi(IscsiDisk),
    FibreChannel(FibreChannelDisk),
}

impl Disk {
    /// The directory at which it is mounted for all pods, below the kubelet's.
    fn place(&self) -> PathBuf {
        match self {
            Self::Iscsi(disk) => Path::new(PLUGINS).join(TYPES[0]).join(disk.directory_name()),
            Self::FibreChannel(disk) => Path::new(PLUGINS).join(TYPES[1]).join(disk.directory_name()),
        }
    }

    fn attach(&self, host: &Host, secret: &BTreeMap<String, String>) -> Result<PathBuf, DiskError> {
        match self {
            Self::Iscsi(disk) => disk.attach(host, secret),
            Self::FibreChannel(disk) => disk.attach(host),
        }
    }

    /// `others` are the disks that pods still have.
    fn detach(&self, host: &Host, others: &[Disk]) -> Result<(), DiskError> {
        match self {
            Self::Iscsi(disk) => disk.detach(host, others),
            Self::FibreChannel(disk) => disk.detach(host),
        }
    }
}

/// What is remembered of a disk.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    disk: Disk,
    /// UIDs of pods, and the volumes' names.
    users: BTreeSet<(String, String)>,
    /// With which it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selinux_label: Option<String>,
}

/// What a pod wants of a disk.
pub struct DiskRequest {
    pub disk: Disk,
    pub pod_uid: String,
    pub volume_name: String,
    pub file_system: FileSystem,
    pub is_block: bool,
    pub read_only: bool,
    pub selinux_label: Option<String>,
    pub secret: BTreeMap<String, String>,
    /// In the pod's directory.
    pub target: PathBuf,
}

#[derive(Debug, Clone, Default)]
pub struct NetworkDisks {
    root_dir: PathBuf,
    host: Host,
    /// Who works on disks; logging in and out of one target must not cross.
    turn: Arc<Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>>,
}

impl NetworkDisks {
    pub fn new(root_dir: &Path) -> Self {
        Self { root_dir: root_dir.into(), host: Host::default(), turn: Arc::default() }
    }

    fn turn(&self, directory: &Path) -> Arc<Mutex<()>> {
        // Disks of one target share its sessions, so those of one type go one after the other.
        let family = TYPES.iter().map(|name| self.root_dir.join(PLUGINS).join(name));
        let family = family.into_iter().find(|family| directory.starts_with(family)).unwrap_or_default();
        self.turn.lock().entry(family).or_default().clone()
    }

    /// Brings the disk here and mounts it for the pod; the device itself for a pod that wants it so. Does again, without
    /// harm, what was done already. On a thread that may hang.
    pub fn mount(&self, request: &DiskRequest) -> Result<PathBuf, VolumeError> {
        let directory = self.root_dir.join(request.disk.place());
        let turn = self.turn(&directory);
        let _turn = turn.lock();
        let mut record = read_record(&directory)?.unwrap_or_else(|| Record {
            disk: request.disk.clone(),
            users: BTreeSet::new(),
            selinux_label: request.selinux_label.clone(),
        });
        let own = (request.pod_uid.clone(), request.volume_name.clone());
        if record.selinux_label != request.selinux_label {
            if record.users.iter().any(|user| *user != own) {
                let name = request.disk.place().to_string_lossy().into_owned();
                return Err(VolumeError::SelinuxMismatch(name));
            }
            record.selinux_label.clone_from(&request.selinux_label);
        }
        record.users.insert(own);
        // Before anything is done, so that it is undone whatever happens.
        write_record(&directory, &record)?;
        let device = request.disk.attach(&self.host, &request.secret).map_err(VolumeError::NetworkDisk)?;
        if request.is_block {
            return Ok(device);
        }
        let mut options = request.file_system.options.clone();
        options.extend(request.selinux_label.as_deref().map(super::selinux::mount_option));
        let wanted = FileSystem { kind: request.file_system.kind.clone(), options };
        devices::mount(&device, &directory, &wanted, request.read_only)?;
        bind(&directory, &request.target, request.read_only)?;
        Ok(request.target.clone())
    }

    /// Lets go of every disk that only this pod had. Its directory is gone by now.
    pub fn release(&self, pod_uid: &str) -> Result<(), VolumeError> {
        // One that can't be let go keeps no other.
        let mut failed = None;
        for directory in self.directories()? {
            let turn = self.turn(&directory);
            let _turn = turn.lock();
            failed = failed.or(self.release_one(&directory, pod_uid).err());
        }
        failed.map_or(Ok(()), Err)
    }

    fn release_one(&self, directory: &Path, pod_uid: &str) -> Result<(), VolumeError> {
        let Some(mut record) = read_record(directory)? else { return Ok(()) };
        if record.users.iter().all(|(user, _)| user != pod_uid) {
            return Ok(());
        }
        let users: BTreeSet<_> = record.users.iter().filter(|(user, _)| user != pod_uid).cloned().collect();
        if !users.is_empty() {
            record.users = users;
            return Ok(write_record(directory, &record)?);
        }
        if file_system::mounts_below(directory)?.iter().any(|place| place == directory) {
            umount2(directory, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
        }
        let others: Vec<Disk> = self.directories()?.iter().filter(|other| *other != directory).try_fold(
            Vec::new(),
            |mut others, other| -> io::Result<Vec<Disk>> {
                others.extend(read_record(other)?.map(|record| record.disk));
                Ok(others)
            },
        )?;
        record.disk.detach(&self.host, &others).map_err(VolumeError::NetworkDisk)?;
        match std::fs::remove_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        Ok(std::fs::remove_file(record_file(directory))?)
    }

    /// Where disks with a record are mounted.
    fn directories(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut waiting: Vec<PathBuf> = TYPES.map(|name| self.root_dir.join(PLUGINS).join(name)).into();
        while let Some(directory) = waiting.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                match name.strip_suffix(&format!(".{RECORD_EXTENSION}")) {
                    Some(of) => found.push(directory.join(of)),
                    // Disks of one interface are together; what is on a disk is nobody's record.
                    None if name.starts_with("iface-") && path.is_dir() => waiting.push(path),
                    None => {}
                }
            }
        }
        Ok(found)
    }
}

fn record_file(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{RECORD_EXTENSION}"));
    directory.with_file_name(name)
}

fn read_record(directory: &Path) -> io::Result<Option<Record>> {
    match safe_open::read_head(&record_file(directory), RECORD_BYTES_MAX) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all.
fn write_record(directory: &Path, record: &Record) -> io::Result<()> {
    let file = record_file(directory);
    directories::create(file.parent().unwrap_or(directory))?;
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(record)?)?;
    std::fs::rename(new, file)
}

fn bind(from: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    if file_system::mounts_below(target)?.iter().any(|place| place == target) {
        return Ok(());
    }
    directories::create(target)?;
    let none: Option<&str> = None;
    mount(Some(from), target, none, MsFlags::MS_BIND, none)?;
    if read_only {
        mount(none, target, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none)?;
    }
    Ok(())
}
