//! Tells the runtime which addresses the node's pods have (CRI UpdateRuntimeConfig).
//! Part of `node_status`, which hears of them.
//! Said once for each change; a runtime that did not take it is told again at the next.

use k8s_openapi::api::core::v1::Node;

use super::NodeStatusManager;

impl NodeStatusManager {
    /// Tells the runtime which addresses pods have, where it is the one that makes their network.
    pub(super) async fn tell_pod_cidrs(&self, node: &Node, told: &mut String) {
        let given = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default().join(",");
        let wanted = if given.is_empty() { self.config.pod_cidr.clone().unwrap_or_default() } else { given };
        if wanted.is_empty() || wanted == *told {
            return;
        }
        match self.runtime.update_runtime_config(&wanted).await {
            Ok(()) => *told = wanted,
            Err(error) => tracing::warn!(%error, "failed to tell the runtime the addresses of pods"),
        }
    }
}
