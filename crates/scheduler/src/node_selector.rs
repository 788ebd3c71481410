//! Selection of nodes by labels and names, as pods and persistent volumes write it.
//! Used by the node affinity, topology spread and volume plugins.
//! Invariant: a term that can't be read, or that is empty, matches nothing.

use std::collections::{BTreeMap, HashSet};

use api::selectors::{Operator, Requirement};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use crate::node_info::NodeInfo;

#[derive(Debug, Clone, Default)]
struct Term {
    labels: Vec<Requirement>,
    /// `metadata.name`: the value, and whether it must differ.
    names: Vec<(String, bool)>,
}

impl Term {
    fn new(term: &NodeSelectorTerm) -> Option<Self> {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        if expressions.is_empty() && fields.is_empty() {
            return None;
        }
        let labels = expressions.iter().map(requirement).collect::<Option<Vec<_>>>()?;
        let names = fields.iter().map(name).collect::<Option<Vec<_>>>()?;
        Some(Self { labels, names })
    }

    fn matches(&self, labels: &BTreeMap<String, String>, name: &str) -> bool {
        self.names.iter().all(|(wanted, differs)| (wanted == name) != *differs)
            && self.labels.iter().all(|r| r.matches(labels))
    }

    /// The one name that can match, if the term says so.
    fn exact_name(&self) -> Option<&str> {
        self.names.iter().find(|(_, differs)| !differs).map(|(name, _)| name.as_str())
    }
}

fn requirement(expression: &NodeSelectorRequirement) -> Option<Requirement> {
    let operator = match expression.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return None,
    };
    Requirement::new(&expression.key, operator, expression.values.clone().unwrap_or_default()).ok()
}

fn name(field: &NodeSelectorRequirement) -> Option<(String, bool)> {
    let [value] = field.values.as_deref()? else { return None };
    match (field.key.as_str(), field.operator.as_str()) {
        ("metadata.name", "In") => Some((value.clone(), false)),
        ("metadata.name", "NotIn") => Some((value.clone(), true)),
        _ => None,
    }
}

/// Any term may match. Made once, asked for many nodes.
#[derive(Debug, Clone, Default)]
pub struct NodeTerms(Vec<Term>);

impl NodeTerms {
    pub fn new(selector: &NodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().filter_map(Term::new).collect())
    }

    pub fn of_term(term: &NodeSelectorTerm) -> Self {
        Self(Term::new(term).into_iter().collect())
    }

    pub fn matches(&self, node: &NodeInfo) -> bool {
        self.0.iter().any(|term| term.matches(node.labels(), &node.name))
    }
}

/// `spec.nodeSelector` and the required part of `spec.affinity.nodeAffinity` together.
#[derive(Debug, Clone, Default)]
pub struct RequiredNodes {
    labels: BTreeMap<String, String>,
    terms: Option<NodeTerms>,
}

impl RequiredNodes {
    pub fn of(spec: Option<&PodSpec>) -> Self {
        let affinity = spec.and_then(|s| s.affinity.as_ref()).and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            labels: spec.and_then(|s| s.node_selector.clone()).unwrap_or_default(),
            terms: required.map(NodeTerms::new),
        }
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.terms.is_none()
    }

    pub fn matches(&self, node: &NodeInfo) -> bool {
        self.labels.iter().all(|(key, value)| node.label(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| terms.matches(node))
    }

    /// The only names that can match, when every term gives one.
    pub fn exact_names(&self) -> Option<HashSet<String>> {
        let terms = self.terms.as_ref().filter(|terms| !terms.0.is_empty())?;
        terms.0.iter().map(|term| term.exact_name().map(str::to_string)).collect()
    }
}
