//! The order in which objects are printed: `sortOptions` of the outermost kustomization, else the legacy order.
//! Used by `build`.
//! What the options do not know is refused.

use serde_json::Value;

use super::Resource;
use crate::describe::fields::{string, strings};

const FIRST: &[&str] = &[
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

#[derive(Debug)]
pub enum SortOrder {
    /// As the files name them.
    Fifo,
    Legacy {
        first: Vec<String>,
        last: Vec<String>,
    },
}

impl SortOrder {
    pub fn of(options: &Value) -> Result<Self, String> {
        let legacy = &options["legacySortOptions"];
        match string(&options["order"]) {
            _ if options.is_null() => Ok(Self::legacy(FIRST, LAST)),
            "fifo" if legacy.is_null() => Ok(Self::Fifo),
            "fifo" => Err(
                "the field 'sortOptions.legacySortOptions' is set but the selected sort order is 'fifo', not 'legacy'"
                    .to_string(),
            ),
            "legacy" if legacy.is_null() => Ok(Self::legacy(FIRST, LAST)),
            "legacy" => Ok(Self::legacy(&strings(&legacy["orderFirst"]), &strings(&legacy["orderLast"]))),
            _ => Err("the field 'sortOptions.order' must be one of [fifo, legacy]".to_string()),
        }
    }

    fn legacy(first: &[&str], last: &[&str]) -> Self {
        let owned = |kinds: &[&str]| kinds.iter().map(|kind| kind.to_string()).collect();
        Self::Legacy { first: owned(first), last: owned(last) }
    }

    pub fn sort(&self, resources: &mut [Resource]) {
        if let Self::Legacy { first, last } = self {
            resources.sort_by_cached_key(|resource| sort_key(resource, first, last));
        }
    }
}

/// Kinds that are named first or last, the rest by group, version, kind, namespace and name.
fn sort_key(resource: &Resource, first: &[String], last: &[String]) -> (i32, String) {
    let kind = resource.kind();
    let at_first = first.iter().position(|own| *own == kind).map(|at| at as i32 - first.len() as i32);
    let at_last = last.iter().position(|own| *own == kind).map(|at| at as i32 + 1);
    let or = |text: &str, otherwise: &str| if text.is_empty() { otherwise.to_string() } else { text.to_string() };
    let (group, version) = resource.group_version();
    let gvk = format!("{}_{}_{}", or(group, "~G"), or(version, "~V"), or(kind, "~K"));
    let text = format!("{gvk}|{}|{}", or(resource.namespace(), "~X"), or(resource.name(), "~N"));
    // One that stands in both lists comes last, as its later entry wins.
    (at_last.or(at_first).unwrap_or(0), text)
}
