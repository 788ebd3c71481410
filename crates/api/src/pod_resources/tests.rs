//! What pods request and are limited to, as tables.

use serde_json::{Value, json};

use super::*;

fn shown(amounts: &Amounts) -> Value {
    amounts
        .iter()
        .map(|(name, amount)| (name.clone(), Value::from(amount.canonical())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn pod(spec: &Value) -> Pod {
    serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
}

/// A container with the same requests and limits.
fn container(resources: &Value) -> Value {
    json!({ "name": "c", "resources": { "requests": resources, "limits": resources } })
}

fn sidecar(resources: &Value) -> Value {
    let mut container = container(resources);
    container["restartPolicy"] = "Always".into();
    container
}

#[test]
fn sums_over_containers() {
    let check = |spec: Value, expected: Value| {
        assert_eq!(shown(&requests(&pod(&spec))), expected, "requests of {spec}");
        assert_eq!(shown(&limits(&pod(&spec))), expected, "limits of {spec}");
    };
    let cpu = |amount: &str| container(&json!({ "cpu": amount }));
    let side = sidecar(&json!({ "cpu": "500m" }));
    check(json!({ "containers": [] }), json!({}));
    check(json!({ "containers": [{ "name": "c" }] }), json!({}));
    check(json!({ "containers": [cpu("100m"), cpu("200m")] }), json!({ "cpu": "300m" }));
    check(json!({ "containers": [cpu("100m")], "initContainers": [cpu("1")] }), json!({ "cpu": "1" }));
    check(json!({ "containers": [cpu("100m")], "initContainers": [side, cpu("1")] }), json!({ "cpu": "1500m" }));
    check(json!({ "containers": [cpu("100m")], "initContainers": [cpu("550m"), side] }), json!({ "cpu": "600m" }));
    let other = container(&json!({ "example.com/gpu": "1" }));
    check(json!({ "containers": [cpu("1"), other] }), json!({ "cpu": "1", "example.com/gpu": "1" }));
}

/// Each row of upstream's rule: pod level stands instead of the sum, overhead comes on top of either.
#[test]
fn overhead_and_pod_level() {
    let check = |own: Value, pod_level: Value, overhead: Value, wanted: Value, limited: Value| {
        let mut spec = json!({ "containers": [container(&own)], "overhead": overhead });
        if !pod_level.is_null() {
            spec["resources"] = json!({ "requests": pod_level, "limits": pod_level });
        }
        assert_eq!(shown(&requests(&pod(&spec))), wanted, "requests of {spec}");
        assert_eq!(shown(&limits(&pod(&spec))), limited, "limits of {spec}");
    };
    let (none, both) = (json!({}), json!({ "cpu": "250m", "memory": "120Mi" }));
    let one = json!({ "cpu": "1", "memory": "1Gi" });
    check(one.clone(), Value::Null, none.clone(), one.clone(), one.clone());
    let with = json!({ "cpu": "1250m", "memory": "1144Mi" });
    check(one.clone(), Value::Null, both.clone(), with.clone(), with.clone());
    check(none.clone(), one.clone(), both.clone(), with.clone(), with.clone());
    check(json!({ "cpu": "100m" }), one.clone(), both.clone(), with.clone(), with);
    // A request comes of overhead alone, a limit does not.
    check(none.clone(), Value::Null, both.clone(), both.clone(), none.clone());
    check(
        json!({ "memory": "1Gi" }),
        json!({ "cpu": "2" }),
        json!({ "cpu": "250m" }),
        json!({ "cpu": "2250m", "memory": "1Gi" }),
        json!({ "cpu": "2250m", "memory": "1Gi" }),
    );
    // Only cpu, memory and huge pages can be set at pod level.
    check(
        json!({ "ephemeral-storage": "1Gi" }),
        json!({ "ephemeral-storage": "5Gi", "hugepages-2Mi": "4Mi" }),
        none,
        json!({ "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi" }),
        json!({ "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi" }),
    );
}

#[test]
fn a_resize_holds_the_most_unless_it_is_infeasible() {
    let asks = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu } });
    for (reason, wanted, limited) in [("Deferred", "2", "2"), ("Infeasible", "700m", "500m")] {
        let running = json!({ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": asks("500m"), "allocatedResources": { "cpu": "700m" } });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {},
            "spec": { "containers": [{ "name": "c", "resources": asks("2") }] },
            "status": { "containerStatuses": [running],
                "conditions": [{ "type": "PodResizePending", "status": "True", "reason": reason }] },
        }))
        .unwrap();
        let found = |which| shown(&with_status(&pod, which))["cpu"].clone();
        assert_eq!(
            (found(RequestsOrLimits::Requests), found(RequestsOrLimits::Limits)),
            (json!(wanted), json!(limited)),
            "{reason}"
        );
    }
}
