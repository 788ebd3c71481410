//! The names by which the nodes' part of local storage and the control plane's find each other.
//! A node says on its own Node object where its volumes are; the provisioner (controllers) makes PersistentVolumes there;
//! the node removes the directory of one that is deleted and then lets go of it by taking off `FINALIZER`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Of the StorageClass, the CSIDriver object and `pv.kubernetes.io/provisioned-by`.
pub const PROVISIONER: &str = "local.minke.io";
pub const CLASS: &str = "minke-local";
/// On a Node: its `NodeStorage` as JSON.
pub const NODE_ANNOTATION: &str = "minke.io/local-storage";
/// On a PersistentVolume: the node that has its directory.
pub const NODE_LABEL: &str = "minke.io/local-storage-node";
/// On a PersistentVolume: its node still has the directory, or has not said that it hasn't.
pub const FINALIZER: &str = "minke.io/local-storage";
/// On a PersistentVolume: `true` where the node's file system holds pods to its size.
pub const SIZE_ENFORCED: &str = "minke.io/size-enforced";

/// What a node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorage {
    /// The directory that has one directory per volume.
    pub path: String,
    /// What all volumes together may hold.
    pub capacity_bytes: i64,
    /// The file system has project quotas.
    pub size_enforced: bool,
}

impl NodeStorage {
    /// `None` for what is no such annotation, or names a place that no volume can be below.
    pub fn parse(text: &str) -> Option<Self> {
        let found: Self = serde_json::from_str(text).ok()?;
        let clean = found.path.starts_with('/')
            && found.path.len() > 1
            && found.path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
        (clean && found.capacity_bytes >= 0).then_some(found)
    }

    pub fn volume_path(&self, volume: &str) -> String {
        format!("{}/{volume}", self.path)
    }
}

/// The node of a PersistentVolume that local storage made.
pub fn node_of(volume: &Value) -> Option<&str> {
    let meta = &volume["metadata"];
    let ours = meta["annotations"]["pv.kubernetes.io/provisioned-by"] == PROVISIONER;
    meta["labels"][NODE_LABEL].as_str().filter(|node| ours && !node.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_clean_paths_are_believed() {
        let check = |path: &str, expected: bool| {
            let text = format!("{{\"path\":{path:?},\"capacityBytes\":1,\"sizeEnforced\":false}}");
            assert_eq!(NodeStorage::parse(&text).is_some(), expected, "{path}");
        };
        check("/var/lib/volumes", true);
        check("var/lib", false);
        check("/", false);
        check("", false);
        check("/var/../etc", false);
        check("/var//lib", false);
        check("/var/", false);
        assert_eq!(NodeStorage::parse("{}"), None);
    }
}
