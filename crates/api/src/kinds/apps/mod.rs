//! Kinds of the group apps, one file each; their rows are in `kinds/table.rs`.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;
