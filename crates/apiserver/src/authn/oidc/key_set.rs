//! The public keys of an issuer, found by its discovery document and fetched again when a token names one we lack.
//! Asked by `oidc` about every token that is not cached.
//! Tokens nobody can verify make us ask the issuer only so often; keys we have are kept when it can't be reached.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::Jwk};
use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use env::Env;

use super::{configuration::Issuer, issuer_metrics::IssuerMetrics};
use crate::transport::{tls_config, webhook_client::Endpoint};

/// How long a request waits for an issuer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts to reach an issuer that has never answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Tokens with unknown keys may cause this many fetches in a row, and then one per interval.
const FETCH_BURST: u32 = 4;
const FETCH_INTERVAL: Duration = Duration::from_secs(10);
const KEYS_MAX: usize = 256;

struct Key {
    id: String,
    key: DecodingKey,
}

#[derive(Default)]
struct Fetched {
    keys: Vec<Key>,
    /// How many times they were fetched; 0 is never.
    times: u64,
}

/// Fetches that may be made now, as of the last look.
struct Allowance {
    left: u32,
    since: Duration,
}

pub struct KeySet {
    issuer: String,
    discovery: http::Uri,
    tls: Arc<ClientConfig>,
    fetched: RwLock<Arc<Fetched>>,
    /// One fetches at a time; others wait for what comes of it.
    fetching: Semaphore,
    allowance: Mutex<Allowance>,
    /// None for issuers that only vouch for claims.
    metrics: Option<IssuerMetrics>,
    env: Env,
}

impl KeySet {
    pub fn new(issuer: &Issuer, metrics: Option<IssuerMetrics>, env: &Env) -> Result<Arc<Self>, String> {
        let discovery = match issuer.discovery_url.as_str() {
            "" => format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/')),
            url => url.to_string(),
        };
        Ok(Arc::new(Self {
            issuer: issuer.url.clone(),
            discovery: discovery.parse().map_err(|e| format!("{discovery}: {e}"))?,
            tls: Arc::new(tls_config::client_config(Some(issuer.certificate_authority.as_bytes()), None)?),
            fetched: RwLock::default(),
            fetching: Semaphore::new(1),
            allowance: Mutex::new(Allowance { left: FETCH_BURST, since: Duration::ZERO }),
            metrics,
            env: env.clone(),
        }))
    }

    /// Asks until the issuer has answered once, so that the first token need not wait.
    pub fn prepare(self: &Arc<Self>) {
        let (weak, env) = (Arc::downgrade(self), self.env.clone());
        self.env.spawn(async move {
            while let Some(keys) = Weak::upgrade(&weak) {
                let Err(error) = keys.ready().await else { return };
                tracing::warn!(issuer = keys.issuer, error, "oidc: failed to fetch the keys of the issuer");
                drop(keys);
                env.sleep(RETRY_INTERVAL).await;
            }
        });
    }

    /// Whether there are keys; fetches them if there were none so far.
    pub async fn ready(&self) -> Result<(), String> {
        let _turn = self.fetching.acquire().await;
        match self.fetched.read().times {
            0 => {}
            _ => return Ok(()),
        }
        self.fetch().await
    }

    /// The claims of a token that one of the keys signed. Times and audiences are for the caller to judge.
    pub async fn claims(&self, token: &str, algorithms: &[Algorithm]) -> Result<Map<String, Value>, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|e| format!("oidc: malformed jwt: {e}"))?;
        if header.crit.is_some() {
            return Err("oidc: the token has a critical header that is not understood".into());
        }
        if !algorithms.contains(&header.alg) {
            return Err(format!("oidc: id token signed with unsupported algorithm {:?}", header.alg));
        }
        let kid = header.kid.as_deref().unwrap_or_default();
        let fetched = self.fetched.read().clone();
        if let Some(claims) = verify(&fetched, kid, header.alg, token) {
            return Ok(claims);
        }
        self.refresh(fetched.times).await?;
        let fetched = self.fetched.read().clone();
        verify(&fetched, kid, header.alg, token).ok_or_else(|| "failed to verify id token signature".to_string())
    }

    /// Fetches the keys unless somebody has since the caller looked, or it was done too often lately.
    async fn refresh(&self, seen: u64) -> Result<(), String> {
        let _turn = self.fetching.acquire().await;
        if self.fetched.read().times != seen || !self.may_fetch() {
            return Ok(());
        }
        self.fetch().await
    }

    /// Takes one of the fetches that tokens may cause, if there is one left.
    fn may_fetch(&self) -> bool {
        let mut allowance = self.allowance.lock();
        let now = self.env.monotonic();
        let regained = (now.saturating_sub(allowance.since).as_secs() / FETCH_INTERVAL.as_secs()) as u32;
        if regained > 0 {
            allowance.left = allowance.left.saturating_add(regained).min(FETCH_BURST);
            allowance.since = now;
        }
        if allowance.left == 0 {
            return false;
        }
        allowance.left -= 1;
        true
    }

    async fn fetch(&self) -> Result<(), String> {
        let set = self.key_set().await;
        if let Some(metrics) = &self.metrics {
            let document = set.as_ref().ok().map(Value::to_string);
            metrics.fetched(document.as_deref().map(str::as_bytes));
        }
        let set = set?;
        let all = set["keys"].as_array().ok_or("oidc: failed to decode keys: there is no list of keys")?;
        // A set may hold keys of kinds that are unknown here; the others are good.
        let keys = all.iter().filter(|key| key["use"].as_str().is_none_or(|of| of == "sig")).filter_map(|key| {
            let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
            let id = key["kid"].as_str().unwrap_or_default().to_string();
            DecodingKey::from_jwk(&jwk).ok().map(|key| Key { id, key })
        });
        let keys: Vec<Key> = keys.take(KEYS_MAX).collect();
        let mut fetched = self.fetched.write();
        *fetched = Arc::new(Fetched { keys, times: fetched.times + 1 });
        Ok(())
    }

    /// The document with the keys.
    async fn key_set(&self) -> Result<Value, String> {
        let at = |url: http::Uri| Endpoint { url, address: None, tls: self.tls.clone(), authorization: None };
        let document = at(self.discovery.clone()).get(&self.env, FETCH_TIMEOUT).await?;
        let named = document["issuer"].as_str().unwrap_or_default();
        if named != self.issuer {
            return Err(format!(
                "oidc: issuer URL provided to client ({:?}) did not match the issuer URL returned by provider ({named:?})",
                self.issuer
            ));
        }
        let jwks = document["jwks_uri"].as_str().unwrap_or_default();
        let jwks: http::Uri = jwks.parse().map_err(|e| format!("oidc: jwks_uri {jwks:?}: {e}"))?;
        if jwks.scheme_str() != Some("https") {
            return Err(format!("oidc: jwks_uri {jwks} must be https"));
        }
        at(jwks).get(&self.env, FETCH_TIMEOUT).await
    }
}

fn verify(fetched: &Fetched, kid: &str, algorithm: Algorithm, token: &str) -> Option<Map<String, Value>> {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let candidates = fetched.keys.iter().filter(|key| kid.is_empty() || key.id == kid);
    let mut verified = candidates.filter_map(|key| jsonwebtoken::decode(token, &key.key, &validation).ok());
    verified.next().map(|token| token.claims)
}
