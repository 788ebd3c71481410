//! The scheduling framework: what a plugin is, at which points it has a say, and the profile that puts plugins together.
//! Implemented by `plugins`; driven by `cycle`, `equivalence_class` and `scheduler`.

mod cycle_state;
mod events;
mod extension_points;
mod handle;
mod plugin;
mod profile;
mod status;
mod waiting_pods;

pub use cycle_state::CycleState;
pub use events::{ClusterEvent, EventLabel, NodeChange, QueueingHint, node_label};
pub use extension_points::*;
pub use handle::Handle;
pub use plugin::{ExtensionPoint, Plugin};
pub use profile::{EXTENDER_ROW, Enabled, PluginSet, Profile, Readiness, Refusal};
pub use status::{Code, Status};
pub use waiting_pods::{Rejection, WaitingPods};

use crate::{cluster::Cluster, node_info::NodeInfo, pod_info::PendingPod};

pub const MAX_NODE_SCORE: i64 = 100;

/// Scaled so that the highest becomes 100.
pub fn default_normalize_score(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        if highest > 0 {
            *score = MAX_NODE_SCORE * *score / highest;
        }
        if reverse {
            *score = MAX_NODE_SCORE - *score;
        }
    }
}

/// Whether this plugin alone would now accept the node.
pub fn accepts(plugin: &dyn FilterPlugin, cluster: &Cluster, pod: &PendingPod, node: &str) -> bool {
    cluster.cache.node(node).is_some_and(|node| plugin.node_filter(cluster, pod).filter(node).is_ok())
}
