//! What every pod specification shares, be it a pod's own or a template's.
//! Used by `pod` and by every kind with a pod template.
//! Knows nothing of the object around the specification.

pub mod containers;
pub mod defaults;
mod environment;
mod handlers;
pub mod image;
mod operating_system;
mod overlapping_paths;
pub mod placement;
pub mod projections;
pub mod resources;
mod security;
pub mod validation;
pub mod volumes;
pub mod warnings;
