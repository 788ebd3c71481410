//! Encryption at rest: what the store gets is encrypted as `--encryption-provider-config` says, in upstream's formats.
//! A layer around the store, below the watch cache; `transformers` has the ciphers, `kms` speaks to key services.
//! Nothing that is to be encrypted is written in the clear. What can't be decrypted is an error for whoever asks for it,
//! never absent.

mod ciphers;
mod configuration;
mod kms;
mod kms_metrics;
pub mod kms_protocol;
mod transformers;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::RwLock;

use api::ApiError;
use env::Env;
use store::{
    Change, Event, Operation, Outcome, Range, RangeResult, Record, RepairSource, Revision, Store, StoreError,
    StoreLayer, Transaction, WatchItem, WatchStream,
};

use self::{kms_metrics::KmsMetrics, transformers::Transformers};
use crate::server::{
    config::EncryptionProviders,
    reload::{self, ReloadMetrics, Reloadable, WatchedFiles},
};

/// Keys whose values can't be decrypted, and why.
#[derive(Default)]
struct Unreadable {
    keys: RwLock<BTreeMap<String, String>>,
    count: AtomicUsize,
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

/// The store as the rest of the server sees it: in the clear.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
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
        Ok(Arc::new(Self { inner, transformers, unreadable: Arc::default(), env: env.clone() }))
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

    /// Whether the value under `key` is not written as it would be now.
    pub async fn is_stale(&self, key: &str) -> Result<bool, StoreError> {
        let transformers = self.transformers.current();
        if transformers.is_empty() {
            return Ok(false);
        }
        let Some(record) = self.inner.get(key).await? else { return Ok(false) };
        let opened = transformers.open(key, record.value).await.map_err(|why| failed(key, &why))?;
        Ok(opened.stale)
    }

    /// Whether every key management service is well.
    pub async fn healthy(&self) -> Result<(), String> {
        healthy(&self.transformers.current()).await
    }

    async fn open(&self, mut record: Record) -> Result<Record, StoreError> {
        let opened = self.transformers.current().open(&record.key, record.value).await;
        record.value = opened.map_err(|why| failed(&record.key, &why))?.value;
        Ok(record)
    }
}

async fn healthy(transformers: &Transformers) -> Result<(), String> {
    for kms in &transformers.kms {
        kms.check().await?;
    }
    Ok(())
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
        let newest = range.revision.is_none_or(|revision| revision == 0);
        let mut found = self.inner.range(range).await?;
        let transformers = self.transformers.current();
        for record in &mut found.records {
            match transformers.open(&record.key, record.value.clone()).await {
                Ok(opened) => {
                    record.value = opened.value;
                    if newest {
                        self.unreadable.note(&record.key, None);
                    }
                }
                Err(why) => {
                    tracing::error!(key = record.key, why, "unable to decrypt a value");
                    self.unreadable.note(&record.key, Some(&why));
                }
            }
        }
        Ok(found)
    }

    async fn transact(&self, mut transaction: Transaction) -> Result<Outcome, StoreError> {
        let transformers = self.transformers.current();
        for operation in &mut transaction.operations {
            if let Operation::Put { key, value, .. } = operation {
                let sealed = transformers.seal(key, std::mem::take(value), &self.env).await;
                *value = sealed.map_err(|why| failed(key, &why))?;
            }
        }
        match self.inner.transact(transaction).await? {
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
            done => Ok(done),
        }
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        let stream = self.inner.watch(start, end, from).await?;
        let (transformers, unreadable) = (self.transformers.clone(), self.unreadable.clone());
        Ok(Box::pin(stream.then(move |item| {
            let (transformers, unreadable) = (transformers.current(), unreadable.clone());
            async move {
                let mut item = item?;
                if let WatchItem::Events(events) = &mut item {
                    for event in events {
                        open_event(event, &transformers, &unreadable).await;
                    }
                }
                Ok(item)
            }
        })))
    }

    fn repair_from(&self, source: RepairSource) {
        // A value that was encrypted has no second copy: encrypted again it is another.
        let transformers = self.transformers.clone();
        self.inner.repair_from(Box::new(move |key, revision| {
            transformers.current().writes_plain(key).then(|| source(key, revision)).flatten()
        }));
    }
}

async fn open_event(event: &mut Event, transformers: &Transformers, unreadable: &Unreadable) {
    let value = match &mut event.change {
        Change::Put { value, .. } => value,
        Change::Delete { previous } => {
            unreadable.note(&event.key, None);
            match previous {
                Some(value) => value,
                None => return,
            }
        }
    };
    match transformers.open(&event.key, value.clone()).await {
        Ok(opened) => {
            *value = opened.value;
            unreadable.note(&event.key, None);
        }
        Err(why) => {
            tracing::error!(key = event.key, why, "unable to decrypt a value");
            if matches!(event.change, Change::Put { .. }) {
                unreadable.note(&event.key, Some(&why));
            }
        }
    }
}
