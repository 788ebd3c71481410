//! What the metrics APIs are asked, and what odd answers become.

use std::collections::BTreeMap;

use ::api::{ApiError, Resource};
use async_trait::async_trait;
use client::{InformerFactory, ObjectList, Transport, WatchStream};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::common::resources::Resources;

/// Answers by path, and keeps what was asked.
#[derive(Clone, Default)]
struct Answers {
    by_path: Arc<BTreeMap<&'static str, Value>>,
    asked: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Transport for Answers {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        self.asked.lock().push(request.uri().to_string());
        let found = self.by_path.get(request.uri().path()).ok_or_else(|| ApiError::not_found("", "", "x"))?;
        Ok(Response::new(Bytes::from(found.to_string())))
    }

    async fn list(&self, _: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        Err(ApiError::internal("not served"))
    }

    async fn watch(&self, _: &Resource, _: Option<&str>, _: &ListParams, _: &str) -> Result<WatchStream, ApiError> {
        Err(ApiError::internal("not served"))
    }
}

struct Asked {
    client: MetricsClient,
    targets: ScaleTargets,
    answers: Answers,
    env: Env,
}

fn served(by_path: impl Into<BTreeMap<&'static str, Value>>) -> Asked {
    let answers = Answers { by_path: Arc::new(by_path.into()), ..Answers::default() };
    let env = Env::simulated(Timestamp::UNIX_EPOCH, 1);
    let client = Client::new(answers.clone());
    let informers = InformerFactory::new(client.clone(), env.clone(), CancellationToken::new());
    let targets = ScaleTargets::new(client.clone(), env.clone(), Resources::new(&informers));
    Asked { client: MetricsClient::new(client, env.clone()), targets, answers, env }
}

impl Asked {
    async fn sample(&self, metric: Value, pods: &[&str], autoscalers: usize) -> Result<Sample, String> {
        let metric: MetricSpec = serde_json::from_value(metric).unwrap();
        let pod = |name: &&str| Arc::new(serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap());
        let pods: Vec<Arc<Pod>> = pods.iter().map(pod).collect();
        let selector = LabelSelector::parse("app=web").unwrap();
        let selected = Selected { namespace: "d", selector: &selector, pods: &pods, autoscalers };
        self.client.sample(&metric, &selected, &self.targets).await
    }

    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.answers.asked.lock());
        asked.into_iter().filter(|path| path.contains("metrics.k8s.io")).collect()
    }
}

const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/d/pods";

fn usage(name: &str, containers: Value) -> Value {
    json!({ "metadata": { "name": name }, "timestamp": "2026-01-01T00:00:00Z", "window": "1m15.5s",
        "containers": containers })
}

fn cpu(name: &str, amount: &str) -> Value {
    json!({ "name": name, "usage": { "cpu": amount } })
}

fn resource(name: &str) -> Value {
    json!({ "type": "Resource", "resource": { "name": name, "target": { "type": "Utilization" } } })
}

fn milli_of(sample: Result<Sample, String>) -> Result<Vec<(String, i64)>, String> {
    match sample? {
        Sample::Pods(metrics) => Ok(metrics.into_iter().map(|(pod, metric)| (pod, metric.milli)).collect()),
        Sample::Value(milli) => Ok(vec![(String::new(), milli)]),
    }
}

#[tokio::test(start_paused = true)]
async fn questions_are_shared() {
    let items = json!([usage("a", json!([cpu("c", "100m")])), usage("b", json!([cpu("c", "1")]))]);
    let asked = served([(PODS, json!({ "items": items }))]);
    asked.sample(resource("cpu"), &["a"], 1).await.unwrap();
    asked.sample(resource("cpu"), &["a"], 1).await.unwrap();
    assert_eq!(asked.asked(), [format!("{PODS}?labelSelector=app%3Dweb")]);
    // Where there are many, one answer is for the whole namespace, and each takes what is its own.
    for pod in ["a", "b", "a"] {
        let milli = if pod == "a" { 100 } else { 1000 };
        assert_eq!(milli_of(asked.sample(resource("cpu"), &[pod], 9).await), Ok(vec![(pod.into(), milli)]));
    }
    assert_eq!(asked.asked(), [PODS]);
    asked.env.sleep(SHARED_FOR).await;
    asked.sample(resource("cpu"), &["a"], 9).await.unwrap();
    assert_eq!(asked.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn resource_metrics() {
    let check = async |items: Value, metric: Value, expected: Result<Vec<(&str, i64)>, &str>| {
        let asked = served([(PODS, json!({ "items": items }))]);
        let found = milli_of(asked.sample(metric.clone(), &["a"], 1).await);
        let expected = expected.map(|pods| pods.into_iter().map(|(pod, milli)| (pod.to_string(), milli)).collect());
        assert_eq!(found, expected.map_err(String::from), "{metric}");
    };
    let two = json!([usage("a", json!([cpu("c", "100m"), cpu("d", "1500u")]))]);
    check(two.clone(), resource("cpu"), Ok(vec![("a", 102)])).await;
    check(two.clone(), resource("memory"), Ok(vec![])).await;
    let container = |name: &str| {
        json!({ "type": "ContainerResource", "containerResource": {
        "name": "cpu", "container": name, "target": { "type": "Utilization" } } })
    };
    check(two.clone(), container("c"), Ok(vec![("a", 100)])).await;
    check(two, container("x"), Ok(vec![])).await;
    check(json!([usage("a", json!([]))]), resource("cpu"), Ok(vec![])).await;
    check(json!([]), resource("cpu"), Err("no metrics returned from resource metrics API")).await;
    check(json!([usage("a", json!([cpu("c", "NaN")]))]), resource("cpu"), Err("\"NaN\" is no quantity")).await;
    check(json!([usage("a", json!([cpu("c", "-1")]))]), resource("cpu"), Ok(vec![("a", -1000)])).await;
}

#[tokio::test(start_paused = true)]
async fn custom_and_external_metrics() {
    const GROUP: &str = "/apis/custom.metrics.k8s.io";
    let group = |version: &str| {
        json!({ "versions": [{ "version": "v9" }, { "version": version }],
        "preferredVersion": { "version": "v9" } })
    };
    let item = |name: &str, value: &str| {
        json!({ "describedObject": { "name": name }, "value": value,
        "timestamp": "2026-01-01T00:00:00Z", "windowSeconds": 5 })
    };
    let pods = json!({ "type": "Pods", "pods": { "metric": { "name": "qps", "selector": { "matchLabels": { "v": "1" } } },
        "target": { "type": "AverageValue" } } });
    let object = |kind: &str, version: &str| {
        json!({ "type": "Object", "object": { "metric": { "name": "qps" },
        "describedObject": { "apiVersion": version, "kind": kind, "name": "o" }, "target": { "type": "Value" } } })
    };
    let external =
        json!({ "type": "External", "external": { "metric": { "name": "queue" }, "target": { "type": "Value" } } });

    let asked = served([
        (GROUP, group("v1beta1")),
        (
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/d/pods/*/qps",
            json!({ "items": [item("a", "2"), item("b", "30m")] }),
        ),
        (
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/d/deployments.apps/o/qps",
            json!({ "items": [item("o", "7")] }),
        ),
        (
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/d/metrics/qps",
            json!({ "items": [item("d", "8"), item("e", "8")] }),
        ),
        (
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/d/queue",
            json!({ "items": [{ "value": "3" }, { "value": "500m" }] }),
        ),
    ]);
    let found = milli_of(asked.sample(pods, &[], 1).await);
    assert_eq!(found, Ok(vec![("a".into(), 2000), ("b".into(), 30)]));
    let query = "labelSelector=app%3Dweb&metricLabelSelector=v%3D1";
    assert!(asked.asked().iter().any(|path| path.ends_with(query)));
    assert_eq!(asked.sample(object("Deployment", "apps/v1"), &[], 1).await, Ok(Sample::Value(7000)));
    let two = asked.sample(object("Namespace", "v1"), &[], 1).await.unwrap_err();
    assert!(two.ends_with("returned 2 results when we asked for exactly one"), "{two}");
    let unknown = asked.sample(object("Whale", "sea/v1"), &[], 1).await.unwrap_err();
    assert!(unknown.ends_with("no matches for kind \"Whale\" in group \"sea\""), "{unknown}");
    assert_eq!(asked.sample(external.clone(), &[], 1).await, Ok(Sample::Value(3500)));

    let nothing = served([]);
    let missing = nothing.sample(object("Deployment", "apps/v1"), &[], 1).await.unwrap_err();
    assert!(missing.ends_with("no custom metrics API (custom.metrics.k8s.io) registered"), "{missing}");
    assert!(
        nothing
            .sample(external, &[], 1)
            .await
            .is_err_and(|error| error.starts_with("unable to fetch metrics from external"))
    );
}
