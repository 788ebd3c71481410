//! PodNodeSelector: pods go where their namespace says, by its annotation or by the cluster's default.
//! A row of the table in `admission`; its settings are `podNodeSelectorPluginConfig` of the admission configuration.
//! Never overrides what a pod asks for: a contradiction is refused.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use api::ApiError;

use super::{Attributes, Plugin, pods::creates_pod};
use crate::storage::cluster::Cluster;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const CLUSTER_DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// Selectors by namespace, that pods there may have at most; and the default for namespaces that say nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    pod_node_selector_plugin_config: Labels,
}

impl Settings {
    pub fn read(settings: Value) -> Result<Self, String> {
        let found: Self = serde_json::from_value(settings).map_err(|e| e.to_string())?;
        for (name, selector) in &found.pod_node_selector_plugin_config {
            labels(selector).map_err(|e| format!("podNodeSelectorPluginConfig.{name}: {e}"))?;
        }
        Ok(found)
    }

    fn labels(&self, name: &str) -> Result<Labels, String> {
        self.pod_node_selector_plugin_config.get(name).map_or_else(|| Ok(Labels::new()), |selector| labels(selector))
    }
}

/// `a=b, c=d` as labels.
fn labels(selector: &str) -> Result<Labels, String> {
    let terms = selector.split(',').filter(|_| !selector.is_empty());
    let pairs = terms.map(|term| match term.split('=').collect::<Vec<_>>()[..] {
        [key, value] => Ok((key.trim().to_string(), value.trim().to_string())),
        _ => Err(format!("invalid selector: {term}")),
    });
    pairs.collect()
}

fn conflict(a: &Labels, b: &Labels) -> bool {
    a.iter().any(|(key, value)| b.get(key).is_some_and(|other| other != value))
}

pub struct PodNodeSelector {
    pub cluster: Arc<Cluster>,
    pub settings: Settings,
}

impl PodNodeSelector {
    async fn of_namespace(&self, name: &str) -> Result<Labels, ApiError> {
        let Some(namespace) = self.cluster.fresh_get("namespaces", "", name).await? else {
            return Err(ApiError::not_found("", "namespaces", name));
        };
        let found = match namespace.meta.annotations.get(ANNOTATION) {
            Some(selector) => labels(selector),
            None => self.settings.labels(CLUSTER_DEFAULT),
        };
        found.map_err(ApiError::internal)
    }
}

fn selector_of(pod: &Value) -> Labels {
    let selector = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    selector.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string()))).collect()
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !creates_pod(a) {
            return Ok(());
        }
        let wanted = self.of_namespace(a.namespace).await?;
        let mut own = selector_of(&a.object);
        if conflict(&wanted, &own) {
            return Err(a.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        own.extend(wanted);
        if !own.is_empty() {
            a.object["spec"]["nodeSelector"] = serde_json::json!(own);
        }
        Ok(())
    }

    fn validates(&self) -> bool {
        true
    }

    fn mutates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !creates_pod(a) {
            return Ok(());
        }
        let own = selector_of(&a.object);
        if conflict(&self.of_namespace(a.namespace).await?, &own) {
            return Err(a.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        let allowed = self.settings.labels(a.namespace).map_err(ApiError::internal)?;
        if !allowed.is_empty() && own.iter().any(|(key, value)| allowed.get(key) != Some(value)) {
            return Err(a.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_labels() {
        let check = |selector: &str, expected: Result<&[(&str, &str)], &str>| {
            let expected = expected.map(|pairs| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
            assert_eq!(labels(selector), expected.map_err(str::to_string));
        };
        check("", Ok(&[]));
        check("a=b, c=d", Ok(&[("a", "b"), ("c", "d")]));
        check("a", Err("invalid selector: a"));
        let error = Settings::read(serde_json::json!({ "podNodeSelectorPluginConfig": { "x": "a=b=c" } })).unwrap_err();
        assert_eq!(error, "podNodeSelectorPluginConfig.x: invalid selector: a=b=c");
    }
}
