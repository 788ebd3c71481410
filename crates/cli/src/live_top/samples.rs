//! What was measured of nodes and containers, and how it went before.
//! Fed by the verb with the items of the metrics API; drawn by the frame.
//! A history holds at most `HISTORY_MAX` measurements.

use std::collections::{BTreeMap, VecDeque};

use api::quantity::Quantity;
use serde_json::Value;

use crate::describe::fields::{list, name, namespace, string};

/// Measurements that are kept of each series.
const HISTORY_MAX: usize = 120;

/// The last measurements of one thing, oldest first.
#[derive(Debug, Clone, Default)]
pub struct History(VecDeque<f64>);

impl History {
    fn push(&mut self, value: f64) {
        if self.0.len() == HISTORY_MAX {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    pub fn last(&self) -> f64 {
        self.0.back().copied().unwrap_or(0.0)
    }

    pub fn recent(&self, count: usize) -> Vec<f64> {
        self.0.iter().skip(self.0.len().saturating_sub(count)).copied().collect()
    }

    /// The sum, measurement by measurement from the newest back.
    fn add(&mut self, other: &History) {
        while self.0.len() < other.0.len() {
            self.0.push_front(0.0);
        }
        let behind = self.0.len() - other.0.len();
        for (own, value) in self.0.iter_mut().skip(behind).zip(&other.0) {
            *own += value;
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Cores.
    pub cpu: History,
    /// Bytes.
    pub memory: History,
}

impl Usage {
    fn push(&mut self, usage: &Value) {
        self.cpu.push(amount(&usage["cpu"]));
        self.memory.push(amount(&usage["memory"]));
    }
}

#[derive(Debug, Clone, Default)]
pub struct NodeUsage {
    pub cpu: History,
    pub memory: History,
    pub cpu_allocatable: f64,
    pub memory_allocatable: f64,
}

fn amount(value: &Value) -> f64 {
    Quantity::from_value(value).map_or(0.0, |quantity| quantity.as_f64())
}

#[derive(Debug, Default)]
pub struct Samples {
    pub nodes: BTreeMap<String, NodeUsage>,
    /// By `namespace/pod` and container.
    pods: BTreeMap<String, BTreeMap<String, Usage>>,
    allocatable: BTreeMap<String, (f64, f64)>,
}

impl Samples {
    /// What nodes can give, from the nodes themselves.
    pub fn set_allocatable(&mut self, nodes: &[Value]) {
        let of = |node: &Value| {
            let allocatable = &node["status"]["allocatable"];
            (name(node).to_string(), (amount(&allocatable["cpu"]), amount(&allocatable["memory"])))
        };
        self.allocatable = nodes.iter().map(of).collect();
    }

    /// One round of measurements; what is no longer measured is forgotten.
    pub fn add(&mut self, nodes: &[Value], pods: &[Value]) {
        self.nodes.retain(|own, _| nodes.iter().any(|node| name(node) == own));
        for node in nodes {
            let known = self.nodes.entry(name(node).to_string()).or_default();
            known.cpu.push(amount(&node["usage"]["cpu"]));
            known.memory.push(amount(&node["usage"]["memory"]));
            if let Some((cpu, memory)) = self.allocatable.get(name(node)) {
                (known.cpu_allocatable, known.memory_allocatable) = (*cpu, *memory);
            }
        }
        let key = |pod: &Value| format!("{}/{}", namespace(pod), name(pod));
        let keys: Vec<String> = pods.iter().map(key).collect();
        self.pods.retain(|own, _| keys.contains(own));
        for (pod, key) in pods.iter().zip(keys) {
            let known = self.pods.entry(key).or_default();
            let containers = list(&pod["containers"]);
            known.retain(|own, _| containers.iter().any(|container| string(&container["name"]) == own));
            for container in containers {
                known.entry(string(&container["name"]).to_string()).or_default().push(&container["usage"]);
            }
        }
    }

    /// Use by pod, or by container of each pod.
    pub fn containers(&self, by_container: bool) -> BTreeMap<String, Usage> {
        let mut all: BTreeMap<String, Usage> = BTreeMap::new();
        for (pod, containers) in &self.pods {
            for (container, usage) in containers {
                let key = if by_container { format!("{pod}/{container}") } else { pod.clone() };
                let sum = all.entry(key).or_default();
                sum.cpu.add(&usage.cpu);
                sum.memory.add(&usage.memory);
            }
        }
        all
    }
}
