//! The cluster's authorities, certificates and kubeconfig files.
//! Used by `control_plane`, which has the keys, and by `node`, which has certificates that were signed for it.

pub mod authorities;
pub mod ca_pin;
pub mod cluster_keys;
pub mod inventory;
pub mod kubeconfigs;
pub mod kubelet_serving_ca;
pub mod pki;
pub mod reissue;
