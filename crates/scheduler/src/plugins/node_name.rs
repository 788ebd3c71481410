//! A pod that names its node goes there or nowhere.
//! Such pods never reach the queue once bound; this guards simulations that place them.

use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, QueueingHint, SignPlugin, Status},
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const REASON: &str = "node(s) didn't match the requested node name";

pub struct NodeName;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(NodeName).filter().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct RequestedNode<'a>(Option<&'a str>);

impl FilterPlugin for NodeName {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(RequestedNode(pod.node_name()))
    }
}

impl EnqueueExtensions for NodeName {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(
            matches!(event, ClusterEvent::Node { name, change, .. } if change.added && pod.node_name() == Some(name)),
        )
    }
}

impl SignPlugin for NodeName {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.node_name();
    }
}

impl<'a> NodeFilter<'a> for RequestedNode<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if self.0.is_none_or(|name| *name == *node.name) { Ok(()) } else { Err(Status::unresolvable(REASON)) }
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
    fn only_the_named_node() {
        check(&built(new), &pod(json!({})), &node("a"), Ok(()));
        check(&built(new), &pod(json!({"nodeName": "a"})), &node("a"), Ok(()));
        check(&built(new), &pod(json!({"nodeName": "a"})), &node("b"), Err(REASON));
    }
}
