//! Who acts for a component of which several run: only the holder of its Lease.
//! Asked by `network::audit` about every writing request, when it is sent; knows the Leases from `commit_log`.
//! Invariant: a request counts when it leaves the candidate. One that was on its way when the Lease passed to another is
//! nobody's fault: a Lease is no fence.

use std::time::Duration;

use parking_lot::Mutex;

use super::{Violation, commit_log::CommitLog};

/// One of several that may act for a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the Lease in kube-system.
    pub lease: &'static str,
    /// What the Lease says of its holder.
    pub identity: String,
}

/// After a restore the Lease is an older one: until its holder of now has looked again, both believe in theirs.
pub const EXCUSED_AFTER_RESTORE: Duration = Duration::from_secs(30);

/// Whether `candidate` may send a request to `path` now.
pub fn check(log: &Mutex<CommitLog>, candidate: &Candidate, method: &str, path: &str) -> Result<(), Violation> {
    // Candidates read, and write the Lease itself.
    if method == "GET" || path.contains("/leases") {
        return Ok(());
    }
    let lease = log.lock().current("leases", &format!("kube-system/{}", candidate.lease));
    let holder = lease.and_then(|lease| lease.holder.clone());
    if holder.as_deref() == Some(candidate.identity.as_str()) {
        return Ok(());
    }
    let (identity, lease) = (&candidate.identity, candidate.lease);
    Err(Violation(format!("{identity} sends {method} {path} while {holder:?} holds the lease {lease}")))
}
