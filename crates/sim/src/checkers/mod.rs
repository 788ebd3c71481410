//! What must hold, apart from what is done: one file per checker.
//! `linearizability` judges what `history` kept of the answers that clients got.
//! Invariant: a checker never does anything to the cluster.

pub mod history;
pub mod linearizability;

pub use crate::checks::Violation;
