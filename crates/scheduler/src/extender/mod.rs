//! Other processes that have a say over HTTP: they may refuse nodes, score them, choose victims, and bind pods.
//! Configured by `config::ExtenderConfig`; asked by `scheduler` between filtering and scoring.
//! A failing extender fails the attempt unless it is marked ignorable; scores are never required.

mod tls;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use env::Env;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    config::{ExtenderConfig, duration},
    diagnosis::Diagnosis,
    framework::{Candidate, EXTENDER_ROW, MAX_NODE_SCORE, Status},
    pod_info::{PendingPod, PodInfo},
};

const EXTENDER_SCORE_MAX: i64 = 10;
const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Answers beyond this are refused.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Clone)]
pub struct Extenders {
    list: Arc<Vec<Extender>>,
    env: Env,
}

struct Extender {
    config: ExtenderConfig,
    /// Its files may have gone since they were checked.
    http: Result<tls::HttpClient, String>,
}

impl std::ops::Deref for Extender {
    type Target = ExtenderConfig;

    fn deref(&self) -> &ExtenderConfig {
        &self.config
    }
}

/// What is wrong with how an extender is to be reached.
pub fn check_tls(extender: &ExtenderConfig) -> Result<(), String> {
    tls::client(extender).map(drop)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct FilterAnswer {
    #[serde(alias = "nodes")]
    nodes: Option<Value>,
    #[serde(alias = "nodenames", alias = "nodeNames")]
    node_names: Option<Vec<String>>,
    #[serde(alias = "failedNodes")]
    failed_nodes: Option<BTreeMap<String, String>>,
    #[serde(alias = "failedAndUnresolvableNodes")]
    failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    #[serde(alias = "error")]
    error: String,
}

#[derive(Deserialize)]
struct HostPriority {
    #[serde(rename = "Host", alias = "host")]
    host: String,
    #[serde(rename = "Score", alias = "score")]
    score: i64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct PreemptionAnswer {
    #[serde(alias = "nodeNameToMetaVictims")]
    node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MetaVictims {
    #[serde(rename = "Pods", alias = "pods")]
    pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations")]
    violations: usize,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BindAnswer {
    #[serde(rename = "Error", alias = "error")]
    error: String,
}

impl Extenders {
    pub fn new(list: Vec<ExtenderConfig>, env: Env) -> Self {
        let list = list.into_iter().map(|config| Extender { http: tls::client(&config), config });
        Self { list: Arc::new(list.collect()), env }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn interested<'a>(&'a self, pod: &'a PendingPod) -> impl Iterator<Item = &'a Extender> {
        self.list.iter().filter(|e| interested(e, pod))
    }

    /// The nodes that every extender accepts; why the others were refused goes into `diagnosis`.
    pub async fn filter(
        &self,
        cluster: &Cluster,
        pod: &PendingPod,
        mut feasible: Vec<u32>,
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<u32>, String> {
        for extender in self.interested(pod).filter(|e| !e.filter_verb.is_empty()) {
            if feasible.is_empty() {
                break;
            }
            let body = arguments(extender, cluster, pod, &feasible);
            let answer = match self.ask::<FilterAnswer>(extender, &extender.filter_verb, body).await {
                Ok(answer) if answer.error.is_empty() => answer,
                Ok(FilterAnswer { error, .. }) | Err(error) if !extender.ignorable => return Err(error),
                _ => continue,
            };
            let kept = kept_names(&answer);
            let refused = [(answer.failed_nodes, true), (answer.failed_and_unresolvable_nodes, false)];
            for (name, reason, resolvable) in
                refused.into_iter().flat_map(|(nodes, r)| nodes.into_iter().flatten().map(move |(n, why)| (n, why, r)))
            {
                let status = if resolvable { Status::unschedulable(reason) } else { Status::unresolvable(reason) };
                diagnosis.reject_node(EXTENDER_ROW, "Extender", name.into(), status);
            }
            feasible.retain(|at| kept.iter().any(|name| **name == *cluster.cache.nodes()[*at as usize].name));
        }
        Ok(feasible)
    }

    /// What the extenders add to each feasible node's score. One that fails adds nothing.
    pub async fn scores(&self, cluster: &Cluster, pod: &PendingPod, feasible: &[u32]) -> Vec<i64> {
        let mut totals = vec![0; feasible.len()];
        for extender in self.interested(pod).filter(|e| !e.prioritize_verb.is_empty()) {
            let body = arguments(extender, cluster, pod, feasible);
            let answer = self.ask::<Vec<HostPriority>>(extender, &extender.prioritize_verb, body).await;
            let Ok(answer) = answer.inspect_err(|error| tracing::warn!(%error, "no scores from an extender")) else {
                continue;
            };
            let scores: BTreeMap<String, i64> = answer.into_iter().map(|p| (p.host, p.score)).collect();
            for (total, at) in totals.iter_mut().zip(feasible) {
                let score = scores.get(&*cluster.cache.nodes()[*at as usize].name).copied().unwrap_or(0);
                *total += score * extender.weight * (MAX_NODE_SCORE / EXTENDER_SCORE_MAX);
            }
        }
        totals
    }

    /// Whether an extender wants to hear which pods are to make room for this one.
    pub fn supports_preemption(&self, pod: &PendingPod) -> bool {
        self.interested(pod).any(|extender| !extender.preempt_verb.is_empty())
    }

    /// The nodes, best first, on which the extenders agree that room is made, each with the victims they leave.
    pub async fn preempt(&self, pod: &PendingPod, mut candidates: Vec<Candidate>) -> Result<Vec<Candidate>, String> {
        for extender in self.interested(pod).filter(|extender| !extender.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            let body = victims(extender, pod, &candidates);
            let mut answer = match self.ask::<PreemptionAnswer>(extender, &extender.preempt_verb, body).await {
                Ok(answer) => answer.node_name_to_meta_victims,
                Err(error) if !extender.ignorable => return Err(error),
                Err(_) => continue,
            };
            candidates.retain_mut(|candidate| match answer.remove(&*candidate.node) {
                Some(kept) => {
                    candidate.violations = kept.violations;
                    candidate.victims.retain(|victim| kept.pods.iter().any(|pod| pod.uid == victim.uid()));
                    true
                }
                None => false,
            });
        }
        Ok(candidates)
    }

    /// Whether an extender binds this pod, and then what came of it.
    pub async fn bind(&self, pod: &PendingPod, node: &str) -> Option<Result<(), String>> {
        let extender = self.interested(pod).find(|e| !e.bind_verb.is_empty())?;
        let body = json!({"PodName": pod.name(), "PodNamespace": pod.namespace(), "PodUID": pod.uid(), "Node": node});
        Some(match self.ask::<BindAnswer>(extender, &extender.bind_verb, body).await {
            Ok(BindAnswer { error }) if error.is_empty() => Ok(()),
            Ok(BindAnswer { error }) | Err(error) => Err(error),
        })
    }

    async fn ask<T: DeserializeOwned>(&self, extender: &Extender, verb: &str, body: Value) -> Result<T, String> {
        let url = extender.url(verb);
        let failed = |why: String| format!("failed to ask the extender at {url}: {why}");
        let request = Request::builder()
            .method(Method::POST)
            .uri(&url)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|e| failed(e.to_string()))?;
        let answer = async {
            let http = extender.http.as_ref().map_err(Clone::clone)?;
            let response = http.request(request).await.map_err(|e| e.to_string())?;
            if !response.status().is_success() {
                return Err(format!("code {}", response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            let bytes = body.map_err(|e| e.to_string())?.to_bytes();
            serde_json::from_slice(&bytes).map_err(|e| e.to_string())
        };
        let limit = extender.http_timeout.as_deref().and_then(duration).unwrap_or(REQUEST_TIMEOUT_DEFAULT);
        let answer = self.env.timeout(limit, answer).await;
        answer.unwrap_or_else(|| Err("timed out".into())).map_err(failed)
    }
}

fn interested(extender: &ExtenderConfig, pod: &PendingPod) -> bool {
    let managed = |name: &String| extender.managed_resources.iter().any(|r| r.name == *name);
    let spec = pod.spec().into_iter();
    let mut containers = spec.flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    extender.managed_resources.is_empty()
        || containers.any(|container| {
            let resources = container.resources.as_ref();
            let requests = resources.and_then(|r| r.requests.as_ref()).into_iter().flatten();
            let limits = resources.and_then(|r| r.limits.as_ref()).into_iter().flatten();
            requests.chain(limits).any(|(name, _)| managed(name))
        })
}

fn arguments(extender: &ExtenderConfig, cluster: &Cluster, pod: &PendingPod, feasible: &[u32]) -> Value {
    let nodes = || feasible.iter().map(|at| &cluster.cache.nodes()[*at as usize]);
    match extender.node_cache_capable {
        true => {
            let names: Vec<&str> = nodes().map(|n| &*n.name).collect();
            json!({"Pod": &*pod.pod, "Nodes": null, "NodeNames": names})
        }
        false => {
            let items: Vec<_> = nodes().map(|n| &*n.node).collect();
            json!({"Pod": &*pod.pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": null})
        }
    }
}

/// What an extender is told of the pods that would go. One that has a cache of its own needs their uids only; the others
/// get what the scheduler keeps of a pod.
fn victims(extender: &ExtenderConfig, pod: &PendingPod, candidates: &[Candidate]) -> Value {
    let of = |one: &dyn Fn(&PodInfo) -> Value| -> Value {
        let victims = candidates.iter().map(|candidate| {
            let pods: Vec<Value> = candidate.victims.iter().map(|victim| one(victim)).collect();
            (candidate.node.to_string(), json!({"Pods": pods, "NumPDBViolations": candidate.violations}))
        });
        victims.collect()
    };
    match extender.node_cache_capable {
        true => json!({"Pod": &*pod.pod, "NodeNameToVictims": null,
            "NodeNameToMetaVictims": of(&|victim| json!({"UID": victim.uid()}))}),
        false => json!({"Pod": &*pod.pod, "NodeNameToMetaVictims": null, "NodeNameToVictims": of(&|victim| {
            let (namespace, name) = victim.key.split_once('/').unwrap_or(("", &victim.key));
            json!({"metadata": {"namespace": namespace, "name": name, "uid": victim.uid(), "labels": victim.labels()},
                "spec": {"priority": victim.priority, "nodeName": victim.node_name()}})
        })}),
    }
}

fn kept_names(answer: &FilterAnswer) -> Vec<String> {
    if let Some(names) = &answer.node_names {
        return names.clone();
    }
    let items = answer.nodes.as_ref().and_then(|list| list["items"].as_array()).into_iter().flatten();
    items.filter_map(|node| node["metadata"]["name"].as_str().map(str::to_string)).collect()
}
