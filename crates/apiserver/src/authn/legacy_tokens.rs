//! Tokens that lie in secrets and never expire: when each was last used, and whether it was withdrawn.
//! Asked by `service_account`. The controllers' legacy-serviceaccount-token-cleaner withdraws what nobody uses by a label,
//! and trusts the notes made here since the day that `post_start_hooks` wrote down.
//! A secret is written once a day at most.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use api::ApiError;
use store::{Compare, Operation, Transaction};

use crate::{
    storage,
    storage::{cluster::Cluster, watch_cache::store_error},
};

/// The ConfigMap that says since when uses are noted.
pub const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const DAY: Duration = Duration::from_secs(86_400);

pub fn date(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

/// Another server's clock may already be at tomorrow.
fn is_noted(labels: &BTreeMap<String, String>, now: Timestamp) -> bool {
    labels.get(LAST_USED).is_some_and(|day| [now, now + DAY].map(date).contains(day))
}

/// What is to be made of a token that lies in a secret.
#[derive(Debug, PartialEq, Eq)]
pub enum LegacyToken {
    Withdrawn,
    /// One that a person asked for.
    Wanted,
    /// One that every account once got, named by it: to be told from the former by that alone.
    Generated,
}

/// What a client is told that shows a token which nobody asked for.
pub const GENERATED: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated \
     secret-based tokens.";

/// Notes that the token in this secret, of this account, was shown.
pub fn shown(cluster: &Arc<Cluster>, namespace: &str, account: &str, name: &str) -> LegacyToken {
    // One that was just made is noted the next time.
    let Some(secret) = cluster.get("secrets", namespace, name) else { return LegacyToken::Wanted };
    if !is_noted(&secret.meta.labels, cluster.env.now()) {
        let (cluster, namespace, name) = (cluster.clone(), namespace.to_string(), name.to_string());
        cluster.env.clone().spawn(async move {
            if let Err(error) = note(&cluster, &namespace, &name).await {
                tracing::warn!(namespace, name, %error, "failed to note the use of a token");
            }
        });
    }
    if secret.meta.labels.get(INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
        return LegacyToken::Withdrawn;
    }
    let account = cluster.get("serviceaccounts", namespace, account).map(|a| a.value()).unwrap_or_default();
    match account["secrets"].as_array().into_iter().flatten().any(|reference| reference["name"] == name) {
        true => LegacyToken::Generated,
        false => LegacyToken::Wanted,
    }
}

async fn note(cluster: &Cluster, namespace: &str, name: &str) -> Result<(), ApiError> {
    let served = cluster.served.find("", "v1", "secrets");
    let served = served.ok_or_else(|| ApiError::internal("secrets are not served"))?;
    let now = cluster.env.now();
    let live = cluster.live(&served, namespace, name).await?;
    let Some(secret) = live.filter(|secret| !is_noted(&secret.meta.labels, now)) else { return Ok(()) };
    let mut value = secret.value();
    value["metadata"]["labels"][LAST_USED] = date(now).into();
    let key = served.key(namespace, name);
    let compare = vec![Compare { key: key.clone(), mod_revision: secret.meta.resource_version }];
    let operations = vec![Operation::Put { key, value: storage::encode(&value), ttl_seconds: None }];
    // Whoever was quicker changed the secret; the next use is noted then.
    cluster.store.transact(Transaction { compare, operations }).await.map(drop).map_err(store_error)
}
