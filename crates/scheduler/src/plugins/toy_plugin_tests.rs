//! A toy plugin at every extension point, run by the real scheduler against a small API server: this file, and one row.
//! Pods say by label what the plugin is to do with them.

use std::{sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, InformerFactory};
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::registry::{Registry, Row};
use crate::{
    Config,
    cluster::Cluster,
    framework::*,
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
    server::Server,
};

const ROW: Row = Row::new("Toy", new);

/// Each test has pods of its own, so that one record does for all.
static CALLS: Mutex<Vec<(String, &str)>> = Mutex::new(Vec::new());

fn record(pod: &PodInfo, point: &'static str) {
    tracing::info!("toy {point}");
    CALLS.lock().push((pod.name().to_string(), point));
}

/// The points that a pod has met, each told once in a row.
fn calls(pod: &str) -> Vec<&'static str> {
    let mut points: Vec<_> = CALLS.lock().iter().filter(|(name, _)| name == pod).map(|(_, point)| *point).collect();
    points.dedup();
    points
}

struct Toy;

fn new(_: &Value) -> Result<Plugin, String> {
    let plugin = Plugin::of(Toy).pre_enqueue().queue_sort().pre_filter().filter().post_filter().pre_score().score();
    Ok(plugin.reserve().permit().pre_bind().bind().post_bind().build())
}

fn asks(pod: &PodInfo, what: &str) -> bool {
    pod.labels().get("toy").is_some_and(|label| label == what)
}

impl PreEnqueuePlugin for Toy {
    fn pre_enqueue(&self, _: &Cluster, pod: &PendingPod) -> Result<(), Status> {
        record(pod, "PreEnqueue");
        if asks(pod, "gate") { Err(Status::unschedulable("gated")) } else { Ok(()) }
    }
}

impl QueueSortPlugin for Toy {
    fn sort_key(&self, pod: &PendingPod, since: Duration) -> QueueSortKey {
        record(pod, "QueueSort");
        (0, since)
    }
}

impl PreFilterPlugin for Toy {
    fn pre_filter(&self, _: &Cluster, pod: &PendingPod) -> PreFilterResult {
        record(pod, "PreFilter");
        PreFilterResult::AllNodes
    }
}

#[derive(Clone)]
struct Of<'a>(&'a PendingPod);

impl FilterPlugin for Toy {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Of(pod))
    }
}

impl<'a> NodeFilter<'a> for Of<'a> {
    fn filter(&self, _: &NodeInfo) -> Result<(), Status> {
        record(self.0, "Filter");
        if asks(self.0, "refuse") { Err(Status::unschedulable("node(s) didn't please the toy")) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl PostFilterPlugin for Toy {
    fn post_filter(&self, attempt: &FailedAttempt<'_, '_>) -> PostFilterResult {
        record(attempt.pod, "PostFilter");
        PostFilterResult::Unschedulable { message: "toy: nothing helps".into(), clear_nomination: false }
    }

    fn prepare_candidate(
        &self,
        _: &Handle,
        _: Arc<PendingPod>,
        _: Candidate,
    ) -> BoxFuture<'static, Result<(), ApiError>> {
        async { Ok(()) }.boxed()
    }
}

impl PreScorePlugin for Toy {
    fn pre_score(&self, _: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        record(pod, "PreScore");
        PreScoreResult::Continue
    }
}

impl ScorePlugin for Toy {
    fn node_scorer<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod, _: &[&'a NodeInfo]) -> Box<dyn NodeScorer + 'a> {
        Box::new(Of(pod))
    }
}

impl NodeScorer for Of<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        record(self.0, "Score");
        i64::from(*node.name == *"b")
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        record(self.0, "NormalizeScore");
        default_normalize_score(scores, false);
    }
}

impl ReservePlugin for Toy {
    fn reserve(&self, state: &mut CycleState, _: &mut Cluster, pod: &PendingPod, _: &str) -> Result<(), Status> {
        record(pod, "Reserve");
        state.write(pod.name().to_string());
        if asks(pod, "no-reserve") { Err(Status::unschedulable("nothing left")) } else { Ok(()) }
    }

    fn unreserve(&self, state: &mut CycleState, _: &mut Cluster, pod: &PendingPod, _: &str) {
        record(pod, "Unreserve");
        assert_eq!(state.delete::<String>().as_deref(), Some(pod.name()));
    }
}

impl PermitPlugin for Toy {
    fn permit(&self, waiting: &WaitingPods, _: &Cluster, pod: &PendingPod, _: &str) -> PermitResult {
        record(pod, "Permit");
        let others = || waiting.waiting_for("Toy");
        if asks(pod, "allow-others") {
            others().iter().for_each(|other| waiting.allow(other, "Toy"));
        } else if asks(pod, "reject-others") {
            others().iter().for_each(|other| waiting.reject(other, "Toy", "another came"));
        } else if asks(pod, "wait") {
            return PermitResult::Wait(Duration::from_secs(5));
        } else if asks(pod, "forbid") {
            return PermitResult::Reject(Status::unschedulable("not allowed"));
        }
        PermitResult::Allow
    }
}

impl PreBindPlugin for Toy {
    fn has_pre_bind_work(&self, state: &CycleState, pod: &PendingPod, _: &str) -> bool {
        state.read::<String>().is_some_and(|name| name == pod.name())
    }

    fn pre_bind(
        &self,
        _: &Handle,
        _: &CycleState,
        _: &Cluster,
        pod: &Arc<PendingPod>,
        _: &str,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let pod = pod.clone();
        async move {
            record(&pod, "PreBind");
            if asks(&pod, "fail") { Err(Status::error("the toy broke")) } else { Ok(()) }
        }
        .boxed()
    }
}

impl BindPlugin for Toy {
    fn bind(&self, _: &Handle, pod: &Arc<PendingPod>, _: &Arc<str>) -> BoxFuture<'static, Result<BindResult, Status>> {
        record(pod, "Bind");
        async { Ok(BindResult::Skip) }.boxed()
    }
}

impl PostBindPlugin for Toy {
    fn post_bind(&self, _: &Cluster, pod: &PodInfo, _: &str) {
        record(pod, "PostBind");
    }
}

const CONFIGURATION: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
const PLUGINS: &str = "{multiPoint: {enabled: [{name: Toy, weight: 100}]}, queueSort: {disabled: [{name: PrioritySort}]}, \
    bind: {enabled: [{name: Toy}, {name: DefaultBinder}]}}";

/// A scheduler with the toy, and nodes a and b.
fn start() -> Server {
    let mut config = Config::from_yaml(CONFIGURATION).unwrap();
    config.registry = Registry::default().with(ROW);
    config.profiles[0].plugins = serde_saphyr::from_str(PLUGINS).unwrap();
    let server = Server::new();
    for name in ["a", "b"] {
        server.put(
            "nodes",
            json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}),
        );
    }
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 7);
    let (shutdown, client) = (CancellationToken::new(), Client::new(server.clone()));
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    env.clone().spawn(async move { crate::run(config, client, informers, env, shutdown).await.unwrap() });
    server
}

fn create(server: &Server, name: &str, toy: &str) {
    let metadata = json!({"name": name, "namespace": "default", "labels": {"toy": toy}});
    server.put("pods", json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}));
}

fn node_of(server: &Server, name: &str) -> Option<String> {
    server.get("pods", &format!("default/{name}"))?["spec"]["nodeName"].as_str().map(str::to_string)
}

fn message(server: &Server, name: &str) -> Option<String> {
    let pod = server.get("pods", &format!("default/{name}"))?;
    pod["status"]["conditions"][0]["message"].as_str().map(str::to_string)
}

#[tokio::test(start_paused = true)]
async fn a_pod_meets_every_extension_point_in_order() {
    let server = start();
    create(&server, "through", "");
    server.until("binding", |s| node_of(s, "through").as_deref() == Some("b")).await;
    env::sleep(Duration::from_secs(1)).await;
    let points = ["PreEnqueue", "QueueSort", "PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve"];
    assert_eq!(calls("through"), [&points[..], &["Permit", "PreBind", "Bind", "PostBind"]].concat());
}

#[tokio::test(start_paused = true)]
async fn a_gated_pod_and_a_refused_one_go_no_further() {
    let server = start();
    create(&server, "gated", "gate");
    create(&server, "refused", "refuse");
    server.until("the condition", |s| message(s, "refused").is_some()).await;
    assert_eq!(
        message(&server, "refused").unwrap(),
        "0/2 nodes are available: 2 node(s) didn't please the toy. no new claims to deallocate, preemption: 0/2 nodes \
         are available: 2 No preemption victims found for incoming pod., toy: nothing helps"
    );
    assert_eq!(calls("refused")[..5], ["PreEnqueue", "QueueSort", "PreFilter", "Filter", "PostFilter"]);
    assert!(!calls("refused").contains(&"Reserve"));
    assert_eq!(calls("gated"), ["PreEnqueue", "QueueSort"]);
}

#[tokio::test(start_paused = true)]
async fn permit_holds_a_pod_until_it_is_allowed() {
    let server = start();
    create(&server, "held", "wait");
    server
        .until("the nomination", |s| {
            s.get("pods", "default/held").is_some_and(|pod| pod["status"]["nominatedNodeName"] == "b")
        })
        .await;
    env::sleep(Duration::from_secs(2)).await;
    assert_eq!((node_of(&server, "held"), calls("held").pop()), (None, Some("Permit")));
    create(&server, "allows", "allow-others");
    server.until("both bindings", |s| node_of(s, "held").is_some() && node_of(s, "allows").is_some()).await;
    assert!(!calls("held").contains(&"Unreserve"));
}

#[tokio::test(start_paused = true)]
async fn permit_turns_pods_down_at_once_later_or_after_its_timeout() {
    let server = start();
    for (name, toy, wanted) in [
        ("forbidden", "forbid", "0/1 nodes are available: 1 not allowed."),
        ("late", "wait", "0/1 nodes are available: 1 rejected due to timeout after waiting 5s at plugin Toy."),
    ] {
        create(&server, name, toy);
        server.until("the condition", |s| message(s, name).is_some()).await;
        assert_eq!(message(&server, name).as_deref(), Some(wanted));
        assert!(calls(name).windows(2).any(|pair| pair == ["Permit", "Unreserve"]), "{:?}", calls(name));
        server.delete("pods", &format!("default/{name}"));
    }
    create(&server, "unlucky", "wait");
    server
        .until("the nomination", |s| {
            s.get("pods", "default/unlucky").is_some_and(|pod| pod["status"]["nominatedNodeName"] == "b")
        })
        .await;
    create(&server, "rejects", "reject-others");
    server.until("the condition", |s| message(s, "unlucky").is_some()).await;
    assert_eq!(message(&server, "unlucky").as_deref(), Some("0/1 nodes are available: 1 another came."));
}

#[tokio::test(start_paused = true)]
async fn what_was_reserved_is_given_back_when_a_later_point_fails() {
    let server = start();
    create(&server, "broken", "fail");
    create(&server, "unreserved", "no-reserve");
    server.until("the conditions", |s| message(s, "broken").is_some() && message(s, "unreserved").is_some()).await;
    assert_eq!(message(&server, "broken").as_deref(), Some("the toy broke"));
    assert_eq!(message(&server, "unreserved").as_deref(), Some("0/1 nodes are available: 1 nothing left."));
    for name in ["broken", "unreserved"] {
        assert!(calls(name).contains(&"Unreserve") && !calls(name).contains(&"Bind"), "{:?}", calls(name));
    }
    // Deleted while it is held back.
    create(&server, "deleted", "wait");
    server
        .until("the nomination", |s| {
            s.get("pods", "default/deleted").is_some_and(|pod| pod["status"]["nominatedNodeName"] == "b")
        })
        .await;
    server.delete("pods", "default/deleted");
    env::sleep(Duration::from_secs(10)).await;
    assert_eq!(calls("deleted").pop(), Some("Unreserve"));
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_cycle_carry_the_pod() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = testkit::scoped_log(subscriber);
    let server = start();
    create(&server, "traced", "");
    server.until("binding", |s| node_of(s, "traced").is_some()).await;
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    for (point, span) in [("Filter", "scheduling_cycle"), ("Reserve", "scheduling_cycle"), ("PreBind", "binding_cycle")]
    {
        let wanted = format!("{span}{{pod=\"default/traced\" uid=\"pods/default/traced\"");
        let line = text.lines().find(|line| line.ends_with(&format!("toy {point}"))).unwrap_or_default();
        assert!(line.contains(&wanted), "{point}: {line:?}\n{text}");
    }
}
