//! Kinds of the group admissionregistration.k8s.io, one file each; their rows are in `kinds/table.rs`.

mod admission_policy;
pub mod client_config;
pub mod initializer_configuration;
pub mod match_resources;
pub mod mutating_admission_policy;
pub mod mutating_admission_policy_binding;
pub mod validating_admission_policy;
pub mod validating_admission_policy_binding;
pub mod webhook_configuration;
