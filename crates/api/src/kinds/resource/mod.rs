//! Kinds of the group resource.k8s.io (dynamic resource allocation), one file each; their rows are in `kinds/table.rs`.

pub mod device_class;
mod disabled_fields;
pub mod older_versions;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;
pub mod validation;
