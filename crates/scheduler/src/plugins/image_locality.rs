//! Prefers nodes that already hold the pod's images, the more so the larger they are and the more nodes hold them.
//! Sizes come from `node_info`, spread from `cache`.

use std::hash::Hasher;

use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{MAX_NODE_SCORE, NodeScorer, Plugin, ScorePlugin, SignPlugin},
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const MEBIBYTE: i64 = 1024 * 1024;
/// Less than this is not worth moving for; more than the other counts no further, per container.
const IMAGE_BYTES_MIN: i64 = 23 * MEBIBYTE;
const IMAGE_BYTES_PER_CONTAINER_MAX: i64 = 1000 * MEBIBYTE;

pub struct ImageLocality;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(ImageLocality).score().sign().build())
}

/// The share of nodes that hold an image is told in so many steps, so that scores don't all change with each node that
/// pulls it.
const IMAGE_SPREAD_STEPS: usize = 64;

/// The images that some node holds, with the steps of their share.
struct Held {
    images: Vec<(String, usize)>,
    containers: i64,
}

fn held(cluster: &Cluster, pod: &PendingPod) -> Held {
    let spec = pod.spec().into_iter();
    let containers = spec.flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let names: Vec<_> = containers.map(|c| with_tag(c.image.as_deref().unwrap_or_default())).collect();
    let containers = names.len() as i64;
    let all = cluster.cache.len().max(1);
    let steps = |name: String| match cluster.cache.nodes_with_image(&name) {
        0 => None,
        nodes => Some((name, (nodes as usize * IMAGE_SPREAD_STEPS).div_ceil(all))),
    };
    Held { images: names.into_iter().filter_map(steps).collect(), containers }
}

impl ScorePlugin for ImageLocality {
    fn node_scorer<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a PendingPod,
        _: &[&'a NodeInfo],
    ) -> Box<dyn NodeScorer + 'a> {
        Box::new(held(cluster, pod))
    }
}

impl SignPlugin for ImageLocality {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.images();
    }

    fn hash_dependencies(&self, cluster: &Cluster, pod: &PendingPod, hasher: &mut dyn Hasher) {
        for (name, steps) in &held(cluster, pod).images {
            hasher.write(name.as_bytes());
            hasher.write_usize(*steps);
        }
    }
}

fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') { image.to_string() } else { format!("{image}:latest") }
}

impl NodeScorer for Held {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let bytes = |(name, steps): &(String, usize)| {
            node.images.get(name).map(|size| (*size as f64 * (*steps as f64 / IMAGE_SPREAD_STEPS as f64)) as i64)
        };
        if self.images.is_empty() {
            return 0;
        }
        let sum: i64 = self.images.iter().filter_map(bytes).sum();
        let most = IMAGE_BYTES_PER_CONTAINER_MAX * self.containers;
        MAX_NODE_SCORE * (sum.clamp(IMAGE_BYTES_MIN, most) - IMAGE_BYTES_MIN) / (most - IMAGE_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check_scores, node, pod};

    #[test]
    fn nodes_that_hold_the_image_score_higher() {
        let mut holds = node("a");
        holds["status"]["images"] = json!([{"names": ["web:latest"], "sizeBytes": 1000 * MEBIBYTE}]);
        let pod = pod(json!({"containers": [{"name": "c", "image": "web"}]}));
        check_scores(&built(new), &pod, &[holds, node("b")], &[48, 0]);
    }
}
