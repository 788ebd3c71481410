//! Kinds of the group networking.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;
