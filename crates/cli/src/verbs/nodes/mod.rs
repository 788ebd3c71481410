//! Verbs about nodes: cordon, uncordon, drain, taint, top.
//! Rows of `verbs::ROOT`.
//! A pod is only ever evicted, or deleted where the flags say so.

pub mod cordon;
pub mod drain;
mod drain_pods;
pub mod taint;
pub mod top;
