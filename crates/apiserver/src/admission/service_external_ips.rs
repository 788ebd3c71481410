//! DenyServiceExternalIPs: no Service gets an external address that it does not have.
//! A row of the table in `admission`, off by default.
//! Addresses that are there may stay and go.

use async_trait::async_trait;
use serde_json::Value;

use api::ApiError;

use super::{Attributes, Operation, Plugin};

pub struct DenyServiceExternalIPs;

#[async_trait]
impl Plugin for DenyServiceExternalIPs {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.is("", "services") || !a.subresource.is_empty() {
            return Ok(());
        }
        fn addresses(service: &Value) -> &[Value] {
            service["spec"]["externalIPs"].as_array().map(Vec::as_slice).unwrap_or_default()
        }
        let old = addresses(&a.old);
        match addresses(&a.object).iter().all(|address| old.contains(address)) {
            true => Ok(()),
            false => Err(a.forbidden("Use of external IPs is denied by admission control")),
        }
    }
}
