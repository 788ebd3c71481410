//! Approves requests of kubelets for their own client certificates, if RBAC says that they may ask.
//! `signer` then signs; other requests wait for a person.
//! The right to be approved is asked of the authorizer, never assumed.

use std::sync::Arc;

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::api::{authorization::v1::SubjectAccessReview, certificates::v1::CertificateSigningRequest};
use serde_json::json;

use super::{
    approval::approve,
    signing::{self, KUBELET_CLIENT, condition},
};
use crate::runner::{Context, Controller, Outcome, Setup};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    setup.on_keys(&requests);
    Arc::new(Approver { context: setup.context.clone(), requests })
}

struct Approver {
    context: Context,
    requests: Informer<CertificateSigningRequest>,
}

#[async_trait]
impl Controller for Approver {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(request) = self.requests.get(key) else { return Ok(None) };
        let decided = condition(&request, "Approved") || condition(&request, "Denied");
        let nobody = request.spec.username.as_deref().unwrap_or_default().is_empty();
        if decided || nobody || request.spec.signer_name != KUBELET_CLIENT {
            return Ok(None);
        }
        let Ok(params) = signing::parse(&request) else { return Ok(None) };
        if signing::refusal(KUBELET_CLIENT, &params, request.spec.usages.as_deref().unwrap_or_default()).is_some() {
            return Ok(None);
        }
        let own = request.spec.username.as_deref() == Some(signing::common_name(&params).as_str());
        let rights: &[(&str, &str)] = if own {
            &[
                ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
                ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
            ]
        } else {
            &[("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")]
        };
        for (subresource, message) in rights {
            if self.allowed(&request, subresource).await? {
                approve(&self.context, key, &request, message).await?;
                return Ok(None);
            }
        }
        Ok(None)
    }
}

impl Approver {
    async fn allowed(&self, request: &CertificateSigningRequest, subresource: &str) -> Result<bool, api::ApiError> {
        let spec = &request.spec;
        let review = json!({ "spec": {
            "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
            "resourceAttributes": { "group": "certificates.k8s.io", "resource": "certificatesigningrequests",
                "verb": "create", "subresource": subresource, "version": "*" },
        } });
        let review: SubjectAccessReview = serde_json::from_value(review)
            .map_err(|e| api::ApiError::internal(format!("couldn't make a review: {e}")))?;
        let answer = self.context.client.api::<SubjectAccessReview>().create(&review).await?;
        Ok(answer.status.is_some_and(|s| s.allowed))
    }
}
