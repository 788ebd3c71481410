//! Signs approved requests with the authority that their signer's name stands for.
//! The core is `signing`.
//! A kubelet's serving certificate is never by the authority that clients of the API server believe; a request that its
//! signer's rules refuse is marked Failed once and never signed.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
};

use super::signing::{self, CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, condition};
use crate::{
    common::meta::time,
    runner::{Context, Controller, Outcome, Setup},
};

/// Upstream's floor for `expirationSeconds`.
const CERTIFICATE_LIFETIME_MIN: Duration = Duration::from_secs(600);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    setup.on_keys(&requests);
    Arc::new(Signer { context: setup.context.clone(), requests })
}

struct Signer {
    context: Context,
    requests: Informer<CertificateSigningRequest>,
}

#[async_trait]
impl Controller for Signer {
    async fn reconcile(&self, key: &str) -> Outcome {
        let config = &self.context.config;
        let Some(request) = self.requests.get(key) else { return Ok(None) };
        let spec = &request.spec;
        let authority = config.signer_authorities.get(&spec.signer_name).or(match spec.signer_name.as_str() {
            KUBELET_SERVING => config.kubelet_serving_authority.as_ref(),
            CLIENT | KUBELET_CLIENT | LEGACY => config.certificate_authority.as_ref(),
            _ => None,
        });
        let Some(ca) = authority else { return Ok(None) };
        let signed = request.status.as_ref().is_some_and(|s| s.certificate.as_ref().is_some_and(|c| !c.0.is_empty()));
        let ready = condition(&request, "Approved") && !condition(&request, "Denied") && !condition(&request, "Failed");
        if signed || !ready {
            return Ok(None);
        }
        let usages = spec.usages.clone().unwrap_or_default();
        let asked = spec.expiration_seconds.map(|s| Duration::from_secs(s.max(0) as u64).max(CERTIFICATE_LIFETIME_MIN));
        let duration = asked.map_or(config.certificate_duration, |asked| asked.min(config.certificate_duration));
        let mut serial = [0; 16];
        self.context.env.fill_random(&mut serial);
        let now = self.context.env.now();
        let result =
            signing::parse(&request).and_then(|params| match signing::refusal(&spec.signer_name, &params, &usages) {
                Some(refusal) => Err(refusal),
                None => signing::sign(ca, params, &usages, duration, serial, now),
            });
        let mut request = (*request).clone();
        let status = request.status.get_or_insert_default();
        match result {
            Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
            Err(message) => status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
                type_: "Failed".into(),
                status: "True".into(),
                reason: Some("SignerValidationFailure".into()),
                message: Some(message),
                last_update_time: Some(time(now)),
                last_transition_time: Some(time(now)),
            }),
        }
        match self.context.client.api::<CertificateSigningRequest>().replace_status(key, &request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }
}
