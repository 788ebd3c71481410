//! Who may read what a cluster keeps on this machine: root, and nobody else.
//! Called by `main` and before anything is written; directories of older installations are closed on the way.
//! A directory that may be somebody else's is refused, never closed.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use anyhow::{Context, Result, bail};
use nix::sys::stat::Mode;

use crate::cluster::instance::Instance;

const DATA_DIRECTORY_MODE: u32 = 0o700;
/// Not to be listed, but passed through: the root of a container in a user namespace of its own is below it.
const RUN_DIRECTORY_MODE: u32 = 0o711;
pub const PRIVATE_FILE_MODE: u32 = 0o600;
const GROUP_AND_OTHERS_MODE: u32 = 0o077;

/// Files of a process without a kubelet are root's alone.
const PRIVATE_UMASK: Mode = Mode::from_bits_truncate(0o077);
/// A kubelet makes files that containers of other users read (`/etc/hosts`, volumes): as upstream's under systemd. It is
/// set all the same, or whoever starts us with another would break their containers.
const KUBELET_UMASK: Mode = Mode::from_bits_truncate(0o022);

/// One of these is in every data directory that minke has ever used.
const OWN_FILES: [&str; 7] = [
    "minke.pid",
    "minke.log",
    "node.json",
    "admin.kubeconfig",
    "pki/ca.key",
    "pki/kubelet-client.key",
    "pki/bootstrap-ca.crt",
];

/// What an operator may put there before the first start: a network's configuration, and registries' hosts.toml.
const PREPARED_DIRECTORIES: [&str; 2] = ["cni", "registries"];

/// Directories at the top that hold secrets; those of kubelet, containerd and network plugins have modes of their own.
const PRIVATE_DIRECTORIES: [&str; 8] =
    ["store", "pki", "kubeconfig", "leader-identity", "nodes", "servers", "etcd", "joined"];

/// For files that nobody gives a mode of their own.
pub fn set_umask(runs_kubelet: bool) {
    nix::sys::stat::umask(if runs_kubelet { KUBELET_UMASK } else { PRIVATE_UMASK });
}

/// Makes the data directory, or closes that of an older installation with what is at its top.
pub fn close_data_directory(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    create(path, DATA_DIRECTORY_MODE)?;
    let found = fs::metadata(path)?;
    if found.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{} belongs to user {}, who could read and change everything in it", path.display(), found.uid());
    }
    if found.mode() & GROUP_AND_OTHERS_MODE != 0 && is_foreign(path)? {
        bail!("{} is open to other users and holds files that are not minke's", path.display());
    }
    set(path, DATA_DIRECTORY_MODE)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        let private = name.to_str().is_some_and(|name| PRIVATE_DIRECTORIES.contains(&name));
        if kind.is_file() {
            let mode = entry.metadata()?.mode();
            // Containers' files have the modes that they are given; those at the top are ours.
            set(&entry.path(), mode & !GROUP_AND_OTHERS_MODE & 0o7777)?;
        } else if kind.is_dir() && private {
            set(&entry.path(), DATA_DIRECTORY_MODE)?;
        }
    }
    Ok(())
}

/// A directory below the data directory that holds secrets.
pub fn private_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(DATA_DIRECTORY_MODE).create(path);
    made.and_then(|()| set(path, DATA_DIRECTORY_MODE)).with_context(|| format!("failed to create {}", path.display()))
}

/// Sockets and records that are gone after a reboot.
pub fn make_run_directory(instance: &Instance) -> Result<()> {
    for path in [instance.run(), instance.containerd_state()] {
        create(&path, RUN_DIRECTORY_MODE)
            .and_then(|()| set(&path, RUN_DIRECTORY_MODE))
            .with_context(|| format!("failed to make {}", path.display()))?;
    }
    Ok(())
}

/// A log to append to.
pub fn open_log(path: &Path) -> Result<fs::File> {
    let opened = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE_MODE).open(path);
    opened.with_context(|| format!("failed to open {}", path.display()))
}

fn create(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

fn set(path: &Path, mode: u32) -> io::Result<()> {
    match fs::metadata(path)?.mode() & 0o7777 == mode {
        true => Ok(()),
        false => fs::set_permissions(path, Permissions::from_mode(mode)),
    }
}

fn is_foreign(path: &Path) -> io::Result<bool> {
    if OWN_FILES.iter().any(|name| path.join(name).exists()) {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !name.to_str().is_some_and(|name| PREPARED_DIRECTORIES.contains(&name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn an_older_installation_that_everybody_can_read_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("minke");
        for name in ["store", "pki", "kubeconfig", "kubelet"] {
            fs::create_dir_all(data.join(name)).unwrap();
            set(&data.join(name), 0o755).unwrap();
        }
        fs::write(data.join("minke.log"), "").unwrap();
        set(&data.join("minke.log"), 0o644).unwrap();
        set(&data, 0o755).unwrap();
        crate::cluster::preflight::data_directory(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        assert_eq!(mode(&data.join("minke.log")), 0o600);
        for name in ["store", "pki", "kubeconfig"] {
            assert_eq!(mode(&data.join(name)), 0o700, "{name}");
        }
        assert_eq!(mode(&data.join("kubelet")), 0o755, "the kubelet sees to its own");
    }

    #[test]
    fn only_a_directory_that_is_ours_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        fs::create_dir(&shared).unwrap();
        set(&shared, 0o1777).unwrap();
        fs::write(shared.join("letter"), "").unwrap();
        let refused = close_data_directory(&shared).unwrap_err().to_string();
        assert!(refused.contains("files that are not minke's"), "{refused}");
        assert_eq!(mode(&shared), 0o1777, "left as it was");
        // As in /etc and /var/lib of some distributions.
        for name in ["pki", "kubelet", "cni"] {
            fs::create_dir(shared.join(name)).unwrap();
        }
        assert!(close_data_directory(&shared).is_err());
        for name in ["pki", "kubelet"] {
            fs::remove_dir(shared.join(name)).unwrap();
        }
        fs::remove_file(shared.join("letter")).unwrap();
        // An operator has prepared a network.
        close_data_directory(&shared).unwrap();
        assert_eq!(mode(&shared), 0o700);
        let made = directory.path().join("a/b");
        close_data_directory(&made).unwrap();
        assert_eq!(mode(&made), 0o700);
    }
}
