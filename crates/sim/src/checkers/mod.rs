//! What must hold, apart from what is done: one file per checker.
//! `linearizability` judges what `history` kept of the answers that clients got; `watches` and `leadership` compare with
//! the `commit_log`; `invariants` and `devices` look at every commit, `convergence` at a cluster that was left alone.
//! A checker never does anything to the cluster.

pub mod commit_log;
pub mod convergence;
pub mod devices;
pub mod history;
pub mod invariants;
pub mod leadership;
pub mod linearizability;
pub mod oracle;
pub mod watches;

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);
