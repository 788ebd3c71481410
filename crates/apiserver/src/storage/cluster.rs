//! The state of the cluster as authorizers, admission plugins and allocators read it: the watch cache by kind.
//! Shared by `registry`, `authn`, `authz` and `admission`.
//! Reads only. What it returns may be a moment old; `fresh_get` is not.

use std::sync::Arc;

use api::{ApiError, Object};
use env::Env;
use store::Store;

use crate::{
    discovery::served::{Served, ServedResources},
    storage,
    storage::encryption::EncryptedStore,
    storage::watch_cache::{ResourceCache, WatchCache, store_error},
};

pub struct Cluster {
    pub env: Env,
    pub store: Arc<dyn Store>,
    /// The same, as what knows how values are encrypted in it.
    pub encrypted: Arc<EncryptedStore>,
    pub cache: Arc<WatchCache>,
    pub served: ServedResources,
}

impl Cluster {
    /// The cache of a built-in resource of the storage version.
    pub fn resource(&self, plural: &str) -> Arc<ResourceCache> {
        self.cache.resource(&storage::builtin_prefix(plural))
    }

    /// A built-in object by plural name; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let key = if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") };
        self.resource(plural).get(&key).map(|e| e.object.clone())
    }

    /// The same, from the store if the cache has not seen it (yet).
    pub async fn fresh_get(&self, plural: &str, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, ApiError> {
        if let Some(found) = self.get(plural, namespace, name) {
            return Ok(Some(found));
        }
        self.cache.wait_until_fresh().await?;
        Ok(self.get(plural, namespace, name))
    }

    /// The built-in objects of one namespace, or of all if it is empty.
    pub fn list(&self, plural: &str, namespace: &str) -> Vec<Arc<Object>> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let snapshot = self.resource(plural).list(&prefix, None, 0, 0, |_| true);
        snapshot.entries.into_iter().map(|e| e.object.clone()).collect()
    }

    /// The newest version straight from the store.
    pub async fn live(&self, served: &Served, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, ApiError> {
        let key = served.key(namespace, name);
        let record = self.store.get(&key).await.map_err(store_error)?;
        record.map(|r| storage::decode(&r.value, r.mod_revision).map(Arc::new)).transpose()
    }
}
