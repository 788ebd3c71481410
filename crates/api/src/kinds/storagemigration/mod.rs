//! Kinds of the group storagemigration.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod storage_version_migration;
