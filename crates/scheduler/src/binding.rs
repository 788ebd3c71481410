//! Carries out a decision: POST to `pods/NAME/binding`.
//! Started by `scheduler`, one task per pod; the outcome goes back to it.
//! Invariant: never decides; a refusal by the server is reported, not retried here.

use api::ApiError;
use client::Client;
use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::Value;

use crate::pod_info::PodInfo;

pub async fn bind(client: &Client, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(pod.name().into()),
            namespace: Some(pod.namespace().into()),
            // The server refuses when another pod has taken the name.
            uid: Some(pod.uid().into()),
            ..ObjectMeta::default()
        },
        target: ObjectReference { kind: Some("Node".into()), name: Some(node.into()), ..ObjectReference::default() },
    };
    let pods = client.namespaced::<Pod>(pod.namespace());
    pods.create_subresource::<_, Value>(pod.name(), "binding", &binding).await.map(drop)
}
