//! LimitPodHardAntiAffinityTopology: what a pod must not share with others is at most a node.
//! A row of the table in `admission`, off by default.
//! Preferences are not limited.

use async_trait::async_trait;

use api::ApiError;

use super::{Attributes, Operation, Plugin};

const HOSTNAME: &str = "kubernetes.io/hostname";

pub struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.is("", "pods") || !a.subresource.is_empty() {
            return Ok(());
        }
        let terms = &a.object["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let keys = terms.as_array().into_iter().flatten().map(|term| term["topologyKey"].as_str().unwrap_or_default());
        match keys.into_iter().find(|key| *key != HOSTNAME) {
            None => Ok(()),
            Some(key) => Err(a.forbidden(&format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
            ))),
        }
    }
}
