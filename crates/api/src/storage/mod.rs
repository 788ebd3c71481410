//! What the control plane and the nodes must agree on for volumes: `csi` for drivers, `local_storage` for the default
//! StorageClass, `volume_claims` for the claims of pods, `selinux` for labels of volumes.

pub mod csi;
pub mod local_storage;
pub mod selinux;
pub mod volume_claims;
