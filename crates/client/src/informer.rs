//! A local cache of one resource, kept true by one list and one watch, shared by everyone in the process.
//! Fed by `transport`; read by controllers, scheduler, kubelet, proxy and dns through typed views.
//! Invariant: subscribers see the changes of a key in order and always its last one (a slow one may miss those between:
//! `change_queue`); a broken watch resumes or relists and misses nothing (test: `informer_tests.rs`).

use std::{
    collections::{BTreeSet, HashMap},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use ::api::{ApiError, Object, Reason, Resource, WatchKind, kinds};
use env::{Backoff, Env};
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Client, ListParams, ObjectChange, ObjectList, ObjectSubscription,
    change_queue::{ChangeSender, change_queue},
};

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
/// A server that takes longer to answer is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bookmarks come every minute or so: a watch that is silent for longer may have died without a word.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(300);

/// Names an object's values in an index: `spec.nodeName`, the owner's uid, …
pub type Indexer = fn(&Object) -> Vec<String>;

/// Informers by resource and selector: asking twice gives the same one.
#[derive(Clone)]
pub struct InformerFactory {
    client: Client,
    env: Env,
    shutdown: CancellationToken,
    informers: Arc<Mutex<HashMap<(String, ListParams), ObjectInformer>>>,
}

impl InformerFactory {
    pub fn new(client: Client, env: Env, shutdown: CancellationToken) -> Self {
        Self { client, env, shutdown, informers: Arc::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn informer<K: k8s_openapi::Resource>(&self) -> Informer<K> {
        self.informer_with(ListParams::default())
    }

    pub fn informer_with<K: k8s_openapi::Resource>(&self, params: ListParams) -> Informer<K> {
        Informer { objects: self.objects(kinds::resource_of::<K>().clone(), params), kind: PhantomData }
    }

    /// An informer on any resource, custom ones too.
    pub fn objects(&self, resource: Arc<Resource>, params: ListParams) -> ObjectInformer {
        let id = (format!("{}/{}", resource.version, resource.group_resource()), params.clone());
        self.informers.lock().entry(id).or_insert_with(|| self.start(resource, params)).clone()
    }

    /// Whether somebody has asked for informers, and all of them have their first lists.
    pub fn is_synced(&self) -> bool {
        let informers = self.informers.lock();
        !informers.is_empty() && informers.values().all(ObjectInformer::is_synced)
    }

    /// Forgets an informer that nobody wants any more (a deleted custom resource) and stops its watch.
    pub fn stop(&self, resource: &Resource) {
        let id = format!("{}/{}", resource.version, resource.group_resource());
        self.informers.lock().retain(|(of, _), informer| {
            let keep = *of != id;
            if !keep {
                informer.0.shutdown.cancel();
            }
            keep
        });
    }

    fn start(&self, resource: Arc<Resource>, params: ListParams) -> ObjectInformer {
        let shutdown = self.shutdown.child_token();
        let informer = ObjectInformer(Arc::new(Shared {
            cache: RwLock::default(),
            subscribers: Mutex::default(),
            synced: watch::Sender::new(false),
            shutdown: shutdown.clone(),
        }));
        let reflector = Reflector {
            informer: informer.clone(),
            client: self.client.clone(),
            env: self.env.clone(),
            resource,
            params,
        };
        self.env.spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = reflector.run() => {}
            }
        });
        informer
    }
}

/// The untyped cache. `Informer<K>` is the view that most code wants.
#[derive(Clone)]
pub struct ObjectInformer(Arc<Shared>);

struct Shared {
    cache: RwLock<Cache>,
    subscribers: Mutex<Vec<ChangeSender>>,
    synced: watch::Sender<bool>,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct Cache {
    objects: HashMap<String, Arc<Object>>,
    indexes: HashMap<&'static str, Index>,
}

struct Index {
    indexer: Indexer,
    keys: HashMap<String, BTreeSet<String>>,
}

impl Cache {
    fn set(&mut self, key: &str, new: Option<Arc<Object>>) -> Option<Arc<Object>> {
        let old = match &new {
            Some(object) => self.objects.insert(key.to_string(), object.clone()),
            None => self.objects.remove(key),
        };
        for index in self.indexes.values_mut() {
            for value in old.iter().flat_map(|o| (index.indexer)(o)) {
                if let Some(keys) = index.keys.get_mut(&value) {
                    keys.remove(key);
                    if keys.is_empty() {
                        index.keys.remove(&value);
                    }
                }
            }
            for value in new.iter().flat_map(|o| (index.indexer)(o)) {
                index.keys.entry(value).or_default().insert(key.to_string());
            }
        }
        old
    }
}

impl ObjectInformer {
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.0.cache.read().objects.get(key).cloned()
    }

    pub fn list(&self) -> Vec<Arc<Object>> {
        self.0.cache.read().objects.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.0.cache.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index; adding the same name again changes nothing.
    pub fn add_index(&self, name: &'static str, indexer: Indexer) {
        let mut cache = self.0.cache.write();
        if cache.indexes.contains_key(name) {
            return;
        }
        let mut keys: HashMap<String, BTreeSet<String>> = HashMap::new();
        for (key, object) in &cache.objects {
            for value in indexer(object) {
                keys.entry(value).or_default().insert(key.clone());
            }
        }
        cache.indexes.insert(name, Index { indexer, keys });
    }

    /// Objects whose index `name` holds `value`, ordered by key.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<Object>> {
        let cache = self.0.cache.read();
        let Some(keys) = cache.indexes.get(name).and_then(|index| index.keys.get(value)) else { return Vec::new() };
        keys.iter().filter_map(|key| cache.objects.get(key).cloned()).collect()
    }

    /// Every change from now on, preceded by an addition for each object that is already here.
    pub fn subscribe(&self) -> ObjectSubscription {
        let (sender, subscription) = change_queue();
        // The cache lock is held so that no change falls between the snapshot and the subscription.
        let cache = self.0.cache.read();
        for (key, object) in &cache.objects {
            let change = ObjectChange { key: key.clone(), old: None, new: Some(object.clone()) };
            sender.send(change);
        }
        self.0.subscribers.lock().push(sender);
        subscription
    }

    /// Returns once the first list is in the cache (or the process is shutting down).
    pub async fn synced(&self) {
        let mut synced = self.0.synced.subscribe();
        tokio::select! {
            biased;
            _ = synced.wait_for(|done| *done) => {}
            () = self.0.shutdown.cancelled() => {}
        }
    }

    pub fn is_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    fn set(&self, key: String, new: Option<Arc<Object>>) {
        let mut cache = self.0.cache.write();
        let old = cache.set(&key, new.clone());
        if old.is_none() && new.is_none() {
            return;
        }
        let change = ObjectChange { key, old, new };
        self.0.subscribers.lock().retain(|subscriber| subscriber.send(change.clone()));
    }

    fn replace(&self, list: ObjectList) {
        let mut gone: BTreeSet<String> = self.0.cache.read().objects.keys().cloned().collect();
        for object in list.objects {
            let key = object.key();
            gone.remove(&key);
            let known = self.get(&key).is_some_and(|old| {
                old.meta.resource_version == object.meta.resource_version && old.meta.uid == object.meta.uid
            });
            if !known {
                self.set(key, Some(object));
            }
        }
        for key in gone {
            self.set(key, None);
        }
        self.0.synced.send_replace(true);
    }
}

/// One list and one watch, for ever.
struct Reflector {
    informer: ObjectInformer,
    client: Client,
    env: Env,
    resource: Arc<Resource>,
    params: ListParams,
}

impl Reflector {
    async fn run(self) {
        let mut version: Option<String> = None;
        let mut backoff = RETRY_BACKOFF;
        loop {
            match self.step(&mut version).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    if lost_history(&error) {
                        version = None;
                    }
                    tracing::debug!(resource = %self.resource.group_resource(), %error, "watch interrupted");
                    self.env.sleep(backoff.next_delay().mul_f64(0.5 + self.env.random_fraction())).await;
                }
            }
        }
    }

    /// Lists if needed, then watches until the stream ends.
    async fn step(&self, version: &mut Option<String>) -> Result<(), ApiError> {
        let from = match version {
            Some(version) => version.clone(),
            None => {
                let list = self.client.transport().list(&self.resource, None, &self.params);
                let list = self.env.timeout(ANSWER_TIMEOUT, list).await.ok_or_else(|| no_answer("list"))??;
                let from = list.resource_version.clone();
                self.informer.replace(list);
                version.insert(from).clone()
            }
        };
        let stream = self.client.transport().watch(&self.resource, None, &self.params, &from);
        let mut stream = self.env.timeout(ANSWER_TIMEOUT, stream).await.ok_or_else(|| no_answer("watch"))??;
        loop {
            let next = self.env.timeout(SILENCE_TIMEOUT, stream.next()).await;
            let Some(event) = next.ok_or_else(|| no_answer("watch"))? else { return Ok(()) };
            let event = event?;
            *version = Some(event.object.meta.resource_version.to_string());
            match event.kind {
                WatchKind::Added | WatchKind::Modified => self.informer.set(event.object.key(), Some(event.object)),
                WatchKind::Deleted => self.informer.set(event.object.key(), None),
                WatchKind::Bookmark => {}
            }
        }
    }
}

/// The server no longer knows our version, or (put back to an earlier state) not yet: only a list helps.
fn lost_history(error: &ApiError) -> bool {
    matches!(error.reason, Reason::Expired | Reason::Gone)
        || error.code == 410
        || error.message.contains("Too large resource version")
}

fn no_answer(what: &str) -> ApiError {
    ApiError::new(Reason::Timeout, format!("the server did not answer the {what} in time"))
}

/// A typed view of an `ObjectInformer`. Objects are parsed once per version, whoever asks first.
pub struct Informer<K> {
    objects: ObjectInformer,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), kind: PhantomData }
    }
}

#[derive(Debug)]
pub struct Change<K> {
    pub key: String,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K: DeserializeOwned + Send + Sync + 'static> Change<K> {
    fn read(change: ObjectChange) -> Self {
        let view = |o: Option<Arc<Object>>| o.as_ref().and_then(typed);
        Self { key: change.key, old: view(change.old), new: view(change.new) }
    }
}

pub struct Subscription<K> {
    changes: ObjectSubscription,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned + Send + Sync + 'static> Informer<K> {
    pub fn objects(&self) -> &ObjectInformer {
        &self.objects
    }

    /// `namespace/name`, or `name` for cluster-scoped kinds.
    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        self.objects.get(key).and_then(|o| typed(&o))
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.list().iter().filter_map(typed).collect()
    }

    pub fn add_index(&self, name: &'static str, indexer: Indexer) {
        self.objects.add_index(name, indexer);
    }

    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.objects.by_index(name, value).iter().filter_map(typed).collect()
    }

    pub fn subscribe(&self) -> Subscription<K> {
        Subscription { changes: self.objects.subscribe(), kind: PhantomData }
    }

    pub async fn synced(&self) {
        self.objects.synced().await;
    }
}

impl<K: DeserializeOwned + Send + Sync + 'static> Subscription<K> {
    /// `None` once the informer has stopped.
    pub async fn next(&mut self) -> Option<Change<K>> {
        Some(Change::read(self.changes.next().await?))
    }

    /// A change that is already here, without waiting.
    pub fn try_next(&mut self) -> Option<Change<K>> {
        Some(Change::read(self.changes.try_next()?))
    }
}

fn typed<K: DeserializeOwned + Send + Sync + 'static>(object: &Arc<Object>) -> Option<Arc<K>> {
    object.typed::<K>().inspect_err(|error| tracing::error!(%error, "skipping an object that can't be read")).ok()
}

#[cfg(test)]
#[path = "informer_tests.rs"]
mod tests;
