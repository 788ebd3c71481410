//! A pod that names its node goes there or nowhere.
//! Such pods never reach the queue once bound; this guards simulations that place them.

use std::sync::Arc;

use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

const REASON: &str = "node(s) didn't match the requested node name";

pub struct NodeName;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(NodeName))
}

#[derive(Clone)]
struct Named<'a>(&'a str);

impl Plugin for NodeName {
    fn filter<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        match pod.node_name() {
            Some(name) => Prepared::Filter(Box::new(Named(name))),
            None => Prepared::Skip,
        }
    }

    fn helps(&self, _: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        matches!(event, ClusterEvent::Node { name, change, .. } if change.added && pod.node_name() == Some(name))
    }
}

impl<'a> Filter<'a> for Named<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        if *node.name == *self.0 { Ok(()) } else { Err(Failure::unresolvable(REASON)) }
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{check, node, pod};

    #[test]
    fn only_the_named_node() {
        check(&NodeName, &pod(json!({})), &node("a"), Ok(()));
        check(&NodeName, &pod(json!({"nodeName": "a"})), &node("a"), Ok(()));
        check(&NodeName, &pod(json!({"nodeName": "a"})), &node("b"), Err(REASON));
    }
}
