//! Kinds of the group authentication.k8s.io; their rows are in `kinds/table.rs`.

pub mod reviews;
