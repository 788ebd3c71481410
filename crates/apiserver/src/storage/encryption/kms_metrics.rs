//! What is counted of key management services, under upstream's names (`apiserver_envelope_encryption_*`).
//! Counted by `kms`; shown with the metrics of reloads.
//! Key ids are shown as hashes, and of each provider only those of the last `KEY_IDS_MAX`.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use ::metrics::{Family, Metrics};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use env::Env;

use crate::server::reload::{ReloadMetrics, hash};

const KEY_IDS_MAX: usize = 100;
const USE: &[&str] = &["transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"];

static LATENCY: Family = Family::histogram(
    "apiserver_envelope_encryption_kms_operations_latency_seconds",
    &["provider_name", "method_name", "grpc_status_code"],
    &[
        0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048, 0.4096, 0.8192,
        1.6384, 3.2768, 6.5536, 13.1072, 26.2144, 52.4288,
    ],
    "KMS operation duration with gRPC error code status total.",
);
static KEY_ID_TOTAL: Family = Family::counter(
    "apiserver_envelope_encryption_key_id_hash_total",
    USE,
    "Number of times a keyID is used split by transformation type, provider, and apiserver identity.",
);
static KEY_ID_TIMESTAMP: Family = Family::gauge(
    "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
    USE,
    "The last time in seconds when a keyID was used.",
);
static KEY_ID_STATUS_TIMESTAMP: Family = Family::gauge(
    "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
    &["provider_name", "key_id_hash", "apiserver_id_hash"],
    "The last time in seconds when a keyID was returned by the Status RPC call.",
);
static INVALID_KEY_ID: Family = Family::counter(
    "apiserver_envelope_encryption_invalid_key_id_from_status_total",
    &["provider_name", "error"],
    "Number of times an invalid keyID is returned by the Status RPC call split by error.",
);
static SOURCE_CACHE_SIZE: Family = Family::gauge(
    "apiserver_envelope_encryption_dek_source_cache_size",
    &["provider_name"],
    "Number of records in data encryption key (DEK) source cache.",
);

#[derive(Debug, Clone, Copy)]
pub enum Transformation {
    FromStorage,
    ToStorage,
}

impl Transformation {
    fn label(self) -> &'static str {
        match self {
            Self::FromStorage => "from_storage",
            Self::ToStorage => "to_storage",
        }
    }
}

/// Of all providers of one server.
#[derive(Clone)]
pub struct KmsMetrics {
    metrics: Metrics,
    server: String,
    env: Env,
    /// The key ids that are shown, with their hashes, oldest first.
    shown: Arc<Mutex<VecDeque<(String, String)>>>,
}

impl KmsMetrics {
    pub fn new(reloads: &ReloadMetrics, env: &Env) -> Self {
        let (metrics, server) = (reloads.metrics.clone(), reloads.server().to_string());
        Self { metrics, server, env: env.clone(), shown: Arc::default() }
    }

    /// `code` by gRPC's names: `OK`, `DeadlineExceeded`, …
    pub fn operation(&self, provider: &str, method: &str, code: &str, took: Duration) {
        self.metrics.observe(&LATENCY, &[provider, method, code], took.as_secs_f64());
    }

    fn key_id_hash(&self, key_id: &str) -> String {
        let mut shown = self.shown.lock();
        if let Some((_, hash)) = shown.iter().find(|(known, _)| known == key_id) {
            return hash.clone();
        }
        let digest = hash(Sha256::digest(key_id).as_slice());
        shown.push_back((key_id.to_string(), digest.clone()));
        if shown.len() > KEY_IDS_MAX
            && let Some((_, old)) = shown.pop_front()
        {
            for (family, at) in [(&KEY_ID_TOTAL, 2), (&KEY_ID_TIMESTAMP, 2), (&KEY_ID_STATUS_TIMESTAMP, 1)] {
                self.metrics.retain(family, |labels| labels.get(at).is_none_or(|label| **label != *old));
            }
        }
        digest
    }

    fn now(&self) -> f64 {
        self.env.now().as_millisecond() as f64 / 1000.0
    }

    pub fn key_used(&self, provider: &str, key_id: &str, transformation: Transformation) {
        let hash = self.key_id_hash(key_id);
        let labels = [transformation.label(), provider, &hash, &self.server];
        self.metrics.count(&KEY_ID_TOTAL, &labels);
        self.metrics.set(&KEY_ID_TIMESTAMP, &labels, self.now());
    }

    pub fn key_in_status(&self, provider: &str, key_id: &str) {
        let hash = self.key_id_hash(key_id);
        self.metrics.set(&KEY_ID_STATUS_TIMESTAMP, &[provider, &hash, &self.server], self.now());
    }

    pub fn invalid_key_id(&self, provider: &str, error: &str) {
        self.metrics.count(&INVALID_KEY_ID, &[provider, error]);
    }

    pub fn cached_sources(&self, provider: &str, count: usize) {
        self.metrics.set(&SOURCE_CACHE_SIZE, &[provider], count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_key_ids_are_shown() {
        let reloads = ReloadMetrics::new("server");
        let counted = KmsMetrics::new(&reloads, &Env::real());
        for number in 0..KEY_IDS_MAX + 20 {
            counted.key_used("p", &format!("key {number}"), Transformation::ToStorage);
            counted.key_in_status("p", &format!("key {number}"));
        }
        counted.key_used("p", &format!("key {}", KEY_IDS_MAX + 19), Transformation::FromStorage);
        counted.operation("p", "/v2.KeyManagementService/Encrypt", "OK", Duration::from_millis(1));
        counted.invalid_key_id("p", "empty");
        counted.cached_sources("p", 3);
        let page = reloads.metrics.page();
        let lines = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(
            lines("apiserver_envelope_encryption_key_id_hash_total{transformation_type=\"to_storage\""),
            KEY_IDS_MAX
        );
        assert_eq!(lines("apiserver_envelope_encryption_key_id_hash_total{transformation_type=\"from_storage\""), 1);
        assert_eq!(lines("apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{"), KEY_IDS_MAX);
        assert_eq!(lines("apiserver_envelope_encryption_kms_operations_latency_seconds_count{"), 1);
        assert!(!page.contains("key 119"), "ids are shown as hashes");
        assert!(page.contains("apiserver_envelope_encryption_dek_source_cache_size{provider_name=\"p\"} 3"));
        assert!(page.contains("invalid_key_id_from_status_total{provider_name=\"p\",error=\"empty\"} 1"));
    }
}
