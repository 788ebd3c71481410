//! Fills Secrets of type kubernetes.io/service-account-token: the old way to give a ServiceAccount a token that lasts.
//! The API server believes such a token while its Secret and its account are there.
//! A Secret whose account is gone goes too; a token that is there is never replaced.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use client::Informer;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use serde_json::json;

use crate::{
    common::meta::{self, Object, delete_options},
    runner::{Context, Controller, Outcome, Setup},
};

pub const TYPE: &str = "kubernetes.io/service-account-token";
pub const ACCOUNT: &str = "kubernetes.io/service-account.name";
pub const UID: &str = "kubernetes.io/service-account.uid";
const ISSUER: &str = "kubernetes/serviceaccount";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (secrets, accounts) = (setup.informer::<Secret>(), setup.informer::<ServiceAccount>());
    setup.on_objects(secrets.objects(), |change, queue| {
        if change.new.as_ref().is_some_and(|o| o.meta.annotations.contains_key(ACCOUNT)) {
            queue.add(change.key.clone());
        }
    });
    let named = secrets.objects().clone();
    setup.on_objects(accounts.objects(), move |change, queue| {
        // Only accounts that come or go matter.
        if change.old.is_some() == change.new.is_some() {
            return;
        }
        let (namespace, name) = meta::split(&change.key);
        for secret in named.list() {
            let here = secret.meta.namespace.as_deref() == Some(namespace);
            if here && secret.meta.annotations.get(ACCOUNT).is_some_and(|account| account == name) {
                queue.add(meta::key(namespace, &secret.meta.name));
            }
        }
    });
    Arc::new(Tokens { context: setup.context.clone(), secrets, accounts })
}

struct Tokens {
    context: Context,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
}

/// What a Secret lacks, or that it is to go.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Delete,
    Fill(BTreeMap<String, ByteString>),
}

/// `token` is made only if it is needed.
fn plan(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    ca_pem: Option<&str>,
    token: impl FnOnce(&ServiceAccount) -> Option<String>,
) -> Plan {
    if secret.type_.as_deref() != Some(TYPE) || secret.deleting() {
        return Plan::Nothing;
    }
    let bound = secret.annotation(UID).unwrap_or_default();
    let Some(account) = account.filter(|a| bound.is_empty() || a.uid() == bound) else { return Plan::Delete };
    let data = secret.data.clone().unwrap_or_default();
    let mut wanted = data.clone();
    let mut set = |key: &str, value: &str| wanted.insert(key.into(), ByteString(value.as_bytes().to_vec()));
    set("namespace", secret.namespace());
    if let Some(pem) = ca_pem {
        set("ca.crt", pem);
    }
    let held = data.get("token").is_some_and(|t| !t.0.is_empty());
    if let Some(made) = Some(account).filter(|_| !held).and_then(token) {
        set("token", &made);
    }
    if wanted == data && !bound.is_empty() { Plan::Nothing } else { Plan::Fill(wanted) }
}

/// Signed for as long as its Secret lives.
fn token(key_pem: &str, secret: &Secret, account: &ServiceAccount) -> Result<String, String> {
    let rsa = rcgen::KeyPair::from_pem(key_pem).map_err(|e| e.to_string())?.algorithm() == &rcgen::PKCS_RSA_SHA256;
    let (algorithm, key) = match rsa {
        true => (Algorithm::RS256, EncodingKey::from_rsa_pem(key_pem.as_bytes())),
        false => (Algorithm::ES256, EncodingKey::from_ec_pem(key_pem.as_bytes())),
    };
    let namespace = secret.namespace();
    let claims = json!({
        "iss": ISSUER,
        "sub": format!("system:serviceaccount:{namespace}:{}", account.name()),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.name(),
        "kubernetes.io/serviceaccount/service-account.name": account.name(),
        "kubernetes.io/serviceaccount/service-account.uid": account.uid(),
    });
    let key = key.map_err(|e| e.to_string())?;
    jsonwebtoken::encode(&Header::new(algorithm), &claims, &key).map_err(|e| e.to_string())
}

#[async_trait]
impl Controller for Tokens {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(secret) = self.secrets.get(key) else { return Ok(None) };
        let Some(name) = secret.annotation(ACCOUNT) else { return Ok(None) };
        let namespace = secret.namespace();
        let mut account = self.accounts.get(&meta::key(namespace, name)).map(|a| (*a).clone());
        if account.is_none() && secret.type_.as_deref() == Some(TYPE) {
            // Both may just have been made: nothing is deleted on hearsay.
            account = self.context.client.namespaced::<ServiceAccount>(namespace).find(name).await?;
        }
        let config = &self.context.config;
        let made = |account: &ServiceAccount| {
            let made = token(config.service_account_key_pem.as_ref()?, &secret, account);
            made.inspect_err(|error| tracing::error!(error, "failed to sign a ServiceAccount token")).ok()
        };
        let api = self.context.client.namespaced::<Secret>(namespace);
        let written = match plan(&secret, account.as_ref(), config.root_ca_pem.as_deref(), made) {
            Plan::Nothing => return Ok(None),
            Plan::Delete => api.delete(secret.name(), &delete_options(secret.uid())).await,
            Plan::Fill(data) => {
                let mut filled = (*secret).clone();
                filled.data = Some(data);
                let uid = account.map(|a| a.uid().to_string()).unwrap_or_default();
                filled.metadata.annotations.get_or_insert_default().insert(UID.into(), uid);
                api.replace(secret.name(), &filled).await.map(drop)
            }
        };
        match written {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            // What lost a race has changed, and comes back for that.
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_filled_once_and_go_with_their_account() {
        let secret = |annotations: serde_json::Value, data: serde_json::Value| -> Secret {
            serde_json::from_value(json!({
                "metadata": { "name": "s", "namespace": "d", "annotations": annotations }, "type": TYPE, "data": data,
            }))
            .unwrap()
        };
        let account: ServiceAccount =
            serde_json::from_value(json!({ "metadata": { "name": "robot", "namespace": "d", "uid": "u" } })).unwrap();
        let plan = |secret: &Secret, account: Option<&ServiceAccount>| {
            plan(secret, account, Some("pem"), |_| Some("new".into()))
        };
        let fresh = secret(json!({ ACCOUNT: "robot" }), json!({}));
        let Plan::Fill(data) = plan(&fresh, Some(&account)) else { panic!("not filled") };
        let shown: Vec<_> = data.iter().map(|(k, v)| format!("{k}={}", String::from_utf8_lossy(&v.0))).collect();
        assert_eq!(shown, ["ca.crt=pem", "namespace=d", "token=new"]);
        let whole = |token: &str, uid: &str| {
            let mut whole = secret(json!({ ACCOUNT: "robot", UID: uid }), json!({}));
            let mut data = data.clone();
            data.insert("token".into(), ByteString(token.as_bytes().to_vec()));
            whole.data = Some(data);
            whole
        };
        assert_eq!(plan(&whole("old", "u"), Some(&account)), Plan::Nothing);
        assert_eq!(plan(&whole("old", "other"), Some(&account)), Plan::Delete);
        assert_eq!(plan(&fresh, None), Plan::Delete);
        let mut other = fresh.clone();
        other.type_ = Some("Opaque".into());
        assert_eq!(plan(&other, None), Plan::Nothing);
    }
}
