//! What keeps the cache true: the store watch that feeds it, and the expiry of old changes.
//! Started by `WatchCache::start`.
//! Neither task keeps the cache alive.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt;
use tokio::sync::Notify;

use env::Env;
use store::{Revision, Store, StoreError, WatchItem};

use super::WatchCache;
use crate::storage;

/// How often old changes are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(15);
/// The store is asked again this long after its watch broke.
const RESUME_DELAY: Duration = Duration::from_millis(100);

/// Lets old changes and the caches of deleted custom resources go, for as long as the cache lives.
pub(super) async fn expire(cache: Weak<WatchCache>, env: Env) {
    loop {
        env.sleep(EXPIRY_INTERVAL).await;
        let Some(cache) = cache.upgrade() else { return };
        cache.expire(env.monotonic());
    }
}

/// Follows the store for as long as the cache lives, and loads it anew when `reload` says so.
pub(super) async fn follow(cache: Weak<WatchCache>, store: Arc<dyn Store>, loaded: Revision, reload: Arc<Notify>) {
    let end = store::prefix_end(storage::ROOT);
    let mut revision = loaded;
    // A shared store may have several changes at the revision that was loaded: the ring must know, for clients that
    // have seen some of them.
    let resume_at = |loaded: Revision| if store.is_shared() { loaded } else { loaded + 1 };
    let mut next = resume_at(loaded);
    loop {
        let mut loads = false;
        let failure = match store.watch(storage::ROOT, &end, next).await {
            Ok(mut stream) => loop {
                let item = tokio::select! {
                    item = stream.next() => item,
                    () = reload.notified() => {
                        loads = true;
                        break StoreError::Unavailable("what could not be read before can be read now".into());
                    }
                };
                let Some(cache) = cache.upgrade() else { return };
                match item {
                    Some(Ok(WatchItem::Events(events))) => {
                        revision = events.last().map_or(revision, |e| e.revision);
                        next = revision + 1;
                        cache.apply(events);
                    }
                    Some(Ok(WatchItem::Progress(reached))) => {
                        revision = revision.max(reached);
                        next = next.max(reached + 1);
                        cache.applied.send_if_modified(|applied| std::mem::replace(applied, revision) != revision);
                    }
                    Some(Err(e)) => break e,
                    None => break StoreError::Unavailable("the watch ended".into()),
                }
            },
            Err(e) => e,
        };
        let Some(cache) = cache.upgrade() else { return };
        tracing::warn!(error = %failure, revision, "the store watch broke; resuming");
        if loads || matches!(failure, StoreError::Compacted { .. }) {
            match cache.load().await {
                Ok(at) => (revision, next) = (at, resume_at(at)),
                Err(e) => {
                    tracing::error!(error = %e, "failed to reload the watch cache");
                    if loads {
                        reload.notify_one();
                    }
                }
            }
        }
        cache.env.sleep(RESUME_DELAY).await;
    }
}
