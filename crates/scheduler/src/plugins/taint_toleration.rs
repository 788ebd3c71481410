//! Taints keep pods off nodes unless tolerated; fewer PreferNoSchedule taints score higher.
//! `tolerated` is also used by `node_unschedulable` and `pod_topology_spread`.

use std::sync::Arc;

use api::placement::tolerates;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared, Score, accepts, normalize_to_highest},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

const REASON: &str = "node(s) had untolerated taint(s)";

pub struct TaintToleration;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(TaintToleration))
}

pub fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// The first taint that keeps the pod from being scheduled here.
pub fn untolerated<'n>(node: &'n NodeInfo, tolerations: &[Toleration]) -> Option<&'n Taint> {
    let hard = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    node.taints().iter().filter(hard).find(|taint| !tolerated(taint, tolerations))
}

#[derive(Clone)]
struct Tolerates<'a>(&'a [Toleration]);

impl Plugin for TaintToleration {
    fn filter<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        Prepared::Filter(Box::new(Tolerates(pod.tolerations())))
    }

    fn score<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod, _: &[&'a NodeInfo]) -> Option<Box<dyn Score + 'a>> {
        Some(Box::new(Tolerates(pod.tolerations())))
    }

    fn helps(&self, cluster: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        matches!(event, ClusterEvent::Node { name, change, .. } if change.taints && accepts(self, cluster, pod, name))
    }
}

impl<'a> Filter<'a> for Tolerates<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        match untolerated(node, self.0) {
            Some(_) => Err(Failure::unresolvable(REASON)),
            None => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Score for Tolerates<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let soft = node.taints().iter().filter(|t| t.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerated(taint, self.0)).count() as i64
    }

    fn is_relative(&self) -> bool {
        true
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_to_highest(scores, true);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{check, check_scores, node, pod};

    fn tainted(name: &str, effect: &str) -> Value {
        let mut node = node(name);
        node["spec"] = json!({"taints": [{"key": "k", "value": "v", "effect": effect}]});
        node
    }

    #[test]
    fn taints_need_tolerations() {
        let tolerates = |toleration: Value| pod(json!({"tolerations": [toleration]}));
        check(&TaintToleration, &pod(json!({})), &tainted("n", "NoSchedule"), Err(REASON));
        check(&TaintToleration, &pod(json!({})), &tainted("n", "NoExecute"), Err(REASON));
        check(&TaintToleration, &pod(json!({})), &tainted("n", "PreferNoSchedule"), Ok(()));
        for (toleration, accepted) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "v", "effect": "NoExecute"}), false),
            (json!({"key": "k", "value": "other"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            let wanted = if accepted { Ok(()) } else { Err(REASON) };
            check(&TaintToleration, &tolerates(toleration), &tainted("n", "NoSchedule"), wanted);
        }
    }

    #[test]
    fn fewer_soft_taints_score_higher() {
        check_scores(&TaintToleration, &pod(json!({})), &[node("a"), tainted("b", "PreferNoSchedule")], &[100, 0]);
    }
}
