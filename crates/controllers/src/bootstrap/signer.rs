//! Signs the ConfigMap `kube-public/cluster-info` with every bootstrap token that is for that, so that a node that has
//! nothing but a token can tell whether the cluster it found is the right one.
//! `token_cleaner` deletes the tokens that expire; kubeadm and its like write the ConfigMap and check the signatures.
//! No signature outlives its token or the text that it is of.

use std::{collections::BTreeMap, sync::Arc};

use api::ApiError;
use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use client::Informer;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::json;

use crate::{
    bootstrap::token_cleaner::{self, TYPE, expires},
    common::{meta::Object, pods::until},
    runner::{Context, Controller, Outcome, Setup},
};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const KEY: &str = "kube-public/cluster-info";
const CONTENT: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";
/// Before the id in the name of a token's Secret.
const PREFIX: &str = "bootstrap-token-";

type Data = BTreeMap<String, String>;

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (secrets, maps) = (setup.informer::<Secret>(), setup.informer::<ConfigMap>());
    setup.on_objects(maps.objects(), |change, queue| {
        if change.key == KEY && change.new.is_some() {
            queue.add(KEY.into());
        }
    });
    setup.on_objects(secrets.objects(), |change, queue| {
        if change.new.as_ref().or(change.old.as_ref()).is_some_and(|object| is_token(object)) {
            queue.add(KEY.into());
        }
    });
    Arc::new(Signer { context: setup.context.clone(), secrets, maps })
}

fn is_token(object: &api::Object) -> bool {
    object.meta.namespace.as_deref() == Some(token_cleaner::NAMESPACE) && object.meta.name.starts_with(PREFIX)
}

/// The id and the secret of a token that signs.
fn signs(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let data = |key: &str| std::str::from_utf8(&secret.data.as_ref()?.get(key)?.0).ok().filter(|t| !t.is_empty());
    let (id, key) = (data("token-id")?, data("token-secret")?);
    let named = secret.name().strip_prefix(PREFIX) == Some(id);
    let lives = expires(secret).is_none_or(|at| now < at);
    let meant = secret.type_.as_deref() == Some(TYPE) && data("usage-bootstrap-signing") == Some("true");
    (named && lives && meant).then_some((id, key))
}

/// A JWS of the content without the content itself (RFC 7515, appendix F).
fn detached_signature(content: &str, id: &str, secret: &str) -> Result<String, ApiError> {
    let header = BASE64_URL_SAFE_NO_PAD.encode(json!({ "alg": "HS256", "kid": id }).to_string());
    let message = format!("{header}.{}", BASE64_URL_SAFE_NO_PAD.encode(content));
    let key = EncodingKey::from_secret(secret.as_bytes());
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256)
        .map_err(|error| ApiError::internal(format!("failed to sign with bootstrap token {id}: {error}")))?;
    Ok(format!("{header}..{signature}"))
}

/// What the map should hold, if that is not what it holds.
fn signed(data: &Data, tokens: &[(&str, &str)]) -> Result<Option<Data>, ApiError> {
    let Some(content) = data.get(CONTENT) else { return Ok(None) };
    let mut wanted: Data = data.clone();
    wanted.retain(|key, _| !key.starts_with(SIGNATURE));
    for (id, secret) in tokens {
        wanted.insert(format!("{SIGNATURE}{id}"), detached_signature(content, id, secret)?);
    }
    Ok(Some(wanted).filter(|wanted| wanted != data))
}

struct Signer {
    context: Context,
    secrets: Informer<Secret>,
    maps: Informer<ConfigMap>,
}

#[async_trait]
impl Controller for Signer {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(map) = self.maps.get(key) else { return Ok(None) };
        let now = self.context.env.now();
        let tokens = self.secrets.objects().list().into_iter().filter(|object| is_token(object));
        let tokens: Vec<Arc<Secret>> = tokens.filter_map(|object| object.typed().ok()).collect();
        let signing: Vec<_> = tokens.iter().filter_map(|secret| signs(secret, now)).collect();
        if let Some(data) = signed(map.data.as_ref().unwrap_or(&Data::new()), &signing)? {
            let wanted = ConfigMap { data: Some(data), ..(*map).clone() };
            match self.context.client.namespaced::<ConfigMap>(NAMESPACE).replace(NAME, &wanted).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        let next = tokens.iter().filter_map(|secret| expires(secret)).filter(|at| now < *at).min();
        Ok(next.map(|at| until(now, at)))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(changes: &[(&str, &str)]) -> Secret {
        let mut data: BTreeMap<String, ByteString> = BTreeMap::new();
        let defaults =
            [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
        for (key, value) in defaults.iter().chain(changes) {
            data.insert(key.to_string(), ByteString(value.as_bytes().to_vec()));
        }
        let mut secret = Secret { data: Some(data), type_: Some(TYPE.into()), ..Secret::default() };
        secret.metadata.name = Some("bootstrap-token-abcdef".into());
        secret
    }

    #[test]
    fn only_tokens_that_are_meant_to_sign() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |changes: &[(&str, &str)], expected: bool| {
            assert_eq!(signs(&secret(changes), now).is_some(), expected, "{changes:?}");
        };
        check(&[], true);
        check(&[("expiration", "2026-01-01T00:00:01Z")], true);
        check(&[("expiration", "2026-01-01T00:00:00Z")], false);
        check(&[("expiration", "soon")], false);
        check(&[("usage-bootstrap-signing", "false")], false);
        check(&[("token-id", "fedcba")], false);
        check(&[("token-secret", "")], false);
        assert_eq!(signs(&Secret { type_: Some("Opaque".into()), ..secret(&[]) }, now), None);
    }

    #[test]
    fn signatures_follow_tokens_and_text() {
        // The HMAC of this header and text was worked out with openssl.
        let signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..v28Ea_KqmHOtFWksJ_4tbV6AFRNzMkrRUG_jsuLJz-4";
        let map = |pairs: &[(&str, &str)]| -> Data {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let token = ("abcdef", "0123456789abcdef");
        let check = |data: &Data, tokens: &[(&str, &str)], expected: Option<Data>| {
            assert_eq!(signed(data, tokens).unwrap(), expected);
        };
        let plain = map(&[("kubeconfig", "text")]);
        let complete = map(&[("kubeconfig", "text"), ("jws-kubeconfig-abcdef", signature)]);
        check(&plain, &[], None);
        check(&plain, &[token], Some(complete.clone()));
        check(&complete, &[token], None);
        check(&complete, &[], Some(plain));
        check(&map(&[("other", "text")]), &[token], None);
        let mut changed = complete.clone();
        changed.insert("kubeconfig".into(), "other".into());
        let found = signed(&changed, &[token]).unwrap().unwrap();
        assert_ne!(found["jws-kubeconfig-abcdef"], signature);
    }
}
