//! PodTolerationRestriction: pods get the tolerations of their namespace and have no others than it allows.
//! A row of the table in `admission`; what namespaces do not say is in the admission configuration.
//! Tolerations that another covers are left out.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use api::{
    ApiError,
    pod_resources::qos::{QosClass, qos_class_of_value},
};

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    api_version: String,
    kind: String,
    #[serde(default)]
    default: Vec<Value>,
    #[serde(default)]
    whitelist: Vec<Value>,
}

impl Settings {
    pub fn read(settings: Value) -> Result<Self, String> {
        let found: Self = serde_json::from_value(settings).map_err(|e| e.to_string())?;
        let expected = ("podtolerationrestriction.admission.k8s.io/v1alpha1", "Configuration");
        match (found.api_version.as_str(), found.kind.as_str()) == expected {
            true => Ok(found),
            false => Err(format!("no kind {:?} is registered for version {:?}", found.kind, found.api_version)),
        }
    }
}

pub struct PodTolerationRestriction {
    pub cluster: Arc<Cluster>,
    pub settings: Settings,
}

impl PodTolerationRestriction {
    /// What an annotation of the namespace says; nothing if it has none.
    async fn annotated(&self, namespace: &str, key: &str) -> Result<Option<Vec<Value>>, ApiError> {
        let Some(found) = self.cluster.fresh_get("namespaces", "", namespace).await? else {
            return Err(ApiError::not_found("", "namespaces", namespace));
        };
        match found.meta.annotations.get(key).map(|text| text.as_str()) {
            None => Ok(None),
            Some("") => Ok(Some(Vec::new())),
            Some(text) => serde_json::from_str(text).map(Some).map_err(|e| ApiError::internal(e.to_string())),
        }
    }
}

fn concerns(a: &Attributes<'_>) -> bool {
    a.is("", "pods")
        && a.subresource.is_empty()
        && matches!(a.operation, Operation::Create | Operation::Update)
        && a.object["spec"].is_object()
}

fn tolerations(pod: &Value) -> Vec<Value> {
    pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default()
}

#[async_trait]
impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !concerns(a) {
            return Ok(());
        }
        let mut extra = match a.operation {
            Operation::Create => {
                let own = self.annotated(a.namespace, DEFAULTS).await?;
                own.unwrap_or_else(|| self.settings.default.clone())
            }
            _ => Vec::new(),
        };
        if qos_class_of_value(&a.object["spec"]) != QosClass::BestEffort {
            extra.push(json!({ "key": MEMORY_PRESSURE, "operator": "Exists", "effect": "NoSchedule" }));
        }
        if !extra.is_empty() {
            a.object["spec"]["tolerations"] = merged(tolerations(&a.object), extra).into();
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
        let own = if concerns(a) { tolerations(&a.object) } else { Vec::new() };
        if own.is_empty() {
            return Ok(());
        }
        let (allowed, scope) = match self.annotated(a.namespace, WHITELIST).await? {
            Some(allowed) => (allowed, "namespace"),
            None => (self.settings.whitelist.clone(), "cluster"),
        };
        if allowed.is_empty() || own.iter().all(|toleration| allowed.iter().any(|wider| covers(wider, toleration))) {
            return Ok(());
        }
        let what = "pod tolerations (possibly merged with namespace default tolerations)";
        Err(a.forbidden(&format!("{what} conflict with its {scope} whitelist")))
    }
}

/// All of both that no other covers; of equals the first.
fn merged(first: Vec<Value>, second: Vec<Value>) -> Vec<Value> {
    let all: Vec<_> = first.into_iter().chain(second).collect();
    let mut found: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let by_earlier = found.iter().any(|other| covers(other, toleration));
        let by_later = all[index + 1..].iter().any(|other| other != toleration && covers(other, toleration));
        if !by_earlier && !by_later {
            found.push(toleration.clone());
        }
    }
    found
}

/// Whether `wider` tolerates all that `toleration` does.
fn covers(wider: &Value, toleration: &Value) -> bool {
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_string();
    if wider == toleration {
        return true;
    }
    let any_key = text(wider, "key").is_empty() && text(wider, "operator") == "Exists";
    if text(wider, "key") != text(toleration, "key") && !any_key {
        return false;
    }
    let effect = text(wider, "effect");
    if !effect.is_empty() && effect != text(toleration, "effect") {
        return false;
    }
    if effect == "NoExecute"
        && let Some(most) = wider["tolerationSeconds"].as_i64()
        && toleration["tolerationSeconds"].as_i64().is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match text(wider, "operator").as_str() {
        "Exists" => true,
        "" | "Equal" => {
            matches!(text(toleration, "operator").as_str(), "" | "Equal")
                && text(wider, "value") == text(toleration, "value")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_tolerations_cover_narrower_ones() {
        let check = |wider: Value, toleration: Value, expected: bool| {
            assert_eq!(covers(&wider, &toleration), expected, "{wider} {toleration}");
        };
        let equal = json!({ "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule" });
        check(json!({ "operator": "Exists" }), equal.clone(), true);
        check(json!({ "key": "k", "operator": "Exists" }), equal.clone(), true);
        check(json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" }), equal.clone(), false);
        check(json!({ "key": "k", "value": "v" }), equal.clone(), true);
        check(json!({ "key": "k", "value": "w" }), equal.clone(), false);
        check(json!({ "key": "other", "operator": "Exists" }), equal, false);
        let brief = json!({ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
        let longer = json!({ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9 });
        check(longer.clone(), brief.clone(), true);
        check(brief.clone(), longer.clone(), false);
        check(brief.clone(), json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" }), false);
        assert_eq!(merged(vec![brief.clone(), longer.clone()], vec![brief]), [longer]);
    }
}
