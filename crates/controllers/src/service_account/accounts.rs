//! Sees that every namespace has its `default` ServiceAccount.
//! Pods without a named account run under it.
//! Never changes an account that exists.

use std::sync::Arc;

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::{
    api::core::v1::{Namespace, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    common::{
        meta::{self, Object},
        pod_control::namespace_terminating,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const NAME: &str = "default";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (namespaces, accounts) = (setup.informer::<Namespace>(), setup.informer::<ServiceAccount>());
    setup.on_keys(&namespaces);
    setup.on_objects(accounts.objects(), |change, queue| {
        if let Some(gone) = change.old.as_ref().filter(|o| change.new.is_none() && o.meta.name == NAME) {
            queue.add(gone.meta.namespace.clone().unwrap_or_default());
        }
    });
    Arc::new(ServiceAccounts { context: setup.context.clone(), namespaces, accounts })
}

struct ServiceAccounts {
    context: Context,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

/// A namespace in which things may be made.
pub fn open(namespace: &Namespace) -> bool {
    !namespace.deleting() && namespace.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Terminating")
}

#[async_trait]
impl Controller for ServiceAccounts {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(namespace) = self.namespaces.get(key).filter(|n| open(n)) else { return Ok(None) };
        if self.accounts.get(&meta::key(namespace.name(), NAME)).is_some() {
            return Ok(None);
        }
        let metadata =
            ObjectMeta { name: Some(NAME.into()), namespace: Some(key.to_string()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        match self.context.client.namespaced::<ServiceAccount>(key).create(&account).await {
            Err(error) if !error.is_already_exists() && !error.is_not_found() && !namespace_terminating(&error) => {
                Err(error)
            }
            _ => Ok(None),
        }
    }
}
