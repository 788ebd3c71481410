//! THE TABLE of plugins: name, extension points, default weight and how to build one from its arguments.
//! Read by `config` to make profiles. A new plugin is a file and a row.
//! Invariant: filters run in this order, so cheap and telling ones come first.

use std::sync::Arc;

use serde_json::Value;

use super::{
    image_locality, inter_pod_affinity, node_affinity, node_name, node_ports, node_resources_balanced_allocation,
    node_resources_fit, node_unschedulable, node_volume_limits, pod_topology_spread, taint_toleration, volume_binding,
    volume_restrictions, volume_zone,
};
use crate::framework::Plugin;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    PreBind,
    Bind,
}

impl Point {
    /// As `plugins` in a KubeSchedulerConfiguration spells them.
    pub const NAMES: &[(&str, Point)] = &[
        ("preEnqueue", Point::PreEnqueue),
        ("queueSort", Point::QueueSort),
        ("preFilter", Point::PreFilter),
        ("filter", Point::Filter),
        ("postFilter", Point::PostFilter),
        ("preScore", Point::PreScore),
        ("score", Point::Score),
        ("reserve", Point::Reserve),
        ("preBind", Point::PreBind),
        ("bind", Point::Bind),
    ];
}

pub type Built = Result<Arc<dyn Plugin>, String>;

pub struct Row {
    pub name: &'static str,
    pub points: &'static [Point],
    /// Of its score, unless the configuration gives another.
    pub weight: i64,
    /// Names that its `pluginConfig` arguments may have.
    pub arguments: &'static [&'static str],
    /// From `pluginConfig` arguments. `None` for what the queue, the cycle and the binder do themselves.
    pub build: Option<fn(&Value) -> Built>,
}

use Point::*;

pub const TABLE: &[Row] = &[
    Row { name: "SchedulingGates", points: &[PreEnqueue], weight: 0, arguments: &[], build: None },
    Row { name: "PrioritySort", points: &[QueueSort], weight: 0, arguments: &[], build: None },
    Row {
        name: "NodeUnschedulable",
        points: &[Filter],
        weight: 0,
        arguments: &[],
        build: Some(node_unschedulable::build),
    },
    Row { name: "NodeName", points: &[Filter], weight: 0, arguments: &[], build: Some(node_name::build) },
    Row {
        name: "TaintToleration",
        points: &[Filter, PreScore, Score],
        weight: 3,
        arguments: &[],
        build: Some(taint_toleration::build),
    },
    Row {
        name: "NodeAffinity",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        arguments: &["addedAffinity"],
        build: Some(node_affinity::build),
    },
    Row { name: "NodePorts", points: &[PreFilter, Filter], weight: 0, arguments: &[], build: Some(node_ports::build) },
    Row {
        name: "NodeResourcesFit",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 1,
        arguments: &["ignoredResources", "ignoredResourceGroups", "scoringStrategy"],
        build: Some(node_resources_fit::build),
    },
    Row {
        name: "VolumeRestrictions",
        points: &[PreFilter, Filter],
        weight: 0,
        arguments: &[],
        build: Some(volume_restrictions::build),
    },
    Row {
        name: "NodeVolumeLimits",
        points: &[PreFilter, Filter],
        weight: 0,
        arguments: &[],
        build: Some(node_volume_limits::build),
    },
    Row {
        name: "VolumeBinding",
        points: &[PreFilter, Filter, Reserve, PreBind],
        weight: 0,
        arguments: &["bindTimeoutSeconds", "shape"],
        build: Some(volume_binding::build),
    },
    Row {
        name: "VolumeZone",
        points: &[PreFilter, Filter],
        weight: 0,
        arguments: &[],
        build: Some(volume_zone::build),
    },
    Row {
        name: "PodTopologySpread",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        arguments: &["defaultConstraints", "defaultingType"],
        build: Some(pod_topology_spread::build),
    },
    Row {
        name: "InterPodAffinity",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        arguments: &["hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"],
        build: Some(inter_pod_affinity::build),
    },
    Row {
        name: "DefaultPreemption",
        points: &[PostFilter],
        weight: 0,
        arguments: &["minCandidateNodesPercentage", "minCandidateNodesAbsolute"],
        build: None,
    },
    Row {
        name: "NodeResourcesBalancedAllocation",
        points: &[PreScore, Score],
        weight: 1,
        arguments: &["resources"],
        build: Some(node_resources_balanced_allocation::build),
    },
    Row { name: "ImageLocality", points: &[Score], weight: 1, arguments: &[], build: Some(image_locality::build) },
    Row { name: "DefaultBinder", points: &[Bind], weight: 0, arguments: &[], build: None },
];

impl Row {
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

pub fn find(name: &str) -> Option<(usize, &'static Row)> {
    TABLE.iter().enumerate().find(|(_, row)| row.name == name)
}
