//! Kinds of the group discovery.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod endpoint_slice;
