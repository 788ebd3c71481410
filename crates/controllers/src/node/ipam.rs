//! Gives every node its podCIDR.
//! The core is `ranges`; the kubelet hands the range to CNI.
//! Invariant: one worker, so that two nodes never race for a part.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use super::ranges::Range;
use crate::shell::{Context, Controller, Outcome, Setup};

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
    let state = Mutex::new(State { ranges: ranges.collect(), nodes: HashMap::new(), scanned: false });
    let recorder = setup.context.recorder("cidrAllocator");
    Arc::new(Ipam { context: setup.context.clone(), nodes, state, recorder })
}

struct State {
    ranges: Vec<Range>,
    nodes: HashMap<String, Vec<IpNet>>,
    scanned: bool,
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
    fn occupy(&mut self, name: &str, nets: Vec<IpNet>) {
        for net in &nets {
            self.ranges.iter_mut().for_each(|range| range.occupy(net));
        }
        self.nodes.insert(name.to_string(), nets);
    }

    fn release(&mut self, name: &str) {
        for net in self.nodes.remove(name).unwrap_or_default() {
            self.ranges.iter_mut().for_each(|range| range.release(&net));
        }
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
        self.nodes.insert(name.to_string(), nets.clone());
        Some(nets)
    }
}

#[async_trait]
impl Controller for Ipam {
    async fn reconcile(&self, key: &str) -> Outcome {
        let nets = {
            let mut state = self.state.lock();
            if state.ranges.is_empty() {
                return Ok(None);
            }
            if !state.scanned {
                // Before the first part is handed out, every part that is in use must be known.
                for node in self.nodes.list() {
                    let nets = given(&node);
                    if !nets.is_empty() {
                        state.occupy(node.metadata.name.as_deref().unwrap_or_default(), nets);
                    }
                }
                state.scanned = true;
            }
            let Some(node) = self.nodes.get(key) else {
                state.release(key);
                return Ok(None);
            };
            let nets = given(&node);
            if !nets.is_empty() {
                if state.nodes.get(key) != Some(&nets) {
                    state.release(key);
                    state.occupy(key, nets);
                }
                return Ok(None);
            }
            state.allocate(key)
        };
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
