//! Amounts of resources as admission finds them: in objects that are still plain JSON.
//! Used by `limit_ranger` and `resource_quota`; the sums over a pod are `api::pod_resources`'.
//! Invariant: pure.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::Deserialize;
use serde_json::Value;

use api::{
    pod_resources::{Which, asked},
    quantity::Quantity,
};

pub use api::pod_resources::{Amounts, at_pod_level};

/// The quantities of a `requests` or `limits`; what cannot be read is for validation to refuse.
pub fn amounts(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, amount)| {
            let text = amount.as_str().map(str::to_string).unwrap_or_else(|| amount.to_string());
            Some((name.clone(), Quantity::parse(&text).ok()?))
        })
        .collect()
}

/// The requests and the limits of a whole pod.
pub fn pod_totals(spec: &Value) -> (Amounts, Amounts) {
    let pod = Pod { spec: PodSpec::deserialize(spec).ok(), ..Pod::default() };
    (asked(&pod, Which::Requests), asked(&pod, Which::Limits))
}
