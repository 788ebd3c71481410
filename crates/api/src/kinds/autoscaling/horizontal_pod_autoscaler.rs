//! HorizontalPodAutoscalers of both versions: defaults, strategy, columns, validation.
//! Neighbours: `convert`, which turns v1 into the stored v2 and back.
//! maxReplicas is never below minReplicas.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::{keep_field, status_without_generation},
        common::{
            access::{default_absent, default_to, int, int_at, is_set, items, part, part_mut, set, text},
            checks,
            columns::{age, age_of, name, name_of, plain, string},
        },
        convert,
        core::pod_spec::resources,
    },
    names,
    quantity::Quantity,
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

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_common(errors, &path, spec);
        for (index, metric) in items(spec, "metrics").iter().enumerate() {
            validate_metric(errors, &path.child("metrics").index(index), metric);
        }
        for direction in ["scaleUp", "scaleDown"] {
            if let Some(rules) = part(&spec["behavior"], direction) {
                validate_rules(errors, &path.child("behavior").child(direction), rules);
            }
        }
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let counts = ["currentReplicas", "desiredReplicas"];
        checks::not_negative(errors, &Path::new("status"), &object["status"], &counts);
    }

    fn initial_status(&self) -> Value {
        json!({ "desiredReplicas": 0, "currentReplicas": 0 })
    }

    status_without_generation!();

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
        default_absent(up, "selectPolicy", "Max");
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
        default_absent(down, "selectPolicy", "Max");
        default_to(down, "policies", json!([{ "type": "Percent", "value": 100, "periodSeconds": 15 }]));
    }
}

fn keep_status_annotations(object: &mut Value, old: &Value) {
    let Some(metadata) = part_mut(object, "metadata") else { return };
    let mut annotations = metadata.get("annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    for name in convert::STATUS_ANNOTATIONS {
        match old["metadata"]["annotations"].get(name) {
            Some(before) => annotations.insert(name.to_string(), before.clone()),
            None => annotations.remove(name),
        };
    }
    set(metadata, "annotations", if annotations.is_empty() { Value::Null } else { annotations.into() });
}

/// autoscaling/v1, served by conversion.
#[derive(Default)]
pub struct HorizontalPodAutoscalerV1;

impl Behavior for HorizontalPodAutoscalerV1 {
    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        Some(("autoscaling", "v2"))
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_to(spec, "minReplicas", 1);
        }
    }

    /// The annotations that carry parts of the status are parts of the status.
    fn prepare_create(&self, object: &mut Value) {
        set(object, "status", self.initial_status());
        keep_status_annotations(object, &Value::Null);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        keep_status_annotations(object, old);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        // Upstream checks what both versions become.
        HorizontalPodAutoscaler.validate_create(&convert::stored_autoscaler(object), errors);
    }

    fn initial_status(&self) -> Value {
        json!({ "desiredReplicas": 0, "currentReplicas": 0 })
    }

    status_without_generation!();

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

fn validate_common(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let most = int_at(spec, "maxReplicas");
    let least = int(spec, "minReplicas");
    if let Some(least) = least.filter(|n| *n < 1) {
        errors.invalid(&path.child("minReplicas"), least, "must be greater than or equal to 1");
    }
    if most < 1 {
        errors.invalid(&path.child("maxReplicas"), most, "must be greater than 0");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid(&path.child("maxReplicas"), most, "must be greater than or equal to `minReplicas`");
    }
    validate_scale_target(errors, &path.child("scaleTargetRef"), &spec["scaleTargetRef"]);
}

fn validate_reference(errors: &mut ErrorList, path: &Path, reference: &Value) {
    for field in ["kind", "name"] {
        checks::required_name(errors, path, reference, field, |name| names::path_segment(name, false));
    }
    let version = text(reference, "apiVersion");
    if version.matches('/').count() > 1 {
        let words = format!("unexpected GroupVersion string: {version}");
        errors.invalid(&path.child("apiVersion"), version, words);
    }
}

/// What is scaled is in a group; of metrics' objects that is not asked.
fn validate_scale_target(errors: &mut ErrorList, path: &Path, reference: &Value) {
    validate_reference(errors, path, reference);
    let version = text(reference, "apiVersion");
    // The one of the core group that can be scaled.
    if !version.contains('/') && text(reference, "kind") != "ReplicationController" {
        errors.invalid(&path.child("apiVersion"), version, "apiVersion must specify API group");
    }
}

const METRICS: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn validate_metric(errors: &mut ErrorList, path: &Path, metric: &Value) {
    let kind = text(metric, "type");
    let supported = METRICS.map(|(kind, _)| kind);
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric source type");
    }
    let expected = METRICS.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    if expected.is_none() {
        errors.not_supported(&path.child("type"), kind, &supported);
    }
    let present: Vec<&str> = METRICS.iter().map(|(_, field)| *field).filter(|f| part(metric, f).is_some()).collect();
    // Whatever the type says; of several only the first is looked at.
    if let Some((field, source)) = present.first().and_then(|field| Some((*field, part(metric, field)?))) {
        validate_source(errors, &path.child(field), source, field);
    }
    match expected {
        None => errors.not_supported(&path.child("type"), kind, &supported),
        Some(field) if !present.contains(&field) => {
            errors.required(&path.child(field), "must populate information for the given metric source");
        }
        Some(_) => {}
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            errors.forbidden(&path.child(field), "must populate the given metric source only");
        }
    }
}

fn validate_source(errors: &mut ErrorList, path: &Path, source: &Value, kind: &str) {
    if kind == "object" {
        validate_reference(errors, &path.child("describedObject"), &source["describedObject"]);
    }
    match kind {
        "resource" | "containerResource" => {
            match text(source, "name") {
                "" => errors.required(&path.child("name"), "must specify a resource name"),
                name if kind == "containerResource" => {
                    resources::container_resource_name(errors, &path.child("name"), name);
                }
                _ => {}
            }
            if kind == "containerResource" {
                match text(source, "container") {
                    "" => errors.required(&path.child("container"), "must specify a container"),
                    name => checks::complaints(errors, &path.child("container"), name, names::dns_label(name, false)),
                }
            }
        }
        _ => match text(&source["metric"], "name") {
            "" => errors.required(&path.child("metric").child("name"), "must specify a metric name"),
            name => {
                let path = path.child("metric").child("name");
                checks::complaints(errors, &path, name, names::path_segment(name, false));
            }
        },
    }
    validate_target(errors, &path.child("target"), &source["target"], kind);
}

fn validate_target(errors: &mut ErrorList, path: &Path, target: &Value, source: &str) {
    let kind = text(target, "type");
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&path.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        if let Some(quantity) = Quantity::from_value(&target[field]).filter(|quantity| quantity.sign() != 1) {
            errors.invalid(&path.child(field), quantity.canonical(), "must be positive");
        }
    }
    if let Some(percent) = int(target, "averageUtilization").filter(|n| *n < 1) {
        errors.invalid(&path.child("averageUtilization"), percent, "must be greater than 0");
    }
    let (value, average) = (is_set(target, "value"), is_set(target, "averageValue"));
    let percent = is_set(target, "averageUtilization");
    match source {
        "object" if !value && !average => {
            errors.required(&path.child("averageValue"), "must set either a target value or averageValue");
        }
        "external" if !value && !average => errors
            .required(&path.child("averageValue"), "must set either a target value for metric or a per-pod target"),
        "external" if value && average => {
            errors.forbidden(&path.child("value"), "may not set both a target value for metric and a per-pod target");
        }
        "pods" if !average => {
            errors.required(&path.child("averageValue"), "must specify a positive target averageValue");
        }
        "resource" | "containerResource" if !percent && !average => errors
            .required(&path.child("averageUtilization"), "must set either a target raw value or a target utilization"),
        "resource" | "containerResource" if percent && average => errors
            .forbidden(&path.child("averageValue"), "may not set both a target raw value and a target utilization"),
        _ => {}
    }
}

fn validate_rules(errors: &mut ErrorList, path: &Path, rules: &Value) {
    let at = path.child("stabilizationWindowSeconds");
    match int(rules, "stabilizationWindowSeconds") {
        Some(seconds @ ..0) => errors.invalid(&at, seconds, "must be greater than or equal to zero"),
        Some(seconds @ 3601..) => errors.invalid(&at, seconds, "must be less than or equal to 3600"),
        _ => {}
    }
    checks::optional_one_of(errors, path, rules, "selectPolicy", &["Disabled", "Max", "Min"]);
    let tolerance = path.child("tolerance");
    let path = path.child("policies");
    if !is_set(rules, "policies") {
        errors.required(&path, "must specify at least one Policy");
    }
    for (index, policy) in items(rules, "policies").iter().enumerate() {
        let path = path.index(index);
        if !matches!(text(policy, "type"), "Pods" | "Percent") {
            errors.not_supported(&path.child("type"), text(policy, "type"), &["Percent", "Pods"]);
        }
        checks::positive(errors, &path, policy, "value");
        checks::positive(errors, &path, policy, "periodSeconds");
        if let Some(seconds) = int(policy, "periodSeconds").filter(|s| *s > 1800) {
            errors.invalid(&path.child("periodSeconds"), seconds, "must be less than or equal to 1800");
        }
    }
    if let Some(found) = Quantity::from_value(&rules["tolerance"]).filter(|quantity| quantity.sign() < 0) {
        errors.invalid(&tolerance, found.canonical(), checks::NOT_NEGATIVE);
    }
}
