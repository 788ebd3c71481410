//! Kinds of the group node.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod runtime_class;
