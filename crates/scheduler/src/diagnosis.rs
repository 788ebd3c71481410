//! Why a pod was not scheduled: the verdict per node, grouped by reason, and the message that users see.
//! Made by `cycle`; told by `scheduler` in conditions and events; kept here for whoever asks.
//! Bounded in number; the oldest goes first.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::framework::{PluginSet, Status};

/// Pods whose last verdicts are kept.
const DIAGNOSES_MAX: usize = 256;

/// Nodes that one plugin turned down for the same reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedNodes {
    pub plugin: &'static str,
    pub reasons: Vec<Cow<'static, str>>,
    pub nodes: Vec<Arc<str>>,
    pub resolvable: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    pub all_nodes: usize,
    pub groups: Vec<RejectedNodes>,
    /// Nodes left out because a plugin wanted only certain ones, and the plugins that did.
    pub left_out: usize,
    pub left_out_by: Vec<&'static str>,
    /// The whole cluster was turned down before any node was looked at.
    pub pre_filter_message: Option<String>,
    pub unschedulable_plugins: PluginSet,
    /// What went wrong while nodes were looked at: no verdict on any of them counts then.
    pub error: Option<String>,
    /// What came of preemption.
    pub post_filter_message: String,
    by_status: HashMap<(usize, Status), usize>,
}

impl Diagnosis {
    pub fn new(all_nodes: usize) -> Self {
        Self { all_nodes, ..Self::default() }
    }

    pub fn reject_node(&mut self, row: usize, plugin: &'static str, node: Arc<str>, status: Status) {
        self.unschedulable_plugins.insert(row);
        let at = match self.by_status.get(&(row, status.clone())) {
            Some(at) => *at,
            None => {
                let (reasons, resolvable) = (status.reasons.clone(), status.is_resolvable());
                self.groups.push(RejectedNodes { plugin, reasons, nodes: Vec::new(), resolvable });
                self.by_status.insert((row, status), self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[at].nodes.push(node);
    }

    /// The verdict on one node, if it was looked at and turned down.
    pub fn verdict(&self, node: &str) -> Option<&RejectedNodes> {
        self.groups.iter().find(|group| group.nodes.iter().any(|name| **name == *node))
    }

    /// Everything, for whoever asks about the pod: the message, and each node with the plugin that refused it and why.
    pub fn report(&self) -> Value {
        let verdicts = self.groups.iter().flat_map(|group| {
            group.nodes.iter().map(move |node| {
                let (reasons, preemptible) = (&group.reasons, group.resolvable);
                (node.to_string(), json!({ "plugin": group.plugin, "reasons": reasons, "preemptible": preemptible }))
            })
        });
        json!({ "message": self.message(), "nodes": Value::Object(verdicts.collect()) })
    }

    /// In upstream's words, with counts by reason.
    pub fn message(&self) -> String {
        if self.all_nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        let mut message = format!("0/{} nodes are available:", self.all_nodes);
        match &self.pre_filter_message {
            Some(text) => message.push_str(&format!(" {text}.")),
            None => {
                let counted = self.groups.iter().flat_map(|g| g.reasons.iter().map(|r| (r.to_string(), g.nodes.len())));
                let left_out = format!("node(s) didn't satisfy plugin(s) {}", bracketed(&self.left_out_by));
                let left_out = (self.left_out > 0).then_some((left_out, self.left_out));
                if let Some(counts) = histogram(counted.chain(left_out)) {
                    message.push_str(&format!(" {counts}."));
                }
            }
        }
        if !self.post_filter_message.is_empty() {
            message.push(' ');
            message.push_str(&self.post_filter_message);
        }
        message
    }
}

fn bracketed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

/// `1 this, 2 that`, sorted as text; `None` of nothing.
pub fn histogram(counted: impl Iterator<Item = (String, usize)>) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (reason, count) in counted {
        *counts.entry(reason).or_default() += count;
    }
    let mut texts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    texts.sort();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// The last verdicts on unschedulable pods, by `namespace/name`. Cheap to clone; all clones share.
#[derive(Clone, Default)]
pub struct Diagnoses(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    by_pod: HashMap<String, Arc<Diagnosis>>,
    oldest_first: VecDeque<String>,
}

impl Diagnoses {
    pub fn get(&self, pod: &str) -> Option<Arc<Diagnosis>> {
        self.0.lock().by_pod.get(pod).cloned()
    }

    pub(crate) fn keep(&self, pod: &str, diagnosis: Arc<Diagnosis>) {
        let mut kept = self.0.lock();
        if kept.by_pod.insert(pod.to_string(), diagnosis).is_none() {
            kept.oldest_first.push_back(pod.to_string());
        }
        while kept.oldest_first.len() > DIAGNOSES_MAX {
            if let Some(oldest) = kept.oldest_first.pop_front() {
                kept.by_pod.remove(&oldest);
            }
        }
    }

    pub(crate) fn forget(&self, pod: &str) {
        let mut kept = self.0.lock();
        if kept.by_pod.remove(pod).is_some() {
            kept.oldest_first.retain(|key| key != pod);
        }
    }
}

impl std::fmt::Debug for Diagnoses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Diagnoses({})", self.0.lock().by_pod.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;

    #[test]
    fn the_message_counts_by_reason() {
        let mut diagnosis = Diagnosis::new(4);
        diagnosis.reject_node(2, "A", "n1".into(), Status::unschedulable("Insufficient cpu"));
        diagnosis.reject_node(3, "B", "n2".into(), Status::unresolvable("node(s) were unschedulable"));
        diagnosis.reject_node(3, "B", "n3".into(), Status::unresolvable("node(s) were unschedulable"));
        let reasons = vec!["Insufficient cpu".into(), "Too many pods".into()];
        let both = Status { code: Code::Unschedulable, reasons };
        diagnosis.reject_node(2, "A", "n4".into(), both);
        diagnosis.post_filter_message = "preemption: nothing.".into();
        assert_eq!(
            diagnosis.message(),
            "0/4 nodes are available: 1 Too many pods, 2 Insufficient cpu, 2 node(s) were unschedulable. preemption: nothing."
        );
        assert_eq!(diagnosis.verdict("n3").map(|g| g.plugin), Some("B"));
        assert_eq!(diagnosis.verdict("n5"), None);
        let report = diagnosis.report();
        assert_eq!(report["message"], diagnosis.message());
        let refused = json!({ "plugin": "A", "reasons": ["Insufficient cpu"], "preemptible": true });
        assert_eq!((&report["nodes"]["n1"], report["nodes"].as_object().unwrap().len()), (&refused, 4));
        assert_eq!(Diagnosis::new(0).message(), "no nodes available to schedule pods");
    }

    #[test]
    fn the_oldest_verdicts_go_first() {
        let kept = Diagnoses::default();
        for pod in 0..=DIAGNOSES_MAX {
            kept.keep(&pod.to_string(), Arc::new(Diagnosis::new(1)));
        }
        assert!(kept.get("0").is_none() && kept.get("1").is_some());
    }
}
