//! The quality-of-service class of a pod.
//! Used by the kind Pod, which records it on create, and by the kubelet for pods without a record.
//! Looks at cpu and memory only, as upstream does.

use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::Value;

use super::{RequestsOrLimits, Texts};
use crate::quantity::Quantity;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// The positive amounts of one list, in the order of `COMPUTE`.
type Compute = [Option<Quantity>; 2];

/// The requests and limits of a container, or of the pod as a whole.
struct Requirements {
    requests: Compute,
    limits: Compute,
}

/// The class that the API server recorded, or the one it would have recorded.
pub fn qos_class(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => pod.spec.as_ref().map_or(QosClass::BestEffort, of_spec),
    }
}

fn of_spec(spec: &PodSpec) -> QosClass {
    let amounts = |texts: Option<&Texts>| positive(|name| Quantity::parse(&texts?.get(name)?.0).ok());
    let each = |resources| {
        let limits = amounts(RequestsOrLimits::Limits.list(resources));
        let [cpu, memory] = amounts(RequestsOrLimits::Requests.list(resources));
        // A pod that did not pass the API server has no defaults yet: a limit without a request is the request.
        let requests = [cpu.or_else(|| limits[0].clone()), memory.or_else(|| limits[1].clone())];
        Requirements { requests, limits }
    };
    match &spec.resources {
        Some(own) => classify([each(Some(own))]),
        None => {
            let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            classify(all.map(|container| each(container.resources.as_ref())))
        }
    }
}

/// Of a spec that is still JSON.
pub fn qos_class_of_value(spec: &Value) -> QosClass {
    let amounts =
        |resources: &Value, list: &str| positive(|name| Quantity::from_value(resources.get(list)?.get(name)?));
    let each = |resources: &Value| Requirements {
        requests: amounts(resources, "requests"),
        limits: amounts(resources, "limits"),
    };
    match spec.get("resources").filter(|own| own.is_object()) {
        Some(own) => classify([each(own)]),
        None => {
            let list = |field: &str| spec.get(field).and_then(Value::as_array).into_iter().flatten();
            let all = list("containers").chain(list("initContainers"));
            classify(all.map(|container| each(&container["resources"])))
        }
    }
}

fn positive(amount: impl Fn(&str) -> Option<Quantity>) -> Compute {
    COMPUTE.map(|name| amount(name).filter(|amount| amount.sign() > 0))
}

fn classify(all: impl IntoIterator<Item = Requirements>) -> QosClass {
    let (mut requests, mut limits): (Compute, Compute) = Default::default();
    let mut all_limited = true;
    for own in all {
        all_limited &= own.limits.iter().all(Option::is_some);
        add(&mut requests, own.requests);
        add(&mut limits, own.limits);
    }
    let any = requests.iter().chain(&limits).any(Option::is_some);
    match any {
        false => QosClass::BestEffort,
        true if all_limited && requests == limits => QosClass::Guaranteed,
        true => QosClass::Burstable,
    }
}

fn add(sum: &mut Compute, other: Compute) {
    for (sum, other) in sum.iter_mut().zip(other) {
        match (sum.as_mut(), other) {
            (Some(sum), Some(other)) => sum.add(&other),
            (None, other) => *sum = other,
            (Some(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let check_spec = |spec: Value, class: &str| {
            let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!((qos_class_of_value(&spec).as_str(), qos_class(&pod).as_str()), (class, class), "{spec}");
        };
        let check = |resources: Value, class: &str| {
            check_spec(json!({ "containers": [{ "name": "c", "resources": resources }] }), class);
        };
        check(json!({}), "BestEffort");
        check(json!({ "requests": { "cpu": "0" } }), "BestEffort");
        check(json!({ "requests": { "cpu": "1" } }), "Burstable");
        check(json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "1" } }), "Burstable");
        let full = json!({ "cpu": "1", "memory": "1Gi" });
        check(json!({ "limits": full, "requests": full }), "Guaranteed");
        check(json!({ "limits": full, "requests": { "cpu": "1000m", "memory": "1Gi" } }), "Guaranteed");
        let spec =
            json!({ "containers": [{ "name": "c", "resources": { "limits": full, "requests": { "cpu": "1" } } }] });
        assert_eq!(qos_class_of_value(&spec), QosClass::Burstable, "expects defaults to be in place");
        let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        assert_eq!(qos_class(&pod), QosClass::Guaranteed, "fills them in");
        let (guaranteed, none) = (
            json!({ "name": "a", "resources": { "limits": full, "requests": full } }),
            json!({ "name": "b", "resources": {} }),
        );
        check_spec(json!({ "containers": [guaranteed, none] }), "Burstable");
        check_spec(json!({ "containers": [guaranteed], "initContainers": [none] }), "Burstable");
        let whole = json!({ "limits": full, "requests": full });
        check_spec(json!({ "containers": [none], "resources": whole }), "Guaranteed");
        check_spec(json!({ "containers": [guaranteed], "resources": { "requests": full } }), "Burstable");
    }
}
