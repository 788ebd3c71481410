//! Makes the claims of generic ephemeral volumes: one per pod and volume, owned by the pod.
//! The binder binds them; the garbage collector takes them with the pod.
//! A claim of that name that belongs to someone else is left alone, and the pod waits.

use std::sync::Arc;

use api::volume_claims;
use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use metrics::Family;

use crate::{
    common::{
        meta::{self, Object},
        pod_control::namespace_terminating,
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

static CREATES: Family = Family::counter(
    "ephemeral_volume_controller_create_total",
    &[],
    "Claims of ephemeral volumes that were to be made.",
);
static CREATE_FAILURES: Family = Family::counter(
    "ephemeral_volume_controller_create_failures_total",
    &[],
    "Claims of ephemeral volumes that could not be made.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (pods, claims) = (setup.informer::<Pod>(), setup.informer::<PersistentVolumeClaim>());
    setup.on(&pods, |change, queue| {
        if change.new.as_ref().is_some_and(|pod| !wanted(pod).is_empty()) {
            queue.add(change.key.clone());
        }
    });
    setup.on(&claims, |change, queue| {
        let Some(claim) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
        if let Some(owner) = claim.controller().filter(|o| o.kind == "Pod") {
            queue.add(meta::key(claim.namespace(), &owner.name));
        }
    });
    let recorder = setup.context.recorder("ephemeral_volume");
    Arc::new(Ephemeral { context: setup.context.clone(), pods, claims, recorder })
}

/// The volumes of a living pod that need a claim, with its template.
fn wanted(pod: &Pod) -> Vec<(String, PersistentVolumeClaimTemplate)> {
    if pod.deleting() || pods::finished(pod) {
        return Vec::new();
    }
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let template = |volume: &k8s_openapi::api::core::v1::Volume| {
        let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
        Some((volume.name.clone(), template))
    };
    volumes.into_iter().flatten().filter_map(template).collect()
}

struct Ephemeral {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for Ephemeral {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(pod) = self.pods.get(key) else { return Ok(None) };
        for (volume, template) in wanted(&pod) {
            let name = volume_claims::generated_name(pod.name(), &volume);
            let failed = |why: String| {
                let message = format!("ephemeral volume {volume}: {why}");
                self.recorder.warning(&reference(&*pod), "FailedBinding", message);
            };
            let key = meta::key(pod.namespace(), &name);
            if let Some(known) = self.claims.get(&key) {
                if !known.controlled_by(pod.uid()) {
                    failed(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.key()));
                }
                continue;
            }
            let meta = template.metadata.unwrap_or_default();
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: pod.metadata.namespace.clone(),
                    labels: meta.labels,
                    annotations: meta.annotations,
                    owner_references: Some(vec![pod.as_controller()]),
                    ..ObjectMeta::default()
                },
                spec: Some(template.spec),
                status: None,
            };
            let created = self.context.client.namespaced::<PersistentVolumeClaim>(pod.namespace()).create(&claim).await;
            let metrics = &self.context.config.metrics;
            metrics.count(&CREATES, &[]);
            if created.is_err() {
                metrics.count(&CREATE_FAILURES, &[]);
            }
            match created {
                Err(error) if !error.is_already_exists() && !namespace_terminating(&error) => {
                    failed(format!("create PVC {name}: {}", error.message));
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_living_pods() {
        let check = |phase: &str, expected: &[&str]| {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": { "name": "p", "namespace": "d" },
                "spec": { "containers": [], "volumes": [{ "name": "plain", "emptyDir": {} },
                    { "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }] },
                "status": { "phase": phase },
            }))
            .unwrap();
            assert_eq!(wanted(&pod).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), expected);
        };
        check("Pending", &["own"]);
        check("Succeeded", &[]);
    }
}
