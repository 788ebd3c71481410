//! Kinds of the group rbac.authorization.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod role;
pub mod role_binding;
