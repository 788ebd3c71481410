//! Deletes pods that nobody else will: of nodes that are gone, terminating without a node, or finished in masses.
//! Runs beside `taint_eviction`, which handles nodes that still exist.
//! A node is believed gone only after a pause and a look at the server itself.

use std::{sync::Arc, time::Duration};

use api::ApiError;
use async_trait::async_trait;
use client::{Informer, Patch};
use k8s_openapi::api::core::v1::{Node, Pod};
use metrics::Family;
use serde_json::json;

use crate::{
    common::{
        indexes,
        meta::{Object, delete_options, time},
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

/// Upstream's quarantine: a node may come back, or the cache may be behind.
const QUARANTINE_INTERVAL: Duration = Duration::from_secs(40);
const FINISHED: &str = "finished pods";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

const DELETION: &[&str] = &["namespace", "reason"];
static DELETIONS: Family = Family::counter(
    "pod_gc_collector_force_delete_pods_total",
    DELETION,
    "Pods that were to be deleted without asking their kubelet.",
);
static DELETION_ERRORS: Family =
    Family::counter("pod_gc_collector_force_delete_pod_errors_total", DELETION, "Pods that could not be deleted so.");

/// Keys are `finished pods`, a pod's `namespace/name`, or a node's name.
pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (nodes, pods) = (setup.informer::<Node>(), setup.informer::<Pod>());
    indexes::by_node(&pods);
    pods.add_index(FINISHED, |object| match object.typed::<Pod>() {
        Ok(pod) if pods::finished(&pod) => vec![FINISHED.to_string()],
        _ => Vec::new(),
    });
    setup.on_objects(nodes.objects(), |change, queue| match &change.new {
        None => queue.add_after(change.key.clone(), QUARANTINE_INTERVAL),
        Some(_) => queue.add(change.key.clone()),
    });
    setup.on(&pods, {
        let nodes = nodes.clone();
        move |change, queue| {
            let Some(pod) = &change.new else { return };
            let node = pods::node_name(pod);
            if node.is_empty() {
                if pod.deleting() {
                    queue.add(change.key.clone());
                }
            } else if change.old.as_ref().is_none_or(|old| pods::node_name(old) != node) && nodes.get(node).is_none() {
                queue.add_after(node.to_string(), QUARANTINE_INTERVAL);
            } else if pod.deleting() && nodes.get(node).is_some_and(|n| out_of_service(&n)) {
                queue.add(node.to_string());
            }
            if pods::finished(pod) && !change.old.as_ref().is_some_and(|old| pods::finished(old)) {
                queue.add(FINISHED.to_string());
            }
        }
    });
    Arc::new(PodGc { context: setup.context.clone(), nodes, pods })
}

fn out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let tainted = taints.into_iter().flatten().any(|t| t.key == OUT_OF_SERVICE);
    tainted && super::conditions::ready(node) != "True"
}

/// The finished pods beyond `limit`: those that a kubelet evicted first, for nobody waits for their result; then the oldest.
fn surplus(mut finished: Vec<Arc<Pod>>, limit: usize) -> Vec<Arc<Pod>> {
    if limit == 0 || finished.len() <= limit {
        return Vec::new();
    }
    let evicted = |pod: &Pod| {
        let reason = pod.status.as_ref().and_then(|s| s.reason.as_deref());
        pods::phase(pod) == "Failed" && reason == Some("Evicted")
    };
    finished.sort_by_key(|pod| (!evicted(pod), pod.created(), pod.name().to_string()));
    finished.truncate(finished.len() - limit);
    finished
}

struct PodGc {
    context: Context,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
}

#[async_trait]
impl Controller for PodGc {
    async fn reconcile(&self, key: &str) -> Outcome {
        if key == FINISHED {
            self.trim_finished().await?;
        } else if key.contains('/') {
            if let Some(pod) = self.pods.get(key).filter(|p| p.deleting() && pods::node_name(p).is_empty()) {
                self.remove(&pod, "unscheduled", None).await?;
            }
        } else {
            self.look_at_node(key).await?;
        }
        Ok(None)
    }
}

impl PodGc {
    async fn look_at_node(&self, name: &str) -> Result<(), ApiError> {
        if let Some(node) = self.nodes.get(name) {
            if out_of_service(&node) {
                for pod in self.pods.by_index(indexes::NODE, name).iter().filter(|p| p.deleting()) {
                    self.remove(pod, "out-of-service", None).await?;
                }
            }
            return Ok(());
        }
        let orphans = self.pods.by_index(indexes::NODE, name);
        if orphans.is_empty() || self.context.client.api::<Node>().find(name).await?.is_some() {
            return Ok(());
        }
        for pod in orphans {
            self.remove(&pod, "orphaned", Some("PodGC: node no longer exists")).await?;
        }
        Ok(())
    }

    async fn trim_finished(&self) -> Result<(), ApiError> {
        let limit = self.context.config.terminated_pod_gc_threshold;
        for pod in surplus(self.pods.by_index(FINISHED, FINISHED), limit) {
            self.remove(&pod, "terminated", None).await?;
        }
        Ok(())
    }

    async fn remove(&self, pod: &Pod, reason: &str, why: Option<&str>) -> Result<(), ApiError> {
        let result = self.force_delete(pod, why).await;
        let metrics = &self.context.config.metrics;
        metrics.count(&DELETIONS, &[pod.namespace(), reason]);
        if result.is_err() {
            metrics.count(&DELETION_ERRORS, &[pod.namespace(), reason]);
        }
        result
    }

    /// Deletes at once, without asking any kubelet; says why where the pod had not finished.
    async fn force_delete(&self, pod: &Pod, why: Option<&str>) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<Pod>(pod.namespace());
        if !pods::finished(pod) {
            let mut status = json!({ "phase": "Failed" });
            if let Some(why) = why {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": why,
                    "lastTransitionTime": time(self.context.env.now()),
                }]);
            }
            let patch = json!({ "metadata": { "uid": pod.uid() }, "status": status });
            match api.patch_status(pod.name(), &Patch::Strategic(patch)).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        let mut options = delete_options(pod.uid());
        options.grace_period_seconds = Some(0);
        match api.delete(pod.name(), &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_pods_go_first_then_the_oldest() {
        let pod = |(name, second, reason): (&str, u8, &str)| {
            let pod = json!({ "metadata": { "name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z") },
                "status": { "phase": "Failed", "reason": reason } });
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let all =
            [("b", 1, ""), ("a", 1, ""), ("young", 9, ""), ("evicted", 8, "Evicted"), ("late", 7, "DeadlineExceeded")];
        let check = |limit: usize, expected: &[&str]| {
            let gone = surplus(all.into_iter().map(pod).collect(), limit);
            assert_eq!(gone.iter().map(|p| p.name()).collect::<Vec<_>>(), expected, "{limit}");
        };
        check(0, &[]);
        check(5, &[]);
        check(4, &["evicted"]);
        check(2, &["evicted", "a", "b"]);
        check(1, &["evicted", "a", "b", "late"]);
    }

    #[test]
    fn nodes_that_are_out_of_service() {
        let check = |taint: &str, ready: &str, expected: bool| {
            let node = json!({ "spec": { "taints": [{ "key": taint, "effect": "NoExecute" }] },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
            assert_eq!(out_of_service(&serde_json::from_value(node).unwrap()), expected, "{taint} {ready}");
        };
        check(OUT_OF_SERVICE, "Unknown", true);
        check(OUT_OF_SERVICE, "False", true);
        check(OUT_OF_SERVICE, "True", false);
        check("node.kubernetes.io/unreachable", "Unknown", false);
    }
}
