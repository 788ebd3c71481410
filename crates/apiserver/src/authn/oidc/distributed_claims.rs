//! Claims that an issuer has elsewhere (OpenID Connect Core 1.0, 5.6.2): `_claim_names` and `_claim_sources` say where.
//! Asked by `oidc` for the groups of a verified token that does not have them itself.
//! A source that can't be asked, or whose answer can't be verified, makes nobody of the bearer: groups that are not known are
//! not none.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::{Map, Value};

use env::Env;

use super::{claims, configuration::Issuer, key_set::KeySet, untrusted_issuer};
use crate::transport::{tls_config, webhook_client::Endpoint};

const NAMES: &str = "_claim_names";
const SOURCES: &str = "_claim_sources";
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Issuers of answers, beside those that are configured. More are refused: tokens must not fill the memory.
const ISSUERS_MAX: usize = 16;

/// Where a claim is, and what to show there. One without an endpoint brings its claims along, which nobody reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Source {
    endpoint: String,
    access_token: String,
}

/// The source of every claim that is elsewhere.
pub fn sources(claims: &Map<String, Value>) -> Result<BTreeMap<String, Source>, String> {
    let names: Option<BTreeMap<String, String>> = read(claims, NAMES)?;
    let sources: Option<BTreeMap<String, Source>> = read(claims, SOURCES)?;
    let mut found = BTreeMap::new();
    for (claim, source) in names.unwrap_or_default() {
        if source.is_empty() {
            return Err("oidc: failed to obtain source from claim name".into());
        }
        let source = sources.as_ref().and_then(|all| all.get(&source)).ok_or("oidc: source does not exist")?;
        found.insert(claim, source.clone());
    }
    Ok(found)
}

fn read<T: serde::de::DeserializeOwned>(claims: &Map<String, Value>, name: &str) -> Result<Option<T>, String> {
    let value = claims.get(name).filter(|value| !value.is_null());
    let read = value.map(|value| serde_json::from_value(value.clone()));
    read.transpose().map_err(|e| format!("oidc: failed to unmarshal claims: {name:?}: {e}"))
}

/// Finds one claim where a token says that it is.
pub struct ClaimResolver {
    claim: String,
    /// Whose authority vouches for sources as well, and whose audiences their answers must be for.
    issuer: Issuer,
    tls: Arc<ClientConfig>,
    /// By their URLs.
    issuers: Mutex<HashMap<String, Arc<KeySet>>>,
    env: Env,
}

impl ClaimResolver {
    pub fn new(claim: &str, issuer: &Issuer, env: &Env) -> Result<Self, String> {
        let tls = Arc::new(tls_config::client_config(Some(issuer.certificate_authority.as_bytes()), None)?);
        Ok(Self { claim: claim.into(), issuer: issuer.clone(), tls, issuers: Mutex::default(), env: env.clone() })
    }

    /// Puts the claim among the others, if it is not there and there is a source of it.
    pub async fn expand(
        &self,
        claims: &mut Map<String, Value>,
        sources: &BTreeMap<String, Source>,
        algorithms: &[Algorithm],
        now: i64,
    ) -> Result<(), String> {
        if claims.contains_key(&self.claim) {
            return Ok(());
        }
        let Some(source) = sources.get(&self.claim).filter(|source| !source.endpoint.is_empty()) else { return Ok(()) };
        let (claim, endpoint) = (&self.claim, &source.endpoint);
        let token = self.fetch(source).await;
        let token = token.map_err(|e| format!("while getting distributed claim {claim:?}: {e}"))?;
        let issuer = untrusted_issuer(&token).ok_or_else(|| {
            format!("getting untrusted issuer from endpoint {endpoint} failed for claim {claim:?}: malformed jwt")
        })?;
        let attempt = |e: String| format!("verify distributed claim token: {e}");
        let keys = self.keys(&issuer).map_err(attempt)?;
        keys.ready().await.map_err(attempt)?;
        let mut found = keys.claims(&token, algorithms).await.map_err(attempt)?;
        claims::expiry(&issuer, &self.issuer.audiences, &found, now).map_err(attempt)?;
        let value = found.remove(claim).ok_or_else(|| {
            format!("jwt returned by distributed claim endpoint {endpoint:?} did not contain claim: {claim}")
        })?;
        claims.insert(claim.clone(), value);
        Ok(())
    }

    async fn fetch(&self, source: &Source) -> Result<String, String> {
        let url: http::Uri = source.endpoint.parse().map_err(|e| format!("{:?}: {e}", source.endpoint))?;
        if url.scheme_str() != Some("https") {
            return Err(format!("endpoint {:?} must be https", source.endpoint));
        }
        let authorization = match source.access_token.as_str() {
            "" => None,
            token => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|e| e.to_string())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let endpoint = Endpoint { url, address: None, tls: self.tls.clone(), authorization };
        let answer = endpoint.fetch(&self.env, SOURCE_TIMEOUT).await?;
        let text = std::str::from_utf8(&answer).map_err(|_| "could not decode distributed claim response")?;
        Ok(text.trim().to_string())
    }

    /// The keys of whoever issued an answer.
    fn keys(&self, url: &str) -> Result<Arc<KeySet>, String> {
        let mut issuers = self.issuers.lock();
        if let Some(known) = issuers.get(url) {
            return Ok(known.clone());
        }
        if !url.starts_with("https://") {
            return Err(format!("issuer {url:?} must be https"));
        }
        if issuers.len() >= ISSUERS_MAX {
            return Err(format!("issuer {url:?} is one too many: answers of {ISSUERS_MAX} issuers are read"));
        }
        let discovery_url = if url == self.issuer.url { self.issuer.discovery_url.clone() } else { String::new() };
        let issuer = Issuer { url: url.into(), discovery_url, ..self.issuer.clone() };
        let keys = KeySet::new(&issuer, None, &self.env)?;
        issuers.insert(url.to_string(), keys.clone());
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sources_are_read_or_refused() {
        let check = |names: Value, of: Value, expected: Result<&[&str], &str>| {
            let claims = json!({ NAMES: names, SOURCES: of });
            let found = sources(claims.as_object().unwrap());
            let found = found.map(|all| all.into_iter().map(|(claim, s)| format!("{claim} {}", s.endpoint)).collect());
            match (found, expected) {
                (Ok::<Vec<_>, _>(found), Ok(expected)) => assert_eq!(found, expected, "{claims}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{claims}: {found}"),
                (found, _) => panic!("{claims}: {found:?}"),
            }
        };
        let one = || json!({ "a": { "endpoint": "https://e", "access_token": "t", "other": 1 } });
        check(Value::Null, Value::Null, Ok(&[]));
        check(json!({ "groups": "a" }), one(), Ok(&["groups https://e"]));
        check(json!({ "groups": "b" }), one(), Err("source does not exist"));
        check(json!({ "groups": "a" }), Value::Null, Err("source does not exist"));
        check(json!({ "groups": "" }), one(), Err("failed to obtain source"));
        check(json!({ "groups": 1 }), one(), Err("failed to unmarshal claims"));
        check(json!(["groups"]), one(), Err("failed to unmarshal claims"));
        check(json!({ "groups": "a" }), json!({ "a": "https://e" }), Err("failed to unmarshal claims"));
        check(json!({ "groups": "a" }), json!({ "a": { "JWT": "x.y.z" } }), Ok(&["groups "]));
    }
}
