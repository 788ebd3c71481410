//! Binds a pod by POST to `pods/NAME/binding`.
//! Run by `scheduler::binding_cycle`, once per pod.
//! A refusal by the server is reported; only an answer that was lost is asked for again.

use std::{sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, may_have_happened};
use env::{Backoff, Env};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::Value;

use crate::{
    framework::{BindPlugin, BindResult, Handle, Plugin, Status},
    pod_info::{PendingPod, PodInfo},
};

pub struct DefaultBinder;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(DefaultBinder).bind().build())
}

impl BindPlugin for DefaultBinder {
    fn bind(
        &self,
        handle: &Handle,
        pod: &Arc<PendingPod>,
        node: &Arc<str>,
    ) -> BoxFuture<'static, Result<BindResult, Status>> {
        let (client, env, pod, node) = (handle.client.clone(), handle.env.clone(), pod.clone(), node.clone());
        async move {
            match bind(&client, &env, &pod, &node).await {
                Ok(()) => Ok(BindResult::Bound),
                Err(error) => Err(Status::error(error.message.clone())),
            }
        }
        .boxed()
    }
}

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Binds, and asks until there is an answer: with a lost one the pod may be on its node, where it needs its room.
async fn bind(client: &Client, env: &Env, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
    let (mut backoff, mut doubtful) = (RETRY_BACKOFF, false);
    loop {
        match attempt(client, pod, node).await {
            Err(error) if may_have_happened(&error) => doubtful = true,
            Err(error) if error.is_conflict() && doubtful => match is_bound_to(client, pod, node).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(error),
                Err(_) => {}
            },
            answer => return answer,
        }
        env.sleep(backoff.next_delay().mul_f64(0.5 + env.random_fraction())).await;
    }
}

async fn is_bound_to(client: &Client, pod: &PodInfo, node: &str) -> Result<bool, ApiError> {
    let found = client.namespaced::<Pod>(pod.namespace()).find(pod.name()).await?;
    Ok(found.is_some_and(|found| {
        found.metadata.uid.as_deref() == Some(pod.uid())
            && found.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node)
    }))
}

async fn attempt(client: &Client, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
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
