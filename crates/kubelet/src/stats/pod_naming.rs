//! Which control group is whose: pods, their sandboxes and containers, for `cadvisor`.
//! Part of `stats`.
//! Asks no runtime: what is known here and the names of groups are enough.

use std::{collections::HashMap, sync::Arc};

use cadvisor::{GroupKind, Identity, Naming};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use super::{WritableLayers, pod_facts::children};
use crate::pod::{pod_spec, pod_workers::Shared};

pub struct PodNaming {
    pub shared: Arc<Shared>,
    pub layers: WritableLayers,
}

impl Naming for PodNaming {
    fn identities(&self) -> HashMap<String, Identity> {
        let shared = &self.shared;
        let mut found = HashMap::new();
        for pod in shared.pods.list() {
            let Some((group, directory)) = shared.cgroups.pod_group(&pod, "cpu") else { continue };
            let status = shared.statuses.get(pod_spec::uid(&pod)).or_else(|| pod.status.clone()).unwrap_or_default();
            let containers = by_id(&status);
            let layers = self.layers.lock();
            for (id, place) in children(&directory) {
                let name = format!("{group}/{}", place.file_name().unwrap_or_default().to_string_lossy());
                let mut identity = identity(&pod, &id, containers.get(id.as_str()).copied());
                if identity.kind == GroupKind::Sandbox {
                    identity.image = shared.config.sandbox_image.clone();
                }
                identity.filesystem = layers.get(&id).cloned().into_iter().collect();
                found.insert(name, identity);
            }
            let identity = Identity {
                kind: GroupKind::Pod,
                pod: pod_spec::name(&pod).into(),
                namespace: pod_spec::namespace(&pod).into(),
                ..Identity::default()
            };
            found.insert(group, identity);
        }
        found
    }

    fn roots(&self) -> Vec<String> {
        vec![self.shared.cgroups.pods_group()]
    }
}

/// Containers by the runtime's ids, those that ended last included.
fn by_id(status: &PodStatus) -> HashMap<&str, &ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let containers = lists.into_iter().flatten().flatten();
    containers.filter_map(|c| Some((c.container_id.as_deref()?.rsplit("://").next()?, c))).collect()
}

/// The group in a pod's that no container has is its sandbox's, and has the pod's network.
fn identity(pod: &Pod, id: &str, container: Option<&ContainerStatus>) -> Identity {
    let state = container.and_then(|container| container.state.as_ref()?.running.as_ref());
    Identity {
        kind: if container.is_some() { GroupKind::Container } else { GroupKind::Sandbox },
        aliases: vec![id.into()],
        pod: pod_spec::name(pod).into(),
        namespace: pod_spec::namespace(pod).into(),
        container: container.map(|container| container.name.clone()).unwrap_or_default(),
        image: container.map(|container| container.image.clone()).unwrap_or_default(),
        has_network: container.is_none() && !pod_spec::host_network(pod),
        started: state.and_then(|running| running.started_at.as_ref()).map(|at| at.0),
        filesystem: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_known_by_their_ids_and_the_sandbox_by_having_none() {
        let status: PodStatus = serde_json::from_value(json!({
            "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": "containerd://abc",
                "state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}}}],
            "initContainerStatuses": [{"name": "init", "image": "i", "imageID": "", "ready": true, "restartCount": 0}],
        }))
        .unwrap();
        let containers = by_id(&status);
        assert_eq!(containers.keys().copied().collect::<Vec<_>>(), ["abc"]);
        let check = |host_network: bool, id: &str, kind: GroupKind, name: &str, has_network: bool| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n"},
                "spec": {"hostNetwork": host_network, "containers": []}});
            let pod = serde_json::from_value(pod).unwrap();
            let found = identity(&pod, id, containers.get(id).copied());
            assert_eq!((found.kind, found.container.as_str(), found.has_network), (kind, name, has_network));
            assert_eq!((found.pod.as_str(), found.aliases.as_slice()), ("p", [id.to_string()].as_slice()));
            assert_eq!(found.started.is_some(), kind == GroupKind::Container);
        };
        check(false, "abc", GroupKind::Container, "main", false);
        check(false, "box", GroupKind::Sandbox, "", true);
        check(true, "box", GroupKind::Sandbox, "", false);
    }
}
