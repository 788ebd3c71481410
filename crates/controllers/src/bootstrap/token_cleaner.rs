//! Deletes bootstrap tokens when they expire.
//! Agents join with them; `minke token create` makes them.
//! A token without an expiration stays.

use std::sync::Arc;

use async_trait::async_trait;
use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::{
    common::{
        meta::{Object, delete_options},
        pods::until,
    },
    runner::{Context, Controller, Outcome, Setup},
};

pub const NAMESPACE: &str = "kube-system";
pub const TYPE: &str = "bootstrap.kubernetes.io/token";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let secrets = setup.informer::<Secret>();
    setup.on_objects(secrets.objects(), |change, queue| {
        let here = |o: &Arc<api::Object>| o.meta.namespace.as_deref() == Some(NAMESPACE);
        if change.new.as_ref().is_some_and(here) {
            queue.add(change.key.clone());
        }
    });
    Arc::new(TokenCleaner { context: setup.context.clone(), secrets })
}

pub fn expires(secret: &Secret) -> Option<Timestamp> {
    let text = secret.data.as_ref()?.get("expiration").filter(|_| secret.type_.as_deref() == Some(TYPE))?;
    // What can't be read is taken as expired, as upstream does.
    Some(std::str::from_utf8(&text.0).ok().and_then(|t| t.parse().ok()).unwrap_or(Timestamp::MIN))
}

struct TokenCleaner {
    context: Context,
    secrets: Informer<Secret>,
}

#[async_trait]
impl Controller for TokenCleaner {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(secret) = self.secrets.get(key) else { return Ok(None) };
        let Some(at) = expires(&secret) else { return Ok(None) };
        let left = until(self.context.env.now(), at);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let api = self.context.client.namespaced::<Secret>(NAMESPACE);
        match api.delete(secret.name(), &delete_options(secret.uid())).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(None),
        }
    }
}
