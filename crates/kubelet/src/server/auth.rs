//! Who may ask the node what: client certificates and bearer tokens, decided by the API server.
//! Called by the server for every request but health checks.
//! When in doubt, no. Answers are remembered only briefly.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, User, bearer_token};
use env::Env;
use http::{HeaderMap, Method};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::Config;

const CACHED_DECISIONS_MAX: usize = 1024;

pub struct Auth {
    client: Client,
    env: Env,
    config: Arc<Config>,
    decisions: Mutex<HashMap<(User, &'static str, &'static str), (bool, Duration)>>,
    /// By the tokens' hashes, where they are remembered at all.
    users: Mutex<HashMap<[u8; 32], (User, Duration)>>,
}

impl Auth {
    pub fn new(client: Client, env: Env, config: Arc<Config>) -> Arc<Self> {
        Arc::new(Self { client, env, config, decisions: Mutex::default(), users: Mutex::default() })
    }

    /// `certificate` has been verified against the client CA by the TLS handshake.
    pub async fn check(
        &self,
        certificate: Option<&[u8]>,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<(), ApiError> {
        let user = match certificate.map(certificate_user).transpose()?.flatten() {
            Some(user) => user,
            None => self.token_user(headers).await?,
        };
        if self.config.always_allow {
            return Ok(());
        }
        let (verb, parts) = (verb(method), subresources(path));
        for part in parts {
            if self.allowed(&user, verb, part).await? {
                return Ok(());
            }
        }
        let parts = parts.join(" ");
        let why = format!("user={}, verb={verb}, resource=nodes, subresource(s)=[{parts}]", user.name);
        Err(ApiError::forbidden("", "", "", &format!("Forbidden ({why})")))
    }

    async fn token_user(&self, headers: &HeaderMap) -> Result<User, ApiError> {
        match bearer_token(headers)? {
            Some(token) if self.config.token_auth && self.config.token_cache.is_zero() => {
                User::of_token(&self.client, token).await
            }
            Some(token) if self.config.token_auth => self.remembered_user(token).await,
            None if self.config.anonymous_auth => Ok(User::anonymous()),
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// Only of tokens that were good.
    async fn remembered_user(&self, token: &str) -> Result<User, ApiError> {
        let key: [u8; 32] = Sha256::digest(token).into();
        let now = self.env.monotonic();
        if let Some((user, until)) = self.users.lock().get(&key)
            && now < *until
        {
            return Ok(user.clone());
        }
        let user = User::of_token(&self.client, token).await?;
        let mut users = self.users.lock();
        if users.len() >= CACHED_DECISIONS_MAX {
            users.clear();
        }
        users.insert(key, (user.clone(), now + self.config.token_cache));
        Ok(user)
    }

    async fn allowed(&self, user: &User, verb: &'static str, subresource: &'static str) -> Result<bool, ApiError> {
        let key = (user.clone(), verb, subresource);
        let now = self.env.monotonic();
        if let Some((allowed, until)) = self.decisions.lock().get(&key).copied()
            && now < until
        {
            return Ok(allowed);
        }
        let what = SubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.into()),
                version: Some("v1".into()),
                resource: Some("nodes".into()),
                subresource: Some(subresource.into()),
                name: Some(self.config.node_name.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let allowed = user.may(&self.client, what).await?;
        let mut decisions = self.decisions.lock();
        if decisions.len() >= CACHED_DECISIONS_MAX {
            decisions.clear();
        }
        let kept = if allowed { self.config.allowed_cache } else { self.config.denied_cache };
        decisions.insert(key, (allowed, now + kept));
        Ok(allowed)
    }
}

/// Common name and organizations of a client certificate; none without a name. What can't be read is nobody's, rather
/// than left out.
fn certificate_user(der: &[u8]) -> Result<Option<User>, ApiError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| ApiError::unauthorized())?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| match value.as_str() {
        Ok(text) => Ok(text.to_string()),
        Err(_) => Err(ApiError::unauthorized()),
    };
    // Of several the last counts, as for the API server.
    let name = certificate.subject().iter_common_name().last().map(text).transpose()?;
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let mut groups: Vec<String> = certificate.subject().iter_organization().map(text).collect::<Result<_, _>>()?;
    // Whoever has shown who they are is of this group; tokens bring it themselves.
    groups.push("system:authenticated".to_string());
    Ok(Some(User { name, groups }))
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

/// Which parts of `nodes` a path falls under; whoever may use one of them may use the path.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        "statusz" => &["statusz"],
        "flagz" => &["configz"],
        "configz" => &["configz", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "pods" | "runningpods" => &["pods", "proxy"],
        // Our own: nodes may ask each other this and nothing else.
        "withdrawn" => &["withdrawn"],
        "manifests" => &["manifests"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_api::ScriptedApi;

    /// An API server that allows everyone one part of `nodes`.
    fn only(part: &'static str) -> Client {
        Client::new(ScriptedApi(move |request: http::Request<bytes::Bytes>| {
            let mut review: Value = serde_json::from_slice(request.body()).unwrap();
            let asked = review["spec"]["resourceAttributes"]["subresource"].clone();
            review["status"] = json!({"allowed": asked == part});
            Ok(review)
        }))
    }

    #[test]
    fn certificates_name_a_user_of_all_who_are_known() {
        let made = |name: rcgen::DnValue, group: rcgen::DnValue| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            certificate_user(certificate.der())
        };
        let text = |text: &str| rcgen::DnValue::Utf8String(text.into());
        let odd = || rcgen::DnValue::BmpString(rcgen::string::BmpString::try_from("ann").unwrap());
        let groups = ["admins", "system:authenticated"].map(String::from).to_vec();
        assert_eq!(made(text("ann"), text("admins")).unwrap(), Some(User { name: "ann".into(), groups }));
        assert_eq!(made(text(""), text("admins")).unwrap(), None, "a token may say who it is");
        assert!(made(odd(), text("admins")).is_err() && made(text("ann"), odd()).is_err());
        assert!(certificate_user(b"none").is_err());
    }

    #[tokio::test]
    async fn credentials_that_cannot_be_read_are_refused() {
        let config = Config { anonymous_auth: true, always_allow: true, ..Config::default() };
        let auth = Auth::new(only("proxy"), Env::real(), Arc::new(config));
        let check = async |certificate: Option<&[u8]>, authorization: Option<&[u8]>, code: Option<u16>| {
            let value = authorization.map(|bytes| http::HeaderValue::from_bytes(bytes).unwrap());
            let headers = value.map(|value| (http::header::AUTHORIZATION, value)).into_iter().collect();
            let found = auth.check(certificate, &headers, &Method::GET, "/pods").await;
            assert_eq!(found.err().map(|e| e.code), code, "{authorization:?}");
        };
        check(None, None, None).await;
        check(None, Some(b"Bearer t\xfcken"), Some(401)).await;
        check(None, Some(b"Basic YTpi"), Some(401)).await;
        check(None, Some(b"Bearer "), Some(401)).await;
        check(Some(b"no certificate"), None, Some(401)).await;
    }

    #[tokio::test]
    async fn one_of_the_parts_that_a_path_falls_under_is_enough() {
        for (allowed, path, expected) in [
            ("stats", "/stats/summary", Ok(())),
            ("proxy", "/stats/summary", Err("subresource(s)=[stats]")),
            ("metrics", "/metrics/cadvisor", Ok(())),
            ("proxy", "/exec/ns/pod/c", Ok(())),
            ("pods", "/exec/ns/pod/c", Err("subresource(s)=[proxy]")),
            ("proxy", "/containerLogs/ns/pod/c", Ok(())),
            ("pods", "/pods", Ok(())),
            ("proxy", "/pods", Ok(())),
            ("proxy", "/runningpods/", Ok(())),
            ("proxy", "/configz", Ok(())),
            ("configz", "/configz", Ok(())),
            ("log", "/logs/", Ok(())),
            ("proxy", "/logs/pods/a", Err("subresource(s)=[log]")),
            ("stats", "/pods", Err("verb=get, resource=nodes, subresource(s)=[pods proxy]")),
            ("withdrawn", "/withdrawn/uid", Ok(())),
            ("proxy", "/withdrawn/uid", Err("subresource(s)=[withdrawn]")),
            ("manifests", "/manifests/web", Ok(())),
            ("proxy", "/manifests/web", Err("subresource(s)=[manifests]")),
        ] {
            let config = Config { anonymous_auth: true, always_allow: false, ..Config::default() };
            let auth = Auth::new(only(allowed), Env::real(), Arc::new(config));
            let found = auth.check(None, &HeaderMap::new(), &Method::GET, path).await;
            match (found, expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.message.contains(part), "{path}: {}", error.message),
                (found, expected) => panic!("{allowed} for {path}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
