//! `create quota`, `create priorityclass`, `create poddisruptionbudget` and `autoscale`.
//! Neighbours: the verbs of those names.
//! Limits that contradict each other are refused before anything is made.

use api::quantity::Quantity;
use serde_json::{Value, json};

use super::{metadata, resource_list};

pub fn quota(name: &str, namespace: Option<&str>, hard: &str, scopes: &str) -> Result<Value, String> {
    let mut spec = json!({});
    if let Some(hard) = resource_list(hard)? {
        spec["hard"] = hard;
    }
    if !scopes.is_empty() {
        let scopes: Vec<&str> = scopes.split(',').collect();
        if scopes.contains(&"") {
            return Err("invalid resource quota scope \"\"".to_string());
        }
        spec["scopes"] = json!(scopes);
    }
    let meta = metadata(name, namespace);
    Ok(json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec, "status": {} }))
}

pub fn priority_class(
    name: &str,
    value: i32,
    global_default: bool,
    description: &str,
    preemption_policy: &str,
) -> Value {
    let mut object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata(name, None),
        "value": value, "preemptionPolicy": preemption_policy,
    });
    if global_default {
        object["globalDefault"] = true.into();
    }
    if !description.is_empty() {
        object["description"] = description.into();
    }
    object
}

pub fn pod_disruption_budget(
    name: &str,
    namespace: Option<&str>,
    selector: &str,
    min_available: &str,
    max_unavailable: &str,
) -> Result<Value, String> {
    if selector.is_empty() {
        return Err("a selector must be specified".to_string());
    }
    if min_available.is_empty() && max_unavailable.is_empty() {
        return Err("one of min-available or max-unavailable must be specified".to_string());
    }
    if !min_available.is_empty() && !max_unavailable.is_empty() {
        return Err("min-available and max-unavailable cannot be both specified".to_string());
    }
    let amount = |text: &str, flag: &str| {
        let digits = text.strip_suffix('%').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("invalid format specified for {flag}"));
        }
        Ok(super::int_or_string(text))
    };
    let mut spec = json!({ "selector": label_selector(selector)? });
    if !min_available.is_empty() {
        spec["minAvailable"] = amount(min_available, "min-available")?;
    } else {
        spec["maxUnavailable"] = amount(max_unavailable, "max-unavailable")?;
    }
    Ok(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(name, namespace), "spec": spec,
        "status": { "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0 },
    }))
}

/// A selector in text as the API's type: equalities become `matchLabels`.
pub fn label_selector(text: &str) -> Result<Value, String> {
    use api::selectors::Operator;
    let parsed = api::selectors::LabelSelector::parse(text)?;
    let mut selector = json!({});
    for requirement in parsed.requirements() {
        let (key, values) = (&requirement.key, &requirement.values);
        let operator = match requirement.operator {
            Operator::Equals | Operator::DoubleEquals => {
                selector["matchLabels"][key] = json!(values.iter().next());
                continue;
            }
            Operator::In => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            _ => return Err(format!("{text}: not a selector of labels by equality or set")),
        };
        let mut expression = json!({ "key": key, "operator": operator });
        if !values.is_empty() {
            expression["values"] = json!(values);
        }
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(expression),
            None => selector["matchExpressions"] = json!([expression]),
        }
    }
    Ok(selector)
}

/// The flags of `autoscale`.
#[derive(Default)]
pub struct Autoscale<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    pub min: i32,
    pub max: i32,
    /// The old `--cpu-percent`; negative when it was not given.
    pub cpu_percent: i32,
    pub cpu: &'a str,
    pub memory: &'a str,
}

pub fn check_autoscale(options: &Autoscale) -> Result<(), String> {
    let (min, max) = (options.min, options.max);
    if max < 1 {
        return Err(format!("--max=MAXPODS is required and must be at least 1, max: {max}"));
    }
    if max < min {
        return Err(format!("--max=MAXPODS must be larger or equal to --min=MINPODS, max: {max}, min: {min}"));
    }
    if options.cpu_percent > 0 && !options.cpu.is_empty() {
        return Err("--cpu-percent and --cpu are mutually exclusive".to_string());
    }
    for (input, resource) in [(options.cpu, "cpu"), (options.memory, "memory")] {
        if !input.is_empty() {
            metric_target(input, resource)?;
        }
    }
    Ok(())
}

/// `80%` and `80` are a utilization, `500m` and `1Gi` an average value.
fn metric_target(input: &str, resource: &str) -> Result<Value, String> {
    if let Some(percent) = input.strip_suffix('%') {
        let percent: i32 =
            percent.trim().parse().map_err(|_| format!("invalid percentage value: {}", percent.trim()))?;
        return Ok(json!({ "type": "Utilization", "averageUtilization": percent }));
    }
    if let Ok(percent) = input.parse::<i32>() {
        return Ok(json!({ "type": "Utilization", "averageUtilization": percent }));
    }
    let quantity = Quantity::parse(input).map_err(|_| format!("invalid resource {resource} value: {input}"))?;
    Ok(json!({ "type": "AverageValue", "averageValue": quantity.canonical() }))
}

pub fn autoscaler(options: &Autoscale, target: &Value) -> Result<Value, String> {
    check_autoscale(options)?;
    let target_name = target["metadata"]["name"].as_str().unwrap_or_default();
    let name = if options.name.is_empty() { target_name } else { options.name };
    let mut metrics = Vec::new();
    let metric = |resource: &str, target: Value| json!({ "type": "Resource", "resource": { "name": resource, "target": target } });
    if options.cpu_percent > 0 {
        metrics.push(metric("cpu", json!({ "type": "Utilization", "averageUtilization": options.cpu_percent })));
    }
    for (input, resource) in [(options.cpu, "cpu"), (options.memory, "memory")] {
        if !input.is_empty() {
            metrics.push(metric(resource, metric_target(input, resource)?));
        }
    }
    let mut spec = json!({
        "scaleTargetRef": { "apiVersion": target["apiVersion"], "kind": target["kind"], "name": target_name },
        "maxReplicas": options.max,
    });
    if options.min > 0 {
        spec["minReplicas"] = options.min.into();
    }
    if !metrics.is_empty() {
        spec["metrics"] = metrics.into();
    }
    Ok(json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata(name, options.namespace),
        "spec": spec, "status": { "currentMetrics": null, "desiredReplicas": 0 },
    }))
}
