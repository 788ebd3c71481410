//! Asks the three metrics APIs: `metrics.k8s.io` (ours, or whoever serves it), `custom.metrics.k8s.io` and
//! `external.metrics.k8s.io` (through the aggregation layer).
//! Asked by `mod`; what the answers mean is `metric_proposal`'s business.
//! Autoscalers that ask for the same at the same time share one answer (test: `questions_are_shared`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    quantity::{self, Quantity as QuantityValue},
    selectors::LabelSelector,
};
use bytes::Bytes;
use client::{Client, ListParams, percent_encode};
use env::Env;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        autoscaling::v2::{CrossVersionObjectReference, MetricSpec},
        core::v1::Pod,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1 as meta},
};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::OnceCell;

use super::{
    metric_proposal::Sample,
    replica_calculator::{PodMetric, PodMetrics},
    scale_target::ScaleTargets,
};
use crate::common::meta::Object;

/// An answer serves everybody who asks within this time: those whose turn comes at the same beat.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Of a metric that does not say over which time it was taken.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
/// With more autoscalers in a namespace than this, one question for all its pods is cheaper than one for each.
const QUESTIONS_PER_NAMESPACE_MAX: usize = 4;
const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";
/// In the order of upstream's preference.
const CUSTOM_METRICS_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

type Answer = Arc<OnceCell<Result<Bytes, String>>>;
type Parsed = Arc<OnceCell<Result<Arc<Vec<PodUsage>>, String>>>;

pub struct MetricsClient {
    client: Client,
    env: Env,
    answers: Mutex<HashMap<String, (Duration, Answer)>>,
    pods: Mutex<HashMap<String, (Duration, Parsed)>>,
}

/// Whose metrics are asked for.
pub struct Selected<'a> {
    pub namespace: &'a str,
    pub selector: &'a LabelSelector,
    pub pods: &'a [Arc<Pod>],
    /// How many autoscalers the namespace has.
    pub autoscalers: usize,
}

/// What one container uses.
pub struct ContainerSample {
    pub pod: String,
    pub container: String,
    pub cpu_cores: f64,
    pub memory_bytes: f64,
    pub at: Timestamp,
}

#[derive(Deserialize)]
struct Items<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct PodUsage {
    metadata: meta::ObjectMeta,
    timestamp: Timestamp,
    window: String,
    #[serde(default)]
    containers: Vec<ContainerUsage>,
}

#[derive(Deserialize)]
struct ContainerUsage {
    name: String,
    #[serde(default)]
    usage: HashMap<String, Quantity>,
}

/// Of both versions of the custom metrics API.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CustomMetric {
    described_object: DescribedObject,
    timestamp: Timestamp,
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    value: Quantity,
}

#[derive(Deserialize)]
struct DescribedObject {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct ExternalMetric {
    value: Quantity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroup {
    #[serde(default)]
    versions: Vec<GroupVersion>,
    preferred_version: Option<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

impl MetricsClient {
    pub fn new(client: Client, env: Env) -> Self {
        Self { client, env, answers: Mutex::default(), pods: Mutex::default() }
    }

    /// What one metric of a spec says now.
    pub async fn sample(
        &self,
        metric: &MetricSpec,
        selected: &Selected<'_>,
        targets: &ScaleTargets,
    ) -> Result<Sample, String> {
        let namespace = selected.namespace;
        match metric.type_.as_str() {
            "Resource" => {
                let source = metric.resource.as_ref().ok_or("the metric has no resource")?;
                self.resource(&source.name, None, selected).await
            }
            "ContainerResource" => {
                let source = metric.container_resource.as_ref().ok_or("the metric has no container resource")?;
                self.resource(&source.name, Some(&source.container), selected).await
            }
            "Pods" => {
                let source = metric.pods.as_ref().ok_or("the metric has no pods")?;
                let metric_selector = LabelSelector::from_meta(source.metric.selector.as_ref())?;
                let name = &source.metric.name;
                self.pods_metric(name, namespace, selected.selector, &metric_selector).await
            }
            "Object" => {
                let source = metric.object.as_ref().ok_or("the metric has no object")?;
                let metric_selector = LabelSelector::from_meta(source.metric.selector.as_ref())?;
                let described = &source.described_object;
                self.object_metric(&source.metric.name, namespace, described, &metric_selector, targets).await
            }
            "External" => {
                let source = metric.external.as_ref().ok_or("the metric has no external source")?;
                let metric_selector = LabelSelector::from_meta(source.metric.selector.as_ref())?;
                self.external_metric(&source.metric.name, namespace, &metric_selector).await
            }
            other => Err(format!("unknown metric source type {other:?}")),
        }
    }

    async fn resource(&self, name: &str, container: Option<&str>, of: &Selected<'_>) -> Result<Sample, String> {
        let whole_namespace = of.autoscalers > QUESTIONS_PER_NAMESPACE_MAX;
        let selector = if whole_namespace { String::new() } else { of.selector.to_string() };
        let params = if selector.is_empty() { ListParams::default() } else { ListParams::labels(selector) };
        let path = params.append_to(format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods", of.namespace));
        let usages = self.pod_usages(path).await;
        let usages = usages.map_err(|error| format!("unable to fetch metrics from resource metrics API: {error}"))?;
        let usages: Vec<&PodUsage> = match whole_namespace {
            false => usages.iter().collect(),
            true => {
                let mut found: HashMap<&str, &PodUsage> = HashMap::with_capacity(usages.len());
                found.extend(usages.iter().filter_map(|usage| Some((usage.metadata.name.as_deref()?, usage))));
                of.pods.iter().filter_map(|pod| found.get(pod.name()).copied()).collect()
            }
        };
        if usages.is_empty() {
            return Err("no metrics returned from resource metrics API".into());
        }
        pod_metrics(&usages, name, container).map(Sample::Pods)
    }

    /// What each container uses now. Those that were measured in part are left out.
    pub async fn container_usages(
        &self,
        namespace: &str,
        selector: &LabelSelector,
    ) -> Result<Vec<ContainerSample>, String> {
        let params = ListParams::labels(selector.to_string());
        let path = params.append_to(format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"));
        let mut samples = Vec::new();
        for usage in self.pod_usages(path).await?.iter() {
            for container in &usage.containers {
                let amount = |name: &str| container.usage.get(name).and_then(|text| QuantityValue::parse(&text.0).ok());
                let (Some(cpu), Some(memory)) = (amount("cpu"), amount("memory")) else { continue };
                samples.push(ContainerSample {
                    pod: usage.metadata.name.clone().unwrap_or_default(),
                    container: container.name.clone(),
                    cpu_cores: cpu.as_f64(),
                    memory_bytes: memory.as_f64(),
                    at: usage.timestamp,
                });
            }
        }
        Ok(samples)
    }

    /// Parsed once for all who ask at the same beat.
    async fn pod_usages(&self, path: String) -> Result<Arc<Vec<PodUsage>>, String> {
        let shared = shared(&self.pods, &path, self.env.monotonic());
        let read = async {
            let body = self.client.get(&path).await.map_err(|error| error.message.clone())?;
            let list: Items<PodUsage> = parse(&body)?;
            Ok(Arc::new(list.items))
        };
        shared.get_or_init(|| read).await.clone()
    }

    async fn pods_metric(
        &self,
        name: &str,
        namespace: &str,
        selector: &LabelSelector,
        metric_selector: &LabelSelector,
    ) -> Result<Sample, String> {
        let path = format!("{}/namespaces/{namespace}/pods/*/{}", self.custom_metrics().await?, percent_encode(name));
        let metrics = self.custom(with_metric_selector(path, Some(selector), metric_selector)).await?;
        if metrics.is_empty() {
            return Err("no metrics returned from custom metrics API".into());
        }
        let one = |metric: CustomMetric| {
            let window = metric.window_seconds.map(|seconds| Duration::from_secs(seconds.max(0) as u64));
            let milli = milli(&metric.value)?;
            let window = window.unwrap_or(DEFAULT_WINDOW);
            Ok((metric.described_object.name, PodMetric { milli, at: metric.timestamp, window }))
        };
        metrics.into_iter().map(one).collect::<Result<PodMetrics, String>>().map(Sample::Pods)
    }

    async fn object_metric(
        &self,
        name: &str,
        namespace: &str,
        object: &CrossVersionObjectReference,
        metric_selector: &LabelSelector,
        targets: &ScaleTargets,
    ) -> Result<Sample, String> {
        let api_version = object.api_version.as_deref().unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let root = self.custom_metrics().await?;
        let path = match object.kind.as_str() {
            // Whatever name the reference gives: nobody reaches out of a namespace this way.
            "Namespace" if group.is_empty() => {
                format!("{root}/namespaces/{namespace}/metrics/{}", percent_encode(name))
            }
            kind => {
                let whole = |error: String| format!("unable to fetch metrics from custom metrics API: {error}");
                let resource = targets.group_resource(group, kind).await.map_err(whole)?;
                format!(
                    "{root}/namespaces/{namespace}/{resource}/{}/{}",
                    percent_encode(&object.name),
                    percent_encode(name)
                )
            }
        };
        let metrics = self.custom(with_metric_selector(path, None, metric_selector)).await?;
        let [metric] = &metrics[..] else {
            return Err(format!(
                "unable to fetch metrics from custom metrics API: the custom metrics API server returned {} results \
                 when we asked for exactly one",
                metrics.len()
            ));
        };
        milli(&metric.value).map(Sample::Value)
    }

    async fn custom(&self, path: String) -> Result<Vec<CustomMetric>, String> {
        let answer = self.get(&path).await.and_then(|body| parse::<Items<CustomMetric>>(&body));
        let whole = |error: String| format!("unable to fetch metrics from custom metrics API: {error}");
        answer.map(|list| list.items).map_err(whole)
    }

    /// The path of the version to speak.
    async fn custom_metrics(&self) -> Result<String, String> {
        let missing = || {
            format!(
                "unable to fetch metrics from custom metrics API: no custom metrics API ({CUSTOM_METRICS}) registered"
            )
        };
        let answer = self.get(&format!("/apis/{CUSTOM_METRICS}")).await.map_err(|_| missing())?;
        let group: ApiGroup = parse(&answer).map_err(|_| missing())?;
        let served = group.preferred_version.iter().chain(&group.versions).map(|served| served.version.as_str());
        let known = served.into_iter().find(|version| CUSTOM_METRICS_VERSIONS.contains(version));
        let unknown = "unable to fetch metrics from custom metrics API: no known available metric versions found";
        known.map(|version| format!("/apis/{CUSTOM_METRICS}/{version}")).ok_or_else(|| unknown.into())
    }

    async fn external_metric(&self, name: &str, namespace: &str, selector: &LabelSelector) -> Result<Sample, String> {
        let text = selector.to_string();
        let params = if text.is_empty() { ListParams::default() } else { ListParams::labels(text) };
        let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", percent_encode(name));
        let answer = self.get(&params.append_to(path)).await;
        let metrics = answer
            .and_then(|body| parse::<Items<ExternalMetric>>(&body))
            .map_err(|error| format!("unable to fetch metrics from external metrics API: {error}"))?;
        if metrics.items.is_empty() {
            return Err("no metrics returned from external metrics API".into());
        }
        let mut sum = 0i64;
        for metric in &metrics.items {
            sum = sum.saturating_add(milli(&metric.value)?);
        }
        Ok(Sample::Value(sum))
    }

    async fn get(&self, path: &str) -> Result<Bytes, String> {
        let answer = shared(&self.answers, path, self.env.monotonic());
        let ask = async { self.client.get(path).await.map_err(|error| error.message.clone()) };
        answer.get_or_init(|| ask).await.clone()
    }
}

/// The place of an answer that is still good, or of a new one.
fn shared<T>(
    answers: &Mutex<HashMap<String, (Duration, Arc<OnceCell<T>>)>>,
    key: &str,
    now: Duration,
) -> Arc<OnceCell<T>> {
    let mut answers = answers.lock();
    if let Some((at, answer)) = answers.get(key)
        && now.saturating_sub(*at) < SHARED_FOR
    {
        return answer.clone();
    }
    answers.retain(|_, (at, _)| now.saturating_sub(*at) < SHARED_FOR);
    answers.entry(key.to_string()).or_insert_with(|| (now, Arc::default())).1.clone()
}

pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("couldn't read the answer: {error}"))
}

fn milli(quantity: &Quantity) -> Result<i64, String> {
    quantity::milli_value(quantity).ok_or_else(|| format!("{:?} is no quantity", quantity.0))
}

fn with_metric_selector(mut path: String, pods: Option<&LabelSelector>, metric: &LabelSelector) -> String {
    let questions =
        [("labelSelector", pods.map(LabelSelector::to_string)), ("metricLabelSelector", Some(metric.to_string()))];
    for (name, text) in questions {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            let mark = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{mark}{name}={}", percent_encode(&text)));
        }
    }
    path
}

/// The use of one resource by pod. A pod of which one container was not measured is left out.
fn pod_metrics(usages: &[&PodUsage], resource: &str, container: Option<&str>) -> Result<PodMetrics, String> {
    let mut metrics = PodMetrics::new();
    for usage in usages {
        let mut counted = usage.containers.iter().filter(|of| container.is_none_or(|name| of.name == name)).peekable();
        if counted.peek().is_none() {
            continue;
        }
        let amounts: Option<Vec<&Quantity>> = counted.map(|of| of.usage.get(resource)).collect();
        let Some(amounts) = amounts else { continue };
        let mut sum = 0i64;
        for amount in amounts {
            sum = sum.saturating_add(milli(amount)?);
        }
        let window: SignedDuration = usage.window.parse().map_err(|_| format!("{:?} is no duration", usage.window))?;
        let window = Duration::try_from(window).map_err(|_| format!("{:?} is negative", usage.window))?;
        let name = usage.metadata.name.clone().unwrap_or_default();
        metrics.insert(name, PodMetric { milli: sum, at: usage.timestamp, window });
    }
    Ok(metrics)
}

#[cfg(test)]
#[path = "metrics_client_tests.rs"]
mod tests;
