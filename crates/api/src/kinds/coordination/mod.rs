//! Kinds of the group coordination.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod lease;
