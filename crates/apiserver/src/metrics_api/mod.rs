//! `metrics.k8s.io`: what nodes and pods use, so that `kubectl top` and autoscaling work with nothing installed.
//! Asked by `pipeline` unless an APIService names another server for the group; asks the kubelets.
//! Measures only when asked, and then at most once in a while per node.

mod samples;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use api::{
    ApiError, Object, Verb,
    printing::go_duration,
    quantity::{Format, Quantity},
    selectors::{FieldSelector, LabelSelector},
};

use crate::{
    handlers::{
        negotiate::{Forms, View},
        respond::Reply,
        table::{self, Include},
    },
    proxy::streaming::{Target, exchange},
    registry::{not_found_path, timestamp},
    request::call::Call,
    server::pipeline::ApiServer,
};
use samples::{Reading, ResourceUsage, Sample};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
/// What was measured stays the answer for this long.
const SAMPLE_TTL: Duration = Duration::from_secs(5);
/// A rate is taken over at least this long: the first question waits for a second reading.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// An older reading says nothing about now.
const WINDOW_MAX: Duration = Duration::from_secs(120);
const KUBELET_TIMEOUT: Duration = Duration::from_secs(10);

/// The last pages of each node.
#[derive(Default)]
pub struct MetricsApi(Mutex<HashMap<String, CachedSamples>>);

#[derive(Clone)]
struct CachedSamples {
    /// One, or two where the older one says nothing about pods that have just become ready. Oldest first.
    earlier: Vec<Arc<Sample>>,
    latest: Arc<Sample>,
    /// When `latest` was read, on the monotonic clock.
    at: Duration,
}

/// What the group has, for discovery.
pub fn resources() -> Value {
    let row = |name: &str, namespaced: bool, kind: &str| json!({ "name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"] });
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [row("nodes", false, "NodeMetrics"), row("pods", true, "PodMetrics")],
    })
}

/// Whether a request is for us.
pub fn concerns(call: &Call) -> bool {
    call.info.group == GROUP && call.info.version == VERSION
}

pub async fn serve(server: &ApiServer, call: &Call) -> Result<Reply, ApiError> {
    let info = &call.info;
    let (nodes, pods) = (info.resource == "nodes", info.resource == "pods");
    let placed = if nodes { info.namespace.is_empty() } else { !info.namespace.is_empty() || info.verb == Verb::List };
    if !(nodes || pods) || !placed || !info.subresource.is_empty() {
        return Err(not_found_path());
    }
    let one = match &info.verb {
        Verb::Get => true,
        Verb::List => false,
        other => return Err(ApiError::method_not_allowed(GROUP, &info.resource, other.as_str())),
    };
    let items = match one {
        true => {
            let found = server.cluster.get(&info.resource, &info.namespace, &info.name);
            let missing = || {
                let whole = if nodes { info.name.clone() } else { format!("{}/{}", info.namespace, info.name) };
                ApiError::not_found(if found.is_none() { "" } else { GROUP }, &info.resource, &whole)
            };
            let object = found.clone().filter(|o| nodes || is_running(o)).ok_or_else(missing)?;
            let measured = measure(server, call, vec![object]).await;
            if measured.is_empty() {
                return Err(missing());
            }
            measured
        }
        false => measure(server, call, selected(server, call)?).await,
    };
    reply(call, one, items)
}

/// The objects a list is about. Only running pods use anything.
fn selected(server: &ApiServer, call: &Call) -> Result<Vec<Arc<Object>>, ApiError> {
    let labels = LabelSelector::parse(call.query.get("labelSelector").unwrap_or_default());
    let labels = labels.map_err(ApiError::bad_request)?;
    let fields = FieldSelector::parse(call.query.get("fieldSelector").unwrap_or_default());
    let fields = fields.map_err(ApiError::bad_request)?;
    let known = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
    if let Some(other) = fields.requirements().iter().find(|r| !known(&r.field)) {
        return Err(ApiError::bad_request(format!("field label not supported: {}", other.field)));
    }
    let pods = call.info.resource == "pods";
    let mut found = server.cluster.list(&call.info.resource, &call.info.namespace);
    found.retain(|object| {
        let meta = &object.meta;
        labels.matches(&meta.labels)
            && fields.matches(|field| match field {
                "metadata.name" => &meta.name,
                _ => meta.namespace.as_deref().unwrap_or_default(),
            })
            && (!pods || is_running(object))
    });
    Ok(found)
}

fn is_running(pod: &Object) -> bool {
    pod.value()["status"]["phase"] == "Running"
}

/// When a pod became ready, in Unix time.
fn ready_since(pod: &Object) -> Option<f64> {
    let value = pod.value();
    let mut conditions = value["status"]["conditions"].as_array()?.iter();
    let ready = conditions.find(|c| c["type"] == "Ready" && c["status"] == "True")?;
    let at: Timestamp = ready["lastTransitionTime"].as_str()?.parse().ok()?;
    Some(at.as_second() as f64)
}

/// The metrics of those nodes or pods that have any. Nodes are asked side by side.
async fn measure(server: &ApiServer, call: &Call, objects: Vec<Arc<Object>>) -> Vec<Value> {
    let pods = call.info.resource == "pods";
    let mut by_node: BTreeMap<String, Vec<Arc<Object>>> = BTreeMap::new();
    for object in objects {
        let node = match pods {
            true => object.value()["spec"]["nodeName"].as_str().unwrap_or_default().to_string(),
            false => object.meta.name.clone(),
        };
        by_node.entry(node).or_default().push(object);
    }
    let asked = by_node.into_iter().map(|(node, objects)| async move {
        let ready = objects.iter().filter(|_| pods).filter_map(|object| ready_since(object));
        let youngest = ready.max_by(f64::total_cmp);
        let Some(kept) = server.metrics_api.current(server, &node, youngest).await else { return Vec::new() };
        let metrics = |object: &Arc<Object>| match pods {
            true => pod_metrics(object, &kept),
            false => node_metrics(object, &kept),
        };
        objects.iter().filter_map(metrics).collect::<Vec<_>>()
    });
    let mut items: Vec<Value> = join_all(asked).await.into_iter().flatten().collect();
    let place = |v: &Value| (v["metadata"]["namespace"].to_string(), v["metadata"]["name"].to_string());
    items.sort_by_cached_key(place);
    items
}

impl MetricsApi {
    /// Readings of a node, the last one fresh. `None`: the node does not answer.
    /// A pod that became ready after the reading before is measured over a second of its own: what it did while it
    /// started would mislead an autoscaler, and waiting for the next question would keep it from deciding.
    async fn current(&self, server: &ApiServer, node: &str, youngest: Option<f64>) -> Option<CachedSamples> {
        let env = &server.cluster.env;
        let (kept, now) = (self.0.lock().get(node).cloned(), env.monotonic());
        let age = kept.as_ref().map_or(Duration::MAX, |k| now.saturating_sub(k.at));
        let covers = |sample: &Sample| youngest.is_none_or(|ready| sample.at >= ready);
        let earlier = match kept {
            Some(kept) if age < SAMPLE_TTL && kept.earlier.last().is_some_and(|sample| covers(sample)) => {
                return Some(kept);
            }
            Some(kept) if age < WINDOW_MAX && covers(&kept.latest) => {
                env.sleep(WINDOW_MIN.saturating_sub(age)).await;
                let longer = kept.earlier.last().filter(|_| age < SAMPLE_TTL);
                longer.cloned().into_iter().chain([kept.latest]).collect()
            }
            kept => {
                let first = self.read(server, node, Vec::new()).await?.latest;
                env.sleep(WINDOW_MIN).await;
                kept.filter(|_| age < WINDOW_MAX).map(|kept| kept.latest).into_iter().chain([first]).collect()
            }
        };
        self.read(server, node, earlier).await
    }

    async fn read(&self, server: &ApiServer, node: &str, earlier: Vec<Arc<Sample>>) -> Option<CachedSamples> {
        let env = &server.cluster.env;
        let (host, port) = server.registry.node_address(node).ok()?;
        let target = Target::kubelet(host, port, "/metrics/resource".into());
        let answer = env.timeout(KUBELET_TIMEOUT, exchange(&server.config, target, Method::GET)).await;
        let page = match answer.unwrap_or_else(|| Err("no answer in time".into())) {
            Ok(page) => page,
            Err(error) => {
                tracing::info!(node, error, "failed to measure a node");
                return None;
            }
        };
        let now = env.now().as_millisecond() as f64 / 1000.0;
        let latest = Arc::new(Sample::parse(&String::from_utf8_lossy(&page), now));
        let kept = CachedSamples { earlier, latest, at: env.monotonic() };
        let mut nodes = self.0.lock();
        nodes.insert(node.into(), kept.clone());
        nodes.retain(|_, k| kept.at.saturating_sub(k.at) < WINDOW_MAX);
        Some(kept)
    }
}

fn usage(used: &ResourceUsage) -> Value {
    let cpu = Quantity::from_nano(used.cpu_nanocores, Format::DecimalSI);
    let memory = Quantity::new(used.memory_bytes, Format::BinarySI);
    json!({ "cpu": cpu.canonical(), "memory": memory.canonical() })
}

fn head(object: &Object, kind: &str, used: &ResourceUsage) -> Value {
    let time = Timestamp::from_millisecond((used.at * 1000.0) as i64).map(timestamp).unwrap_or_default();
    let mut metadata = json!({ "name": object.meta.name, "creationTimestamp": time });
    if let Some(namespace) = &object.meta.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    if !object.meta.labels.is_empty() {
        metadata["labels"] = json!(object.meta.labels);
    }
    json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata,
        "timestamp": time, "window": go_duration(used.window),
    })
}

fn node_metrics(node: &Object, kept: &CachedSamples) -> Option<Value> {
    let earlier = kept.earlier.first().and_then(|e| e.node.as_ref());
    let used = kept.latest.node?.since(earlier)?;
    let mut metrics = head(node, "NodeMetrics", &used);
    metrics["usage"] = usage(&used);
    Some(metrics)
}

/// A pod of which one container was not measured has no metrics: half a sum would mislead an autoscaler.
fn pod_metrics(pod: &Object, kept: &CachedSamples) -> Option<Value> {
    let namespace = pod.meta.namespace.as_deref()?;
    let containers = kept.latest.containers(namespace, &pod.meta.name)?;
    let ready = ready_since(pod).unwrap_or(f64::MIN);
    let of = |sample: &Arc<Sample>, name: &str| sample.containers(namespace, &pod.meta.name)?.get(name).copied();
    let used = |(name, reading): (&String, &Reading)| {
        // Over as long as possible, but not over the time before it was ready.
        let mut before = kept.earlier.iter().filter_map(|sample| of(sample, name));
        let since = before.clone().find(|earlier| earlier.at >= ready).or_else(|| before.next_back());
        Some((name.clone(), reading.since(since.as_ref())?))
    };
    let used: Vec<(String, ResourceUsage)> = containers.iter().map(used).collect::<Option<_>>()?;
    let oldest = used.iter().map(|(_, u)| u).min_by(|a, b| a.at.total_cmp(&b.at))?;
    let mut metrics = head(pod, "PodMetrics", oldest);
    metrics["containers"] = used.iter().map(|(name, u)| json!({ "name": name, "usage": usage(u) })).collect();
    Some(metrics)
}

fn reply(call: &Call, one: bool, items: Vec<Value>) -> Result<Reply, ApiError> {
    let output = call.output(Forms { views: true, ..Forms::PLAIN })?;
    let value = match output.view {
        View::Object if one => items.into_iter().next().unwrap_or_default(),
        View::Object => {
            let items: Vec<Value> = items.into_iter().map(without_type).collect();
            let kind = if call.info.resource == "nodes" { "NodeMetricsList" } else { "PodMetricsList" };
            json!({ "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items })
        }
        View::Partial(version) if one => table::partial(items.into_iter().next().unwrap_or_default(), version),
        View::Partial(version) => {
            let items = items.into_iter().map(|item| table::partial(item, version)).collect();
            table::partial_list(version, json!({}), items)
        }
        View::Table(version) => {
            let include = Include::from_query(&call.query)?;
            let rows = items.into_iter().map(|item| row(item, include, version)).collect();
            table::table(version, json!({}), columns(), rows)
        }
    };
    Ok(Reply::Value(StatusCode::OK, value))
}

/// An item of a list leaves its type to the list.
fn without_type(mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}

fn columns() -> Value {
    let column = |name: &str, format: &str, description: &str| json!({ "name": name, "type": "string", "format": format, "description": description, "priority": 0 });
    json!([
        column("Name", "name", "Name of the resource"),
        column("cpu", "quantity", ""),
        column("memory", "quantity", ""),
        column("Window", "duration", ""),
    ])
}

fn row(item: Value, include: Include, version: &str) -> Value {
    let mut sums = [Quantity::default(), Quantity::default()];
    let containers = item["containers"].as_array().into_iter().flatten().map(|c| &c["usage"]);
    for used in containers.chain(item.get("usage")) {
        for (sum, name) in sums.iter_mut().zip(["cpu", "memory"]) {
            if let Ok(quantity) = Quantity::parse(used[name].as_str().unwrap_or_default()) {
                sum.add(&quantity);
            }
        }
    }
    let [cpu, memory] = sums.map(|sum| sum.canonical());
    let cells = json!([item["metadata"]["name"], cpu, memory, item["window"]]);
    match include {
        Include::None => json!({ "cells": cells }),
        Include::Metadata => json!({ "cells": cells, "object": table::partial(item, version) }),
        Include::Object => json!({ "cells": cells, "object": item }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_pods_are_measured_over_their_own_time() {
        let page = |seconds: u64, cpu: f64| {
            let of = |pod: &str| {
                format!("container_cpu_usage_seconds_total{{container=\"c\",namespace=\"n\",pod=\"{pod}\"}} {cpu}\n")
            };
            Arc::new(Sample::parse(&format!("{}{}", of("old"), of("young")), seconds as f64))
        };
        let kept = CachedSamples {
            earlier: vec![page(100, 1.0), page(114, 15.0)],
            latest: page(115, 16.0),
            at: Duration::ZERO,
        };
        let check = |name: &str, ready: &str, expected: (&str, &str)| {
            let condition = json!({ "type": "Ready", "status": "True", "lastTransitionTime": ready });
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "n" },
                "status": { "conditions": [condition] } });
            let found = pod_metrics(&Object::from_value(&pod).unwrap(), &kept).unwrap();
            let cpu = found["containers"][0]["usage"]["cpu"].as_str().unwrap();
            assert_eq!((found["window"].as_str().unwrap(), cpu), expected, "{name}");
        };
        check("old", "1970-01-01T00:00:10Z", ("15s", "1"));
        check("young", "1970-01-01T00:01:51Z", ("1s", "1"));
    }

    #[test]
    fn durations_and_rows_are_as_clients_print_them() {
        for (milliseconds, text) in
            [(500, "500ms"), (1000, "1s"), (15_062, "15.062s"), (60_000, "1m0s"), (61_500, "1m1.5s")]
        {
            assert_eq!(go_duration(Duration::from_millis(milliseconds)), text);
        }
        let item = json!({
            "metadata": { "name": "p" }, "window": "15s",
            "containers": [{ "usage": { "cpu": "1500n", "memory": "3Ki" } }, { "usage": { "cpu": "1m", "memory": "1Ki" } }],
        });
        assert_eq!(row(item, Include::None, "meta.k8s.io/v1")["cells"], json!(["p", "1001500n", "4Ki", "15s"]));
    }
}
