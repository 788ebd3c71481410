//! The cache over a memory store, and over changes that share a revision as etcd's do.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use store::{Change, MemoryStore, Operation, Transaction};

use super::{event_ring::TYPED_EVENTS_MAX, *};

async fn put(store: &dyn Store, name: &str) -> Revision {
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "a" } });
    let key = format!("/registry/configmaps/a/{name}");
    let operation = Operation::Put { key, value: storage::encode(&object), ttl_seconds: None };
    let done = store.transact(Transaction { compare: vec![], operations: vec![operation] }).await.unwrap();
    let store::Outcome::Done { revision, .. } = done else { panic!("{done:?}") };
    revision
}

#[tokio::test]
async fn follows_the_store_and_forgets_the_distant_past() {
    let env = Env::real();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(env.clone()));
    put(&*store, "before").await;
    let limits = Limits { ring_events: 2, ..Limits::default() };
    let cache = WatchCache::start(store.clone(), limits, env).await.unwrap();
    let resource = cache.resource("/registry/configmaps/");
    assert_eq!(resource.len(), 1);
    let start = cache.revision();
    let mut subscription = resource.subscribe(start).unwrap();
    let first = put(&*store, "one").await;
    cache.wait_for(first).await.unwrap();
    let events = subscription.ready(10).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].new.as_ref().unwrap().object.meta.resource_version, first);
    for name in ["two", "three", "four"] {
        put(&*store, name).await;
    }
    cache.wait_until_fresh().await.unwrap();
    assert_eq!(subscription.ready(10).err(), Some(FellBehind));
    assert!(resource.subscribe(start).is_err());
    let page = resource.list("a/", None, 2, cache.revision(), |_| true);
    let names: Vec<_> = page.entries.iter().map(|e| e.object.meta.name.as_str()).collect();
    assert_eq!((names, page.remaining, page.next.as_deref()), (vec!["before", "four"], 3, Some("a/one")));
}

#[tokio::test]
async fn keeps_no_parsed_form_of_what_everyone_has_seen() {
    let env = Env::real();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(env.clone()));
    put(&*store, "one").await;
    let cache = WatchCache::start(store.clone(), Limits::default(), env).await.unwrap();
    let resource = cache.resource("/registry/configmaps/");
    let parsed = |name: &str| resource.get(&format!("a/{name}")).unwrap().object.typed::<ConfigMap>().unwrap();
    let (replaced, kept) = (parsed("one"), put(&*store, "two").await);
    cache.wait_for(kept).await.unwrap();
    let kept = parsed("two");
    put(&*store, "one").await;
    for _ in 0..TYPED_EVENTS_MAX - 2 {
        put(&*store, "three").await;
    }
    cache.wait_until_fresh().await.unwrap();
    assert_eq!((Arc::strong_count(&replaced), Arc::strong_count(&kept)), (2, 2));
    put(&*store, "three").await;
    cache.wait_until_fresh().await.unwrap();
    assert_eq!((Arc::strong_count(&replaced), Arc::strong_count(&kept)), (1, 2));
}

fn quota_change(name: &str, revision: Revision) -> Event {
    let object = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": name, "namespace": "a" } });
    let change = Change::Put { value: storage::encode(&object), created: false };
    Event { revision, key: format!("/registry/resourcequotas/a/{name}"), change }
}

fn seen(subscription: &mut Subscription) -> Vec<(Revision, String)> {
    let mut all = Vec::new();
    loop {
        let events = subscription.ready(1).unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events.iter().map(|e| (e.revision, e.new.as_ref().unwrap().object.meta.name.clone())));
    }
}

/// etcd gives all keys of a transaction one revision.
#[tokio::test]
async fn changes_that_share_a_revision_are_all_told() {
    let env = Env::real();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(env.clone()));
    let limits = Limits { ring_events: 4, ..Limits::default() };
    let cache = WatchCache::start(store, limits, env).await.unwrap();
    let resource = cache.resource("/registry/resourcequotas/");
    let mut live = resource.subscribe(1).unwrap();
    let mut from_the_future = resource.subscribe(6).unwrap();
    cache.apply(vec![quota_change("before", 6)]);
    cache.apply(vec![quota_change("one", 7), quota_change("two", 7)]);
    cache.apply(vec![quota_change("after", 8)]);
    let told = |from: usize| {
        let all = [(6, "before"), (7, "one"), (7, "two"), (8, "after")];
        all[from..].iter().map(|(revision, name)| (*revision, name.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(seen(&mut live), told(0));
    assert_eq!(seen(&mut from_the_future), told(1));
    assert_eq!(seen(&mut resource.subscribe(6).unwrap()), told(1));
    assert_eq!(seen(&mut resource.subscribe(7).unwrap()), told(1), "whoever names 7 may have seen only one of the two");
    assert_eq!(seen(&mut resource.subscribe(8).unwrap()), told(4));
    let (snapshot, mut following) = resource.list_and_subscribe("", 8, |_| true);
    assert_eq!((snapshot.entries.len(), seen(&mut following)), (4, told(4)));
    // The ring has room for four: the two go together, and then nobody can go on from between them.
    cache.apply(vec![quota_change("more", 9)]);
    cache.apply(vec![quota_change("more", 10)]);
    assert_eq!(resource.subscribe(7).err(), Some(8));
    assert_eq!(seen(&mut resource.subscribe(8).unwrap()).len(), 2);
}

/// What is damaged on disk comes back from here.
#[tokio::test]
async fn the_cache_gives_back_what_the_store_lost() {
    let env = Env::real();
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(store::EmbeddedStore::open(directory.path(), env.clone()).unwrap());
    put(&*store, "kept").await;
    let revision = put(&*store, "damaged").await;
    let cache = WatchCache::start(store.clone(), Limits::default(), env).await.unwrap();
    cache.wait_for(revision).await.unwrap();
    let path = directory.path().join("00000001.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let name = bytes.windows(16).rposition(|window| window == b"\"name\":\"damaged\"").unwrap();
    bytes[name + 10] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let record = store.get("/registry/configmaps/a/damaged").await.unwrap().unwrap();
    assert_eq!(record.mod_revision, revision);
    let object = storage::decode(&record.value, revision).unwrap();
    assert_eq!(object.meta.name, "damaged");
    drop(cache);
    // Whoever follows the store for the cache hears of this, and lets it go.
    put(&*store, "last").await;
    let let_go = async {
        while Arc::strong_count(&store) > 1 {
            tokio::task::yield_now().await;
        }
    };
    Env::real().timeout(Duration::from_secs(10), let_go).await.expect("the cache still holds the store");
    drop(store);
    let again = store::EmbeddedStore::open(directory.path(), Env::real()).unwrap();
    assert_eq!(again.get("/registry/configmaps/a/damaged").await.unwrap(), Some(record));
}
