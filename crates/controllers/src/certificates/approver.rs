//! Approves requests of kubelets for their own client certificates, if RBAC says that they may ask.
//! `signer` then signs; other requests wait for a person.
//! The right to be approved is asked of the authorizer, never assumed. Who joins gets no name whose node is alive: whoever
//! has a token to join with would be any node, and read what its pods may.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::api::{
    authorization::v1::SubjectAccessReview, certificates::v1::CertificateSigningRequest, core::v1::Node,
};
use serde_json::json;

use super::{
    approval::approve,
    signing::{self, KUBELET_CLIENT, condition},
};
use crate::{
    node::conditions::ready,
    runner::{Context, Controller, Outcome, Setup},
};

/// A node that lost its certificate is silent, and not Ready after a while.
const NODE_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let requests = setup.informer::<CertificateSigningRequest>();
    let nodes = setup.informer::<Node>();
    setup.on_keys(&requests);
    Arc::new(Approver { context: setup.context.clone(), requests, nodes })
}

struct Approver {
    context: Context,
    requests: Informer<CertificateSigningRequest>,
    nodes: Informer<Node>,
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
        let user = signing::common_name(&params);
        let own = request.spec.username.as_deref() == Some(user.as_str());
        let node = user.strip_prefix("system:node:").unwrap_or_default();
        if !own && self.nodes.get(node).is_some_and(|node| ready(&node) == "True") {
            tracing::warn!(request = key, node, "a certificate waits: another machine is this node, and Ready");
            return Ok(Some(NODE_ALIVE_INTERVAL));
        }
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
