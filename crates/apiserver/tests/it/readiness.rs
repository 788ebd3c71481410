//! `/readyz` over a store whose writes can be made to fail.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use async_trait::async_trait;
use env::Env;
use serde_json::json;
use store::{MemoryStore, Outcome, Store, StoreError, StoreLayer, Transaction};

use crate::harness::{Server, server_on};

/// A disk that can be full.
struct FullDisk {
    inner: MemoryStore,
    is_full: AtomicBool,
    /// Writes that nobody but a health check makes.
    attempts: AtomicU64,
}

#[async_trait]
impl StoreLayer for FullDisk {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        if transaction.operations.iter().any(|operation| operation.key() == "/health/write") {
            self.attempts.fetch_add(1, Ordering::SeqCst);
        }
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("no space left on device".into())),
            false => self.inner.transact(transaction).await,
        }
    }
}

async fn code(s: &Server, path: &str) -> u16 {
    s.get(path).await.code
}

#[tokio::test]
async fn readyz_fails_while_writes_fail() {
    let env = Env::real();
    let inner = MemoryStore::new(env.clone());
    let disk = Arc::new(FullDisk { inner, is_full: AtomicBool::new(false), attempts: AtomicU64::new(0) });
    let s = server_on(disk.clone(), env.clone(), |_| {}).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    s.post(maps, json!({ "metadata": { "name": "a" } })).await.expect(201);
    assert_eq!(code(&s, "/readyz").await, 200);

    disk.is_full.store(true, Ordering::SeqCst);
    s.post(maps, json!({ "metadata": { "name": "b" } })).await.refused(503, "ServiceUnavailable", "no space left");
    let ready = s.get("/readyz").await;
    assert_eq!(ready.code, 500);
    let text = String::from_utf8_lossy(&ready.bytes).into_owned();
    assert!(text.contains("[-]etcd-readiness failed: reason withheld\n") && text.contains("[+]etcd ok\n"), "{text}");
    assert_eq!(code(&s, "/readyz/etcd-readiness").await, 500);
    // Reading goes on: a restart would help nobody.
    assert_eq!(code(&s, "/livez").await, 200);

    // Many who ask make few attempts: one a second.
    let start = env.monotonic();
    for _ in 0..50 {
        assert_eq!(code(&s, "/readyz").await, 500);
    }
    let attempts = disk.attempts.load(Ordering::SeqCst);
    assert!((1..=(env.monotonic() - start).as_secs() + 3).contains(&attempts), "{attempts} attempts");

    // Room again: found out without any client that writes.
    disk.is_full.store(false, Ordering::SeqCst);
    let recovered = async {
        while code(&s, "/readyz").await != 200 {
            env::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    env::timeout(std::time::Duration::from_secs(60), recovered).await.expect("ready again");
    let attempts = disk.attempts.load(Ordering::SeqCst);
    assert_eq!(code(&s, "/readyz").await, 200);
    assert_eq!(disk.attempts.load(Ordering::SeqCst), attempts, "a healthy store is not written to");
}
