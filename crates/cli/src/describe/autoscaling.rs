//! Describes HorizontalPodAutoscalers of autoscaling/v1 and v2.
//! Neighbours: `sections`.
//! A metric without a current value reads `<unknown>`.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, number, quantity, rfc1123, string, text, text_or},
    is_empty,
    sections::{labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};
use crate::template::go_format::quote;

pub fn describe(w: &mut Writer, autoscaler: &Value, _: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&autoscaler["spec"], &autoscaler["status"]);
    let target = &spec["scaleTargetRef"];
    name_and_namespace(w, autoscaler);
    labels_and_annotations(w, autoscaler);
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&autoscaler["metadata"]["creationTimestamp"], &context.zone));
    put!(w, 0, "Reference:\t{}/{}\n", text(&target["kind"]), text(&target["name"]));
    if string(&autoscaler["apiVersion"]) == "autoscaling/v1" {
        if !spec["targetCPUUtilizationPercentage"].is_null() {
            put!(w, 0, "Target CPU utilization:\t{}%\n", number(&spec["targetCPUUtilizationPercentage"]));
            put!(
                w,
                0,
                "Current CPU utilization:\t{}%\n",
                text_or(&status["currentCPUUtilizationPercentage"], "<unknown>")
            );
        }
    } else {
        w.write(0, "Metrics:\t( current / target )\n");
        for (i, metric) in list(&spec["metrics"]).iter().enumerate() {
            let current = list(&status["currentMetrics"]).get(i).unwrap_or(&Value::Null);
            describe_metric(w, metric, current);
        }
    }
    put!(w, 0, "Min replicas:\t{}\n", text_or(&spec["minReplicas"], "<unset>"));
    put!(w, 0, "Max replicas:\t{}\n", number(&spec["maxReplicas"]));
    if spec["behavior"].is_object() {
        w.write(0, "Behavior:\n");
        direction(w, "Scale Up", &spec["behavior"]["scaleUp"]);
        direction(w, "Scale Down", &spec["behavior"]["scaleDown"]);
    }
    let (current, desired) = (number(&status["currentReplicas"]), number(&status["desiredReplicas"]));
    put!(w, 0, "{} pods:\t{current} current / {desired} desired\n", text(&target["kind"]));
    if !is_empty(&status["conditions"]) {
        w.write(0, "Conditions:\n");
        w.write(1, "Type\tStatus\tReason\tMessage\n");
        w.write(1, "----\t------\t------\t-------\n");
        for c in list(&status["conditions"]) {
            let (kind, status) = (text(&c["type"]), text(&c["status"]));
            put!(w, 1, "{kind}\t{status}\t{}\t{}\n", text(&c["reason"]), text(&c["message"]));
        }
    }
    Ok(())
}

fn describe_metric(w: &mut Writer, metric: &Value, current: &Value) {
    let shown = |source: &Value, field: &str| match &source["current"][field] {
        Value::Null if source.is_object() && field == "value" => "<nil>".to_string(),
        Value::Null => "<unknown>".to_string(),
        value => quantity(value),
    };
    match string(&metric["type"]) {
        "External" => {
            let source = &metric["external"];
            let name = quote(string(&source["metric"]["name"]));
            let target = &source["target"];
            let current = &current["external"];
            if target["averageValue"].is_null() {
                let value = shown(current, "value");
                put!(w, 1, "{name} (target value):\t{value} / {}\n", quantity(&target["value"]));
            } else {
                let value = shown(current, "averageValue");
                put!(w, 1, "{name} (target average value):\t{value} / {}\n", quantity(&target["averageValue"]));
            }
        }
        "Pods" => {
            let (source, value) = (&metric["pods"], shown(&current["pods"], "averageValue"));
            let name = quote(string(&source["metric"]["name"]));
            put!(w, 1, "{name} on pods:\t{value} / {}\n", quantity(&source["target"]["averageValue"]));
        }
        "Object" => {
            let (source, target) = (&metric["object"], &metric["object"]["target"]);
            let object = &source["describedObject"];
            let name = text(&source["metric"]["name"]);
            put!(w, 1, "\"{name}\" on {}/{} ", text(&object["kind"]), text(&object["name"]));
            let (title, field) = match string(&target["type"]) {
                "AverageValue" => ("target average value", "averageValue"),
                _ => ("target value", "value"),
            };
            let value = shown(&current["object"], field);
            put!(w, 0, "({title}):\t{value} / {}\n", quantity(&target[field]));
        }
        "Resource" => {
            put!(w, 1, "resource {} on pods", text(&metric["resource"]["name"]));
            resource_metric(w, &metric["resource"]["target"], &current["resource"]);
        }
        "ContainerResource" => {
            let source = &metric["containerResource"];
            put!(w, 1, "resource {} of container \"{}\" on pods", text(&source["name"]), text(&source["container"]));
            resource_metric(w, &source["target"], &current["containerResource"]);
        }
        unknown => put!(w, 1, "<unknown metric type {}>\n", quote(unknown)),
    }
}

fn resource_metric(w: &mut Writer, target: &Value, current: &Value) {
    if !target["averageValue"].is_null() {
        let value = match &current["current"]["averageValue"] {
            Value::Null => "<unknown>".to_string(),
            value => quantity(value),
        };
        put!(w, 0, ":\t{value} / {}\n", quantity(&target["averageValue"]));
        return;
    }
    let value = match current["current"]["averageUtilization"].as_i64() {
        Some(percent) => format!("{percent}% ({})", quantity(&current["current"]["averageValue"])),
        None => "<unknown>".to_string(),
    };
    let wanted = match target["averageUtilization"].as_i64() {
        Some(percent) => format!("{percent}%"),
        None => "<auto>".to_string(),
    };
    put!(w, 1, "(as a percentage of request):\t{value} / {wanted}\n");
}

fn direction(w: &mut Writer, title: &str, rules: &Value) {
    if !rules.is_object() {
        return;
    }
    put!(w, 1, "{title}:\n");
    if !rules["stabilizationWindowSeconds"].is_null() {
        put!(w, 2, "Stabilization Window: {} seconds\n", number(&rules["stabilizationWindowSeconds"]));
    }
    if is_empty(&rules["policies"]) {
        return;
    }
    put!(w, 2, "Select Policy: {}\n", text_or(&rules["selectPolicy"], "Max"));
    w.write(2, "Policies:\n");
    for policy in list(&rules["policies"]) {
        let (kind, value) = (text(&policy["type"]), number(&policy["value"]));
        put!(w, 3, "- Type: {kind}\tValue: {value}\tPeriod: {} seconds\n", number(&policy["periodSeconds"]));
    }
}
