//! What the rings of the watch cache keep, and for how long.

use serde_json::json;
use store::{MemoryStore, Operation, Outcome, Transaction};

use super::*;

const WIDGETS: &str = "/registry/example.com/widgets/";
const CONFIG_MAPS: &str = "/registry/configmaps/";

async fn write(store: &dyn Store, operation: Operation) -> Revision {
    let done = store.transact(Transaction { compare: vec![], operations: vec![operation] }).await.unwrap();
    let Outcome::Done { revision, .. } = done else { panic!("{done:?}") };
    revision
}

async fn put(store: &dyn Store, key: &str, bytes: usize) -> Revision {
    let object = json!({ "apiVersion": "v1", "kind": "K", "metadata": { "name": "n" }, "data": "x".repeat(bytes) });
    write(store, Operation::Put { key: key.into(), value: storage::encode(&object), ttl_seconds: None }).await
}

async fn started() -> (Arc<dyn Store>, Arc<WatchCache>) {
    let env = Env::real();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(env.clone()));
    let cache = WatchCache::start(store.clone(), Limits::default(), env).await.unwrap();
    (store, cache)
}

fn ring(cache: &WatchCache, prefix: &str) -> (usize, usize) {
    let resource = cache.resource(prefix);
    let state = resource.state.read();
    state.ring.held()
}

/// A moment at which everything that happened so far is old.
fn later(cache: &WatchCache) -> Duration {
    cache.env.monotonic() + cache.limits.ring_age
}

#[tokio::test]
async fn changes_leave_the_ring_when_they_are_old() {
    let (store, cache) = started().await;
    let resource = cache.resource(CONFIG_MAPS);
    let mut follower = resource.subscribe(cache.revision()).unwrap();
    let mut idler = resource.subscribe(cache.revision()).unwrap();
    let first = put(&*store, "/registry/configmaps/a/x", 10).await;
    let last = put(&*store, "/registry/configmaps/a/x", 10).await;
    cache.wait_for(last).await.unwrap();
    cache.expire(cache.env.monotonic());
    assert_eq!(ring(&cache, CONFIG_MAPS).0, 2, "young changes stay");
    assert_eq!(follower.ready(10).unwrap().len(), 2);
    cache.expire(later(&cache));
    assert_eq!(ring(&cache, CONFIG_MAPS), (0, 0));
    // Whoever has seen everything goes on; whoever has not must list again.
    assert_eq!(follower.ready(10).unwrap().len(), 0);
    assert_eq!(idler.ready(10).err(), Some(FellBehind));
    assert!(resource.subscribe(last).is_ok());
    assert_eq!(resource.subscribe(first).err(), Some(last));
    let next = put(&*store, "/registry/configmaps/a/x", 10).await;
    cache.wait_for(next).await.unwrap();
    assert_eq!(follower.ready(10).unwrap().len(), 1);
}

#[tokio::test]
async fn the_cache_of_a_deleted_custom_resource_goes() {
    let (store, cache) = started().await;
    let key = "/registry/example.com/widgets/a/x";
    put(&*store, key, 10).await;
    let gone = write(&*store, Operation::Delete { key: key.into() }).await;
    cache.wait_for(gone).await.unwrap();
    let known = |prefix: &str| cache.resources.read().contains_key(prefix);
    let watched = cache.resource(WIDGETS).subscribe(gone).unwrap();
    cache.resource(CONFIG_MAPS);
    cache.expire(later(&cache));
    assert!(known(WIDGETS), "somebody watches it");
    drop(watched);
    cache.expire(later(&cache));
    assert!(!known(WIDGETS) && known(CONFIG_MAPS), "built-in kinds stay");
    // Made again, it is known again, and nothing is lost.
    let again = put(&*store, key, 10).await;
    cache.wait_for(again).await.unwrap();
    let events = cache.resource(WIDGETS).subscribe(gone).unwrap().ready(10).unwrap();
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [again]);
    cache.expire(later(&cache));
    assert!(known(WIDGETS), "it has objects");
}

#[tokio::test]
async fn large_objects_do_not_fill_the_ring() {
    let (store, cache) = started().await;
    let bytes = 1 << 20;
    for _ in 0..40 {
        put(&*store, "/registry/configmaps/a/x", bytes).await;
    }
    let gone = write(&*store, Operation::Delete { key: "/registry/configmaps/a/x".into() }).await;
    cache.wait_for(gone).await.unwrap();
    let (events, held) = ring(&cache, CONFIG_MAPS);
    assert!(held <= cache.limits.ring_bytes_max && events >= 20, "{events} changes hold {held} bytes");
    // The deletion shows a copy of the last version, which the change before it holds as well.
    assert!(held >= (events + 1) * bytes, "{events} changes hold {held} bytes");
}
