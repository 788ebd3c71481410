//! Kinds of the group certificates.k8s.io, one file each; their rows are in `kinds/table.rs`.
//! `signer_name` is what they and projected volumes share.

pub mod certificate_signing_request;
pub mod cluster_trust_bundle;
mod condition_times;
pub mod pod_certificate_request;
pub mod signer_name;
