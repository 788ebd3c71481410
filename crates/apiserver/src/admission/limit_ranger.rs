//! LimitRange objects complete and bound what containers, pods and claims of a namespace ask for.
//! A row of the table in `admission`.
//! Defaults only fill gaps.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use api::{
    ApiError,
    pod_resources::{self, Amounts, amounts_from_value},
    quantity::Quantity,
};

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

pub struct LimitRanger(pub Arc<Cluster>);

impl LimitRanger {
    fn limits(&self, a: &Attributes<'_>) -> Vec<Vec<Value>> {
        let pods = a.is("", "pods") && matches!(a.subresource, "" | "resize");
        let claims = a.is("", "persistentvolumeclaims") && a.subresource.is_empty();
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        // What a pod asks for does not change later, except by resizing it.
        let relevant = claims || (pods && (a.operation == Operation::Create || a.subresource == "resize"));
        if !relevant || !writes || !a.object.is_object() {
            return Vec::new();
        }
        let ranges = self.0.list("limitranges", a.namespace);
        let limits = |o: &Arc<api::Object>| o.value()["spec"]["limits"].as_array().cloned().unwrap_or_default();
        ranges.iter().map(limits).collect()
    }
}

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() {
            return Ok(());
        }
        for limits in self.limits(a) {
            for limit in limits.iter().filter(|l| l["type"] == "Container") {
                apply_defaults(&mut a.object, limit);
            }
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
        let mut errors = Vec::new();
        for limits in self.limits(a) {
            for limit in &limits {
                check(limit, &a.object, a.is("", "pods"), &mut errors);
            }
        }
        match errors.as_slice() {
            [] => Ok(()),
            [one] => Err(a.forbidden(one)),
            many => Err(a.forbidden(&format!("[{}]", many.join(", ")))),
        }
    }
}

/// Fills in what a container leaves open, and notes that on the pod.
fn apply_defaults(pod: &mut Value, limit: &Value) {
    let mut notes = Vec::new();
    for (list, word) in [("containers", "container"), ("initContainers", "init container")] {
        // `get_mut`, because indexing would make the list that a pod does not have.
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_string();
            for (which, source, noun) in [("requests", "defaultRequest", "request"), ("limits", "default", "limit")] {
                let mut set = Vec::new();
                for (resource, amount) in limit[source].as_object().into_iter().flatten() {
                    if container["resources"][which][resource].is_null() {
                        container["resources"][which][resource] = amount.clone();
                        set.push(resource.clone());
                    }
                }
                if !set.is_empty() {
                    notes.push(format!("{} {noun} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"] = json!(text);
    }
}

fn check(limit: &Value, object: &Value, pod: bool, errors: &mut Vec<String>) {
    let kind = limit["type"].as_str().unwrap_or_default();
    match (kind, pod) {
        ("Container", true) => {
            for list in ["containers", "initContainers"] {
                for container in object["spec"][list].as_array().into_iter().flatten() {
                    let resources = &container["resources"];
                    bounds(
                        limit,
                        kind,
                        &amounts_from_value(&resources["requests"]),
                        &amounts_from_value(&resources["limits"]),
                        errors,
                    );
                }
            }
        }
        ("Pod", true) => {
            let pod = Pod { spec: PodSpec::deserialize(&object["spec"]).ok(), ..Pod::default() };
            let (requests, limits) = (pod_resources::requests(&pod), pod_resources::limits(&pod));
            bounds(limit, kind, &requests, &limits, errors);
        }
        ("PersistentVolumeClaim", false) => {
            let requests = amounts_from_value(&object["spec"]["resources"]["requests"]);
            // A claim has no limit; what it asks for is what it gets.
            let (least, most) = (amounts_from_value(&limit["min"]), amounts_from_value(&limit["max"]));
            for (name, least) in &least {
                at_least(kind, name, least, requests.get(name), None, errors);
            }
            for (name, most) in &most {
                match requests.get(name) {
                    Some(asked) if asked > most => {
                        errors.push(format!("maximum {name} usage per {kind} is {most}, but request is {asked}"))
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn bounds(limit: &Value, kind: &str, requests: &Amounts, limits: &Amounts, errors: &mut Vec<String>) {
    for (name, least) in &amounts_from_value(&limit["min"]) {
        at_least(kind, name, least, requests.get(name), limits.get(name), errors);
    }
    for (name, most) in &amounts_from_value(&limit["max"]) {
        let text = format!("maximum {name} usage per {kind} is {most}");
        match (limits.get(name), requests.get(name)) {
            (None, _) => errors.push(format!("{text}.  No limit is specified")),
            (Some(set), _) if set > most => errors.push(format!("{text}, but limit is {set}")),
            (_, Some(asked)) if asked > most => errors.push(format!("{text}, but request is {asked}")),
            _ => {}
        }
    }
    for (name, ratio) in &amounts_from_value(&limit["maxLimitRequestRatio"]) {
        let text = format!("{name} max limit to request ratio per {kind} is {ratio}");
        match (requests.get(name).filter(|q| !q.is_zero()), limits.get(name).filter(|q| !q.is_zero())) {
            (None, _) => errors.push(format!("{text}, but no request is specified or request is 0")),
            (_, None) => errors.push(format!("{text}, but no limit is specified or limit is 0")),
            (Some(asked), Some(set)) if set.as_f64() / asked.as_f64() > ratio.as_f64() => {
                errors.push(format!("{text}, but provided ratio is {:.6}", set.as_f64() / asked.as_f64()));
            }
            _ => {}
        }
    }
}

fn at_least(
    kind: &str,
    name: &str,
    least: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    errors: &mut Vec<String>,
) {
    let text = format!("minimum {name} usage per {kind} is {least}");
    match (request, limit) {
        (None, _) => errors.push(format!("{text}.  No request is specified")),
        (Some(asked), _) if asked < least => errors.push(format!("{text}, but request is {asked}")),
        (_, Some(set)) if set < least => errors.push(format!("{text}, but limit is {set}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_bounds_kept() {
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [
            { "name": "c", "resources": { "limits": { "cpu": "300m" } } },
        ] } });
        let limit = json!({
            "type": "Container", "default": { "cpu": "500m", "memory": "500Mi" },
            "defaultRequest": { "cpu": "100m" }, "max": { "cpu": "200m" }, "min": { "memory": "1Mi" },
        });
        apply_defaults(&mut pod, &limit);
        let expected = json!({ "limits": { "cpu": "300m", "memory": "500Mi" }, "requests": { "cpu": "100m" } });
        assert_eq!(pod["spec"]["containers"][0]["resources"], expected);
        assert_eq!(
            pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
            "LimitRanger plugin set: cpu request for container c; memory limit for container c"
        );
        let mut errors = Vec::new();
        check(&limit, &pod, true, &mut errors);
        let expected = [
            "minimum memory usage per Container is 1Mi.  No request is specified",
            "maximum cpu usage per Container is 200m, but limit is 300m",
        ];
        assert_eq!(errors, expected);
    }
}
