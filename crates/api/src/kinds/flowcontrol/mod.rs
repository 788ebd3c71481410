//! Kinds of the group flowcontrol.apiserver.k8s.io, one file each; their rows are in `kinds/table.rs`.

pub mod bootstrap;
pub mod flow_schema;
pub mod priority_level_configuration;
#[cfg(test)]
mod tests;
