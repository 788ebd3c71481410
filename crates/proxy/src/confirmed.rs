//! Which endpoint addresses the kernel's rules may still send new connections to.
//! Written by `run` after a transaction went through; read by the kubelet before it stops a pod.
//! Invariant: says "gone" only after the kernel has accepted rules without the endpoint.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use tokio::sync::watch;

/// Cheap to clone; every clone sees the same.
#[derive(Clone)]
pub struct Confirmed(Arc<Inner>);

struct Inner {
    /// How many Services use an address.
    endpoints: RwLock<HashMap<IpAddr, usize>>,
    generation: watch::Sender<u64>,
    full_writes: AtomicU64,
}

impl Default for Confirmed {
    fn default() -> Self {
        Self(Arc::new(Inner {
            endpoints: RwLock::default(),
            generation: watch::Sender::new(0),
            full_writes: AtomicU64::new(0),
        }))
    }
}

impl Confirmed {
    /// Counts the transactions that went through; 0 before the first.
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.0.generation.subscribe()
    }

    /// How often all rules were written at once: at the start, and after damage. Everything else is incremental.
    pub fn full_writes(&self) -> u64 {
        self.0.full_writes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_full_write(&self) {
        self.0.full_writes.fetch_add(1, Ordering::Relaxed);
    }

    pub fn contains(&self, endpoint: IpAddr) -> bool {
        self.0.endpoints.read().contains_key(&endpoint)
    }

    /// Returns once no rule of this node names `endpoint`. Bound the wait: a last endpoint serves while it terminates.
    pub async fn gone(&self, endpoint: IpAddr) {
        let mut generation = self.0.generation.subscribe();
        while self.contains(endpoint) {
            if generation.changed().await.is_err() {
                return;
            }
        }
    }

    /// One Service's endpoints before and after.
    pub(crate) fn replace(&self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) {
        let mut endpoints = self.0.endpoints.write();
        for ip in new.difference(old) {
            *endpoints.entry(*ip).or_default() += 1;
        }
        for ip in old.difference(new) {
            if let Some(count) = endpoints.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    endpoints.remove(ip);
                }
            }
        }
    }

    pub(crate) fn publish(&self) {
        self.0.generation.send_modify(|generation| *generation += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_is_gone_when_its_last_service_drops_it() {
        let confirmed = Confirmed::default();
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let (none, one) = (BTreeSet::new(), BTreeSet::from([ip]));
        confirmed.gone(ip).await;
        confirmed.replace(&none, &one);
        confirmed.replace(&none, &one);
        confirmed.replace(&one, &none);
        assert!(confirmed.contains(ip));
        let waiter = tokio::spawn({
            let confirmed = confirmed.clone();
            async move { confirmed.gone(ip).await }
        });
        confirmed.replace(&one, &none);
        confirmed.publish();
        waiter.await.unwrap();
    }
}
