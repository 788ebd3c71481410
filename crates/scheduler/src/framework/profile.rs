//! A profile: the plugins of one scheduler name, by extension point and in the order in which they run.
//! Made by `config`; asked by `cycle`, `equivalence_class` and `scheduler`.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{cluster::Cluster, pod_info::PendingPod};

/// Stands for every extender in a `PluginSet`; whoever an extender refused may be helped by anything.
pub const EXTENDER_ROW: usize = 63;

/// Rows of the registry, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginSet(u64);

impl PluginSet {
    pub fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }

    pub fn contains(self, row: usize) -> bool {
        self.0 & (1 << row) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn rows(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |row| self.contains(*row))
    }
}

/// A plugin at an extension point. `row` is its place in the registry.
pub struct Enabled<P: ?Sized> {
    pub row: usize,
    pub name: &'static str,
    pub plugin: Arc<P>,
}

/// One way of scheduling, asked for by `spec.schedulerName`.
pub struct Profile {
    pub scheduler_name: String,
    /// Zero adapts to the size of the cluster.
    pub percentage_of_nodes_to_score: u32,
    pub pre_enqueue: Vec<Enabled<dyn PreEnqueuePlugin>>,
    pub queue_sort: Arc<dyn QueueSortPlugin>,
    pub pre_filter: Vec<Enabled<dyn PreFilterPlugin>>,
    pub filter: Vec<Enabled<dyn FilterPlugin>>,
    pub post_filter: Vec<Enabled<dyn PostFilterPlugin>>,
    pub pre_score: Vec<Enabled<dyn PreScorePlugin>>,
    /// With their weights.
    pub score: Vec<(Enabled<dyn ScorePlugin>, i64)>,
    pub reserve: Vec<Enabled<dyn ReservePlugin>>,
    pub permit: Vec<Enabled<dyn PermitPlugin>>,
    pub pre_bind: Vec<Enabled<dyn PreBindPlugin>>,
    pub bind: Vec<Enabled<dyn BindPlugin>>,
    pub post_bind: Vec<Enabled<dyn PostBindPlugin>>,
    /// Of the plugins that can turn a pod down.
    pub enqueue_extensions: Vec<Enabled<dyn EnqueueExtensions>>,
    /// Of the plugins at PreFilter to Score. None when one of them has no `SignPlugin`.
    pub sign: Option<Vec<Enabled<dyn SignPlugin>>>,
}

/// Whether a pod may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Until something happens that these plugins say helps.
    WaitsForEvent(PluginSet),
    /// Until the pod changes.
    Gated,
}

impl Readiness {
    /// The plugins that say which events help.
    pub fn waits_for(self) -> PluginSet {
        match self {
            Self::WaitsForEvent(plugins) => plugins,
            Self::Ready | Self::Gated => PluginSet::default(),
        }
    }
}

/// A refusal, with the row and name of the plugin it comes from.
pub type Refusal = (usize, &'static str, Status);

impl Profile {
    /// The name of a plugin that can turn a pod down.
    pub fn plugin_name(&self, row: usize) -> Option<&'static str> {
        let pre_filter = self.pre_filter.iter().map(|enabled| (enabled.row, enabled.name));
        let filter = self.filter.iter().map(|enabled| (enabled.row, enabled.name));
        let others = self.enqueue_extensions.iter().map(|enabled| (enabled.row, enabled.name));
        pre_filter.chain(filter).chain(others).find(|(of, _)| *of == row).map(|(_, name)| name)
    }

    pub fn run_pre_enqueue(&self, cluster: &Cluster, pod: &PendingPod) -> Readiness {
        let mut plugins = self.pre_enqueue.iter();
        match plugins.find(|enabled| enabled.plugin.pre_enqueue(cluster, pod).is_err()) {
            None => Readiness::Ready,
            Some(by) if self.enqueue_extensions.iter().any(|enabled| enabled.row == by.row) => {
                let mut plugins = PluginSet::default();
                plugins.insert(by.row);
                Readiness::WaitsForEvent(plugins)
            }
            Some(_) => Readiness::Gated,
        }
    }

    /// Whether a pod that these plugins turned down may do better after `event`.
    pub fn queueing_hint(
        &self,
        cluster: &Cluster,
        pod: &PendingPod,
        unschedulable_plugins: PluginSet,
        event: &ClusterEvent,
    ) -> QueueingHint {
        if unschedulable_plugins.is_empty() || unschedulable_plugins.contains(EXTENDER_ROW) {
            return QueueingHint::Queue;
        }
        let mut known = PluginSet::default();
        for enabled in self.enqueue_extensions.iter().filter(|e| unschedulable_plugins.contains(e.row)) {
            known.insert(enabled.row);
            if enabled.plugin.queueing_hint(cluster, pod, event) == QueueingHint::Queue {
                return QueueingHint::Queue;
            }
        }
        QueueingHint::queue_if(known != unschedulable_plugins)
    }

    /// The PreScore plugins that leave nothing for their Score to do.
    pub fn run_pre_score(&self, cluster: &Cluster, pod: &PendingPod, feasible: &[&NodeInfo]) -> PluginSet {
        let mut skipped = PluginSet::default();
        for enabled in &self.pre_score {
            if enabled.plugin.pre_score(cluster, pod, feasible) == PreScoreResult::Skip {
                skipped.insert(enabled.row);
            }
        }
        skipped
    }

    pub fn run_reserve(
        &self,
        state: &mut CycleState,
        cluster: &mut Cluster,
        pod: &PendingPod,
        node: &str,
    ) -> Result<(), Refusal> {
        self.reserve
            .iter()
            .try_for_each(|p| p.plugin.reserve(state, cluster, pod, node).map_err(|status| (p.row, p.name, status)))
    }

    /// In the reverse order of `run_reserve`.
    pub fn run_unreserve(&self, state: &mut CycleState, cluster: &mut Cluster, pod: &PendingPod, node: &str) {
        for enabled in self.reserve.iter().rev() {
            enabled.plugin.unreserve(state, cluster, pod, node);
        }
    }

    /// The plugins that hold the pod back, and for how long at most.
    pub fn run_permit(
        &self,
        waiting: &WaitingPods,
        cluster: &Cluster,
        pod: &PendingPod,
        node: &str,
    ) -> Result<Vec<(&'static str, Duration)>, Refusal> {
        let mut waits = Vec::new();
        for enabled in &self.permit {
            match enabled.plugin.permit(waiting, cluster, pod, node) {
                PermitResult::Allow => {}
                PermitResult::Wait(timeout) => waits.push((enabled.name, timeout)),
                PermitResult::Reject(status) => return Err((enabled.row, enabled.name, status)),
            }
        }
        Ok(waits)
    }
}
