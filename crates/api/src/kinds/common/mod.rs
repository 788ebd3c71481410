//! What the kinds share: access to JSON fields, checks, columns, metadata, quantities.

pub mod access;
pub mod checks;
pub mod columns;
pub mod conditions;
pub mod metadata;
pub mod quantities;
pub mod warnings;
pub mod workload;
