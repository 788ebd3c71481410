//! What one metric of an autoscaler's spec asks for, and what its status then says.
//! Asked by `plan` for each metric; the counting is `replica_calculator`'s, the sample `metrics_client`'s.
//! Invariant: pure (tidy: `pure_files`). Messages are upstream's, so that its users find them.

use api::quantity::{self, Format, Quantity};
use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, ExternalMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
        ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::{api::resource::Quantity as Text, apis::meta::v1::LabelSelector},
};

use super::{
    plan::Scale,
    replica_calculator::{PodMetrics, ReplicaCalculator},
};

/// What a metrics API answered for one metric of the spec.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    Pods(PodMetrics),
    /// In thousandths.
    Value(i64),
}

pub const INVALID_TYPE: &str = "InvalidMetricSourceType";

pub struct MetricProposal {
    pub replicas: i32,
    /// What it is called in messages.
    pub metric: String,
    pub status: MetricStatus,
}

#[derive(Debug)]
pub struct MetricError {
    pub reason: &'static str,
    /// For the Event and the condition.
    pub cause: String,
    /// With what was attempted.
    pub message: String,
}

fn milli(quantity: Option<&Text>) -> Option<i64> {
    quantity.and_then(quantity::milli_value)
}

fn milli_text(milli: i64, format: Format) -> Option<Text> {
    Some(Text(Quantity::from_milli(milli, format).canonical()))
}

fn value_status(milli: i64) -> MetricValueStatus {
    MetricValueStatus { value: milli_text(milli, Format::DecimalSI), ..Default::default() }
}

fn average_status(milli: i64) -> MetricValueStatus {
    MetricValueStatus { average_value: milli_text(milli, Format::DecimalSI), ..Default::default() }
}

pub fn propose(
    calculator: &ReplicaCalculator<'_>,
    namespace: &str,
    metric: &MetricSpec,
    scale: &Scale,
    sample: Result<Sample, String>,
) -> Result<MetricProposal, MetricError> {
    let kind = metric.type_.clone();
    if let Some(source) = metric.object.as_ref().filter(|_| kind == "Object") {
        let (name, described) = (&source.metric.name, &source.described_object);
        let error = |cause: String| MetricError {
            reason: "FailedGetObjectMetric",
            message: format!("failed to get object metric value: {cause}"),
            cause,
        };
        let used = value(sample).map_err(|cause| {
            error(format!("unable to get metric {name}: {} on {namespace} {}/{cause}", described.kind, described.name))
        })?;
        let status = |current: MetricValueStatus| MetricStatus {
            type_: kind.clone(),
            object: Some(ObjectMetricStatus {
                current,
                described_object: described.clone(),
                metric: source.metric.clone(),
            }),
            ..Default::default()
        };
        let target = &source.target;
        return match (target.type_.as_str(), milli(target.value.as_ref()), milli(target.average_value.as_ref())) {
            ("Value", Some(wanted), _) => {
                let replicas = calculator.by_value(scale.spec_replicas, wanted, used).map_err(error)?;
                let metric = format!("{} metric {name}", described.kind);
                Ok(MetricProposal { replicas, metric, status: status(value_status(used)) })
            }
            ("AverageValue", _, Some(wanted)) => {
                let (replicas, each) = calculator.by_value_per_pod(scale.status_replicas, wanted, used);
                let metric = format!("external metric {name}({})", selector_text(source.metric.selector.as_ref()));
                Ok(MetricProposal { replicas, metric, status: status(average_status(each)) })
            }
            _ => Err(error(neither("object", "a value", "an average value"))),
        };
    }
    if let Some(source) = metric.pods.as_ref().filter(|_| kind == "Pods") {
        let name = &source.metric.name;
        let error = |cause: String| MetricError {
            reason: "FailedGetPodsMetric",
            message: format!("failed to get pods metric value: {cause}"),
            cause,
        };
        let metrics = pods(sample).map_err(|cause| error(format!("unable to get metric {name}: {cause}")))?;
        let wanted = milli(source.target.average_value.as_ref());
        let wanted = wanted.ok_or_else(|| error(neither("pods", "a value", "an average value")))?;
        let proposal = calculator.by_average(scale.spec_replicas, wanted, "", metrics).map_err(error)?;
        let status = MetricStatus {
            type_: kind.clone(),
            pods: Some(PodsMetricStatus {
                current: average_status(proposal.average_milli),
                metric: source.metric.clone(),
            }),
            ..Default::default()
        };
        return Ok(MetricProposal { replicas: proposal.replicas, metric: format!("pods metric {name}"), status });
    }
    if let Some(source) = metric.resource.as_ref().filter(|_| kind == "Resource") {
        let error = |cause: String| MetricError {
            reason: "FailedGetResourceMetric",
            message: format!("failed to get {} resource metric value: {cause}", source.name),
            cause,
        };
        let (replicas, current, metric) =
            resource(calculator, scale, &source.target, &source.name, None, sample).map_err(error)?;
        let resource = Some(ResourceMetricStatus { current, name: source.name.clone() });
        return Ok(MetricProposal {
            replicas,
            metric,
            status: MetricStatus { type_: kind.clone(), resource, ..Default::default() },
        });
    }
    if let Some(source) = metric.container_resource.as_ref().filter(|_| kind == "ContainerResource") {
        let error = |cause: String| MetricError {
            reason: "FailedGetContainerResourceMetric",
            message: format!("failed to get {} container metric value: {cause}", source.container),
            cause,
        };
        let container = Some(source.container.as_str());
        let (replicas, current, metric) =
            resource(calculator, scale, &source.target, &source.name, container, sample).map_err(error)?;
        let container_resource = Some(ContainerResourceMetricStatus {
            container: source.container.clone(),
            current,
            name: source.name.clone(),
        });
        return Ok(MetricProposal {
            replicas,
            metric,
            status: MetricStatus { type_: kind.clone(), container_resource, ..Default::default() },
        });
    }
    if let Some(source) = metric.external.as_ref().filter(|_| kind == "External") {
        let (name, selector) = (&source.metric.name, selector_text(source.metric.selector.as_ref()));
        let error = |what: &str, cause: String| MetricError {
            reason: "FailedGetExternalMetric",
            message: format!("failed to get {name} external metric value: {what}{cause}"),
            cause,
        };
        let used = value(sample)
            .map_err(|cause| format!("unable to get external metric {namespace}/{name}/{selector}: {cause}"));
        let status = |current: MetricValueStatus| MetricStatus {
            type_: kind.clone(),
            external: Some(ExternalMetricStatus { current, metric: source.metric.clone() }),
            ..Default::default()
        };
        let metric = format!("external metric {name}({selector})");
        let target = &source.target;
        return match (milli(target.average_value.as_ref()), milli(target.value.as_ref())) {
            (Some(wanted), _) => {
                let used = used.map_err(|cause| error(&format!("failed to get {name} external metric: "), cause))?;
                let (replicas, each) = calculator.by_value_per_pod(scale.status_replicas, wanted, used);
                Ok(MetricProposal { replicas, metric, status: status(average_status(each)) })
            }
            (None, Some(wanted)) => {
                let what = format!("failed to get external metric {name}: ");
                let computed =
                    used.and_then(|used| Ok((calculator.by_value(scale.spec_replicas, wanted, used)?, used)));
                let (replicas, used) = computed.map_err(|cause| error(&what, cause))?;
                Ok(MetricProposal { replicas, metric, status: status(value_status(used)) })
            }
            (None, None) => Err(error("", neither("external", "a value", "an average value"))),
        };
    }
    let cause = format!("unknown metric source type {kind:?}");
    Err(MetricError { reason: INVALID_TYPE, message: cause.clone(), cause })
}

fn neither(source: &str, one: &str, other: &str) -> String {
    format!("invalid {source} metric source: neither {one} target nor {other} target was set")
}

/// What the kubelet measures, of pods or of their containers of one name.
fn resource(
    calculator: &ReplicaCalculator<'_>,
    scale: &Scale,
    target: &MetricTarget,
    name: &str,
    container: Option<&str>,
    sample: Result<Sample, String>,
) -> Result<(i32, MetricValueStatus, String), String> {
    let format = if name == "memory" { Format::BinarySI } else { Format::DecimalSI };
    let metrics = pods(sample).map_err(|error| format!("unable to get metrics for resource {name}: {error}"));
    if let Some(wanted) = milli(target.average_value.as_ref()) {
        let proposal = metrics.and_then(|metrics| calculator.by_average(scale.spec_replicas, wanted, name, metrics));
        let proposal = proposal.map_err(|error| format!("failed to get {name} usage: {error}"))?;
        let average_value = milli_text(proposal.average_milli, format);
        let current = MetricValueStatus { average_value, ..Default::default() };
        return Ok((proposal.replicas, current, format!("{name} resource")));
    }
    let Some(percent) = target.average_utilization else {
        return Err(neither("resource", "an average utilization", "an average value (usage)"));
    };
    let proposal = metrics
        .and_then(|metrics| calculator.by_utilization(scale.spec_replicas, percent, name, container, metrics))
        .map_err(|error| format!("failed to get {name} utilization: {error}"))?;
    let current = MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: milli_text(proposal.average_milli, format),
        ..Default::default()
    };
    let whose = if container.is_some() { "container resource" } else { "resource" };
    Ok((proposal.replicas, current, format!("{name} {whose} utilization (percentage of request)")))
}

fn pods(sample: Result<Sample, String>) -> Result<PodMetrics, String> {
    match sample? {
        Sample::Pods(metrics) => Ok(metrics),
        Sample::Value(_) => Err("the metric is not one of pods".into()),
    }
}

fn value(sample: Result<Sample, String>) -> Result<i64, String> {
    match sample? {
        Sample::Value(milli) => Ok(milli),
        Sample::Pods(_) => Err("the metric is one of pods".into()),
    }
}

/// As Go prints a `*metav1.LabelSelector`.
fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".into() };
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions: String = expressions
        .map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default().join(" ");
            let (key, operator) = (&expression.key, &expression.operator);
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
