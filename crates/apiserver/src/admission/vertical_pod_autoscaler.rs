//! New pods get the requests that a VerticalPodAutoscaler recommends.
//! A row of the table in `admission`, on where the control plane runs the autoscaler; what a recommendation does to a
//! pod is `api::vertical_pod_autoscaler`.
//! A pod is never refused here: without a recommendation it stays as it is.

use std::sync::Arc;

use api::{
    ApiError,
    vertical_pod_autoscaler::{GROUP, PLURAL, UpdateMode, apply, targets, update_mode},
};
use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::storage::{cluster::Cluster, custom_prefix};

pub struct VerticalPodAutoscaler(pub Arc<Cluster>);

/// Owners above a pod's own: a ReplicaSet's Deployment, a Job's CronJob.
const OWNERS_MAX: usize = 3;

impl VerticalPodAutoscaler {
    fn autoscalers(&self, namespace: &str) -> Vec<Value> {
        let cache = self.0.cache.resource(&custom_prefix(GROUP, PLURAL));
        let found = cache.list(&format!("{namespace}/"), None, 0, 0, |_| true);
        found.entries.iter().map(|entry| entry.object.value()).collect()
    }

    /// Who controls the pod, and who controls that.
    fn owners(&self, namespace: &str, pod: &Value) -> Vec<Value> {
        let controller = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            owners.into_iter().find(|owner| owner["controller"] == true).cloned()
        };
        let mut owners: Vec<Value> = controller(pod).into_iter().collect();
        while let Some(last) = owners.last().filter(|_| owners.len() < OWNERS_MAX) {
            let plural = match last["kind"].as_str() {
                Some("ReplicaSet") => "replicasets",
                Some("Job") => "jobs",
                _ => break,
            };
            let object = self.0.get(plural, namespace, last["name"].as_str().unwrap_or_default());
            match object.and_then(|object| controller(&object.value())) {
                Some(above) => owners.push(above),
                None => break,
            }
        }
        owners
    }
}

#[async_trait]
impl Plugin for VerticalPodAutoscaler {
    fn name(&self) -> &'static str {
        "VerticalPodAutoscaler"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() || a.operation != Operation::Create {
            return Ok(());
        }
        let autoscalers = self.autoscalers(a.namespace);
        if autoscalers.is_empty() {
            return Ok(());
        }
        let owners = self.owners(a.namespace, &a.object);
        let text = |owner: &Value, name: &str| owner[name].as_str().unwrap_or_default().to_string();
        let concerns = |autoscaler: &&Value| {
            update_mode(autoscaler) != UpdateMode::Off
                && owners.iter().any(|owner| {
                    targets(autoscaler, &text(owner, "apiVersion"), &text(owner, "kind"), &text(owner, "name"))
                })
        };
        if let Some(autoscaler) = autoscalers.iter().find(concerns) {
            apply(autoscaler, &mut a.object);
        }
        Ok(())
    }
}
