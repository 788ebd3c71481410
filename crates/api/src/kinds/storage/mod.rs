//! Kinds of the group storage.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;
