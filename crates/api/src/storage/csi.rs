//! The names that the control plane and the nodes must agree on for volumes of CSI drivers.
//! Used by the attach/detach controller, which makes VolumeAttachments, and by the kubelet, which waits for them.

use sha2::{Digest, Sha256};

/// Of the VolumeAttachment of a volume to a node.
pub fn attachment_name(volume_handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex_digest(&[volume_handle, driver, node]))
}

/// Of a volume in the status of a Node.
pub fn unique_volume_name(driver: &str, volume_handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{volume_handle}")
}

/// Of the plugin of a driver in metrics.
pub fn plugin_name(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// SHA-256 of the parts, one after the other.
pub fn hex_digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part.as_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
