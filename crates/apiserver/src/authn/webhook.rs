//! A remote service says whose token it is: TokenReview over HTTPS, answers believed for a while.
//! A row of the chain in `authn`.
//! Tokens are kept as digests only; a service that cannot be asked believes nothing.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::ApiError;
use env::Env;

use super::{AuthenticatorResponse, TokenAuthenticator, log_throttle::LogThrottle, user_from_info};
use crate::{
    server::config::Webhook,
    storage::expiring::Expiring,
    transport::webhook_client::{self, Endpoint},
};

const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
const CACHED_TOKENS_MAX: usize = 4096;

pub struct WebhookTokens {
    endpoint: Endpoint,
    answers: Expiring<[u8; 32], Option<AuthenticatorResponse>>,
    allowed_for: Duration,
    refused_for: Duration,
    log: LogThrottle,
    env: Env,
}

impl WebhookTokens {
    pub fn new(config: &Webhook, env: &Env) -> Result<Self, String> {
        Ok(Self {
            endpoint: webhook_client::from_kubeconfig(&config.kubeconfig)?,
            answers: Expiring::new(CACHED_TOKENS_MAX),
            allowed_for: config.allowed_for,
            refused_for: config.refused_for,
            log: LogThrottle::default(),
            env: env.clone(),
        })
    }
}

#[async_trait]
impl TokenAuthenticator for WebhookTokens {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        let digest = Sha256::new().chain_update(token).chain_update([0]).chain_update(audiences.join("\0")).finalize();
        let now = self.env.monotonic();
        if let Some(known) = self.answers.get(&digest.into(), now) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
            "spec": { "token": token, "audiences": audiences },
        });
        let status = self.endpoint.review(&self.env, WEBHOOK_TIMEOUT, &review).await.map_err(|error| {
            if let Some(left_out) = self.log.passes(&self.env) {
                tracing::warn!(error, left_out, "failed to make webhook authenticator request");
            }
            ApiError::unauthorized()
        })?;
        let believed = read(&status, audiences);
        let lasts = if believed.is_some() { self.allowed_for } else { self.refused_for };
        self.answers.insert(digest.into(), believed.clone(), now + lasts, now);
        Ok(believed)
    }
}

/// An answer without a name, or for other audiences, is no answer.
fn read(status: &Value, audiences: &[String]) -> Option<AuthenticatorResponse> {
    if status["authenticated"] != true {
        return None;
    }
    let user = user_from_info(&status["user"]).filter(|user| !user.name.is_empty())?;
    let answered: Vec<String> = match &status["audiences"] {
        Value::Null => Vec::new(),
        value => value.as_array()?.iter().map(|a| a.as_str().map(str::to_string)).collect::<Option<_>>()?,
    };
    let common: Vec<String> = answered.iter().filter(|a| audiences.contains(a)).cloned().collect();
    if !answered.is_empty() && common.is_empty() {
        return None;
    }
    Some(AuthenticatorResponse { user, audiences: common, warning: None })
}
