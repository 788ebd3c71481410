//! Upstream's metrics of issuers: how long tokens took to verify, and which keys were fetched last.
//! Told by `oidc` and `key_set`; shown at `/metrics` with those of reloads.
//! An issuer is shown by its hash, and by nothing once it is in no configuration any more.

use std::time::Duration;

use ::metrics::{Family, Metrics};
use sha2::{Digest, Sha256};

use env::Env;

use crate::server::reload::{ReloadMetrics, hash};

const LATENCY_BUCKETS_SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

static LATENCY: Family = Family::histogram(
    "apiserver_authentication_jwt_authenticator_latency_seconds",
    &["result", "jwt_issuer_hash"],
    LATENCY_BUCKETS_SECONDS,
    "How long tokens took that were not verified before.",
);
static LAST_FETCH: Family = Family::gauge(
    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
    &["result", "jwt_issuer_hash", "apiserver_id_hash"],
    "When keys were last fetched from an issuer, by what came of it.",
);
static LAST_KEY_SET: Family = Family::gauge(
    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
    &["jwt_issuer_hash", "apiserver_id_hash", "hash"],
    "The keys fetched last from an issuer, by their digest.",
);

/// Of one issuer.
#[derive(Clone)]
pub struct IssuerMetrics {
    metrics: Metrics,
    issuer: String,
    server: String,
    shows_keys: bool,
    env: Env,
}

fn hashed(text: &[u8]) -> String {
    hash(Sha256::digest(text).as_slice())
}

fn result(good: bool) -> &'static str {
    if good { "success" } else { "failure" }
}

impl IssuerMetrics {
    /// `shows_keys`: whether fetches of keys are told of.
    pub fn new(issuer: &str, shows_keys: bool, reloads: &ReloadMetrics, env: &Env) -> Self {
        let (metrics, server) = (reloads.metrics.clone(), reloads.server().to_string());
        Self { metrics, issuer: hashed(issuer.as_bytes()), server, shows_keys, env: env.clone() }
    }

    pub fn verified(&self, good: bool, took: Duration) {
        self.metrics.observe(&LATENCY, &[result(good), &self.issuer], took.as_secs_f64());
    }

    /// `keys`: the document, if it could be fetched.
    pub fn fetched(&self, keys: Option<&[u8]>) {
        if !self.shows_keys {
            return;
        }
        let now = self.env.now().as_millisecond() as f64 / 1000.0;
        self.metrics.set(&LAST_FETCH, &[result(keys.is_some()), &self.issuer, &self.server], now);
        if let Some(keys) = keys {
            self.metrics.retain(&LAST_KEY_SET, |labels| *labels[0] != *self.issuer);
            self.metrics.set(&LAST_KEY_SET, &[&self.issuer, &self.server, &hashed(keys)], 1.0);
        }
    }

    /// Shows no keys but those of these issuers.
    pub fn retain(metrics: &Metrics, issuers: &[&str]) {
        let issuers: Vec<_> = issuers.iter().map(|issuer| hashed(issuer.as_bytes())).collect();
        let is_in_use = |label: &str| issuers.iter().any(|issuer| issuer == label);
        metrics.retain(&LAST_FETCH, |labels| is_in_use(&labels[1]));
        metrics.retain(&LAST_KEY_SET, |labels| is_in_use(&labels[0]));
    }
}
