//! Keeps one pod of a template on every node that wants it.
//! `plan` is the core, `revisions` keeps the history; the scheduler binds the pods by their node affinity.
//! Never counts while own writes are still on their way through the watch.

mod plan;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{ApiError, selectors::LabelSelector};
use async_trait::async_trait;
use client::{Informer, Patch, reference};
use env::Backoff;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::{Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod},
};
use parking_lot::Mutex;
use plan::{Input, Plan};
use serde_json::json;

use crate::{
    common::{
        dependents,
        expectations::Expectations,
        indexes,
        meta::{Object, labels},
        ownership,
        pod_control::PodControl,
        pods, revisions,
    },
    runner::{Context, Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (sets, pods) = (setup.informer::<DaemonSet>(), setup.informer::<Pod>());
    let (nodes, history) = (setup.informer::<Node>(), setup.informer::<ControllerRevision>());
    indexes::by_namespace(&sets);
    indexes::by_controller(&pods);
    indexes::by_controller(&history);
    let expectations = Expectations::new(setup.context.env.clone());
    setup.on_keys(&sets);
    setup.on(&pods, {
        let (sets, expectations) = (sets.clone(), expectations.clone());
        move |change, queue| {
            dependents::owners::<DaemonSet>(change).iter().for_each(|owner| expectations.changed(owner, change));
            let selects =
                |set: &DaemonSet, pod: &Pod| selector(set).is_some_and(|selector| selector.matches(labels(pod.meta())));
            dependents::wake_owners(change, queue, &sets, selects);
        }
    });
    setup.on(&nodes, {
        let sets = sets.clone();
        move |change, queue| {
            // Heartbeats change no placement.
            let view = |n: &Option<Arc<Node>>| {
                n.as_ref().map(|n| (n.metadata.labels.clone(), n.spec.as_ref().and_then(|s| s.taints.clone())))
            };
            if view(&change.old) != view(&change.new) {
                sets.list().iter().for_each(|set| queue.add(set.key()));
            }
        }
    });
    let context = setup.context.clone();
    let recorder = context.recorder("daemonset-controller");
    let control = PodControl { client: context.client.clone(), recorder, expectations };
    Arc::new(DaemonSets { context, sets, pods, nodes, history, control, failures: Mutex::default() })
}

fn selector(set: &DaemonSet) -> Option<LabelSelector> {
    set.spec.as_ref().and_then(|s| LabelSelector::from_meta(Some(&s.selector)).ok()).filter(|s| !s.is_empty())
}

struct DaemonSets {
    context: Context,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    history: Informer<ControllerRevision>,
    control: PodControl,
    /// Per set and node: how often a pod failed in a row, and when the next one may be replaced.
    failures: Mutex<HashMap<(String, String), (u32, Duration)>>,
}

#[async_trait]
impl Controller for DaemonSets {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(set) = self.sets.get(key) else {
            self.control.expectations.forget(key);
            return Ok(None);
        };
        let Some(selector) = selector(&set) else {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.control.recorder.warning(&reference(&*set), "SelectingAll", message);
            return Ok(None);
        };
        if set.deleting() {
            return Ok(None);
        }
        let (client, now) = (&self.context.client, self.context.env.now());
        let matches = |r: &ControllerRevision| selector.matches(labels(r.meta()));
        let known = revisions::claim(&self.history, client, &*set, matches).await?;
        let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let collisions = set.status.as_ref().and_then(|s| s.collision_count);
        let template_labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        let mut history = revisions::history(&*set, &template, &template_labels, collisions, known);
        if !history.carry_out(client).await? {
            let status = json!({ "status": { "collisionCount": collisions.unwrap_or(0) + 1 } });
            client.namespaced::<DaemonSet>(set.namespace()).patch_status(set.name(), &Patch::Merge(status)).await?;
            return Ok(None);
        }
        // Asked before the cache is read: what is seen in between only makes us wait once more.
        let waiting = self.control.waiting(key).await?;
        let pods = self.claim(&set, &selector).await?;
        let nodes = self.nodes.list();
        let hash = history.update_hash().to_string();
        let resting = self.resting(key);
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: &hash, resting: &resting, now };
        let (mut result, mut held) = (Ok(()), None);
        if waiting.is_none() {
            let plan = plan::plan(&input);
            held = plan.again;
            self.note_failures(key, &plan);
            result = self.carry_out(key, &set, plan, &hash).await;
            let limit = set.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(10);
            let live = |r: &ControllerRevision| {
                pods.iter().any(|p| p.label(revisions::HASH_LABEL) == Some(revisions::hash(r)))
            };
            revisions::delete(client, &history.surplus(limit, live)).await?;
        }
        let (status, again) = plan::status(&input);
        if let Some(status) = status {
            let mut set = (*set).clone();
            set.status = Some(status);
            client.namespaced::<DaemonSet>(set.namespace()).replace_status(set.name(), &set).await?;
        }
        result.map(|()| [again, waiting, held].into_iter().flatten().min())
    }
}

const FAILURE_BACKOFF_MAX: Duration = Duration::from_secs(15 * 60);
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), FAILURE_BACKOFF_MAX);

impl DaemonSets {
    /// Nodes where a pod failed so lately that the next one that fails is left there, and how long.
    fn resting(&self, key: &str) -> HashMap<String, Duration> {
        let now = self.context.env.monotonic();
        let mut failures = self.failures.lock();
        failures.retain(|_, (_, until)| *until + 2 * FAILURE_BACKOFF_MAX > now);
        let of_set = failures.iter().filter(|((set, _), (_, until))| set == key && *until > now);
        of_set.map(|((_, node), (_, until))| (node.clone(), *until - now)).collect()
    }

    /// A pod that fails again and again on a node is replaced ever more slowly.
    fn note_failures(&self, key: &str, plan: &Plan) {
        let now = self.context.env.monotonic();
        let mut failures = self.failures.lock();
        for pod in plan.finished.iter().filter(|pod| pods::phase(pod) == "Failed") {
            let id = (key.to_string(), pods::node_name(pod).to_string());
            let (count, until) = failures.entry(id).or_insert((0, now));
            *count += 1;
            *until = now + FAILURE_BACKOFF.delay_after(*count);
        }
    }

    async fn claim(&self, set: &DaemonSet, selector: &LabelSelector) -> Result<Vec<Arc<Pod>>, ApiError> {
        let mut pods = self.pods.by_index(indexes::CONTROLLER, set.uid());
        pods.extend(self.pods.by_index(indexes::ORPHAN, set.namespace()));
        let claims = ownership::claims(pods, set.meta(), |pod| selector.matches(labels(pod.meta())));
        let client = &self.context.client;
        ownership::claim(claims, &client.namespaced(set.namespace()), &client.namespaced(set.namespace()), set).await
    }

    async fn carry_out(&self, key: &str, set: &DaemonSet, plan: Plan, hash: &str) -> Result<(), ApiError> {
        let parent = reference(set);
        for pod in &plan.finished {
            let (name, node) = (pod.key(), pods::node_name(pod));
            if pods::phase(pod) == "Failed" {
                let message = format!("Found failed daemon pod {name} on node {node}, will try to kill it");
                self.control.recorder.warning(&parent, "FailedDaemonPod", message);
            } else {
                let message = format!("Found succeeded daemon pod {name} on node {node}, will try to delete it");
                self.control.recorder.normal(&parent, "SucceededDaemonPod", message);
            }
        }
        let pods = plan.create.iter().map(|node| self.pod(set, node, hash)).collect();
        let created = self.control.create_all(key, &parent, pods).await;
        self.control.delete_all(key, &parent, &plan.delete).await?;
        created.map(drop)
    }

    fn pod(&self, set: &DaemonSet, node: &str, hash: &str) -> Pod {
        let mut template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let mut spec = plan::daemon_spec(set);
        pin(spec.affinity.get_or_insert_default(), node);
        template.spec = Some(spec);
        let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.insert(revisions::HASH_LABEL.into(), hash.to_string());
        if let Some(generation) = set.annotation("deprecated.daemonset.template.generation") {
            labels.insert("pod-template-generation".into(), generation.to_string());
        }
        let suffix = self.context.env.name_suffix(5);
        pods::from_template(&template, set.namespace(), set.name(), &suffix, set.as_controller())
    }
}

/// Binds the pod to one node by its name; what the template asked of nodes was checked before.
fn pin(affinity: &mut Affinity, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_string()]),
    };
    let required = affinity
        .node_affinity
        .get_or_insert_default()
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![field.clone()]);
    }
}
