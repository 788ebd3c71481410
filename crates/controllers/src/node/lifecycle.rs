//! Notices silent nodes and writes conditions and taints for them.
//! `conditions` is the core, `zones` sets the pace; `taint_eviction` acts on the taints.
//! Silence is measured on our own clock, from the last change we saw.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::ApiError;
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use parking_lot::Mutex;
use serde_json::json;

use super::{
    conditions::{self, Eviction},
    node_metrics,
    zones::{self, Admission, Zones},
};
use crate::{
    common::{
        indexes,
        meta::{Object, time},
        pods,
    },
    runner::{Context, Controller, Outcome, Queue, Setup},
};

const LEASES: &str = "kube-node-lease";

/// When each node was last heard of, in monotonic time.
type HeardFrom = Arc<Mutex<HashMap<String, Duration>>>;

/// Nodes that we have declared silent and whose pods still say that they are ready. A kubelet that itself says that its
/// node is not ready still speaks for its pods.
#[derive(Default)]
struct NodesToMark(HashSet<String>);

impl NodesToMark {
    /// A node seen for the first time: whoever declared it silent may have been stopped before its pods were marked.
    fn found(&mut self, node: &Node) {
        if conditions::condition(node, "Ready").is_some_and(|c| c.status == "Unknown") {
            self.0.insert(node.name().to_string());
        }
    }

    /// Whether the pods are to be marked now, with Ready as it was `before` our own write and `after`.
    fn judge(&mut self, node: &str, before: &str, after: &str) -> bool {
        match (before, after) {
            (_, "True") => drop(self.0.remove(node)),
            ("True", _) => drop(self.0.insert(node.to_string())),
            _ => {}
        }
        self.0.contains(node)
    }

    fn done(&mut self, node: &str) {
        self.0.remove(node);
    }
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (nodes, pods) = (setup.informer::<Node>(), setup.informer::<Pod>());
    let leases = setup.informer::<Lease>();
    indexes::by_node(&pods);
    let (heard, zones) = (HeardFrom::default(), Arc::new(Mutex::new(Zones::default())));
    let unmarked = Arc::new(Mutex::new(NodesToMark::default()));
    let recorder = setup.context.recorder("node-controller");
    setup.on(&nodes, {
        let (heard, env, recorder) = (heard.clone(), setup.context.env.clone(), recorder.clone());
        let (zones, unmarked) = (zones.clone(), unmarked.clone());
        let metrics = setup.context.config.metrics.clone();
        move |change, queue| {
            let (effect, counts) = {
                let mut zones = zones.lock();
                (zones.set(&change.key, change.new.as_deref()), zones.take_changed())
            };
            counts.iter().for_each(|figures| node_metrics::show_zone(&metrics, figures));
            effect.wake.into_iter().for_each(|node| queue.add(node));
            if effect.recovered {
                heard.lock().values_mut().for_each(|at| *at = env.monotonic());
            }
            match (&change.old, &change.new) {
                (None, Some(node)) => {
                    heard.lock().entry(change.key.clone()).or_insert_with(|| env.monotonic());
                    unmarked.lock().found(node);
                    let message = format!("Registered Node {} in Controller", node.name());
                    recorder.normal(&reference(&**node), "RegisteredNode", message);
                }
                (Some(node), None) => {
                    heard.lock().remove(&change.key);
                    unmarked.lock().done(&change.key);
                    let message = format!("Removing Node {} from Controller", node.name());
                    recorder.normal(&reference(&**node), "RemovingNode", message);
                }
                (Some(old), Some(new)) if heartbeat(old) != heartbeat(new) => {
                    heard.lock().insert(change.key.clone(), env.monotonic());
                }
                _ => {}
            }
            queue.add(change.key.clone());
        }
    });
    // As they are: thousands of nodes renew theirs, and their names are all that is needed.
    setup.on_objects(leases.objects(), {
        let (heard, env) = (heard.clone(), setup.context.env.clone());
        move |change, _| {
            let node = change.key.strip_prefix(LEASES).and_then(|rest| rest.strip_prefix('/'));
            // Only the clock moves: the deadline that is already set will look at it.
            if let (Some(node), Some(_)) = (node, &change.new) {
                heard.lock().insert(node.to_string(), env.monotonic());
            }
        }
    });
    Arc::new(Lifecycle {
        context: setup.context.clone(),
        queue: setup.queue.clone(),
        nodes,
        pods,
        heard,
        unmarked,
        zones,
        recorder,
    })
}

/// What only the kubelet writes.
fn heartbeat(node: &Node) -> Option<jiff::Timestamp> {
    conditions::condition(node, "Ready")?.last_heartbeat_time.as_ref().map(|t| t.0)
}

struct Lifecycle {
    context: Context,
    queue: Queue,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    heard: HeardFrom,
    unmarked: Arc<Mutex<NodesToMark>>,
    zones: Arc<Mutex<Zones>>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for Lifecycle {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(node) = self.nodes.get(key) else { return Ok(None) };
        let (now, config) = (self.context.env.now(), &self.context.config);
        let clock = self.context.env.monotonic();
        let last = *self.heard.lock().entry(key.to_string()).or_insert(clock);
        let never = heartbeat(&node).is_none();
        let grace = if never { config.node_startup_grace_period } else { config.node_monitor_grace_period };
        let silence = clock.saturating_sub(last);
        let api = self.context.client.api::<Node>();
        let mut node = (*node).clone();
        let before = conditions::ready(&node).to_string();
        if silence >= grace
            && let Some(changed) = conditions::silent(&node, now)
        {
            node.status.get_or_insert_default().conditions = Some(changed);
            node = api.replace_status(key, &node).await?;
            if before == "True" {
                let message = format!("Node {key} status is now: NodeNotReady");
                self.recorder.normal(&reference(&node), "NodeNotReady", message);
            }
        }
        let mark = self.unmarked.lock().judge(key, &before, conditions::ready(&node));
        let (eviction, turn) = self.eviction(&node, clock);
        if let Some(taints) = conditions::taints(&node, eviction, now) {
            let patch = json!({
                "metadata": { "resourceVersion": node.metadata.resource_version },
                "spec": { "taints": taints },
            });
            let was = conditions::evicts(&node);
            node = api.patch(key, &Patch::Merge(patch)).await?;
            if !was && conditions::evicts(&node) {
                node_metrics::count_eviction(&config.metrics, &zones::zone(&node));
            }
        }
        if mark {
            self.mark_pods_not_ready(key).await?;
            self.unmarked.lock().done(key);
        }
        node_metrics::judged(&config.metrics, self.context.env.monotonic().saturating_sub(clock));
        // A silent node has had its verdict; its next sign of life wakes us.
        let deadline = (silence < grace).then(|| grace - silence);
        Ok([deadline, turn].into_iter().flatten().min())
    }
}

impl Lifecycle {
    /// Whether the pods of this node may be sent away now, and when to ask again.
    fn eviction(&self, node: &Node, now: Duration) -> (Eviction, Option<Duration>) {
        let mut zones = self.zones.lock();
        if conditions::condition(node, "Ready").is_none_or(|c| c.status == "True") {
            return (Eviction::Follow, None);
        }
        // What we have just written counts before the watch shows it.
        zones.set(node.name(), Some(node)).wake.into_iter().for_each(|other| self.queue.add(other));
        if zones.all_disrupted() {
            return (Eviction::Withdraw, None);
        }
        if conditions::evicts(node) {
            return (Eviction::Follow, None);
        }
        match zones.admit(node.name(), now) {
            Admission::Now => (Eviction::Follow, None),
            Admission::After(wait) => (Eviction::Hold, Some(wait)),
            Admission::Never => (Eviction::Hold, None),
        }
    }

    /// Nobody on a dead node can say that its pods are not ready.
    async fn mark_pods_not_ready(&self, node: &str) -> Result<(), ApiError> {
        for pod in self.pods.by_index(indexes::NODE, node) {
            if !pods::ready(&pod) {
                continue;
            }
            let mut changed = (*pod).clone();
            let now = self.context.env.now();
            let conditions = changed.status.as_mut().and_then(|s| s.conditions.as_mut());
            for condition in conditions.into_iter().flatten().filter(|c| c.type_ == "Ready") {
                condition.status = "False".into();
                condition.last_transition_time = Some(time(now));
            }
            match self.context.client.namespaced::<Pod>(pod.namespace()).replace_status(pod.name(), &changed).await {
                Ok(_) => self.recorder.warning(&reference(&*pod), "NodeNotReady", "Node is not ready"),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_marked_when_we_declare_their_node_silent() {
        // Ready before and after our write, whether the pods are marked, and whether that works.
        let check = |found: &str, steps: &[(&str, &str, bool, bool)]| {
            let mut unmarked = NodesToMark::default();
            let conditions = json!([{ "type": "Ready", "status": found }]);
            let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": conditions } });
            unmarked.found(&serde_json::from_value(node).unwrap());
            for (before, after, expected, works) in steps {
                assert_eq!(unmarked.judge("n", before, after), *expected, "{found}, {before} to {after}");
                if *expected && *works {
                    unmarked.done("n");
                }
            }
        };
        check("True", &[("True", "True", false, true)]);
        check("True", &[("True", "Unknown", true, true), ("Unknown", "Unknown", false, true)]);
        check("True", &[("True", "Unknown", true, false), ("Unknown", "Unknown", true, true)]);
        check(
            "True",
            &[("True", "Unknown", true, false), ("True", "True", false, true), ("False", "False", false, true)],
        );
        // What the kubelet says itself is its own business.
        check("True", &[("False", "False", false, true), ("False", "Unknown", false, true)]);
        check("False", &[("False", "False", false, true)]);
        check("Unknown", &[("Unknown", "Unknown", true, true), ("Unknown", "Unknown", false, true)]);
    }
}
