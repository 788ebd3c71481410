//! Prefers nodes that already hold the pod's images, the more so the larger they are and the more nodes hold them.
//! Sizes come from `node_info`, spread from `cache`.

use std::{hash::Hasher, sync::Arc};

use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, MAX_NODE_SCORE, Plugin, Score},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

const MEBIBYTE: i64 = 1024 * 1024;
/// Less than this is not worth moving for; more than the other counts no further, per container.
const MIN_BYTES: i64 = 23 * MEBIBYTE;
const MAX_BYTES_PER_CONTAINER: i64 = 1000 * MEBIBYTE;

pub struct ImageLocality;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(ImageLocality))
}

/// The share of nodes that hold an image is told in so many steps, so that scores don't all change with each node that
/// pulls it.
const STEPS: usize = 64;

/// The images that some node holds, with the steps of their share.
struct Held {
    images: Vec<(String, usize)>,
    containers: i64,
}

fn held(cluster: &Cluster, pod: &WaitingPod) -> Option<Held> {
    let spec = pod.spec()?;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let names: Vec<_> = containers.map(|c| with_tag(c.image.as_deref().unwrap_or_default())).collect();
    let containers = names.len() as i64;
    let all = cluster.cache.len().max(1);
    let steps = |name: String| match cluster.cache.nodes_with_image(&name) {
        0 => None,
        nodes => Some((name, (nodes as usize * STEPS).div_ceil(all))),
    };
    let images: Vec<_> = names.into_iter().filter_map(steps).collect();
    (!images.is_empty()).then_some(Held { images, containers })
}

impl Plugin for ImageLocality {
    fn score<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a WaitingPod,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn Score + 'a>> {
        held(cluster, pod).map(|held| Box::new(held) as Box<dyn Score>)
    }

    fn rests_on(&self, cluster: &Cluster, pod: &WaitingPod, basis: &mut dyn Hasher) {
        for (name, steps) in held(cluster, pod).iter().flat_map(|held| &held.images) {
            basis.write(name.as_bytes());
            basis.write_usize(*steps);
        }
    }

    fn helps(&self, _: &Cluster, _: &WaitingPod, _: &ClusterEvent) -> bool {
        false
    }
}

fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') { image.to_string() } else { format!("{image}:latest") }
}

impl Score for Held {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let bytes = |(name, steps): &(String, usize)| {
            node.images.get(name).map(|size| (*size as f64 * (*steps as f64 / STEPS as f64)) as i64)
        };
        let sum: i64 = self.images.iter().filter_map(bytes).sum();
        let most = MAX_BYTES_PER_CONTAINER * self.containers;
        MAX_NODE_SCORE * (sum.clamp(MIN_BYTES, most) - MIN_BYTES) / (most - MIN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{check_scores, node, pod};

    #[test]
    fn nodes_that_hold_the_image_score_higher() {
        let mut holds = node("a");
        holds["status"]["images"] = json!([{"names": ["web:latest"], "sizeBytes": 1000 * MEBIBYTE}]);
        let pod = pod(json!({"containers": [{"name": "c", "image": "web"}]}));
        check_scores(&ImageLocality, &pod, &[holds, node("b")], &[48, 0]);
    }
}
