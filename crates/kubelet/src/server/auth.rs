//! Who may ask the node what: client certificates and bearer tokens, decided by the API server.
//! Called by the server for every request but health checks.
//! Invariant: when in doubt, no. Answers are remembered only briefly.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::Client;
use env::Env;
use http::{HeaderMap, Method, header};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use parking_lot::Mutex;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::Config;

const MAX_REMEMBERED: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

pub struct Auth {
    client: Client,
    env: Env,
    config: Arc<Config>,
    decisions: Mutex<HashMap<(User, &'static str, &'static str), (bool, Duration)>>,
}

impl Auth {
    pub fn new(client: Client, env: Env, config: Arc<Config>) -> Arc<Self> {
        Arc::new(Self { client, env, config, decisions: Mutex::default() })
    }

    /// `certificate` has been verified against the client CA by the TLS handshake.
    pub async fn check(
        &self,
        certificate: Option<&[u8]>,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<(), ApiError> {
        let user = match certificate.and_then(certificate_user) {
            Some(user) => user,
            None => self.token_user(headers).await?,
        };
        let (verb, subresource) = (verb(method), subresource(path));
        if self.config.always_allow || self.allowed(&user, verb, subresource).await? {
            return Ok(());
        }
        let why = format!("user={}, verb={verb}, resource=nodes, subresource={subresource}", user.name);
        Err(ApiError::forbidden("", "", "", &format!("Forbidden ({why})")))
    }

    async fn token_user(&self, headers: &HeaderMap) -> Result<User, ApiError> {
        let value = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let token = match value.strip_prefix("Bearer ") {
            Some(token) if self.config.token_auth => token,
            None if self.config.anonymous_auth => {
                return Ok(User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()] });
            }
            _ => return Err(ApiError::unauthorized()),
        };
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_string()), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let status = self.client.api::<TokenReview>().create(&review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or_else(ApiError::unauthorized)?;
        Ok(User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
    }

    async fn allowed(&self, user: &User, verb: &'static str, subresource: &'static str) -> Result<bool, ApiError> {
        let key = (user.clone(), verb, subresource);
        let now = self.env.monotonic();
        if let Some((allowed, until)) = self.decisions.lock().get(&key).copied()
            && now < until
        {
            return Ok(allowed);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.into()),
                    name: Some(self.config.node_name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.client.api::<SubjectAccessReview>().create(&review).await?;
        let allowed = answer.status.is_some_and(|s| s.allowed);
        let mut decisions = self.decisions.lock();
        if decisions.len() >= MAX_REMEMBERED {
            decisions.clear();
        }
        let kept = if allowed { self.config.allowed_cache } else { self.config.denied_cache };
        decisions.insert(key, (allowed, now + kept));
        Ok(allowed)
    }
}

/// Common name and organizations of a client certificate.
fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_string);
    let name = certificate.subject().iter_common_name().next().and_then(text)?;
    Some(User { name, groups: certificate.subject().iter_organization().filter_map(text).collect() })
}

fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// Which part of `nodes` a path falls under.
fn subresource(path: &str) -> &'static str {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "stats" => "stats",
        "metrics" => "metrics",
        "logs" => "log",
        "configz" => "configz",
        "healthz" => "healthz",
        "pods" | "runningpods" => "pods",
        // Our own: nodes may ask each other this and nothing else.
        "withdrawn" => "withdrawn",
        _ => "proxy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fall_under_upstreams_subresources() {
        for (path, part) in [
            ("/stats/summary", "stats"),
            ("/metrics/cadvisor", "metrics"),
            ("/exec/ns/pod/c", "proxy"),
            ("/containerLogs/ns/pod/c", "proxy"),
            ("/pods", "pods"),
            ("/withdrawn/uid", "withdrawn"),
        ] {
            assert_eq!(subresource(path), part, "{path}");
        }
    }
}
