//! What several controllers share: metadata, selectors, indexes, owner references, pods and their making, revisions.
//! Used by the controllers; runs nothing by itself.

pub mod dependents;
pub mod expectations;
pub mod gated_kinds;
pub mod indexes;
pub mod meta;
pub mod objects;
pub mod ownership;
pub mod pod_control;
pub mod pods;
pub mod publish_metrics;
pub mod resources;
pub mod revisions;
