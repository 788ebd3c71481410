//! Kinds of the group apiextensions.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod custom_resource;
pub mod custom_resource_definition;
pub mod internal_form;
pub mod schema_properties;
pub mod stored_definition;
pub mod structural_schema;
