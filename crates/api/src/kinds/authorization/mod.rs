//! Kinds of the group authorization.k8s.io; their rows are in `kinds/table.rs`.

pub mod reviews;
