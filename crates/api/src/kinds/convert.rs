//! Conversion between the served versions of one kind. Few kinds have more than one.
//! Used by the API server between a request's version and the stored one: HPA autoscaling/v2, Event v1, and v1 of
//! resource.k8s.io, whose older versions are in `resource/older_versions`.
//! There and back gives the same object.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::kinds::{
    Resource,
    common::access::{int, is_set, items, part, part_mut, set, text},
    find,
    resource::older_versions::{from_v1beta1, to_v1beta1},
};

/// An object as it is stored: for rules that know one version only.
pub fn as_stored<'a>(resource: &Resource, object: &'a Value) -> Cow<'a, Value> {
    let stored =
        resource.behavior.storage_version().and_then(|(group, version)| find(group, version, &resource.plural));
    match stored.filter(|_| !object.is_null()) {
        Some(stored) => Cow::Owned(convert(resource, stored, object.clone())),
        None => Cow::Borrowed(object),
    }
}

/// `value` is of `from`; the result is of `to`. The same object when both store alike.
pub fn convert(from: &Resource, to: &Resource, mut value: Value) -> Value {
    if from.api_version() == to.api_version() {
        return value;
    }
    match (from.kind.as_str(), to.group.as_str(), to.version.as_str()) {
        ("Event", "events.k8s.io", _) => rename_event(&mut value, |(core, events)| (core, events)),
        ("Event", _, _) => rename_event(&mut value, |(core, events)| (events, core)),
        ("HorizontalPodAutoscaler", _, "v1") => autoscaler_to_v1(&mut value),
        ("HorizontalPodAutoscaler", _, _) => autoscaler_from_v1(&mut value),
        (kind, "resource.k8s.io", to) => match (from.version.as_str(), to) {
            ("v1beta1", _) => from_v1beta1(kind, &mut value),
            (_, "v1beta1") => to_v1beta1(kind, &mut value),
            _ => {}
        },
        _ => {}
    }
    value["apiVersion"] = json!(to.api_version());
    value
}

const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename_event(event: &mut Value, direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let Some(map) = event.as_object_mut() else { return };
    for pair in EVENT_FIELDS {
        let (from, to) = direction(pair);
        if let Some(value) = map.remove(from) {
            map.insert(to.to_string(), value);
        }
    }
}

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// What v1 says of the status in annotations.
pub(super) const STATUS_ANNOTATIONS: [&str; 2] = [CURRENT_METRICS, CONDITIONS];
/// Served by an alpha version once: taken off, and nothing made of them.
const FORGOTTEN_ANNOTATIONS: [&str; 2] =
    ["autoscaling.alpha.kubernetes.io/scale-down-tolerance", "autoscaling.alpha.kubernetes.io/scale-up-tolerance"];

/// An object that a client sent in a version that isn't stored, as that version shows it: what travels in annotations
/// is read and written again, and what is wrong there is gone.
pub fn normalize(sent: &Resource, stored: &Resource, value: Value) -> Value {
    match sent.kind == "HorizontalPodAutoscaler" {
        true => convert(stored, sent, convert(sent, stored, value)),
        false => value,
    }
}

fn is_cpu_utilization(metric: &Value) -> bool {
    text(metric, "type") == "Resource" && text(&metric["resource"], "name") == "cpu"
}

/// What v1 has no field for travels in annotations.
fn autoscaler_to_v1(autoscaler: &mut Value) {
    let mut kept: Vec<(&str, Value)> = Vec::new();
    let mut percent = Value::Null;
    if let Some(spec) = part_mut(autoscaler, "spec") {
        let (cpu, others): (Vec<&Value>, Vec<&Value>) = items(spec, "metrics")
            .iter()
            .partition(|m| is_cpu_utilization(m) && is_set(&m["resource"]["target"], "averageUtilization"));
        if let Some(metric) = cpu.first() {
            percent = metric["resource"]["target"]["averageUtilization"].clone();
        }
        if !others.is_empty() {
            kept.push((METRICS, others.into_iter().map(|m| metric_to_v1(m, "target", "target")).collect()));
        }
        if let Some(behavior) = part(spec, "behavior") {
            kept.push((BEHAVIOR, behavior.clone()));
        }
        set(spec, "metrics", Value::Null);
        set(spec, "behavior", Value::Null);
        set(spec, "targetCPUUtilizationPercentage", percent);
    }
    if let Some(status) = crate::kinds::common::access::existing_mut(autoscaler, "status") {
        let current = items(status, "currentMetrics");
        let cpu = current.iter().find(|m| is_cpu_utilization(m));
        let percent = cpu.map(|m| m["resource"]["current"]["averageUtilization"].clone()).unwrap_or_default();
        if !current.is_empty() {
            let all: Value = current.iter().map(|m| metric_to_v1(m, "current", "current")).collect();
            kept.push((CURRENT_METRICS, all));
        }
        if is_set(status, "conditions") {
            kept.push((CONDITIONS, status["conditions"].clone()));
        }
        set(status, "currentMetrics", Value::Null);
        set(status, "conditions", Value::Null);
        set(status, "currentCPUUtilizationPercentage", percent);
    }
    if kept.is_empty() {
        return;
    }
    if let Some(annotations) = part_mut(autoscaler, "metadata").and_then(|m| part_mut(m, "annotations")) {
        for (key, value) in kept {
            annotations[key] = json!(value.to_string());
        }
    }
}

const DEFAULT_CPU_UTILIZATION_PERCENT: i64 = 80;

fn cpu_utilization(percent: i64) -> Value {
    json!({
        "type": "Resource",
        "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": percent } },
    })
}

/// A v1 autoscaler as it is stored.
pub(super) fn stored_autoscaler(autoscaler: &Value) -> Value {
    let mut out = autoscaler.clone();
    autoscaler_from_v1(&mut out);
    out
}

fn autoscaler_from_v1(autoscaler: &mut Value) {
    let mut take = |key: &str| -> Value {
        let annotations = autoscaler.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
        let text = annotations.and_then(Value::as_object_mut).and_then(|map| map.remove(key));
        text.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let (others, current) = (take(METRICS), take(CURRENT_METRICS));
    let (conditions, behavior) = (take(CONDITIONS), take(BEHAVIOR));
    FORGOTTEN_ANNOTATIONS.iter().for_each(|name| drop(take(name)));
    if let Some(metadata) = part_mut(autoscaler, "metadata")
        && !is_set(metadata, "annotations")
    {
        set(metadata, "annotations", Value::Null);
    }
    if let Some(spec) = part_mut(autoscaler, "spec") {
        let percent = int(spec, "targetCPUUtilizationPercentage");
        set(spec, "targetCPUUtilizationPercentage", Value::Null);
        let mut metrics: Vec<Value> =
            others.as_array().into_iter().flatten().map(|m| metric_from_v1(m, "target")).collect();
        metrics.extend(percent.map(cpu_utilization));
        // The default of both versions: the stored one is not given its own defaults again.
        if metrics.is_empty() {
            metrics.push(cpu_utilization(DEFAULT_CPU_UTILIZATION_PERCENT));
        }
        set(spec, "metrics", Value::Array(metrics));
        set(spec, "behavior", behavior);
    }
    // What annotations say of it makes a status where there is none.
    if !current.is_null() || !conditions.is_null() {
        part_mut(autoscaler, "status");
    }
    if let Some(status) = crate::kinds::common::access::existing_mut(autoscaler, "status") {
        let percent = int(status, "currentCPUUtilizationPercentage");
        set(status, "currentCPUUtilizationPercentage", Value::Null);
        let metrics: Vec<Value> =
            current.as_array().into_iter().flatten().map(|m| metric_from_v1(m, "current")).collect();
        if !metrics.is_empty() {
            set(status, "currentMetrics", Value::Array(metrics));
        } else if let Some(percent) = percent {
            let cpu = json!({ "name": "cpu", "current": { "averageUtilization": percent } });
            set(status, "currentMetrics", json!([{ "type": "Resource", "resource": cpu }]));
        }
        set(status, "conditions", conditions);
    }
}

const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

/// `targetAverageValue` from `target` and `averageValue`; upstream's v1 metrics are flat.
fn flat(prefix: &str, field: &str) -> String {
    format!("{prefix}{}{}", field[..1].to_uppercase(), &field[1..])
}

fn metric_to_v1(metric: &Value, values: &str, prefix: &str) -> Value {
    let mut out = json!({ "type": text(metric, "type") });
    for kind in SOURCES {
        let Some(source) = part(metric, kind) else { continue };
        let mut flattened = Map::new();
        for field in ["name", "container"] {
            if is_set(source, field) {
                flattened.insert(field.into(), source[field].clone());
            }
        }
        if let Some(described) = part(source, "describedObject") {
            flattened.insert("target".into(), described.clone());
        }
        if is_set(&source["metric"], "name") {
            flattened.insert("metricName".into(), source["metric"]["name"].clone());
        }
        if let Some(selector) = part(&source["metric"], "selector") {
            let field = if kind == "external" { "metricSelector" } else { "selector" };
            flattened.insert(field.into(), selector.clone());
        }
        for field in ["value", "averageValue", "averageUtilization"] {
            let value = &source[values][field];
            if !value.is_null() {
                let name = if kind == "object" && field == "averageValue" { field.into() } else { flat(prefix, field) };
                flattened.insert(name, value.clone());
            }
        }
        out[kind] = Value::Object(flattened);
    }
    out
}

fn metric_from_v1(metric: &Value, values: &str) -> Value {
    let mut out = json!({ "type": text(metric, "type") });
    for kind in SOURCES {
        let Some(source) = part(metric, kind) else { continue };
        let mut nested = json!({});
        for field in ["name", "container"] {
            if is_set(source, field) {
                nested[field] = source[field].clone();
            }
        }
        if let Some(described) = part(source, "target") {
            nested["describedObject"] = described.clone();
        }
        if is_set(source, "metricName") {
            nested["metric"]["name"] = source["metricName"].clone();
        }
        if let Some(selector) = part(source, "metricSelector").or(part(source, "selector")) {
            nested["metric"]["selector"] = selector.clone();
        }
        let mut amounts = json!({});
        for field in ["value", "averageValue", "averageUtilization"] {
            let name = if kind == "object" && field == "averageValue" { field.into() } else { flat(values, field) };
            if let Some(value) = source.get(&name).filter(|value| !value.is_null()) {
                amounts[field] = value.clone();
            }
        }
        if values == "target" {
            amounts["type"] = json!(if is_set(&amounts, "averageUtilization") {
                "Utilization"
            } else if is_set(&amounts, "averageValue") {
                "AverageValue"
            } else {
                "Value"
            });
        }
        nested[values] = amounts;
        out[kind] = nested;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let check = |stored: (&str, &str), other: (&str, &str), plural: &str, object: Value, expected: Value| {
            let stored = find(stored.0, stored.1, plural).unwrap();
            let other = find(other.0, other.1, plural).unwrap();
            let converted = convert(stored, other, object.clone());
            assert_eq!(converted, expected);
            assert_eq!(convert(other, stored, converted), object);
        };
        check(
            ("", "v1"),
            ("events.k8s.io", "v1"),
            "events",
            json!({
                "apiVersion": "v1", "kind": "Event", "message": "m", "count": 2, "source": { "component": "c" },
                "involvedObject": { "kind": "Pod" }, "reportingComponent": "r", "reason": "x",
            }),
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "m", "deprecatedCount": 2,
                "deprecatedSource": { "component": "c" }, "regarding": { "kind": "Pod" },
                "reportingController": "r", "reason": "x",
            }),
        );
        let external = json!({
            "type": "External",
            "external": {
                "metric": { "name": "q", "selector": { "matchLabels": { "a": "b" } } },
                "target": { "type": "AverageValue", "averageValue": "30" },
            },
        });
        let cpu = json!({
            "type": "Resource",
            "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } },
        });
        check(
            ("autoscaling", "v2"),
            ("autoscaling", "v1"),
            "horizontalpodautoscalers",
            json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "h" },
                "spec": { "maxReplicas": 3, "metrics": [external, cpu] },
            }),
            json!({
                "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
                "metadata": { "name": "h", "annotations": {
                    METRICS: "[{\"external\":{\"metricName\":\"q\",\"metricSelector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetAverageValue\":\"30\"},\"type\":\"External\"}]",
                } },
                "spec": { "maxReplicas": 3, "targetCPUUtilizationPercentage": 50 },
            }),
        );
    }
}
