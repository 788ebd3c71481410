//! Autoscalers for some seeds: they come and go, and others scale what they scale, beside budgets and quotas.
//! Steps of `Workload`; `checkers::convergence` says whether their bounds hold in the end.
//! Nodes of the simulation measure nothing, so only bounds can call for a change.

use client::Patch;
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};
use serde_json::json;

use super::{NAMESPACES, Result, Workload};

/// Seeds from here on have autoscalers; those below play as they did before there were any.
pub const AUTOSCALER_SEEDS_FIRST: u64 = 200_000;

impl Workload<'_> {
    pub(super) async fn autoscale(&mut self) -> Result {
        let (namespace, name) = (self.one(&NAMESPACES), self.one(&["web", "api"]));
        match self.below(6) {
            0 => self.delete_any::<HorizontalPodAutoscaler>(namespace).await,
            // Zero turns an autoscaler off; anything else is for it to set right.
            1 => {
                let change = json!({ "spec": { "replicas": self.below(8) } });
                self.note(format!("scale deployment {namespace}/{name} {change}"));
                self.api::<Deployment>(Some(namespace)).patch(name, &Patch::Merge(change)).await.map(drop)
            }
            _ => {
                // Two may name the same Deployment: then neither may act.
                let own = self.one(&[name, name, name, "other"]);
                let least = 1 + self.below(3);
                let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": name });
                let body = json!({ "spec": { "scaleTargetRef": target, "minReplicas": least,
                    "maxReplicas": least + self.below(3) } });
                let kind = "HorizontalPodAutoscaler";
                self.apply::<HorizontalPodAutoscaler>(Some(namespace), "autoscaling/v2", kind, own, body).await
            }
        }
    }
}
