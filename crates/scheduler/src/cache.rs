//! Nodes with the pods on them, kept incrementally; pods that are decided but not yet bound (assumed) count already.
//! Changed by `cluster` and `scheduler`; read by `cycle`, which borrows it: nothing is copied per pod.
//! A pod counts on at most one node.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;

use crate::{
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
};

#[derive(Default)]
pub struct Cache {
    nodes: Vec<NodeInfo>,
    by_name: HashMap<Arc<str>, usize>,
    /// Node positions in the order they are looked at: zones in turn. Empty when it must be made again.
    order: Vec<u32>,
    pods: HashMap<String, Placed>,
    /// Pods on nodes that are not (or no longer) known, by node name.
    pods_of_unknown_nodes: HashMap<String, Vec<Arc<PodInfo>>>,
    /// Pods that wait for room which preemption is making, by node name.
    nominated: HashMap<String, Vec<Arc<PodInfo>>>,
    /// Pods whose nomination we have taken back, and whose versions that we know still have it.
    cleared: HashSet<String>,
    /// How many nodes hold each image.
    image_nodes: HashMap<String, u32>,
    pods_with_affinity: usize,
    pods_with_required_anti_affinity: usize,
    assumed: usize,
    /// Positions of nodes that have changed, oldest first; those before `generation` less its length are forgotten.
    changed: VecDeque<u32>,
    generation: u64,
    nominations: u64,
}

struct Placed {
    node: String,
    info: Arc<PodInfo>,
    assumed: bool,
}

impl Cache {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.by_name.get(name).map(|at| &self.nodes[*at])
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn mark_changed(&mut self, at: usize) {
        self.changed.push_back(at as u32);
        self.generation += 1;
        if self.changed.len() > 2 * self.nodes.len() + 1024 {
            self.changed.drain(..self.nodes.len() + 512);
        }
    }

    /// Counts the changes of nodes and of what is on them.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Positions of the nodes that have changed since a generation, or `None` when that is too long ago. Nodes past the
    /// end are gone; a position may now hold another node.
    pub fn changed_since(&self, generation: u64) -> Option<impl Iterator<Item = u32>> {
        let new = usize::try_from(self.generation - generation).ok()?;
        let known = self.changed.len().checked_sub(new)?;
        Some(self.changed.range(known..).copied())
    }

    /// Grows with every change, of held places too.
    pub fn version(&self) -> u64 {
        self.generation + self.nominations
    }

    /// Positions in the order nodes are looked at. Made again after the set of nodes has changed.
    pub fn prepare_order(&mut self) {
        if self.order.len() == self.nodes.len() {
            return;
        }
        let mut zones: HashMap<(&str, &str), Vec<u32>> = HashMap::new();
        let mut names = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let zone = zones.entry(node.zone()).or_insert_with(|| {
                names.push(node.zone());
                Vec::new()
            });
            zone.push(at as u32);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let turns = (0..longest).flat_map(|turn| {
            names.iter().filter_map({
                let zones = &zones;
                move |zone| zones[zone].get(turn).copied()
            })
        });
        self.order = turns.collect();
    }

    pub fn order(&self) -> &[u32] {
        &self.order
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        match self.by_name.get(name.as_str()).copied() {
            Some(at) => {
                let (zone, images) = (self.nodes[at].zone(), self.nodes[at].images.clone());
                let zone = (zone.0.to_string(), zone.1.to_string());
                let before = std::mem::replace(&mut self.nodes[at], NodeInfo::new(node));
                let same = self.nodes[at].is_like(&before);
                self.nodes[at].take_pods(before);
                if !same {
                    self.mark_changed(at);
                }
                if self.nodes[at].zone() != (zone.0.as_str(), zone.1.as_str()) {
                    self.order.clear();
                }
                let now = self.nodes[at].images.clone();
                if *now == *images {
                    self.nodes[at].images = images;
                } else {
                    self.count_images(&images, false);
                    self.count_images(&now, true);
                }
            }
            None => {
                let info = NodeInfo::new(node);
                self.count_images(&info.images.clone(), true);
                self.by_name.insert(info.name.clone(), self.nodes.len());
                self.nodes.push(info);
                self.mark_changed(self.nodes.len() - 1);
                self.order.clear();
                for pod in self.pods_of_unknown_nodes.remove(&name).unwrap_or_default() {
                    self.place(&name, pod);
                }
            }
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(at) = self.by_name.remove(name) else { return };
        let gone = self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            self.by_name.insert(moved.name.clone(), at);
        }
        self.mark_changed(at);
        self.order.clear();
        self.count_images(&gone.images, false);
        self.pods_with_affinity -= gone.pods_with_affinity;
        self.pods_with_required_anti_affinity -= gone.pods_with_required_anti_affinity;
        if !gone.pods.is_empty() {
            self.pods_of_unknown_nodes.insert(name.to_string(), gone.pods);
        }
    }

    fn count_images(&mut self, images: &HashMap<String, i64>, more: bool) {
        for name in images.keys() {
            let count = self.image_nodes.entry(name.clone()).or_default();
            if more {
                *count += 1;
            } else {
                *count -= 1;
                if *count == 0 {
                    self.image_nodes.remove(name);
                }
            }
        }
    }

    /// How many nodes hold this image.
    pub fn nodes_with_image(&self, name: &str) -> u32 {
        self.image_nodes.get(name).copied().unwrap_or(0)
    }

    /// Counts a pod on its node; an assumed pod becomes a confirmed one.
    pub fn set_pod(&mut self, info: Arc<PodInfo>) {
        if let Some(node) = info.node_name().map(str::to_string) {
            self.put(node, info, false);
        }
    }

    /// Counts a pod on a node before the server knows.
    pub fn assume(&mut self, info: Arc<PodInfo>, node: &str) {
        self.put(node.to_string(), info, true);
    }

    fn put(&mut self, node: String, info: Arc<PodInfo>, assumed: bool) {
        // Most changes of a pod are of its status, or confirm what was assumed.
        if let Some(placed) = self.pods.get_mut(&info.key)
            && placed.node == node
            && placed.info.counts_as(&info)
        {
            self.assumed -= usize::from(placed.assumed);
            self.assumed += usize::from(assumed);
            placed.assumed = assumed;
            placed.info = info.clone();
            match self.by_name.get(node.as_str()) {
                Some(at) => self.nodes[*at].replace_pod(info),
                None => self
                    .pods_of_unknown_nodes
                    .get_mut(&node)
                    .into_iter()
                    .flatten()
                    .filter(|p| p.key == info.key)
                    .for_each(|p| *p = info.clone()),
            }
            return;
        }
        self.remove_pod(&info.key);
        self.place(&node, info.clone());
        self.assumed += usize::from(assumed);
        self.pods.insert(info.key.clone(), Placed { node, info, assumed });
    }

    fn place(&mut self, node: &str, info: Arc<PodInfo>) {
        let Some(at) = self.by_name.get(node).copied() else {
            return self.pods_of_unknown_nodes.entry(node.to_string()).or_default().push(info);
        };
        self.pods_with_affinity += usize::from(info.affinity.is_some());
        self.pods_with_required_anti_affinity += usize::from(info.has_required_anti_affinity());
        self.nodes[at].add_pod(info);
        self.mark_changed(at);
    }

    pub fn remove_pod(&mut self, key: &str) -> Option<Arc<PodInfo>> {
        let placed = self.pods.remove(key)?;
        self.assumed -= usize::from(placed.assumed);
        match self.by_name.get(placed.node.as_str()).copied() {
            Some(at) => {
                self.nodes[at].remove_pod(key);
                self.mark_changed(at);
                self.pods_with_affinity -= usize::from(placed.info.affinity.is_some());
                self.pods_with_required_anti_affinity -= usize::from(placed.info.has_required_anti_affinity());
            }
            None => {
                if let Some(pods) = self.pods_of_unknown_nodes.get_mut(&placed.node) {
                    pods.retain(|p| p.key != key);
                    if pods.is_empty() {
                        self.pods_of_unknown_nodes.remove(&placed.node);
                    }
                }
            }
        }
        Some(placed.info)
    }

    /// Takes an assumed pod back; a confirmed one stays.
    pub fn forget(&mut self, key: &str, uid: &str) -> bool {
        let is_assumed = self.pods.get(key).is_some_and(|p| p.assumed && p.info.uid() == uid);
        if is_assumed {
            self.remove_pod(key);
        }
        is_assumed
    }

    pub fn pod(&self, key: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(key).map(|p| &p.info)
    }

    pub fn is_assumed(&self, key: &str) -> bool {
        self.pods.get(key).is_some_and(|p| p.assumed)
    }

    /// With those that are on their way to a node.
    pub fn pods_count(&self) -> usize {
        self.pods.len()
    }

    pub fn assumed_count(&self) -> usize {
        self.assumed
    }

    /// Whether any pod on any node has affinity terms: when none has, nobody need look.
    pub fn any_affinity(&self) -> bool {
        self.pods_with_affinity > 0
    }

    pub fn any_required_anti_affinity(&self) -> bool {
        self.pods_with_required_anti_affinity > 0
    }

    pub fn nominate(&mut self, info: Arc<PodInfo>, node: &str) {
        self.withdraw_nomination(&info.key);
        self.nominations += 1;
        self.nominated.entry(node.to_string()).or_default().push(info);
    }

    pub fn withdraw_nomination(&mut self, key: &str) {
        if self.nominated.is_empty() {
            return;
        }
        self.nominations += 1;
        self.nominated.retain(|_, pods| {
            pods.retain(|p| p.key != key);
            !pods.is_empty()
        });
    }

    /// Withdraws a nomination for good: what the pod's status says of it counts no longer, until the server has heard.
    pub fn clear_nomination(&mut self, pod: &PendingPod) {
        self.withdraw_nomination(&pod.key);
        self.nominations += 1;
        if pod.nominated_node_name().is_some() {
            self.cleared.insert(pod.key.clone());
        }
    }

    /// A version of the pod with this nomination has come, or one with none.
    pub fn nomination_seen(&mut self, pod: &PendingPod, was_nominated: bool) {
        match pod.nominated_node_name() {
            Some(node) if self.cleared.contains(&pod.key) => {
                // The server has heard of a later one of ours.
                if self.nomination(&pod.key) == Some(node) {
                    self.cleared.remove(&pod.key);
                }
            }
            Some(node) => self.nominate(pod.info(), node),
            None => {
                if !self.cleared.remove(&pod.key) && was_nominated {
                    self.withdraw_nomination(&pod.key);
                }
            }
        }
    }

    /// The pod waits no longer.
    pub fn forget_nomination(&mut self, key: &str) {
        self.cleared.remove(key);
        self.withdraw_nomination(key);
    }

    /// The node that is held for the pod, by us or by what its status says.
    pub fn nominated_node<'a>(&'a self, pod: &'a PendingPod) -> Option<&'a str> {
        let said = || pod.nominated_node_name().filter(|_| !self.cleared.contains(&pod.key));
        self.nomination(&pod.key).or_else(said)
    }

    /// Whether a place is held for a pod of this priority or a higher one.
    pub fn any_nominated_from(&self, priority: i32) -> bool {
        self.nominated.values().flatten().any(|pod| pod.priority >= priority)
    }

    pub fn nominated_on(&self, node: &str) -> &[Arc<PodInfo>] {
        if self.nominated.is_empty() {
            return &[];
        }
        self.nominated.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn nomination(&self, key: &str) -> Option<&str> {
        self.nominated.iter().find(|(_, pods)| pods.iter().any(|p| p.key == key)).map(|(node, _)| node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugins::testing::{labelled, node, requesting};

    fn set(cache: &mut Cache, node: Value) {
        cache.set_node(Arc::new(serde_json::from_value(node).unwrap()));
    }

    #[test]
    fn what_was_taken_back_is_not_believed_again() {
        let pod = |node: Option<&str>| {
            let pod = json!({"metadata": {"name": "p", "namespace": "d"}, "status": {"nominatedNodeName": node}});
            PendingPod::new(Arc::new(serde_json::from_value(pod).unwrap()))
        };
        let mut cache = Cache::default();
        let mut check = |change: &dyn Fn(&mut Cache), known: Option<&str>, expected: Option<&str>| {
            change(&mut cache);
            assert_eq!(cache.nominated_node(&pod(known)), expected);
        };
        check(&|cache| cache.nomination_seen(&pod(Some("a")), false), Some("a"), Some("a"));
        check(&|cache| cache.clear_nomination(&pod(Some("a"))), Some("a"), None);
        // A version from before the server was told.
        check(&|cache| cache.nomination_seen(&pod(Some("a")), true), Some("a"), None);
        check(&|cache| cache.nominate(pod(None).info(), "b"), Some("a"), Some("b"));
        // Our own word comes back.
        check(&|cache| cache.nomination_seen(&pod(None), true), None, Some("b"));
        check(&|cache| cache.nomination_seen(&pod(Some("b")), false), Some("b"), Some("b"));
        // Somebody else's.
        check(&|cache| cache.nomination_seen(&pod(None), true), None, None);
    }

    fn bound(node: &str) -> Arc<PodInfo> {
        let mut pod = (*requesting("500m", "1Gi").pod).clone();
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(node.into());
        }
        Arc::new(PodInfo::new(&pod))
    }

    /// Milli-CPU in use on each node, by name.
    fn check(cache: &Cache, wanted: &[(&str, i64)]) {
        let mut used: Vec<_> = cache.nodes().iter().map(|n| (&*n.name, n.requested.milli_cpu)).collect();
        used.sort();
        assert_eq!(used, wanted);
    }

    #[test]
    fn a_pod_counts_once_from_assumption_to_removal() {
        let mut cache = Cache::default();
        set(&mut cache, node("a"));
        set(&mut cache, node("b"));
        cache.assume(requesting("500m", "1Gi").info(), "a");
        check(&cache, &[("a", 500), ("b", 0)]);
        cache.set_pod(bound("a"));
        check(&cache, &[("a", 500), ("b", 0)]);
        assert!(!cache.forget("default/p", "p"), "a confirmed pod is not forgotten");
        cache.set_pod(bound("b"));
        check(&cache, &[("a", 0), ("b", 500)]);
        cache.remove_pod("default/p");
        check(&cache, &[("a", 0), ("b", 0)]);
    }

    #[test]
    fn pods_outlive_their_node() {
        let mut cache = Cache::default();
        cache.set_pod(bound("a"));
        set(&mut cache, node("a"));
        set(&mut cache, node("b"));
        check(&cache, &[("a", 500), ("b", 0)]);
        cache.remove_node("a");
        check(&cache, &[("b", 0)]);
        set(&mut cache, node("a"));
        check(&cache, &[("a", 500), ("b", 0)]);
        cache.remove_node("a");
        cache.remove_pod("default/p");
        set(&mut cache, node("a"));
        check(&cache, &[("a", 0), ("b", 0)]);
    }

    #[test]
    fn zones_take_turns() {
        let mut cache = Cache::default();
        for (name, zone) in [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3")] {
            set(&mut cache, labelled(name, &[("topology.kubernetes.io/zone", zone)]));
        }
        cache.prepare_order();
        let names: Vec<_> = cache.order().iter().map(|at| cache.nodes()[*at as usize].name.to_string()).collect();
        assert_eq!(names, ["a", "c", "d", "b"]);
    }
}
