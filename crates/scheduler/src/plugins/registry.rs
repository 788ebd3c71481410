//! THE TABLE of plugins: name, default weight, arguments, and how to build one. A new plugin is a file and a row.
//! Read by `config` to make profiles. Which extension points a plugin takes part in, its `new` says.
//! In this order plugins run unless a configuration says otherwise; it is upstream's default order.

use api::field::{ErrorList, Path};
use serde_json::Value;

use super::*;
use crate::{
    config::plugin_args,
    framework::{EXTENDER_ROW, Plugin},
};

/// Says everything that is wrong with a plugin's arguments, with paths below the given one.
pub type ArgumentsCheck = fn(&mut ErrorList, &Value, &Path);

#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    /// From `pluginConfig` arguments.
    pub new: fn(&Value) -> Result<Plugin, String>,
    /// Of its score, unless the configuration gives another.
    pub weight: i64,
    /// Names that its `pluginConfig` arguments may have.
    pub arguments: &'static [&'static str],
    pub check_arguments: Option<ArgumentsCheck>,
}

impl Row {
    pub const fn new(name: &'static str, new: fn(&Value) -> Result<Plugin, String>) -> Self {
        Self { name, new, weight: 1, arguments: &[], check_arguments: None }
    }

    const fn weight(self, weight: i64) -> Self {
        Self { weight, ..self }
    }

    const fn arguments(self, arguments: &'static [&'static str]) -> Self {
        Self { arguments, ..self }
    }

    const fn check(self, check: ArgumentsCheck) -> Self {
        Self { check_arguments: Some(check), ..self }
    }

    /// An argument that the plugin doesn't have is an error.
    pub fn check_names(&self, arguments: &Value) -> Result<(), String> {
        let given = match arguments {
            Value::Null => return Ok(()),
            Value::Object(given) => given,
            other => return Err(format!(": expected an object, found {other}")),
        };
        let is_known = |name: &str| matches!(name, "apiVersion" | "kind") || self.arguments.contains(&name);
        match given.keys().find(|name| !is_known(name)) {
            Some(name) => Err(format!(": strict decoding error: unknown field {name:?}")),
            None => Ok(()),
        }
    }
}

const IN_TREE: &[Row] = &[
    Row::new("SchedulingGates", scheduling_gates::new),
    Row::new("PrioritySort", priority_sort::new),
    Row::new("NodeUnschedulable", node_unschedulable::new),
    Row::new("NodeName", node_name::new),
    Row::new("TaintToleration", taint_toleration::new).weight(3),
    Row::new("NodeAffinity", node_affinity::new)
        .weight(2)
        .arguments(&["addedAffinity"])
        .check(plugin_args::node_affinity),
    Row::new("NodePorts", node_ports::new),
    Row::new("NodeResourcesFit", node_resources_fit::new)
        .arguments(&["ignoredResources", "ignoredResourceGroups", "scoringStrategy"])
        .check(plugin_args::node_resources_fit),
    Row::new("VolumeRestrictions", volume_restrictions::new),
    Row::new("NodeVolumeLimits", node_volume_limits::new),
    Row::new("VolumeBinding", volume_binding::new).arguments(&["bindTimeoutSeconds", "shape"]),
    Row::new("VolumeZone", volume_zone::new),
    Row::new("PodTopologySpread", pod_topology_spread::new)
        .weight(2)
        .arguments(&["defaultConstraints", "defaultingType"])
        .check(plugin_args::pod_topology_spread),
    Row::new("InterPodAffinity", inter_pod_affinity::new)
        .weight(2)
        .arguments(&["hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"])
        .check(plugin_args::inter_pod_affinity),
    Row::new(dynamic_resources::NAME, dynamic_resources::new)
        .weight(2)
        .arguments(&["filterTimeout", "bindingTimeout"])
        .check(dynamic_resources::check_arguments),
    Row::new("DefaultPreemption", default_preemption::new)
        .arguments(&["minCandidateNodesPercentage", "minCandidateNodesAbsolute"]),
    Row::new("NodeResourcesBalancedAllocation", node_resources_balanced_allocation::new)
        .arguments(&["resources"])
        .check(plugin_args::balanced_allocation),
    Row::new("ImageLocality", image_locality::new),
    Row::new("DefaultBinder", default_binder::new),
];

/// The plugins that a configuration can name. Those in tree are on by default.
#[derive(Debug, Clone)]
pub struct Registry {
    rows: Vec<Row>,
    in_tree: usize,
}

impl Default for Registry {
    fn default() -> Self {
        const { assert!(IN_TREE.len() < EXTENDER_ROW) };
        Self { rows: IN_TREE.to_vec(), in_tree: IN_TREE.len() }
    }
}

impl Registry {
    /// Adds a plugin that a configuration must enable (upstream's out-of-tree plugins).
    #[cfg(test)]
    pub fn with(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Names of the plugins that are on by default, in the order in which they run.
    pub fn defaults(&self) -> impl Iterator<Item = &'static str> {
        self.rows[..self.in_tree].iter().map(|row| row.name)
    }

    pub fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}
