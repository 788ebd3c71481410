//! ServiceAccount tokens for pods, asked for through TokenRequest and renewed in time.
//! Used by `volume_manager`, for the plugins that ask for them.
//! A token is bound to its pod's UID, and is forgotten with the pod.

use std::{collections::HashMap, time::Duration};

use api::ApiError;
use client::Client;
use env::Env;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::pod::pod_spec;

/// A token is renewed after this share of its life, or after `RENEWAL_INTERVAL_MAX`.
const RENEWAL_LIFE_RATIO: f64 = 0.8;
const RENEWAL_INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

/// How soon a renewal that failed is tried again.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("failed to fetch token: {0}")]
    Request(#[from] ApiError),
    #[error("failed to fetch token: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("failed to fetch token: the server's answer has no token")]
    NoToken,
    /// Of one that was not asked for.
    #[error("failed to fetch token")]
    Missing,
}

/// What a token is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenKey {
    pub audience: String,
    pub expiration_seconds: i64,
}

impl TokenKey {
    pub fn new(projection: &ServiceAccountTokenProjection) -> Self {
        Self {
            audience: projection.audience.clone().unwrap_or_default(),
            expiration_seconds: projection.expiration_seconds.unwrap_or(3600),
        }
    }
}

struct Token {
    text: String,
    renew_at: Timestamp,
    expires: Timestamp,
}

pub struct TokenManager {
    client: Client,
    env: Env,
    /// By pod UID and what the token is for.
    tokens: Mutex<HashMap<(String, TokenKey), Token>>,
}

impl TokenManager {
    pub fn new(client: Client, env: Env) -> Self {
        Self { client, env, tokens: Mutex::default() }
    }

    /// A valid token, and how long until it should be renewed.
    pub async fn get(&self, pod: &Pod, key: &TokenKey) -> Result<(String, Duration), TokenError> {
        let cache_key = (pod_spec::uid(pod).to_string(), key.clone());
        let now = self.env.now();
        if let Some(token) = self.tokens.lock().get(&cache_key)
            && token.renew_at > now
        {
            return Ok((token.text.clone(), until(now, token.renew_at)));
        }
        let (text, expires) = match self.request(pod, key).await {
            Ok(answer) => answer,
            // The old token serves while it is valid.
            Err(error) => {
                let tokens = self.tokens.lock();
                let Some(old) = tokens.get(&cache_key).filter(|token| token.expires > now) else { return Err(error) };
                tracing::warn!(pod = pod_spec::display(pod), %error, "failed to renew a token");
                return Ok((old.text.clone(), until(now, old.expires).min(RENEWAL_RETRY_INTERVAL)));
            }
        };
        let life = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
        let renew_at = now + life.mul_f64(RENEWAL_LIFE_RATIO).min(RENEWAL_INTERVAL_MAX);
        let wait = until(now, renew_at);
        self.tokens.lock().insert(cache_key, Token { text: text.clone(), renew_at, expires });
        Ok((text, wait))
    }

    /// When a token that `get` gave ends.
    pub fn expires(&self, pod: &Pod, key: &TokenKey) -> Option<Timestamp> {
        let cache_key = (pod_spec::uid(pod).to_string(), key.clone());
        self.tokens.lock().get(&cache_key).map(|token| token.expires)
    }

    async fn request(&self, pod: &Pod, key: &TokenKey) -> Result<(String, Timestamp), TokenError> {
        let account = pod_spec::spec(pod).service_account_name.as_deref().filter(|name| !name.is_empty());
        let account = account.unwrap_or("default");
        let namespace = pod_spec::namespace(pod);
        let audiences: Vec<&str> = Some(key.audience.as_str()).filter(|a| !a.is_empty()).into_iter().collect();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": key.expiration_seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod_spec::name(pod), "uid": pod_spec::uid(pod)},
            },
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.client.call(Method::POST, &path, "application/json", body.to_string()).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let text = answer.pointer("/status/token").and_then(Value::as_str);
        let expires = answer.pointer("/status/expirationTimestamp").and_then(Value::as_str);
        let expires = expires.and_then(|text| text.parse().ok());
        match (text, expires) {
            (Some(text), Some(expires)) => Ok((text.to_string(), expires)),
            _ => Err(TokenError::NoToken),
        }
    }

    pub fn forget(&self, uid: &str) {
        self.tokens.lock().retain(|(owner, _), _| owner != uid);
    }
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use api::ApiError;

    use super::*;
    use crate::test_api::ScriptedApi;

    /// Gives out tokens of an hour, all but the second.
    fn hourly(env: Env, asked: Arc<AtomicU32>) -> Client {
        Client::new(ScriptedApi(move |_| {
            let number = asked.fetch_add(1, Ordering::SeqCst);
            if number == 1 {
                return Err(ApiError::internal("not now"));
            }
            let expires = (env.now() + Duration::from_secs(3600)).to_string();
            Ok(json!({"status": {"token": format!("token {number}"), "expirationTimestamp": expires}}))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_serves_until_there_is_a_new_one() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let asked = Arc::new(AtomicU32::new(0));
        let tokens = TokenManager::new(hourly(env.clone(), asked.clone()), env.clone());
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}));
        let pod = pod.unwrap();
        let key = TokenKey { audience: String::new(), expiration_seconds: 3600 };
        let check = async |after: u64, text: &str, renew_in: u64, times: u32| {
            env.sleep(Duration::from_secs(after)).await;
            let (found, wait) = tokens.get(&pod, &key).await.unwrap();
            assert_eq!((found.as_str(), wait.as_secs(), asked.load(Ordering::SeqCst)), (text, renew_in, times));
        };
        check(0, "token 0", 2880, 1).await;
        check(1000, "token 0", 1880, 1).await;
        // Time to renew it, and the API server does not answer.
        check(1880, "token 0", 30, 2).await;
        check(30, "token 2", 2880, 3).await;
        tokens.forget("u");
        check(0, "token 3", 2880, 4).await;
    }
}
