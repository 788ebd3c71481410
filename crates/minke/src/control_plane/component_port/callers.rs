//! Who asks a controller manager or scheduler that runs alone: by certificate, by a proxy's word, or by token.
//! Asked by the port. The authorities are the API server's own, as it publishes them for servers like this one; whose a
//! token is, it says itself.
//! Nobody is believed on the word of an authority that neither a flag nor the API server names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::ApiError;
use apiserver::{
    authn::{AuthenticatorResponse, Chain, Credentials, PeerCertificates, TokenAuthenticator, User},
    config::RequestHeader,
};
use async_trait::async_trait;
use client::Client;
use env::Env;
use http::{Extensions, HeaderMap};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;

/// Authorities are looked up again after this long, when somebody shows a certificate.
const AUTHORITIES_TTL: Duration = Duration::from_secs(60);

pub struct Callers {
    client: Client,
    env: Env,
    /// `--client-ca-file`, in place of what the API server publishes.
    client_ca_pem: Option<Vec<u8>>,
    /// How callers are known, and since when; no time: without the API server's word on certificates.
    known: Mutex<(Option<Duration>, Arc<Chain>)>,
}

impl Callers {
    pub fn new(client: Client, env: Env, client_ca_pem: Option<Vec<u8>>) -> Result<Self, String> {
        let chain = chain(&client, client_ca_pem.as_deref(), &BTreeMap::new(), &env)?;
        Ok(Self { client, env, client_ca_pem, known: Mutex::new((None, Arc::new(chain))) })
    }

    pub async fn user(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<client::User, ApiError> {
        if extensions.get::<PeerCertificates>().is_some() {
            self.look_up().await;
        }
        let chain = self.known.lock().1.clone();
        let believed = chain.authenticate(&Credentials { path: "/", headers, extensions }).await?;
        Ok(client::User { name: believed.user.name, groups: believed.user.groups })
    }

    async fn look_up(&self) {
        let now = self.env.monotonic();
        if self.known.lock().0.is_some_and(|since| now < since + AUTHORITIES_TTL) {
            return;
        }
        let maps = self.client.namespaced::<ConfigMap>("kube-system");
        let found = maps.get("extension-apiserver-authentication").await.map_err(|error| error.to_string());
        let made = found.and_then(|map| {
            chain(&self.client, self.client_ca_pem.as_deref(), &map.data.unwrap_or_default(), &self.env)
        });
        match made {
            Ok(chain) => *self.known.lock() = (Some(now), Arc::new(chain)),
            // What was known before still holds.
            Err(error) => tracing::warn!(error, "failed to learn whose client certificates to believe"),
        }
    }
}

fn chain(client: &Client, own: Option<&[u8]>, data: &BTreeMap<String, String>, env: &Env) -> Result<Chain, String> {
    let published = data.get("client-ca-file").map(|pem| pem.as_bytes()).unwrap_or_default();
    let tokens = Arc::new(Tokens(client.clone()));
    Chain::delegated(own.unwrap_or(published), request_header(data)?.as_ref(), tokens, env)
}

/// Whom the API server says to believe about others. A list that can't be read is none that is empty: no allowed names
/// would mean all.
fn request_header(data: &BTreeMap<String, String>) -> Result<Option<RequestHeader>, String> {
    let Some(ca_pem) = data.get("requestheader-client-ca-file").filter(|pem| !pem.is_empty()) else { return Ok(None) };
    let list = |key: &str| -> Result<Vec<String>, String> {
        let key = format!("requestheader-{key}");
        match data.get(&key).map(String::as_str) {
            None | Some("") => Ok(Vec::new()),
            Some(text) => serde_json::from_str(text).map_err(|error| format!("failed to read {key}: {error}")),
        }
    };
    Ok(Some(RequestHeader {
        ca_pem: ca_pem.clone().into_bytes(),
        ca_file: None,
        allowed_names: list("allowed-names")?,
        username_headers: list("username-headers")?,
        uid_headers: list("uid-headers")?,
        group_headers: list("group-headers")?,
        extra_header_prefixes: list("extra-headers-prefix")?,
    }))
}

struct Tokens(Client);

#[async_trait]
impl TokenAuthenticator for Tokens {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        let client::User { name, groups } = client::User::of_token(&self.0, token).await?;
        Ok(Some(User { name, groups, ..User::default() }.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_proxies_that_cannot_be_read_is_not_taken_for_all_proxies() {
        let check = |names: Option<&str>, expected: Result<&[&str], &str>| {
            let mut data = BTreeMap::from([("requestheader-client-ca-file".to_string(), "pem".to_string())]);
            data.extend(names.map(|names| ("requestheader-allowed-names".to_string(), names.to_string())));
            match (request_header(&data), expected) {
                (Ok(Some(header)), Ok(names)) => assert_eq!(header.allowed_names, names),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (found, expected) => panic!("{names:?}: {:?} instead of {expected:?}", found.map(|h| h.is_some())),
            }
        };
        check(Some(r#"["front-proxy-client"]"#), Ok(&["front-proxy-client"]));
        check(Some(""), Ok(&[]));
        check(None, Ok(&[]));
        check(Some("front-proxy-client"), Err("failed to read requestheader-allowed-names"));
        check(Some("[1]"), Err("failed to read requestheader-allowed-names"));
        assert!(request_header(&BTreeMap::new()).unwrap().is_none());
    }
}
