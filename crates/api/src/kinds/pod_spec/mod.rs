//! What every pod specification shares, be it a pod's own or a template's.
//! Used by `pod` and by every kind with a pod template.
//! Invariant: knows nothing of the object around the specification.

pub mod defaults;
pub mod image;
pub mod qos;
