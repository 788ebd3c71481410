//! Carries out a preemption: marks the victims, then deletes them gracefully.
//! Part of `DefaultPreemption`, which chose the victims.
//! A victim that is already leaving is left alone.

use std::sync::Arc;

use api::ApiError;
use client::{EventType, Patch};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use serde_json::json;

use crate::{pod_info::PodInfo, reports::Reports};

pub async fn evict(reports: &Reports, victim: &Arc<PodInfo>, by: &PodInfo, node: &str) -> Result<(), ApiError> {
    if victim.is_terminating() {
        return Ok(());
    }
    let pods = reports.client.namespaced::<Pod>(victim.namespace());
    let mut condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": format!("{}: preempting to accommodate a higher priority pod", by.scheduler_name()),
        "lastTransitionTime": reports.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    if let Some(generation) = victim.generation {
        condition["observedGeneration"] = json!(generation);
    }
    let patch = json!({"metadata": {"uid": victim.uid()}, "status": {"conditions": [condition]}});
    let options = DeleteOptions {
        preconditions: Some(Preconditions { uid: Some(victim.uid().into()), ..Preconditions::default() }),
        ..DeleteOptions::default()
    };
    let done = async {
        pods.patch_status(victim.name(), &Patch::Strategic(patch)).await?;
        pods.delete(victim.name(), &options).await
    };
    match done.await {
        Ok(()) => {
            let message = format!("Preempted by pod {} on node {node}", by.uid());
            reports.say(EventType::Normal, victim, by, "Preempted", message);
            Ok(())
        }
        // Gone already, or another pod has taken its name.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}
