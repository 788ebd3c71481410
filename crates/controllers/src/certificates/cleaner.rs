//! Deletes certificate requests that have served their purpose or never will.
//! Beside `signer`.
//! Invariant: only the request goes; certificates that were handed out live on.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::{
    meta::{Object, delete_options},
    pods::until,
    shell::{Context, Controller, Outcome, Setup},
};

const DECIDED: Duration = Duration::from_secs(3600);
const PENDING: Duration = Duration::from_secs(24 * 3600);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    setup.on_keys(&requests);
    Arc::new(Cleaner { context: setup.context.clone(), requests })
}

/// When the request may go.
fn expires(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let conditions = request.status.as_ref().and_then(|s| s.conditions.as_ref());
    let decided = conditions.into_iter().flatten().filter_map(|c| c.last_update_time.as_ref()).map(|t| t.0).max();
    match decided {
        Some(at) => Some(at + DECIDED),
        None => Some(request.created()? + PENDING),
    }
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
        check(json!({}), "2026-01-02T00:00:00Z");
        let approved = json!({ "type": "Approved", "status": "True", "lastUpdateTime": "2026-01-01T05:00:00Z" });
        check(json!({ "conditions": [approved] }), "2026-01-01T06:00:00Z");
    }
}
