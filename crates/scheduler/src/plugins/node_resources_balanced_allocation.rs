//! Prefers nodes whose resources would be used in even proportion.
//! Neighbour of `node_resources_fit`, which decides how full they may be.

use serde_json::Value;

use super::node_resources_fit::{ResourceSpec, cpu_and_memory};
use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{MAX_NODE_SCORE, NodeScorer, Plugin, PreScorePlugin, PreScoreResult, ScorePlugin, SignPlugin},
    node_info::NodeInfo,
    pod_info::PendingPod,
};

pub struct NodeResourcesBalancedAllocation(Vec<ResourceSpec>);

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let resources = match &arguments["resources"] {
        Value::Null => cpu_and_memory(),
        given => serde_json::from_value(given.clone()).map_err(|e| format!("resources: {e}"))?,
    };
    Ok(Plugin::of(NodeResourcesBalancedAllocation(resources)).pre_score().score().sign().build())
}

struct Balance<'a> {
    resources: &'a [ResourceSpec],
    pod: &'a PendingPod,
}

impl PreScorePlugin for NodeResourcesBalancedAllocation {
    fn pre_score(&self, _: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        // A pod that asks for nothing would always go to the same, best balanced node.
        let asks = self.0.iter().any(|r| pod.requests.get(&r.name) > 0);
        if asks { PreScoreResult::Continue } else { PreScoreResult::Skip }
    }
}

impl ScorePlugin for NodeResourcesBalancedAllocation {
    fn node_scorer<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod, _: &[&'a NodeInfo]) -> Box<dyn NodeScorer + 'a> {
        Box::new(Balance { resources: &self.0, pod })
    }
}

impl SignPlugin for NodeResourcesBalancedAllocation {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.requests();
    }
}

impl Balance<'_> {
    /// How full each resource that matters would be.
    fn fractions(&self, node: &NodeInfo) -> impl Iterator<Item = f64> {
        self.resources.iter().filter_map(|resource| {
            let capacity = node.allocatable.get(&resource.name);
            let wanted = self.pod.requests.get(&resource.name);
            let is_scalar = !matches!(resource.name.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pods");
            if capacity == 0 || (is_scalar && wanted == 0) {
                return None;
            }
            let requested = node.requested.get(&resource.name).saturating_add(wanted);
            Some((requested as f64 / capacity as f64).min(1.0))
        })
    }
}

impl NodeScorer for Balance<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let (sum, count) = self.fractions(node).fold((0.0, 0.0), |(sum, count), f| (sum + f, count + 1.0));
        let mean: f64 = sum / count;
        let deviation = match count as usize {
            0 | 1 => 0.0,
            // The usual case, exactly.
            2 => self.fractions(node).map(|f| (f - mean).abs()).sum::<f64>() / 2.0,
            _ => (self.fractions(node).map(|f| (f - mean) * (f - mean)).sum::<f64>() / count).sqrt(),
        };
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{built, check_scores_among, requesting, sized};

    #[test]
    fn even_use_scores_higher() {
        let nodes = [sized("a", "10", "10Gi"), sized("b", "10", "10Gi")];
        let used = vec![("a", requesting("4", "1Gi")), ("b", requesting("1", "1Gi"))];
        let plugin = built(new);
        check_scores_among(&plugin, &requesting("1", "1Gi"), &nodes, used, &[85, 100]);
        check_scores_among(&plugin, &requesting("0", "0"), &nodes, vec![], &[0, 0]);
    }
}
