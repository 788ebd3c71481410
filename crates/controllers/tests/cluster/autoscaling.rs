//! Autoscalers on real scale subresources, with the role of their own account and metrics we make up.
//! Run by the cluster of `main`; the tables of the calculation are beside the controller.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        autoscaling::v1::HorizontalPodAutoscaler as V1,
        autoscaling::v2::HorizontalPodAutoscaler,
        core::v1::{Event, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde_json::{Value, json};

use super::{Cluster, config, deployment};

const QUEUE: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/d/queue";

fn queue(length: u32) -> Value {
    json!({ "items": [{ "metricName": "queue", "timestamp": "2026-01-01T00:00:00Z", "value": length.to_string() }] })
}

fn autoscaler(name: &str, target: Value, behavior: Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 5, "behavior": behavior,
        "metrics": [{ "type": "External", "external": { "metric": { "name": "queue" },
            "target": { "type": "AverageValue", "averageValue": "10" } } }],
    } })
}

fn web() -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" })
}

async fn replicas(cluster: &Cluster) -> Option<i32> {
    cluster.api::<Deployment>().get("web").await.unwrap().spec.unwrap().replicas
}

/// The reason of a condition, and whether it holds.
async fn condition(cluster: &Cluster, autoscaler: &str, kind: &str) -> (String, bool) {
    let found = cluster.api::<HorizontalPodAutoscaler>().get(autoscaler).await.unwrap();
    let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    found.map_or_else(Default::default, |found| (found.reason.unwrap_or_default(), found.status == "True"))
}

#[tokio::test(start_paused = true)]
async fn a_deployment_follows_its_queue_and_others_do_not_interfere() {
    let cluster = Cluster::start(config()).await;
    cluster.counts.answer(QUEUE, queue(28));
    cluster.create::<Deployment>(deployment(1, "a:1")).await;
    cluster.create::<HorizontalPodAutoscaler>(autoscaler("h", web(), Value::Null)).await;
    cluster.settle().await;
    assert_eq!(replicas(&cluster).await, Some(3));
    assert_eq!(condition(&cluster, "h", "AbleToScale").await, ("ReadyForNewScale".into(), true));
    let events: Vec<_> = cluster.list::<Event>().await.into_iter().filter_map(|event| event.message).collect();
    let words = "New size: 3; reason: external metric queue(nil) above target";
    assert!(events.iter().any(|message| message == words), "{events:?}");

    cluster.counts.answer(QUEUE, queue(1000));
    cluster.settle().await;
    assert_eq!(replicas(&cluster).await, Some(5));
    assert_eq!(condition(&cluster, "h", "ScalingLimited").await, ("TooManyReplicas".into(), true));

    // Less is believed when it has lasted.
    cluster.counts.answer(QUEUE, queue(12));
    cluster.env.sleep(Duration::from_secs(200)).await;
    assert_eq!(replicas(&cluster).await, Some(5));
    cluster.env.sleep(Duration::from_secs(150)).await;
    assert_eq!(replicas(&cluster).await, Some(2));

    cluster.create::<HorizontalPodAutoscaler>(autoscaler("other", web(), Value::Null)).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    for name in ["h", "other"] {
        assert_eq!(condition(&cluster, name, "ScalingActive").await, ("AmbiguousSelector".into(), false), "{name}");
    }
    cluster.delete::<HorizontalPodAutoscaler>("other", "Background").await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(condition(&cluster, "h", "ScalingActive").await, ("ValidMetricFound".into(), true));
}

#[tokio::test(start_paused = true)]
async fn targets_that_can_not_be_scaled_say_so_once_a_period() {
    let cluster = Cluster::start(config()).await;
    cluster.counts.answer(QUEUE, queue(20));
    let reference = |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind, "name": "x" });
    let targets = [
        reference("apps/v1", "Deployment"),
        reference("policy/v1", "PodDisruptionBudget"),
        reference("sea/v1", "Whale"),
    ];
    for (index, target) in targets.into_iter().enumerate() {
        let name = format!("h{index}");
        cluster.create::<HorizontalPodAutoscaler>(autoscaler(&name, target, Value::Null)).await;
    }
    let started = cluster.env.monotonic();
    cluster.env.sleep(Duration::from_secs(150)).await;
    for name in ["h0", "h1", "h2"] {
        assert_eq!(condition(&cluster, name, "AbleToScale").await, ("FailedGetScale".into(), false), "{name}");
    }
    let failed: Vec<_> =
        cluster.list::<Event>().await.into_iter().filter(|e| e.reason.as_deref() == Some("FailedGetScale")).collect();
    assert_eq!(failed.len(), 3, "{failed:#?}");
    let periods = (cluster.env.monotonic() - started).as_secs() as i32 / 15 + 2;
    assert!(failed.iter().all(|event| event.count.is_some_and(|count| count <= periods)), "{failed:#?}");
}

#[tokio::test(start_paused = true)]
async fn custom_resources_scale_and_v1_has_its_default() {
    let cluster = Cluster::start(config()).await;
    cluster.counts.answer(QUEUE, queue(40));
    let definition = json!({ "metadata": { "name": "pools.sea.example" }, "spec": {
        "group": "sea.example", "scope": "Namespaced", "names": { "kind": "Pool", "plural": "pools" },
        "versions": [{ "name": "v1", "served": true, "storage": true,
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            "subresources": { "status": {}, "scale": { "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector" } } }] } });
    cluster.create::<CustomResourceDefinition>(definition).await;
    cluster.env.sleep(Duration::from_secs(5)).await;
    let send = async |method: &str, path: &str, body: Value| {
        let request = http::Request::builder().method(method).uri(path).header("accept", "application/json");
        let request = request.header("content-type", "application/json");
        let answer = cluster.client.request(request.body(body.to_string().into()).unwrap()).await.unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()
    };
    const POOLS: &str = "/apis/sea.example/v1/namespaces/d/pools";
    let pool = json!({ "apiVersion": "sea.example/v1", "kind": "Pool", "metadata": { "name": "p" }, "spec": { "replicas": 2 } });
    let mut pool = send("POST", POOLS, pool).await;
    pool["status"] = json!({ "replicas": 2, "selector": "app=pool" });
    send("PUT", &format!("{POOLS}/p/status"), pool).await;
    let target = json!({ "apiVersion": "sea.example/v1", "kind": "Pool", "name": "p" });
    cluster.create::<HorizontalPodAutoscaler>(autoscaler("h", target, json!({}))).await;
    cluster.env.sleep(Duration::from_secs(20)).await;
    let found = send("GET", &format!("{POOLS}/p"), Value::Null).await;
    assert_eq!(found["spec"]["replicas"], 4);

    let v1 = json!({ "metadata": { "name": "old" }, "spec": { "maxReplicas": 3, "scaleTargetRef": web() } });
    cluster.create::<V1>(v1).await;
    let stored = cluster.api::<HorizontalPodAutoscaler>().get("old").await.unwrap().spec.unwrap();
    let metric = stored.metrics.unwrap().remove(0).resource.unwrap();
    assert_eq!((metric.name.as_str(), metric.target.average_utilization), ("cpu", Some(80)));
}

const VERTICAL: &str = "/apis/autoscaling.k8s.io/v1/namespaces/d/verticalpodautoscalers";

#[tokio::test(start_paused = true)]
async fn a_vertical_autoscaler_recommends_resizes_and_gives_new_pods_their_share() {
    let mut config = config();
    config.controllers.push(controllers::VERTICAL_POD_AUTOSCALER.into());
    let cluster = Cluster::start(config).await;
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.env.sleep(Duration::from_secs(30)).await;
    let usage = |pod: &Pod| {
        json!({
            "metadata": { "name": pod.metadata.name }, "timestamp": cluster.env.now().to_string(), "window": "15s",
            "containers": [{ "name": "c", "usage": { "cpu": "400m", "memory": "300Mi" } }],
        })
    };
    let items: Vec<Value> = cluster.list::<Pod>().await.iter().map(usage).collect();
    cluster.counts.answer("/apis/metrics.k8s.io/v1beta1/namespaces/d/pods", json!({ "items": items }));
    let send = async |method: &str, path: &str, body: Value| {
        let request = http::Request::builder().method(method).uri(path).header("accept", "application/json");
        let request = request.header("content-type", "application/json");
        let answer = cluster.client.request(request.body(body.to_string().into()).unwrap()).await.unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()
    };
    let autoscaler = json!({ "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": { "name": "v" }, "spec": { "targetRef": web(),
            "resourcePolicy": { "containerPolicies": [{ "containerName": "*", "maxAllowed": { "memory": "320Mi" } }] } } });
    send("POST", VERTICAL, autoscaler).await;
    cluster.env.sleep(Duration::from_secs(150)).await;
    let found = send("GET", &format!("{VERTICAL}/v"), Value::Null).await;
    let target = &found["status"]["recommendation"]["containerRecommendations"][0]["target"];
    let cpu = api::quantity::Quantity::parse(target["cpu"].as_str().unwrap_or_default()).unwrap().milli_value();
    assert!((460..520).contains(&cpu) && target["memory"] == "320Mi", "{found}");
    let request = |pod: &Pod| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        container.resources.as_ref()?.requests.as_ref()?.get("memory").map(|memory| memory.0.clone())
    };
    // Pods that ask for nothing can't be resized to ask for something: their class would change. They are replaced.
    for pod in cluster.list::<Pod>().await {
        assert_eq!(request(&pod).as_deref(), Some("320Mi"), "{pod:#?}");
        let words = pod.metadata.annotations.unwrap_or_default().remove("vpaUpdates").unwrap_or_default();
        assert_eq!(words, "Pod resources updated by v: container 0: cpu request, memory request");
    }
    let checkpoints = send("GET", &VERTICAL.replace("autoscalers", "autoscalercheckpoints"), Value::Null).await;
    assert_eq!(checkpoints["items"][0]["spec"]["vpaObjectName"], "v", "{checkpoints}");
    assert!(cluster.counts.unauthorized().is_empty(), "a role lacks rules: {:#?}", cluster.counts.unauthorized());
}
