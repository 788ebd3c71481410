//! nodeSelector and node affinity: required terms filter, preferred terms score.
//! Matching is in `node_selector`; a daemon's pod, which names its node, looks at that one only.

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, PreferredSchedulingTerm};
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, NodeScorer, Plugin, PreFilterPlugin,
        PreFilterResult, PreScorePlugin, PreScoreResult, QueueingHint, ScorePlugin, SignPlugin, Status, accepts,
        default_normalize_score,
    },
    node_info::NodeInfo,
    node_selector::{NodeTerms, RequiredNodes},
    pod_info::PendingPod,
};

const REASON: &str = "node(s) didn't match Pod's node affinity/selector";
const REASON_ADDED: &str = "node(s) didn't match scheduler-enforced node affinity";

/// `added` is affinity that the profile gives every pod.
#[derive(Default)]
pub struct NodeAffinity {
    added_required: Option<NodeTerms>,
    added_preferred: Vec<PreferredSchedulingTerm>,
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let added = match &arguments["addedAffinity"] {
        Value::Null => Affinity::default(),
        given => serde_json::from_value(given.clone()).map_err(|e| format!("addedAffinity: {e}"))?,
    };
    let plugin = NodeAffinity {
        added_required: added.required_during_scheduling_ignored_during_execution.as_ref().map(NodeTerms::new),
        added_preferred: added.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
    };
    Ok(Plugin::of(plugin).pre_filter().filter().pre_score().score().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Selected<'a> {
    required: RequiredNodes,
    added: Option<&'a NodeTerms>,
}

struct Preferred(Vec<(NodeTerms, i64)>);

impl PreFilterPlugin for NodeAffinity {
    fn pre_filter(&self, _: &Cluster, pod: &PendingPod) -> PreFilterResult {
        let required = RequiredNodes::of(pod.spec());
        if required.is_everything() && self.added_required.is_none() {
            return PreFilterResult::Skip;
        }
        required.exact_names().map_or(PreFilterResult::AllNodes, PreFilterResult::Nodes)
    }
}

impl FilterPlugin for NodeAffinity {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Selected { required: RequiredNodes::of(pod.spec()), added: self.added_required.as_ref() })
    }
}

impl NodeAffinity {
    fn preferred<'a>(&'a self, pod: &'a PendingPod) -> impl Iterator<Item = &'a PreferredSchedulingTerm> {
        let affinity = pod.spec().and_then(|s| s.affinity.as_ref()).and_then(|a| a.node_affinity.as_ref());
        let own = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        own.into_iter().flatten().chain(&self.added_preferred).filter(|term| term.weight != 0)
    }
}

impl PreScorePlugin for NodeAffinity {
    fn pre_score(&self, _: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        if self.preferred(pod).next().is_none() { PreScoreResult::Skip } else { PreScoreResult::Continue }
    }
}

impl ScorePlugin for NodeAffinity {
    fn node_scorer<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod, _: &[&'a NodeInfo]) -> Box<dyn NodeScorer + 'a> {
        let terms = self.preferred(pod).map(|t| (NodeTerms::of_term(&t.preference), i64::from(t.weight)));
        Box::new(Preferred(terms.collect()))
    }
}

impl EnqueueExtensions for NodeAffinity {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(
            matches!(event, ClusterEvent::Node { name, change, .. } if change.labels && accepts(self, cluster, pod, name)),
        )
    }
}

impl SignPlugin for NodeAffinity {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.node_selector_and_affinity();
    }
}

impl<'a> NodeFilter<'a> for Selected<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if self.added.is_some_and(|terms| !terms.matches(node)) {
            return Err(Status::unresolvable(REASON_ADDED));
        }
        if self.required.matches(node) { Ok(()) } else { Err(Status::unresolvable(REASON)) }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl NodeScorer for Preferred {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        self.0.iter().filter(|(term, _)| term.matches(node)).map(|(_, weight)| weight).sum()
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check, check_scores, labelled, pod};

    fn required(term: Value) -> crate::pod_info::PendingPod {
        pod(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term]}}}}))
    }

    #[test]
    fn required_terms_and_selectors_filter() {
        let node = labelled("n", &[("disk", "ssd"), ("size", "5")]);
        let expression = |key: &str, operator: &str, values: &[&str]| {
            required(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let plugin = built(new);
        check(&plugin, &pod(json!({"nodeSelector": {"disk": "ssd"}})), &node, Ok(()));
        check(&plugin, &pod(json!({"nodeSelector": {"disk": "hdd"}})), &node, Err(REASON));
        for (pod, accepted) in [
            (expression("disk", "In", &["ssd", "nvme"]), true),
            (expression("disk", "NotIn", &["ssd"]), false),
            (expression("gpu", "NotIn", &["x"]), true),
            (expression("gpu", "Exists", &[]), false),
            (expression("gpu", "DoesNotExist", &[]), true),
            (expression("size", "Gt", &["4"]), true),
            (expression("size", "Lt", &["4"]), false),
            (required(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})), true),
            (required(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]})), false),
            (required(json!({})), false),
        ] {
            check(&plugin, &pod, &node, if accepted { Ok(()) } else { Err(REASON) });
        }
    }

    #[test]
    fn preferred_terms_score_by_weight() {
        let term = |weight: i32, value: &str| {
            json!({"weight": weight, "preference":
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}})
        };
        let pod = pod(json!({"affinity": {"nodeAffinity":
            {"preferredDuringSchedulingIgnoredDuringExecution": [term(10, "a"), term(5, "b")]}}}));
        let nodes = [labelled("1", &[("zone", "a")]), labelled("2", &[("zone", "b")]), labelled("3", &[])];
        check_scores(&built(new), &pod, &nodes, &[100, 50, 0]);
    }
}
