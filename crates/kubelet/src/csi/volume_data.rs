//! `vol_data.json`: what is remembered on disk of a volume that a driver has mounted, in upstream's form, so that either
//! kubelet can take down what the other has set up.
//! Written by `mounter` before a driver is called; read after a restart and to take a volume down.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub const FILE: &str = "vol_data.json";
/// Of a file; a volume's handle has at most 4 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeData {
    pub driver_name: String,
    pub volume_handle: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub spec_volume_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
    /// With which it is mounted.
    #[serde(rename = "seLinuxMountContext", skip_serializing_if = "String::is_empty")]
    pub selinux_mount_context: String,
}

impl VolumeData {
    /// Whole or not at all, also when the machine stops in the middle.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        let new = directory.join(".vol_data.json.new");
        let text = serde_json::to_vec(self)?;
        {
            let mut file = fs::File::create(&new)?;
            io::Write::write_all(&mut file, &text)?;
            file.sync_all()?;
        }
        fs::rename(new, directory.join(FILE))
    }

    /// `None` where nothing was remembered.
    pub fn load(directory: &Path) -> io::Result<Option<Self>> {
        let path = directory.join(FILE);
        match crate::files::safe_open::read_head(&path, FILE_BYTES_MAX) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn is_ephemeral(&self) -> bool {
        self.volume_lifecycle_mode == "Ephemeral"
    }
}

/// The directories below `directory`, none if there is no such.
pub fn directories_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_upstreams_names_and_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap();
        assert_eq!(VolumeData::load(&place).unwrap(), None);
        let data = VolumeData {
            driver_name: "d.example.com".into(),
            volume_handle: "h".into(),
            spec_volume_id: "pv".into(),
            node_name: "n".into(),
            attachment_id: "csi-1".into(),
            volume_lifecycle_mode: "Persistent".into(),
            selinux_mount_context: "u:r:t:s0".into(),
        };
        data.save(&place).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&fs::read(place.join(FILE)).unwrap()).unwrap();
        let expected = serde_json::json!({"driverName": "d.example.com", "volumeHandle": "h", "specVolID": "pv",
            "nodeName": "n", "attachmentID": "csi-1", "volumeLifecycleMode": "Persistent",
            "seLinuxMountContext": "u:r:t:s0"});
        assert_eq!(text, expected);
        assert_eq!(VolumeData::load(&place).unwrap(), Some(data));
        fs::write(place.join(FILE), "{").unwrap();
        assert!(VolumeData::load(&place).is_err());
    }
}
