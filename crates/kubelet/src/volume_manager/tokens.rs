//! ServiceAccount tokens for pods, asked for through TokenRequest and renewed in time.
//! Used by `volume_manager`.
//! Invariant: a token is bound to its pod's UID, and is forgotten with the pod.

use std::{collections::HashMap, time::Duration};

use client::Client;
use env::Env;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::payload::TokenKey;
use crate::pod_spec;

/// Renewed after this much of its life, or after a day.
const RENEW_AT: f64 = 0.8;
const LONGEST: Duration = Duration::from_secs(24 * 3600);

struct Token {
    text: String,
    renew_at: Timestamp,
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
    pub async fn get(&self, pod: &Pod, key: &TokenKey) -> Result<(String, Duration), String> {
        let cache_key = (pod_spec::uid(pod).to_string(), key.clone());
        let now = self.env.now();
        if let Some(token) = self.tokens.lock().get(&cache_key)
            && token.renew_at > now
        {
            return Ok((token.text.clone(), until(now, token.renew_at)));
        }
        let (text, expires) = self.request(pod, key).await?;
        let life = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
        let renew_at = now + life.mul_f64(RENEW_AT).min(LONGEST);
        let wait = until(now, renew_at);
        self.tokens.lock().insert(cache_key, Token { text: text.clone(), renew_at });
        Ok((text, wait))
    }

    async fn request(&self, pod: &Pod, key: &TokenKey) -> Result<(String, Timestamp), String> {
        let account = pod_spec::spec(pod).service_account_name.as_deref().filter(|name| !name.is_empty());
        let account = account.unwrap_or("default");
        let namespace = pod_spec::namespace(pod);
        let failed = |why: String| format!("failed to fetch token: {why}");
        let audiences: Vec<&str> = Some(key.audience.as_str()).filter(|a| !a.is_empty()).into_iter().collect();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": key.expiration_seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod_spec::name(pod), "uid": pod_spec::uid(pod)},
            },
        });
        let request = Request::post(format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"))
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(body.to_string().into_bytes().into())
            .map_err(|error| failed(error.to_string()))?;
        let answer = self.client.request(request).await.map_err(|error| failed(error.to_string()))?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
        let text = answer.pointer("/status/token").and_then(Value::as_str);
        let expires = answer.pointer("/status/expirationTimestamp").and_then(Value::as_str);
        let expires = expires.and_then(|text| text.parse().ok());
        match (text, expires) {
            (Some(text), Some(expires)) => Ok((text.to_string(), expires)),
            _ => Err(failed("the server's answer has no token".into())),
        }
    }

    pub fn forget(&self, uid: &str) {
        self.tokens.lock().retain(|(owner, _), _| owner != uid);
    }
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
