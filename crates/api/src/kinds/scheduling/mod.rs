//! Kinds of the group scheduling.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod priority_class;
