//! Kinds of the group apiregistration.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod api_service;
