//! HorizontalPodAutoscalers of both versions: defaults, strategy, columns, validation.
//! Neighbours: `convert`, which turns v1 into the stored v2 and back.
//! Invariant: maxReplicas is never below minReplicas.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, int, int_at, is_set, items, part, part_mut, text},
    columns::{age, age_of, name, name_of, plain, string},
};

/// autoscaling/v2, the stored version.
#[derive(Default)]
pub struct HorizontalPodAutoscaler;

const COLUMNS: [Column; 7] = [
    name(),
    string("Reference", "What it scales."),
    string("Targets", "Current and wanted values of its metrics."),
    string("MinPods", "Least replicas."),
    string("MaxPods", "Most replicas."),
    string("Replicas", "Replicas now."),
    age(),
];

fn cells(object: &Value, metrics: String, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let target = &spec["scaleTargetRef"];
    vec![
        name_of(object),
        json!(format!("{}/{}", text(target, "kind"), text(target, "name"))),
        json!(metrics),
        json!(int(spec, "minReplicas").map_or("<unset>".to_string(), |n| n.to_string())),
        json!(int_at(spec, "maxReplicas")),
        json!(int_at(&object["status"], "currentReplicas")),
        age_of(object, now),
    ]
}

impl Behavior for HorizontalPodAutoscaler {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "minReplicas", 1);
        if !is_set(spec, "metrics") {
            spec["metrics"] = json!([{
                "type": "Resource",
                "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } },
            }]);
        }
        if spec.get("behavior").is_some_and(Value::is_object) {
            default_behavior(&mut spec["behavior"]);
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, metrics(&object["spec"], &object["status"]), now)
    }
}

fn default_behavior(behavior: &mut Value) {
    if let Some(up) = part_mut(behavior, "scaleUp") {
        default_to(up, "stabilizationWindowSeconds", 0);
        default_to(up, "selectPolicy", "Max");
        default_to(
            up,
            "policies",
            json!([
                { "type": "Pods", "value": 4, "periodSeconds": 15 },
                { "type": "Percent", "value": 100, "periodSeconds": 15 },
            ]),
        );
    }
    if let Some(down) = part_mut(behavior, "scaleDown") {
        default_to(down, "selectPolicy", "Max");
        default_to(down, "policies", json!([{ "type": "Percent", "value": 100, "periodSeconds": 15 }]));
    }
}

/// autoscaling/v1, served by conversion.
#[derive(Default)]
pub struct HorizontalPodAutoscalerV1;

impl Behavior for HorizontalPodAutoscalerV1 {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_to(spec, "minReplicas", 1);
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let percent = |n: Option<i64>| n.map(|n| format!("{n}%"));
        let wanted = percent(int(&object["spec"], "targetCPUUtilizationPercentage"));
        let current = percent(int(&object["status"], "currentCPUUtilizationPercentage"));
        let shown = match wanted {
            Some(wanted) => format!("cpu: {}/{wanted}", current.as_deref().unwrap_or("<unknown>")),
            None => "<none>".to_string(),
        };
        cells(object, shown, now)
    }
}

fn metrics(spec: &Value, status: &Value) -> String {
    const SHOWN: usize = 2;
    let current = items(status, "currentMetrics");
    let all: Vec<String> =
        items(spec, "metrics").iter().enumerate().map(|(index, wanted)| metric(wanted, current.get(index))).collect();
    match all.len() {
        0 => "<none>".to_string(),
        count if count > SHOWN => format!("{} + {} more...", all[..SHOWN].join(", "), count - SHOWN),
        _ => all.join(", "),
    }
}

fn metric(wanted: &Value, current: Option<&Value>) -> String {
    let field = match text(wanted, "type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_string(),
    };
    let target = &wanted[field]["target"];
    let now = current.and_then(|status| part(status, field)).map(|status| &status["current"]);
    let shown = |key: &str| match now.map(|now| plain(&now[key])) {
        Some(text) if !text.is_empty() => text,
        _ => "<unknown>".to_string(),
    };
    let by_average = is_set(target, "averageValue");
    match field {
        "pods" => format!("{}/{}", shown("averageValue"), plain(&target["averageValue"])),
        "external" | "object" if by_average => {
            format!("{}/{} (avg)", shown("averageValue"), plain(&target["averageValue"]))
        }
        "external" | "object" => format!("{}/{}", shown("value"), plain(&target["value"])),
        _ => {
            let name = text(&wanted[field], "name");
            if by_average {
                return format!("{name}: {}/{}", shown("averageValue"), plain(&target["averageValue"]));
            }
            let percent = |value: Option<i64>| value.map(|n| format!("{n}%"));
            let current = percent(now.and_then(|now| int(now, "averageUtilization")));
            let target = percent(int(target, "averageUtilization"));
            format!("{name}: {}/{}", current.as_deref().unwrap_or("<unknown>"), target.as_deref().unwrap_or("<auto>"))
        }
    }
}
