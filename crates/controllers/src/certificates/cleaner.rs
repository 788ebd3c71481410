//! Deletes certificate requests that have served their purpose or never will.
//! Beside `signer`.
//! Only the request goes; certificates that were handed out live on.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::{
    common::{
        meta::{Object, delete_options},
        pods::{self, until},
    },
    runner::{Context, Controller, Outcome, Setup},
};

/// After the certificate was handed out, or it was said that there won't be one.
const DECIDED_LIFETIME: Duration = Duration::from_secs(3600);
/// While somebody may still decide or sign.
const PENDING_LIFETIME: Duration = Duration::from_secs(24 * 3600);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    setup.on_keys(&requests);
    Arc::new(Cleaner { context: setup.context.clone(), requests })
}

/// When the request may go.
fn expires(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let status = request.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    if conditions.is_empty() {
        return Some(request.created()? + PENDING_LIFETIME);
    }
    let certificate = status.certificate.map(|c| c.0).filter(|c| !c.is_empty());
    let after = |kind: &str| match kind {
        "Approved" if certificate.is_none() => PENDING_LIFETIME,
        _ => DECIDED_LIFETIME,
    };
    let decided = conditions.iter().filter_map(|c| Some(pods::after(c.last_update_time.as_ref()?.0, after(&c.type_))));
    let approved = conditions.iter().any(|c| c.type_ == "Approved");
    decided.chain(certificate.as_deref().filter(|_| approved).and_then(not_after)).min()
}

/// When the certificate is no longer good for anything.
fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    let certificate = pem.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

struct Cleaner {
    context: Context,
    requests: Informer<CertificateSigningRequest>,
}

#[async_trait]
impl Controller for Cleaner {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(request) = self.requests.get(key) else { return Ok(None) };
        let Some(at) = expires(&request) else { return Ok(None) };
        let left = until(self.context.env.now(), at);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let api = self.context.client.api::<CertificateSigningRequest>();
        match api.delete(key, &delete_options(request.uid())).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn when_requests_go() {
        let check = |status: serde_json::Value, expected: &str| {
            let request: CertificateSigningRequest = serde_json::from_value(json!({
                "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "request": "", "signerName": "x" }, "status": status,
            }))
            .unwrap();
            assert_eq!(expires(&request), Some(expected.parse().unwrap()));
        };
        let condition =
            |kind: &str| json!([{ "type": kind, "status": "True", "lastUpdateTime": "2026-01-01T05:00:00Z" }]);
        let until = |month: u8| {
            let mut params = rcgen::CertificateParams::default();
            params.not_before = rcgen::date_time_ymd(2025, 1, 1);
            params.not_after = rcgen::date_time_ymd(2026, month, 1);
            let pem = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
            json!(k8s_openapi::ByteString(pem.into_bytes()))
        };
        check(json!({}), "2026-01-02T00:00:00Z");
        check(json!({ "conditions": condition("Approved") }), "2026-01-02T05:00:00Z");
        check(json!({ "conditions": condition("Denied") }), "2026-01-01T06:00:00Z");
        check(json!({ "conditions": condition("Failed") }), "2026-01-01T06:00:00Z");
        check(json!({ "conditions": condition("Approved"), "certificate": until(2) }), "2026-01-01T06:00:00Z");
        check(json!({ "conditions": condition("Approved"), "certificate": until(1) }), "2026-01-01T00:00:00Z");
        let unreadable = json!(k8s_openapi::ByteString(b"?".to_vec()));
        check(json!({ "conditions": condition("Approved"), "certificate": unreadable }), "2026-01-01T06:00:00Z");
    }
}
