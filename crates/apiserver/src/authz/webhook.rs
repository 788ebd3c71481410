//! A remote service decides: SubjectAccessReview over HTTPS, answers believed for a while.
//! A row of the modes in `authz`.
//! A service that cannot be asked allows nothing.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use env::Env;

use super::{Attributes, Authorizer, Decision, Rules};
use crate::{
    authn::User,
    server::config::Webhook,
    storage::expiring::Expiring,
    transport::webhook_client::{self, Endpoint},
};

const CACHED_DECISIONS_MAX: usize = 8192;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests longer than this are asked anew each time, so that nobody fills the memory with their names.
const CACHED_REQUEST_BYTES_MAX: usize = 10_000;

pub struct WebhookAuthorizer {
    endpoint: Endpoint,
    answers: Expiring<String, Decision>,
    allowed_for: Duration,
    refused_for: Duration,
    env: Env,
}

impl WebhookAuthorizer {
    pub fn new(config: &Webhook, env: Env) -> Result<Self, String> {
        Ok(Self {
            endpoint: webhook_client::from_kubeconfig(&config.kubeconfig)?,
            answers: Expiring::new(CACHED_DECISIONS_MAX),
            allowed_for: config.allowed_for,
            refused_for: config.refused_for,
            env,
        })
    }
}

fn review(a: &Attributes) -> Value {
    let user = &a.user;
    let mut spec = json!({ "user": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        spec["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
    match a.is_resource {
        true => {
            spec["resourceAttributes"] = json!({
                "namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version,
                "resource": a.resource, "subresource": a.subresource, "name": a.name,
            });
        }
        false => spec["nonResourceAttributes"] = json!({ "path": a.path, "verb": a.verb }),
    }
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec })
}

#[async_trait]
impl Authorizer for WebhookAuthorizer {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let review = review(a);
        let key = review["spec"].to_string();
        let now = self.env.monotonic();
        if let Some(known) = self.answers.get(&key, now) {
            return known;
        }
        let answer = match self.endpoint.post(&self.env, WEBHOOK_TIMEOUT, &review).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error, "failed to make webhook authorizer request");
                return Decision::NoOpinion(String::new());
            }
        };
        let status = &answer["status"];
        let reason = status["reason"].as_str().unwrap_or_default().to_string();
        let (decision, lasts) = match (status["allowed"].as_bool(), status["denied"].as_bool()) {
            // Allowed and denied at once is a lie; so is neither.
            (Some(true), None | Some(false)) => (Decision::Allow(reason), self.allowed_for),
            (Some(false) | None, Some(true)) => (Decision::Deny(reason), self.refused_for),
            (Some(false), _) => (Decision::NoOpinion(reason), self.refused_for),
            _ => return Decision::NoOpinion(String::new()),
        };
        if key.len() <= CACHED_REQUEST_BYTES_MAX {
            self.answers.insert(key, decision.clone(), now + lasts, now);
        }
        decision
    }

    async fn rules(&self, _: &User, _: &str) -> Rules {
        Rules::unknown("webhook authorizer does not support user rule resolution")
    }
}
