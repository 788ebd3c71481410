//! Who acts for a component of which several run: only the holder of its Lease.
//! Asked by `network::audit` about every writing request, when it is sent; knows the Leases from `commit_log`.
//! A request counts when it leaves the candidate. One that was on its way when the Lease passed to another is nobody's
//! fault: a Lease is no fence.

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

#[cfg(test)]
mod tests {
    use env::Env;
    use store::{MemoryStore, Operation, Store, Transaction};

    use super::*;

    async fn held_by(store: &MemoryStore, holder: &str) {
        let lease = serde_json::json!({ "kind": "Lease", "metadata": { "name": "l", "namespace": "kube-system" },
            "spec": { "holderIdentity": holder } });
        let key = "/registry/leases/kube-system/l".to_string();
        let put = Operation::Put { key, value: lease.to_string().into(), ttl_seconds: None };
        store.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_holder_writes() {
        let store = MemoryStore::new(Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1));
        let log = Mutex::new(CommitLog::new(&[], 1, store.watch("/", "0", 0).await.unwrap()));
        let candidate = |identity: &str| Candidate { lease: "l", identity: identity.into() };
        let check = |who: &str, method: &str, path: &str| check(&log, &candidate(who), method, path).is_ok();
        assert!(!check("a", "POST", "/api/v1/pods"), "nobody leads yet");
        held_by(&store, "a").await;
        assert!(check("a", "POST", "/api/v1/pods"));
        assert!(!check("b", "POST", "/api/v1/pods"));
        assert!(check("b", "GET", "/api/v1/pods"));
        assert!(check("b", "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"));
        held_by(&store, "b").await;
        assert!(!check("a", "DELETE", "/api/v1/namespaces/d/pods/p"));
    }
}
