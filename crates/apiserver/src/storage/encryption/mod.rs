//! Encryption at rest: what the store gets is encrypted as `--encryption-provider-config` says, in upstream's formats.
//! A layer around the store, below the watch cache; `transformers` has the ciphers, `kms` speaks to key services, and
//! `stored_form` beside it turns what is decrypted into JSON.
//! Nothing that is to be encrypted is written in the clear. What can't be decrypted is an error for whoever asks for it,
//! never absent.

mod ciphers;
mod configuration;
mod kms;
mod kms_metrics;
pub mod kms_protocol;
mod transformers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use api::ApiError;
use env::Env;
use store::{
    Change, Event, Operation, Outcome, Range, RangeResult, Record, RepairSource, Revision, Store, StoreError,
    StoreLayer, Transaction, WatchItem, WatchStream,
};

use self::{kms_metrics::KmsMetrics, transformers::Transformers};
use super::stored_form::{self, StorageMediaType};
use crate::server::{
    config::EncryptionProviders,
    reload::{self, ReloadMetrics, Reloadable, WatchedFiles},
};

/// Values that could not be decrypted are tried again this often, and so many of them at a time.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const RETRIES_MAX: usize = 64;

/// Keys whose values can't be decrypted, and why.
#[derive(Default)]
struct Unreadable {
    keys: RwLock<BTreeMap<String, String>>,
    /// Those of them that a range could read since: the watch cache is about to have them.
    recovered: Mutex<BTreeSet<String>>,
    count: AtomicUsize,
    noted: Notify,
}

impl Unreadable {
    fn note(&self, key: &str, why: Option<&str>) {
        if why.is_none() && self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut keys = self.keys.write();
        match why {
            Some(why) => drop(keys.insert(key.to_string(), why.to_string())),
            None => drop(keys.remove(key)),
        }
        self.count.store(keys.len(), Ordering::Release);
        if why.is_some() {
            self.recovered.lock().remove(key);
            self.noted.notify_one();
        }
    }

    /// A range could read the value. Its key stays noted until `loaded`, or a list would leave the object out meanwhile.
    fn recover(&self, key: &str) {
        if self.why(key).is_some() {
            self.recovered.lock().insert(key.to_string());
        }
    }

    /// Whoever reads ranges has taken over what they held.
    fn loaded(&self) {
        let recovered = std::mem::take(&mut *self.recovered.lock());
        recovered.iter().for_each(|key| self.note(key, None));
    }

    /// Some of them, the first that come after `last`, and from the beginning again.
    fn after(&self, last: &str) -> Vec<String> {
        let keys = self.keys.read();
        let behind = keys.range((Bound::Excluded(last.to_string()), Bound::Unbounded));
        let all = behind.chain(keys.range(..=last.to_string()));
        all.take(RETRIES_MAX).map(|(key, _)| key.clone()).collect()
    }

    fn why(&self, key: &str) -> Option<String> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.keys.read().get(key).cloned(),
        }
    }

    fn first_below(&self, prefix: &str) -> Option<(String, String)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let keys = self.keys.read();
        let found = keys.range(prefix.to_string()..).next().filter(|(key, _)| key.starts_with(prefix));
        found.map(|(key, why)| (key.clone(), why.clone()))
    }
}

/// The store as the rest of the server sees it: in the clear, and JSON.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    media: StorageMediaType,
    written: Arc<WrittenObjects>,
    transformers: Arc<Reloadable<Transformers>>,
    unreadable: Arc<Unreadable>,
    env: Env,
}

fn failed(key: &str, why: &str) -> StoreError {
    StoreError::Unreadable { key: key.to_string(), why: why.to_string() }
}

impl EncryptedStore {
    pub async fn new(
        config: Option<&EncryptionProviders>,
        media: StorageMediaType,
        inner: Arc<dyn Store>,
        env: &Env,
        metrics: &ReloadMetrics,
    ) -> Result<Arc<Self>, String> {
        let transformers = match config {
            None => Reloadable::new(Transformers::default()),
            Some(config) => {
                let files = WatchedFiles::new(vec![config.file.clone()]);
                let (path, making) = (config.file.clone(), env.clone());
                let counted = KmsMetrics::new(metrics, env);
                let load = move || {
                    let entries = configuration::load(&path)?;
                    Transformers::new(entries, &making, &counted)
                };
                let first = load()?;
                first.start().await;
                let transformers = Reloadable::new(first);
                if config.automatic_reload {
                    reload::follow(&transformers, files, &reload::ENCRYPTION, metrics, env, move || {
                        let loaded = load();
                        Box::pin(async move {
                            let loaded = loaded?;
                            loaded.start().await;
                            // A new configuration must work before the old one goes.
                            healthy(&loaded).await?;
                            Ok(loaded)
                        })
                    });
                }
                transformers
            }
        };
        let (written, unreadable) = Default::default();
        Ok(Arc::new(Self { inner, media, written, transformers, unreadable, env: env.clone() }))
    }

    /// `Err` if the value under `key` can't be decrypted.
    pub fn check_key(&self, key: &str) -> Result<(), ApiError> {
        match self.unreadable.why(key) {
            None => Ok(()),
            Some(why) => Err(ApiError::internal(failed(key, &why).to_string())),
        }
    }

    /// The same of all keys that begin so.
    pub fn check_prefix(&self, prefix: &str) -> Result<(), ApiError> {
        match self.unreadable.first_below(prefix) {
            None => Ok(()),
            Some((key, why)) => Err(ApiError::internal(failed(&key, &why).to_string())),
        }
    }

    /// The watch cache holds what was read for it: keys whose values could be read are no longer refused.
    pub fn loaded(&self) {
        self.unreadable.loaded();
    }

    /// Calls `then` when a value can be read that could not be before, since its key is back, or its key service. For as
    /// long as the store lives.
    pub fn on_recovery(self: &Arc<Self>, then: impl Fn() + Send + 'static) {
        let (weak, unreadable, env) = (Arc::downgrade(self), self.unreadable.clone(), self.env.clone());
        self.env.spawn(async move {
            let mut last = String::new();
            loop {
                while unreadable.count.load(Ordering::Acquire) == 0 {
                    unreadable.noted.notified().await;
                    if weak.strong_count() == 0 {
                        return;
                    }
                }
                env.sleep(RETRY_INTERVAL).await;
                let Some(store) = weak.upgrade() else { return };
                if store.has_recovered(&mut last).await {
                    then();
                }
            }
        });
    }

    /// Tries some of what could not be read, those that come after `last`.
    async fn has_recovered(&self, last: &mut String) -> bool {
        for key in self.unreadable.after(last) {
            match StoreLayer::get(self, &key).await {
                Ok(Some(_)) => return true,
                Ok(None) => self.unreadable.note(&key, None),
                Err(error) => tracing::debug!(key, %error, "a value still can't be read"),
            }
            *last = key;
        }
        false
    }

    /// Whether the value under `key` is not written as it would be now.
    pub async fn is_stale(&self, key: &str) -> Result<bool, StoreError> {
        let transformers = self.transformers.current();
        if transformers.is_empty() && self.keeps_json() {
            return Ok(false);
        }
        let Some(record) = self.inner.get(key).await? else { return Ok(false) };
        let opened = transformers.open(key, &self.inner.stored_key(key), record.value).await;
        let opened = opened.map_err(|why| failed(key, &why))?;
        let outdated = !self.keeps_json() && stored_form::is_outdated(key, &opened.value, self.media);
        Ok(opened.stale || outdated)
    }

    /// A store that is ours alone may have objects just as they are served.
    fn keeps_json(&self) -> bool {
        self.media == StorageMediaType::Json && !self.inner.is_shared()
    }

    fn stored(&self, key: &str, json: &Bytes) -> Bytes {
        if self.keeps_json() { json.clone() } else { stored_form::to_stored(key, json, self.media) }
    }

    /// Whether every key management service is well.
    pub async fn healthy(&self) -> Result<(), String> {
        healthy(&self.transformers.current()).await
    }

    async fn open(&self, mut record: Record) -> Result<Record, StoreError> {
        let stored_key = self.inner.stored_key(&record.key);
        let json = open(&self.transformers.current(), &record.key, &stored_key, record.value).await;
        record.value = json.map_err(|why| failed(&record.key, &why))?;
        Ok(record)
    }
}

/// What is stored under `key`, decrypted and as JSON.
async fn open(transformers: &Transformers, key: &str, stored_key: &str, value: Bytes) -> Result<Bytes, String> {
    let opened = transformers.open(key, stored_key, value).await?;
    stored_form::to_json(key, opened.value)
}

async fn healthy(transformers: &Transformers) -> Result<(), String> {
    for kms in &transformers.kms {
        kms.check().await?;
    }
    Ok(())
}

impl Drop for EncryptedStore {
    fn drop(&mut self) {
        self.unreadable.noted.notify_one();
    }
}

#[async_trait]
impl StoreLayer for EncryptedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        match self.inner.get(key).await? {
            Some(record) => self.open(record).await.map(Some),
            None => Ok(None),
        }
    }

    /// A record that can't be decrypted stays as it is, which nobody takes for an object; its key is noted.
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let mut found = self.inner.range(range).await?;
        let transformers = self.transformers.current();
        for record in &mut found.records {
            let stored_key = self.inner.stored_key(&record.key).into_owned();
            match open(&transformers, &record.key, &stored_key, record.value.clone()).await {
                Ok(json) => {
                    record.value = json;
                    self.unreadable.recover(&record.key);
                }
                Err(why) => {
                    tracing::error!(key = record.key, why, "unable to read a value");
                    self.unreadable.note(&record.key, Some(&why));
                }
            }
        }
        Ok(found)
    }

    async fn transact(&self, mut transaction: Transaction) -> Result<Outcome, StoreError> {
        let transformers = self.transformers.current();
        let mut written = Vec::new();
        for operation in &mut transaction.operations {
            if let Operation::Put { key, value, .. } = operation {
                let json = std::mem::take(value);
                let stored = self.stored(key, &json);
                if stored.as_ptr() != json.as_ptr() {
                    written.push((key.clone(), json));
                }
                let stored_key = self.inner.stored_key(key).into_owned();
                let sealed = transformers.seal(key, &stored_key, stored, &self.env).await;
                *value = sealed.map_err(|why| failed(key, &why))?;
            }
        }
        match self.inner.transact(transaction).await? {
            Outcome::Done { first, revision } => {
                // A shared store has one revision for all of them.
                if first == revision {
                    self.written.note(revision, written);
                }
                Ok(Outcome::Done { first, revision })
            }
            Outcome::Conflict { current, revision } => {
                let mut opened = Vec::with_capacity(current.len());
                for record in current {
                    opened.push(match record {
                        Some(record) => Some(self.open(record).await?),
                        None => None,
                    });
                }
                Ok(Outcome::Conflict { current: opened, revision })
            }
        }
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        let stream = self.inner.watch(start, end, from).await?;
        let reader = EventReader {
            inner: self.inner.clone(),
            transformers: self.transformers.clone(),
            unreadable: self.unreadable.clone(),
            written: self.written.clone(),
        };
        let reader = Arc::new(reader);
        Ok(Box::pin(stream.then(move |item| {
            let reader = reader.clone();
            async move {
                let mut item = item?;
                if let WatchItem::Events(events) = &mut item {
                    for event in events {
                        reader.open(event).await;
                    }
                }
                Ok(item)
            }
        })))
    }

    fn repair_from(&self, source: RepairSource) {
        // A value that was encrypted has no second copy: encrypted again it is another.
        let (transformers, media, keeps_json) = (self.transformers.clone(), self.media, self.keeps_json());
        self.inner.repair_from(Box::new(move |key, revision| {
            let plain = transformers.current().writes_plain(key).then(|| source(key, revision)).flatten();
            plain.map(|json| if keeps_json { json } else { stored_form::to_stored(key, &json, media) })
        }));
    }
}

/// What turns the events of a watch into those of objects in the clear.
struct EventReader {
    inner: Arc<dyn Store>,
    transformers: Arc<Reloadable<Transformers>>,
    unreadable: Arc<Unreadable>,
    written: Arc<WrittenObjects>,
}

impl EventReader {
    async fn open(&self, event: &mut Event) {
        let value = match &mut event.change {
            Change::Put { value, .. } => {
                if let Some(json) = self.written.take(&event.key, event.revision) {
                    *value = json;
                    return self.unreadable.note(&event.key, None);
                }
                value
            }
            Change::Delete { previous } => {
                self.unreadable.note(&event.key, None);
                match previous {
                    Some(value) => value,
                    None => return,
                }
            }
        };
        let stored_key = self.inner.stored_key(&event.key);
        match open(&self.transformers.current(), &event.key, &stored_key, value.clone()).await {
            Ok(json) => {
                *value = json;
                self.unreadable.note(&event.key, None);
            }
            Err(why) => {
                tracing::error!(key = event.key, why, "unable to read a value");
                if matches!(event.change, Change::Put { .. }) {
                    self.unreadable.note(&event.key, Some(&why));
                }
            }
        }
    }
}

/// What this server wrote as something else than JSON and will hear of: its own watch need not read it back.
#[derive(Default)]
struct WrittenObjects(Mutex<Written>);

#[derive(Default)]
struct Written {
    by_key: HashMap<String, (Revision, Bytes)>,
    bytes: usize,
}

/// Writes whose event came first stay until there are this many.
const WRITTEN_OBJECTS_MAX: usize = 1024;
const WRITTEN_BYTES_MAX: usize = 8 << 20;

impl WrittenObjects {
    fn note(&self, revision: Revision, objects: Vec<(String, Bytes)>) {
        if objects.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        if known.by_key.len() >= WRITTEN_OBJECTS_MAX || known.bytes >= WRITTEN_BYTES_MAX {
            *known = Written::default();
        }
        for (key, json) in objects {
            known.bytes += json.len();
            known.by_key.insert(key, (revision, json));
        }
    }

    fn take(&self, key: &str, revision: Revision) -> Option<Bytes> {
        let mut known = self.0.lock();
        let (_, json) = known.by_key.get(key).filter(|(of, _)| *of == revision)?.clone();
        known.by_key.remove(key);
        known.bytes = known.bytes.saturating_sub(json.len());
        Some(json)
    }
}

#[cfg(test)]
mod tests {
    use super::Unreadable;

    #[test]
    fn what_could_be_read_is_refused_until_the_cache_has_it() {
        let unreadable = Unreadable::default();
        for key in ["/registry/secrets/default/a", "/registry/secrets/default/b"] {
            unreadable.note(key, Some("no key"));
            unreadable.recover(key);
        }
        assert!(unreadable.first_below("/registry/secrets/").is_some(), "the cache does not have them yet");
        unreadable.note("/registry/secrets/default/b", Some("a new value, no key"));
        unreadable.loaded();
        assert_eq!(unreadable.why("/registry/secrets/default/a"), None);
        assert_eq!(unreadable.why("/registry/secrets/default/b").as_deref(), Some("a new value, no key"));
        unreadable.recover("/registry/secrets/default/c");
        unreadable.note("/registry/secrets/default/b", None);
        assert_eq!(unreadable.first_below("/registry/"), None);
    }
}
