//! The files of volumes that show API objects: configMap, secret, downwardAPI and projected.
//! Used by these plugins; `atomic_writer` puts the files on disk.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::KeyToPath;

use super::{
    atomic_writer::{self, File, Payload},
    error::VolumeError,
    file_system,
    plugin::{MountContext, Mounter, SetUp},
};
use crate::files::directories;

const DEFAULT_MODE: i32 = 0o644;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// The mode of files that have none of their own.
pub fn default_mode(mode: Option<i32>) -> u32 {
    mode.unwrap_or(DEFAULT_MODE) as u32
}

pub fn file(content: impl Into<Vec<u8>>, mode: Option<i32>, default_mode: u32) -> File {
    File { content: content.into(), mode: mode.map_or(default_mode, |m| m as u32) & 0o7777, owner: None }
}

/// What a volume shows of a ConfigMap or Secret: all keys, or those that are listed under their new names.
pub struct KeySelection<'a> {
    pub name: &'a str,
    pub items: Option<&'a [KeyToPath]>,
    pub optional: Option<bool>,
    pub default_mode: u32,
}

impl KeySelection<'_> {
    /// `entries` are absent where the object is.
    pub fn files(&self, kind: ObjectKind, entries: Option<BTreeMap<String, Vec<u8>>>) -> Result<Payload, VolumeError> {
        let optional = self.optional.unwrap_or(false);
        let Some(entries) = entries else {
            return match optional {
                true => Ok(Payload::new()),
                false => Err(VolumeError::ObjectNotFound { kind, name: self.name.into() }),
            };
        };
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            return Ok(entries.into_iter().map(|(key, bytes)| (key, file(bytes, None, self.default_mode))).collect());
        };
        let mut files = Payload::new();
        for item in items {
            match entries.get(&item.key) {
                Some(bytes) => {
                    files.insert(item.path.clone(), file(bytes.clone(), item.mode, self.default_mode));
                }
                None if optional => {}
                None => return Err(VolumeError::KeyNotFound { kind, key: item.key.clone() }),
            }
        }
        Ok(files)
    }
}

/// Writes the files to the volume's directory.
pub fn mounter(context: &MountContext, path: PathBuf, files: Payload, in_memory: bool) -> Mounter {
    let (group, timestamp) = (context.fs_group(), context.timestamp.to_string());
    Box::new(move || {
        write(&path, &files, group, in_memory, &timestamp)?;
        Ok(SetUp::at(path))
    })
}

fn write(path: &Path, files: &Payload, group: Option<u32>, in_memory: bool, timestamp: &str) -> io::Result<()> {
    directories::create(path)?;
    // Secrets, and what a pod is told of itself, never touch the disk.
    if in_memory {
        file_system::mount_tmpfs(path, None)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(if group.is_some() { 0o2777 } else { 0o777 }))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    atomic_writer::write(path, files, group, timestamp).map(drop)
}
