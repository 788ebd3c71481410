//! Cordoned nodes take only pods that tolerate it.
//! Neighbour of `taint_toleration`, whose matching it uses.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::{table::Built, taint_toleration::tolerated};
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared, accepts},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

const REASON: &str = "node(s) were unschedulable";

pub struct NodeUnschedulable;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(NodeUnschedulable))
}

#[derive(Clone)]
struct Cordoned;

impl Plugin for NodeUnschedulable {
    fn filter<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        let taint =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        if tolerated(&taint, pod.tolerations()) { Prepared::Skip } else { Prepared::Filter(Box::new(Cordoned)) }
    }

    fn helps(&self, cluster: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        matches!(event, ClusterEvent::Node { name, change, .. } if change.unschedulable && accepts(self, cluster, pod, name))
    }
}

impl<'a> Filter<'a> for Cordoned {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        if node.is_unschedulable() { Err(Failure::unresolvable(REASON)) } else { Ok(()) }
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
    fn cordoned_nodes_are_refused_unless_tolerated() {
        let mut cordoned = node("n");
        cordoned["spec"] = json!({"unschedulable": true});
        check(&NodeUnschedulable, &pod(json!({})), &node("n"), Ok(()));
        check(&NodeUnschedulable, &pod(json!({})), &cordoned, Err(REASON));
        let toleration = json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
        check(&NodeUnschedulable, &pod(toleration), &cordoned, Ok(()));
    }
}
