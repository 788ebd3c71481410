//! Leases shared by keys that end at about the same time, so that a thousand events do not need a thousand leases.
//! Asked by `EtcdStore::transact` for every put with a time to live.
//! Invariant: a key lives at least as long as asked, and at most a twentieth (and a minute) longer (test:
//! `leases_are_shared_while_their_end_fits`).

use std::{future::Future, time::Duration};

use env::Env;
use parking_lot::Mutex;

const LEASE_REUSE_MAX: Duration = Duration::from_secs(60);
/// Keys on one lease; its end deletes them all at once.
const KEYS_PER_LEASE_MAX: usize = 1000;

pub(super) struct Leases {
    env: Env,
    current: Mutex<Option<Lease>>,
}

struct Lease {
    id: i64,
    /// Monotonic.
    ends: Duration,
    keys: usize,
}

impl Leases {
    pub fn new(env: Env) -> Self {
        Self { env, current: Mutex::new(None) }
    }

    /// The lease in use is not there any more.
    pub fn forget(&self) {
        *self.current.lock() = None;
    }

    /// A lease for a key that is to live `ttl_seconds`; `grant` makes a new one of so many seconds.
    pub async fn for_ttl<F>(&self, ttl_seconds: u64, grant: impl FnOnce(i64) -> F) -> Result<i64, etcd_client::Error>
    where
        F: Future<Output = Result<i64, etcd_client::Error>>,
    {
        let (ttl, reuse) = (Duration::from_secs(ttl_seconds), reuse(ttl_seconds));
        let now = self.env.monotonic();
        if let Some(lease) = self.current.lock().as_mut()
            && (now + ttl..=now + ttl + reuse).contains(&lease.ends)
            && lease.keys < KEYS_PER_LEASE_MAX
        {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let id = grant((ttl + reuse).as_secs() as i64).await?;
        *self.current.lock() = Some(Lease { id, ends: now + ttl + reuse, keys: 1 });
        Ok(id)
    }
}

fn reuse(ttl_seconds: u64) -> Duration {
    Duration::from_secs(ttl_seconds / 20).min(LEASE_REUSE_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leases_are_shared_while_their_end_fits() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let leases = Leases::new(env.clone());
        let granted = AtomicI64::new(0);
        let get =
            async |ttl| leases.for_ttl(ttl, |_| async { Ok(granted.fetch_add(1, Ordering::Relaxed)) }).await.unwrap();
        for (wait, ttl, want) in
            [(0, 3600, 0), (30, 3600, 0), (29, 3600, 0), (5, 3600, 1), (0, 10, 2), (0, 10, 2), (1, 10, 3)]
        {
            env.sleep(Duration::from_secs(wait)).await;
            assert_eq!(get(ttl).await, want, "after {wait}s for {ttl}s");
        }
        leases.forget();
        assert_eq!(get(10).await, 4);
    }
}
