//! Deletes PodCertificateRequests some time after they were made: by then a signer has answered, or never will.
//! Beside `cleaner`; there only with the gate PodCertificateRequest.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;

use crate::{
    common::{
        meta::{Object, delete_options},
        pods::until,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const LIFETIME: Duration = Duration::from_secs(15 * 60);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<PodCertificateRequest>();
    setup.on_keys(&requests);
    Arc::new(Cleaner { context: setup.context.clone(), requests })
}

struct Cleaner {
    context: Context,
    requests: Informer<PodCertificateRequest>,
}

#[async_trait]
impl Controller for Cleaner {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(request) = self.requests.get(key) else { return Ok(None) };
        let Some(created) = request.created() else { return Ok(None) };
        let left = until(self.context.env.now(), created + LIFETIME);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let api = self.context.client.namespaced::<PodCertificateRequest>(request.namespace());
        match api.delete(request.name(), &delete_options(request.uid())).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(None),
        }
    }
}
