//! Gives every node its podCIDR.
//! The core is `ranges`; the kubelet hands the range to CNI.
//! One worker, so that two nodes never race for a part; a range that is not inside the cluster's or that another node
//! has is not counted, so it keeps nobody from one and frees nobody's.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use metrics::Metrics;
use parking_lot::Mutex;
use serde_json::json;

use super::{ipam_metrics, ranges::Range};
use crate::runner::{Context, Controller, Outcome, Setup};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let nodes = setup.informer::<Node>();
    setup.on_keys(&nodes);
    let config = &setup.context.config;
    let ranges = config.cluster_cidrs.iter().map(|net| {
        let prefix = match net {
            IpNet::V4(_) => config.node_cidr_mask_size_ipv4,
            IpNet::V6(_) => config.node_cidr_mask_size_ipv6,
        };
        Range::new(*net, prefix, &config.service_cidrs)
    });
    let state = Mutex::new(State::new(ranges.collect(), config.metrics.clone()));
    let recorder = setup.context.recorder("cidrAllocator");
    Arc::new(Ipam { context: setup.context.clone(), nodes, state, recorder })
}

struct State {
    ranges: Vec<Range>,
    nodes: HashMap<String, Vec<IpNet>>,
    /// Nodes whose range is not counted.
    refused: BTreeSet<String>,
    scanned: bool,
    metrics: Metrics,
}

struct Ipam {
    context: Context,
    nodes: Informer<Node>,
    state: Mutex<State>,
    recorder: EventRecorder,
}

fn given(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.clone().unwrap_or_default();
    let nets = spec.pod_cidrs.filter(|c| !c.is_empty()).unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
    nets.iter().filter_map(|text| text.parse().ok()).collect()
}

impl State {
    fn new(ranges: Vec<Range>, metrics: Metrics) -> Self {
        let state = Self { ranges, nodes: HashMap::new(), refused: BTreeSet::new(), scanned: false, metrics };
        state.show();
        state
    }

    fn show(&self) {
        for range in &self.ranges {
            ipam_metrics::show(&self.metrics, &range.net().to_string(), range.used(), range.count());
        }
    }

    /// Counts what has been done to the ranges that these parts are of.
    fn record(&self, nets: &[IpNet], count: fn(&Metrics, &str, usize)) {
        for range in &self.ranges {
            let parts = nets.iter().filter(|net| range.contains(net)).count();
            if parts > 0 {
                count(&self.metrics, &range.net().to_string(), parts);
            }
        }
        self.show();
    }

    /// Counts the ranges as the node's. Those that can't be are told with the reason, and none is counted.
    fn occupy(&mut self, name: &str, nets: Vec<IpNet>) -> Result<(), String> {
        if let Some(problem) = nets.iter().find_map(|net| self.problem(name, net)) {
            self.release(name);
            self.refused.insert(name.to_string());
            return Err(problem);
        }
        for net in &nets {
            self.ranges.iter_mut().for_each(|range| range.occupy(net));
        }
        self.record(&nets, ipam_metrics::allocated);
        self.refused.remove(name);
        self.nodes.insert(name.to_string(), nets);
        Ok(())
    }

    fn problem(&self, name: &str, net: &IpNet) -> Option<String> {
        if !self.ranges.iter().any(|range| range.contains(net)) {
            return Some(format!("{net} is not inside the cluster's pod range"));
        }
        if !self.ranges.iter().any(|range| range.is_used(net)) {
            return None;
        }
        let others = self.nodes.iter().filter(|(other, _)| *other != name);
        let mut held = others.flat_map(|(other, nets)| nets.iter().map(move |held| (other, held)));
        let (other, held) = held.find(|(_, held)| held.contains(net) || net.contains(*held))?;
        Some(format!("{net} overlaps with {held} of node {other}"))
    }

    fn release(&mut self, name: &str) {
        self.refused.remove(name);
        let nets = self.nodes.remove(name).unwrap_or_default();
        for net in &nets {
            self.ranges.iter_mut().for_each(|range| range.release(net));
        }
        self.record(&nets, ipam_metrics::released);
    }

    /// One part of each range, or none at all.
    fn allocate(&mut self, name: &str) -> Option<Vec<IpNet>> {
        if let Some(nets) = self.nodes.get(name) {
            return Some(nets.clone());
        }
        let mut nets = Vec::new();
        for index in 0..self.ranges.len() {
            match self.ranges[index].allocate() {
                Some(net) => nets.push(net),
                None => {
                    for net in &nets {
                        self.ranges.iter_mut().for_each(|range| range.release(net));
                    }
                    return None;
                }
            }
        }
        for range in &self.ranges {
            ipam_metrics::tried(&self.metrics, &range.net().to_string(), range.in_vain);
        }
        self.record(&nets, ipam_metrics::allocated);
        self.nodes.insert(name.to_string(), nets.clone());
        Some(nets)
    }
}

impl Ipam {
    /// Counts what the nodes have, the one that was created first before the others.
    fn count(&self, state: &mut State, nodes: impl Iterator<Item = Arc<Node>>) {
        let mut nodes: Vec<_> = nodes.filter(|node| !given(node).is_empty()).collect();
        nodes.sort_by_key(|node| {
            let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, node.metadata.name.clone())
        });
        for node in nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            if let Err(problem) = state.occupy(name, given(&node)) {
                self.tell(&node, &problem);
            }
        }
    }

    fn tell(&self, node: &Node, problem: &str) {
        let message = format!("podCIDR {problem}: no other node routes to it; delete the Node to get another");
        self.recorder.warning(&reference(node), "CIDRNotAllowed", message);
    }

    /// What the node is to be given; none when it has its part, or needs none. The inner: no part is left.
    fn missing(&self, key: &str) -> Option<Option<Vec<IpNet>>> {
        let mut state = self.state.lock();
        if state.ranges.is_empty() {
            return None;
        }
        if !state.scanned {
            // Before the first part is handed out, every part that is in use must be known.
            self.count(&mut state, self.nodes.list().into_iter());
            state.scanned = true;
        }
        let Some(node) = self.nodes.get(key) else {
            state.release(key);
            // A range that was not counted because of this node may be free now, and goes before new parts.
            let waiting: Vec<_> = state.refused.iter().filter_map(|name| self.nodes.get(name)).collect();
            self.count(&mut state, waiting.into_iter());
            return None;
        };
        let nets = given(&node);
        if nets.is_empty() {
            return Some(state.allocate(key));
        }
        if state.nodes.get(key) != Some(&nets) {
            let known = state.refused.contains(key);
            state.release(key);
            match state.occupy(key, nets) {
                Err(problem) if !known => self.tell(&node, &problem),
                _ => {}
            }
        }
        None
    }
}

#[async_trait]
impl Controller for Ipam {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(nets) = self.missing(key) else { return Ok(None) };
        let Some(node) = self.nodes.get(key) else { return Ok(None) };
        let Some(nets) = nets else {
            let message = format!("Node {key} status is now: CIDRNotAvailable");
            self.recorder.normal(&reference(&*node), "CIDRNotAvailable", message);
            return Err(api::ApiError::internal(format!("no range of pod addresses is left for node {key}")));
        };
        let nets: Vec<String> = nets.iter().map(IpNet::to_string).collect();
        let patch =
            json!({ "metadata": { "uid": node.metadata.uid }, "spec": { "podCIDR": nets[0], "podCIDRs": nets } });
        match self.context.client.api::<Node>().patch(key, &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_not_the_clusters_or_another_nodes_is_not_counted() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let ranges = vec![Range::new(net("10.42.0.0/22"), 24, &[])];
        let metrics = Metrics::default();
        let mut state = State::new(ranges, metrics.clone());
        state.scanned = true;
        assert_eq!(state.occupy("a", vec![net("10.42.0.0/24")]), Ok(()));
        for (range, why) in [
            ("0.0.0.0/0", "0.0.0.0/0 is not inside the cluster's pod range"),
            ("10.0.0.0/8", "10.0.0.0/8 is not inside the cluster's pod range"),
            ("192.0.2.0/24", "192.0.2.0/24 is not inside the cluster's pod range"),
            ("10.42.0.0/24", "10.42.0.0/24 overlaps with 10.42.0.0/24 of node a"),
            ("10.42.0.128/25", "10.42.0.128/25 overlaps with 10.42.0.0/24 of node a"),
            ("10.42.0.0/23", "10.42.0.0/23 overlaps with 10.42.0.0/24 of node a"),
        ] {
            assert_eq!(state.occupy("evil", vec![net(range)]), Err(why.to_string()));
        }
        // It keeps nobody from a part, and its end frees nobody's.
        assert_eq!(state.allocate("b"), Some(vec![net("10.42.1.0/24")]));
        state.release("evil");
        assert_eq!(state.allocate("c"), Some(vec![net("10.42.2.0/24")]));
        assert_eq!(state.allocate("d"), Some(vec![net("10.42.3.0/24")]));
        assert_eq!(state.allocate("e"), None);
        state.release("d");
        for line in [
            "cirdset_max_cidrs{clusterCIDR=\"10.42.0.0/22\"} 4",
            "cidrset_usage_cidrs{clusterCIDR=\"10.42.0.0/22\"} 0.75",
            "cidrset_cidrs_allocations_total{clusterCIDR=\"10.42.0.0/22\"} 4",
            "cidrset_cidrs_releases_total{clusterCIDR=\"10.42.0.0/22\"} 1",
            "cidrset_allocation_tries_per_request_count{clusterCIDR=\"10.42.0.0/22\"} 3",
        ] {
            assert!(metrics.page().contains(line), "{line}\n{}", metrics.page());
        }
    }
}
