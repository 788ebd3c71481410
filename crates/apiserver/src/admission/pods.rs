//! Small plugins about pods and nodes: tolerations, taints, images, runtime classes.
//! Rows of the table in `admission`.
//! Each only adds what the pod or node leaves open.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use api::{ApiError, kinds::is_extended_resource};

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

pub(super) fn creates_pod(a: &Attributes<'_>) -> bool {
    a.is("", "pods") && a.subresource.is_empty() && a.operation == Operation::Create && a.object["spec"].is_object()
}

pub(super) fn push(parent: &mut Value, list: &str, item: Value) {
    match parent[list].as_array_mut() {
        Some(items) => items.push(item),
        None => parent[list] = json!([item]),
    }
}

/// Pods stay five minutes on a node that is not ready or not reachable, unless they say otherwise.
pub struct DefaultTolerationSeconds;

const TOLERATION_SECONDS: i64 = 300;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() || !a.object["spec"].is_object() {
            return Ok(());
        }
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let tolerates = |t: &Value| {
                let text = |field: &str| t[field].as_str().unwrap_or_default();
                (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
            };
            let found = a.object["spec"]["tolerations"].as_array().is_some_and(|t| t.iter().any(tolerates));
            if !found {
                let toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS });
                push(&mut a.object["spec"], "tolerations", toleration);
            }
        }
        Ok(())
    }
}

/// A new node is not ready until it says so.
pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "nodes") || !a.subresource.is_empty() || a.operation != Operation::Create {
            return Ok(());
        }
        const KEY: &str = "node.kubernetes.io/not-ready";
        let found = a.object["spec"]["taints"].as_array().is_some_and(|t| t.iter().any(|t| t["key"] == KEY));
        if !found {
            if !a.object["spec"].is_object() {
                a.object["spec"] = json!({});
            }
            push(&mut a.object["spec"], "taints", json!({ "key": KEY, "effect": "NoSchedule" }));
        }
        Ok(())
    }
}

/// Every image is pulled anew, so that nobody runs what they could not have pulled.
pub struct AlwaysPullImages;

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() || !a.object["spec"].is_object() {
            return Ok(());
        }
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let containers = a.object["spec"].get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                container["imagePullPolicy"] = "Always".into();
            }
        }
        Ok(())
    }
}

/// Pods that ask for a special device tolerate the taint that keeps others off its nodes.
pub struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() || !a.object["spec"].is_object() {
            return Ok(());
        }
        let mut resources: Vec<String> = Vec::new();
        for list in ["containers", "initContainers"] {
            for container in a.object["spec"][list].as_array().into_iter().flatten() {
                let asked = container["resources"]["requests"].as_object().into_iter().flatten();
                resources.extend(asked.map(|(name, _)| name.clone()).filter(|n| is_extended_resource(n)));
            }
        }
        resources.sort();
        resources.dedup();
        for resource in resources {
            let same =
                |t: &Value| t["key"] == resource.as_str() && t["operator"] == "Exists" && t["effect"] == "NoSchedule";
            if !a.object["spec"]["tolerations"].as_array().is_some_and(|t| t.iter().any(same)) {
                let toleration = json!({ "key": resource, "operator": "Exists", "effect": "NoSchedule" });
                push(&mut a.object["spec"], "tolerations", toleration);
            }
        }
        Ok(())
    }
}

/// Pods of a runtime class carry its overhead and keep to its nodes.
pub struct RuntimeClass(pub Arc<Cluster>);

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !creates_pod(a) {
            return Ok(());
        }
        let Some(name) = a.object["spec"]["runtimeClassName"].as_str().map(str::to_string) else {
            if a.object["spec"]["overhead"].as_object().is_some_and(|o| !o.is_empty()) {
                return Err(
                    a.forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
                );
            }
            return Ok(());
        };
        let Some(class) = self.0.fresh_get("runtimeclasses", "", &name).await? else {
            return Err(a.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found")));
        };
        let class = class.value();
        let overhead = &class["overhead"]["podFixed"];
        if overhead.is_object() {
            let own = &a.object["spec"]["overhead"];
            if own.is_object() && own != overhead {
                return Err(a.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"));
            }
            a.object["spec"]["overhead"] = overhead.clone();
        }
        for (key, value) in class["scheduling"]["nodeSelector"].as_object().into_iter().flatten() {
            let own = &a.object["spec"]["nodeSelector"][key];
            if own.is_string() && own != value {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    value.as_str().unwrap_or_default(),
                    own.as_str().unwrap_or_default()
                );
                return Err(a.forbidden(&why));
            }
            a.object["spec"]["nodeSelector"][key] = value.clone();
        }
        for toleration in class["scheduling"]["tolerations"].as_array().into_iter().flatten() {
            let own = a.object["spec"]["tolerations"].as_array();
            if !own.is_some_and(|t| t.contains(toleration)) {
                push(&mut a.object["spec"], "tolerations", toleration.clone());
            }
        }
        Ok(())
    }
}

/// A pod carries the zone and the region of the node it is bound to, so that its containers can be told.
pub struct PodTopologyLabels {
    pub cluster: Arc<Cluster>,
    pub is_on: bool,
}

const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let node = match a.is("", "pods") && a.subresource == "binding" {
            // The labels of a Binding become its pod's.
            true => &a.object["target"]["name"],
            false if creates_pod(a) => &a.object["spec"]["nodeName"],
            false => return Ok(()),
        };
        let Some(node) = node.as_str().filter(|name| !name.is_empty()) else { return Ok(()) };
        // A node that nobody knows has no place to tell of.
        let Some(node) = self.cluster.get("nodes", "", node).filter(|_| self.is_on) else { return Ok(()) };
        for name in TOPOLOGY {
            if let Some(value) = node.meta.labels.get(name) {
                a.object["metadata"]["labels"][name] = json!(value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use crate::admission::tests::{PODS, configured, fixture, pod};

    #[tokio::test]
    async fn bound_pods_carry_the_place_of_their_node() {
        let off = configured(|c| c.disable_admission_plugins = vec!["PodTopologyLabels".into()]).await;
        for (f, zone, region) in [(fixture(&[]).await, json!("z"), json!("r")), (off, json!("own"), json!(null))] {
            let labels =
                json!({ "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "disk": "ssd" });
            f.ok(Method::POST, "/api/v1/nodes", json!({ "metadata": { "name": "n", "labels": labels } })).await;
            let mut bound = pod("bound", json!({}));
            bound["metadata"]["labels"] = json!({ "topology.kubernetes.io/zone": "own", "app": "web" });
            let mut placed = bound.clone();
            placed["metadata"]["name"] = json!("placed");
            placed["spec"]["nodeName"] = json!("n");
            let waiting = f.ok(Method::POST, PODS, bound).await;
            assert_eq!(waiting["metadata"]["labels"]["topology.kubernetes.io/zone"], "own");
            let target = json!({ "kind": "Node", "name": "n" });
            let binding = json!({ "metadata": { "name": "bound", "labels": { "more": "yes" } }, "target": target });
            f.ok(Method::POST, &format!("{PODS}/bound/binding"), binding).await;
            f.ok(Method::POST, PODS, placed).await;
            for name in ["bound", "placed"] {
                let found = f.ok(Method::GET, &format!("{PODS}/{name}"), json!(null)).await;
                let label = |name: &str| found["metadata"]["labels"][name].clone();
                assert_eq!(label("topology.kubernetes.io/zone"), zone, "{name}");
                assert_eq!(label("topology.kubernetes.io/region"), region, "{name}");
                assert_eq!((label("app"), label("disk")), (json!("web"), json!(null)));
                assert_eq!(label("more"), if name == "bound" { json!("yes") } else { json!(null) });
            }
        }
    }
}
