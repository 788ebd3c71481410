//! Kinds of the group internal.apiserver.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod storage_version;
