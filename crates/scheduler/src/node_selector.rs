//! Selection of nodes by labels and names, as pods and persistent volumes write it.
//! Used by the node affinity, topology spread and volume plugins; what matches is `api::placement`'s to say.
//! A term that can't be read, or that is empty, matches nothing.

use std::collections::HashSet;

use api::placement;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, PodSpec};

use crate::node_info::NodeInfo;

/// Any term may match. Made once, asked for many nodes.
#[derive(Debug, Clone, Default)]
pub struct NodeTerms(Vec<NodeSelectorTerm>);

impl NodeTerms {
    pub fn new(selector: &NodeSelector) -> Self {
        Self(selector.node_selector_terms.clone())
    }

    pub fn of_term(term: &NodeSelectorTerm) -> Self {
        Self(vec![term.clone()])
    }

    pub fn matches(&self, node: &NodeInfo) -> bool {
        self.0.iter().any(|term| placement::term_selects(term, &node.name, node.labels()))
    }
}

/// `spec.nodeSelector` and the required part of `spec.affinity.nodeAffinity` together.
#[derive(Debug, Clone, Default)]
pub struct RequiredNodes {
    /// A spec with nothing but these two.
    spec: PodSpec,
}

impl RequiredNodes {
    pub fn of(spec: Option<&PodSpec>) -> Self {
        let Some(spec) = spec else { return Self::default() };
        let mut affinity = spec.affinity.clone();
        if let Some(affinity) = &mut affinity {
            (affinity.pod_affinity, affinity.pod_anti_affinity) = (None, None);
        }
        let node_selector = spec.node_selector.clone();
        Self { spec: PodSpec { node_selector, affinity, ..PodSpec::default() } }
    }

    fn terms(&self) -> Option<&[NodeSelectorTerm]> {
        let affinity = self.spec.affinity.as_ref()?.node_affinity.as_ref()?;
        Some(&affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms)
    }

    pub fn is_everything(&self) -> bool {
        self.spec.node_selector.as_ref().is_none_or(|labels| labels.is_empty()) && self.terms().is_none()
    }

    pub fn matches(&self, node: &NodeInfo) -> bool {
        placement::selects(&self.spec, &node.name, node.labels())
    }

    /// The only names that can match, when every term gives one.
    pub fn exact_names(&self) -> Option<HashSet<String>> {
        let terms = self.terms().filter(|terms| !terms.is_empty())?;
        terms.iter().map(exact_name).collect()
    }
}

/// The one name that a term can match, if it says so.
fn exact_name(term: &NodeSelectorTerm) -> Option<String> {
    let fields = term.match_fields.iter().flatten();
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    match named.next()?.values.as_deref()? {
        [name] => Some(name.clone()),
        _ => None,
    }
}
