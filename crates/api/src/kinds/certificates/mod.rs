//! Kinds of the group certificates.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod certificate_signing_request;
