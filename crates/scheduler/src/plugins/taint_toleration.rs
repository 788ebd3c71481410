//! Taints keep pods off nodes unless tolerated; fewer PreferNoSchedule taints score higher.
//! `tolerated` is also used by `node_unschedulable` and `pod_topology_spread`.

use api::placement::tolerates;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, NodeScorer, Plugin, PreScorePlugin, QueueingHint,
        ScorePlugin, SignPlugin, Status, accepts, default_normalize_score,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const REASON: &str = "node(s) had untolerated taint(s)";

pub struct TaintToleration;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(TaintToleration).filter().pre_score().score().enqueue_extensions().sign().build())
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

impl FilterPlugin for TaintToleration {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Tolerates(pod.tolerations()))
    }
}

impl PreScorePlugin for TaintToleration {}

impl ScorePlugin for TaintToleration {
    fn node_scorer<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod, _: &[&'a NodeInfo]) -> Box<dyn NodeScorer + 'a> {
        Box::new(Tolerates(pod.tolerations()))
    }
}

impl EnqueueExtensions for TaintToleration {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(
            matches!(event, ClusterEvent::Node { name, change, .. } if change.taints && accepts(self, cluster, pod, name)),
        )
    }
}

impl SignPlugin for TaintToleration {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.tolerations();
    }
}

impl<'a> NodeFilter<'a> for Tolerates<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        match untolerated(node, self.0) {
            Some(_) => Err(Status::unresolvable(REASON)),
            None => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl NodeScorer for Tolerates<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let soft = node.taints().iter().filter(|t| t.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerated(taint, self.0)).count() as i64
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, true);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check, check_scores, node, pod};

    fn tainted(name: &str, effect: &str) -> Value {
        let mut node = node(name);
        node["spec"] = json!({"taints": [{"key": "k", "value": "v", "effect": effect}]});
        node
    }

    #[test]
    fn taints_need_tolerations() {
        let tolerates = |toleration: Value| pod(json!({"tolerations": [toleration]}));
        check(&built(new), &pod(json!({})), &tainted("n", "NoSchedule"), Err(REASON));
        check(&built(new), &pod(json!({})), &tainted("n", "NoExecute"), Err(REASON));
        check(&built(new), &pod(json!({})), &tainted("n", "PreferNoSchedule"), Ok(()));
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
            check(&built(new), &tolerates(toleration), &tainted("n", "NoSchedule"), wanted);
        }
    }

    #[test]
    fn fewer_soft_taints_score_higher() {
        check_scores(&built(new), &pod(json!({})), &[node("a"), tainted("b", "PreferNoSchedule")], &[100, 0]);
    }
}
