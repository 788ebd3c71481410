//! Verbs that set one thing about objects: labels, annotations, replicas, rollouts.
//! Rows of `verbs::ROOT`.
//! Each sends a small patch, never a whole object.

pub mod annotate;
pub mod label;
pub mod pairs;
pub mod rollout;
mod rollout_history;
mod rollout_status;
pub mod scale;
