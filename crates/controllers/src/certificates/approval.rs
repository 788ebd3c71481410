//! Writes that a certificate signing request is approved.
//! Called by the approvers, which decide.

use api::ApiError;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use serde_json::Value;

use crate::{common::meta::time, runner::Context};

pub async fn approve(
    context: &Context,
    key: &str,
    request: &CertificateSigningRequest,
    message: &str,
) -> Result<(), ApiError> {
    let mut approved = request.clone();
    let now = time(context.env.now());
    let conditions = approved.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: "Approved".into(),
        status: "True".into(),
        reason: Some("AutoApproved".into()),
        message: Some(message.to_string()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    });
    let api = context.client.api::<CertificateSigningRequest>();
    api.replace_subresource::<_, Value>(key, "approval", &approved).await.map(drop)
}
