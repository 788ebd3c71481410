//! Cordoned nodes take only pods that tolerate it.
//! Neighbour of `taint_toleration`, whose matching it uses.

use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::taint_toleration::tolerated;
use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, QueueingHint, SignPlugin, Status, accepts,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const REASON: &str = "node(s) were unschedulable";

pub struct NodeUnschedulable;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(NodeUnschedulable).filter().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Cordoned {
    tolerated: bool,
}

impl FilterPlugin for NodeUnschedulable {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let taint =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        Box::new(Cordoned { tolerated: tolerated(&taint, pod.tolerations()) })
    }
}

impl EnqueueExtensions for NodeUnschedulable {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(
            matches!(event, ClusterEvent::Node { name, change, .. } if change.unschedulable && accepts(self, cluster, pod, name)),
        )
    }
}

impl SignPlugin for NodeUnschedulable {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.tolerations();
    }
}

impl<'a> NodeFilter<'a> for Cordoned {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if node.is_unschedulable() && !self.tolerated { Err(Status::unresolvable(REASON)) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check, node, pod};

    #[test]
    fn cordoned_nodes_are_refused_unless_tolerated() {
        let mut cordoned = node("n");
        cordoned["spec"] = json!({"unschedulable": true});
        check(&built(new), &pod(json!({})), &node("n"), Ok(()));
        check(&built(new), &pod(json!({})), &cordoned, Err(REASON));
        let toleration = json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
        check(&built(new), &pod(toleration), &cordoned, Ok(()));
    }
}
