//! nodeSelector and node affinity: required terms filter, preferred terms score.
//! Matching is in `node_selector`; a daemon's pod, which names its node, looks at that one only.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, PreferredSchedulingTerm};
use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared, Score, accepts, normalize_to_highest},
    node_info::NodeInfo,
    node_selector::{NodeTerms, RequiredNodes},
    pod_info::WaitingPod,
};

const REASON: &str = "node(s) didn't match Pod's node affinity/selector";
const REASON_ADDED: &str = "node(s) didn't match scheduler-enforced node affinity";

/// `added` is affinity that the profile gives every pod.
#[derive(Default)]
pub struct NodeAffinity {
    added_required: Option<NodeTerms>,
    added_preferred: Vec<PreferredSchedulingTerm>,
}

pub fn build(arguments: &Value) -> Built {
    let added = match &arguments["addedAffinity"] {
        Value::Null => Affinity::default(),
        given => serde_json::from_value(given.clone()).map_err(|e| format!("addedAffinity: {e}"))?,
    };
    Ok(Arc::new(NodeAffinity {
        added_required: added.required_during_scheduling_ignored_during_execution.as_ref().map(NodeTerms::new),
        added_preferred: added.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
    }))
}

#[derive(Clone)]
struct Selected<'a> {
    required: RequiredNodes,
    added: Option<&'a NodeTerms>,
}

struct Preferred(Vec<(NodeTerms, i64)>);

impl Plugin for NodeAffinity {
    fn filter<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        let required = RequiredNodes::of(pod.spec());
        if required.is_everything() && self.added_required.is_none() {
            return Prepared::Skip;
        }
        let names = required.exact_names();
        let filter = Box::new(Selected { required, added: self.added_required.as_ref() });
        match names {
            Some(names) => Prepared::Only(names, filter),
            None => Prepared::Filter(filter),
        }
    }

    fn score<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod, _: &[&'a NodeInfo]) -> Option<Box<dyn Score + 'a>> {
        let affinity = pod.spec().and_then(|s| s.affinity.as_ref()).and_then(|a| a.node_affinity.as_ref());
        let own = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let terms: Vec<_> = own
            .into_iter()
            .flatten()
            .chain(&self.added_preferred)
            .filter(|t| t.weight != 0)
            .map(|t| (NodeTerms::of_term(&t.preference), i64::from(t.weight)))
            .collect();
        (!terms.is_empty()).then(|| Box::new(Preferred(terms)) as Box<dyn Score>)
    }

    fn helps(&self, cluster: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        matches!(event, ClusterEvent::Node { name, change, .. } if change.labels && accepts(self, cluster, pod, name))
    }
}

impl<'a> Filter<'a> for Selected<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        if self.added.is_some_and(|terms| !terms.matches(node)) {
            return Err(Failure::unresolvable(REASON_ADDED));
        }
        if self.required.matches(node) { Ok(()) } else { Err(Failure::unresolvable(REASON)) }
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Score for Preferred {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        self.0.iter().filter(|(term, _)| term.matches(node)).map(|(_, weight)| weight).sum()
    }

    fn is_relative(&self) -> bool {
        true
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_to_highest(scores, false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{check, check_scores, labelled, pod};

    fn required(term: Value) -> crate::pod_info::WaitingPod {
        pod(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term]}}}}))
    }

    #[test]
    fn required_terms_and_selectors_filter() {
        let node = labelled("n", &[("disk", "ssd"), ("size", "5")]);
        let expression = |key: &str, operator: &str, values: &[&str]| {
            required(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let plugin = NodeAffinity::default();
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
        check_scores(&NodeAffinity::default(), &pod, &nodes, &[100, 50, 0]);
    }
}
