//! The core: which replica sets to make, scale and delete for one deployment, and its status.
//! Called by the controller beside it with claimed sets; the arithmetic is in `sets`, the conditions in `status`.
//! A plan never lets the pods exceed replicas + maxSurge or the available ones fall below the minimum.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{sets::*, status::Conditions};
use crate::common::{meta::Object, pods};

pub struct Input<'a> {
    pub deployment: &'a Deployment,
    pub sets: &'a [Arc<ReplicaSet>],
    /// Every pod of those sets, finished and terminating ones too.
    pub pods: &'a [Arc<Pod>],
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Create(Box<ReplicaSet>),
    /// New annotations or minReadySeconds, the same size.
    Update(Box<ReplicaSet>),
    Scale {
        set: Box<ReplicaSet>,
        from: i32,
        to: i32,
    },
    Delete(Box<ReplicaSet>),
    SetRevision(String),
    UpdateStatus(DeploymentStatus),
}

#[derive(Debug, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub again: Option<Duration>,
}

struct Planner<'a> {
    input: &'a Input<'a>,
    deployment: &'a Deployment,
    new: Option<ReplicaSet>,
    old: Vec<ReplicaSet>,
    conditions: Conditions,
    actions: Vec<Action>,
}

pub fn plan(input: &Input) -> Plan {
    let deployment = input.deployment;
    let (new, old) = split(deployment, input.sets);
    let conditions = Conditions::new(deployment, input.now);
    let mut planner = Planner { input, deployment, new, old, conditions, actions: Vec::new() };
    if deployment.deleting() {
        return planner.finish(false);
    }
    planner.conditions.note_pause();
    let paused = deployment.spec.as_ref().and_then(|s| s.paused) == Some(true);
    if paused || planner.was_scaled() {
        planner.sync_revision(false);
        planner.scale_whole();
        if paused {
            planner.clean_up();
        }
        return planner.finish(false);
    }
    if rolling(deployment) {
        planner.roll()
    } else {
        planner.recreate()
    }
    planner.finish(true)
}

/// Where shares would leave fewer than `least` available pods, others go that are not available, in whichever set.
fn spare_the_available(sets: &[&ReplicaSet], sizes: &mut [(String, i32)], least: i32) {
    let mut spare = (sets.iter().map(|set| available(set)).sum::<i32>() - least).max(0);
    let mut left = 0;
    for (set, (_, size)) in sets.iter().zip(&mut *sizes) {
        let lost = (available(set) - *size).max(0);
        let kept = lost - lost.min(spare);
        spare -= lost - kept;
        *size += kept;
        left += kept;
    }
    for (set, (_, size)) in sets.iter().zip(sizes) {
        let less = (*size - available(set)).clamp(0, left);
        *size -= less;
        left -= less;
    }
}

impl Planner<'_> {
    fn all(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old.iter().chain(&self.new)
    }

    /// Recreating brings several sets down anyway; a share for each is only defined for rolling updates.
    fn was_scaled(&self) -> bool {
        let wanted = wanted(self.deployment);
        if !rolling(self.deployment) && self.all().filter(|set| replicas(set) > 0).count() > 1 {
            return false;
        }
        self.all()
            .any(|set| replicas(set) > 0 && number(set, DESIRED_REPLICAS).is_some_and(|desired| desired != wanted))
    }

    /// Brings the new set up to date; makes it where `create`.
    fn sync_revision(&mut self, create: bool) {
        let next = self.old.iter().map(revision).max().unwrap_or(0) + 1;
        let spec = spec(self.deployment);
        if let Some(mut set) = self.new.take() {
            let before = set.clone();
            set_annotations(&mut set, self.deployment, next, true);
            if let Some(set_spec) = &mut set.spec
                && set_spec.min_ready_seconds.unwrap_or(0) != spec.min_ready_seconds.unwrap_or(0)
            {
                set_spec.min_ready_seconds = spec.min_ready_seconds;
            }
            if set != before {
                self.actions.push(Action::Update(Box::new(set.clone())));
            }
            self.set_revision(set.annotation(REVISION));
            self.conditions.found(set.name());
            self.new = Some(set);
        } else if create {
            let set = self.make_set(next);
            self.set_revision(set.annotation(REVISION));
            self.conditions.created(set.name());
            self.actions.push(Action::Create(Box::new(set.clone())));
            self.new = Some(set);
        }
    }

    fn set_revision(&mut self, revision: Option<&str>) {
        if let Some(revision) = revision.filter(|r| self.deployment.annotation(REVISION) != Some(*r)) {
            self.actions.push(Action::SetRevision(revision.to_string()));
        }
    }

    fn make_set(&self, revision: i64) -> ReplicaSet {
        let spec = spec(self.deployment);
        let collisions = self.deployment.status.as_ref().and_then(|s| s.collision_count);
        let hash = template_hash(&spec.template, collisions);
        let mut template = spec.template.clone();
        let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.insert(HASH_LABEL.into(), hash.clone());
        let labels = labels.clone();
        let mut selector = spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.clone());
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{}-{hash}", self.deployment.name())),
                namespace: self.deployment.metadata.namespace.clone(),
                labels: Some(labels),
                owner_references: Some(vec![self.deployment.as_controller()]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(new_set_size(self.deployment, total(self.all()), 0)),
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        set_annotations(&mut set, self.deployment, revision, false);
        set_size_annotations(&mut set, self.deployment);
        set
    }

    /// Scales one set, by its name; the size annotations follow even where the size stays.
    fn scale(&mut self, name: &str, to: i32) -> bool {
        let deployment = self.deployment;
        let Some(set) = self.old.iter_mut().chain(&mut self.new).find(|set| set.name() == name) else { return false };
        let (from, before) = (replicas(set), set.metadata.annotations.clone());
        if let Some(spec) = &mut set.spec {
            spec.replicas = Some(to);
        }
        set_size_annotations(set, deployment);
        let resized = from != to;
        if resized {
            self.actions.push(Action::Scale { set: Box::new(set.clone()), from, to });
        } else if set.metadata.annotations != before {
            self.actions.push(Action::Update(Box::new(set.clone())));
        }
        resized
    }

    fn names(sets: &[ReplicaSet], keep: impl Fn(&ReplicaSet) -> bool) -> Vec<String> {
        sets.iter().filter(|set| keep(set)).map(|set| set.name().to_string()).collect()
    }

    /// The deployment was scaled (or is paused): spread the change over the sets that have pods.
    fn scale_whole(&mut self) {
        let wanted = wanted(self.deployment);
        let active: Vec<&ReplicaSet> = self.all().filter(|set| replicas(set) > 0).collect();
        let only = match active.as_slice() {
            [] => self.new.as_ref().or(self.old.iter().max_by_key(|set| revision(set))),
            [one] => Some(*one),
            _ => None,
        };
        if let Some(name) = only.map(|set| set.name().to_string()) {
            self.scale(&name, wanted);
            return;
        }
        if active.is_empty() {
            return;
        }
        if self.saturated() {
            self.scale_down_old();
            return;
        }
        if rolling(self.deployment) {
            self.scale_in_proportion();
        }
    }

    fn saturated(&self) -> bool {
        let wanted = wanted(self.deployment);
        self.new.as_ref().is_some_and(|set| {
            replicas(set) == wanted && number(set, DESIRED_REPLICAS) == Some(wanted) && available(set) == wanted
        })
    }

    fn scale_in_proportion(&mut self) {
        let wanted = wanted(self.deployment);
        let mut active: Vec<&ReplicaSet> = self.all().filter(|set| replicas(set) > 0).collect();
        let limit = if wanted > 0 { wanted + max_surge(self.deployment) } else { 0 };
        let to_add = limit - total(active.iter().copied());
        by_size(&mut active, to_add > 0);
        let mut added = 0;
        let mut sizes: Vec<(String, i32)> = active
            .iter()
            .map(|set| {
                let share = proportion(set, self.deployment, to_add, added);
                added += share;
                (set.name().to_string(), replicas(set) + share)
            })
            .collect();
        if let Some((_, size)) = sizes.first_mut() {
            *size = (*size + to_add - added).max(0);
        }
        if to_add < 0 {
            spare_the_available(&active, &mut sizes, wanted - max_unavailable(self.deployment));
        }
        for (name, size) in sizes {
            self.scale(&name, size);
        }
    }

    fn scale_down_old(&mut self) -> bool {
        let names = Self::names(&self.old, |set| replicas(set) > 0);
        // All of them, not only the first that changes.
        names.iter().filter(|name| self.scale(name, 0)).count() > 0
    }

    fn roll(&mut self) {
        self.sync_revision(true);
        let Some(new) = &self.new else { return };
        let (name, size, wanted) = (new.name().to_string(), replicas(new), wanted(self.deployment));
        let to = if size > wanted { wanted } else { new_set_size(self.deployment, total(self.all()), size) };
        if to != size {
            self.scale(&name, to);
            return;
        }
        if self.shrink_old() {
            return;
        }
        self.clean_up_when_complete();
    }

    /// Takes unhealthy old pods away first, then as many healthy ones as availability allows.
    fn shrink_old(&mut self) -> bool {
        let Some(new) = &self.new else { return false };
        if total(&self.old) == 0 {
            return false;
        }
        let minimum = wanted(self.deployment) - max_unavailable(self.deployment);
        let new_unavailable = replicas(new) - available(new);
        let mut room = total(self.all()) - minimum - new_unavailable;
        if room <= 0 {
            return false;
        }
        let mut scaled = false;
        for index in 0..self.old.len() {
            let set = &self.old[index];
            let (name, size) = (set.name().to_string(), replicas(set));
            let less = (size - available(set)).min(room).max(0);
            if less > 0 {
                room -= less;
                scaled |= self.scale(&name, size - less);
            }
        }
        let mut spare = self.all().map(available).sum::<i32>() - minimum;
        for index in 0..self.old.len() {
            let set = &self.old[index];
            let (name, size) = (set.name().to_string(), replicas(set));
            let less = size.min(spare).max(0);
            if less > 0 {
                spare -= less;
                scaled |= self.scale(&name, size - less);
            }
        }
        scaled
    }

    fn recreate(&mut self) {
        self.sync_revision(false);
        if self.scale_down_old() || self.old_pods_remain() {
            return;
        }
        if self.new.is_none() {
            self.sync_revision(true);
        }
        let name = self.new.as_ref().map(|set| set.name().to_string()).unwrap_or_default();
        self.scale(&name, wanted(self.deployment));
        self.clean_up_when_complete();
    }

    fn old_pods_remain(&self) -> bool {
        let new = self.new.as_ref().map(|set| set.uid());
        self.input.pods.iter().any(|pod| !pods::finished(pod) && pod.controller().map(|o| o.uid.as_str()) != new)
    }

    fn clean_up_when_complete(&mut self) {
        if self.conditions.complete(&self.observed_status()) {
            self.clean_up();
        }
    }

    /// Deletes the oldest empty sets beyond the history limit.
    fn clean_up(&mut self) {
        let limit = self.deployment.spec.as_ref().and_then(|s| s.revision_history_limit);
        let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else { return };
        let mut old: Vec<_> = self.old.iter().filter(|set| !set.deleting()).cloned().collect();
        let surplus = old.len().saturating_sub(limit.max(0) as usize);
        old.sort_by_key(|set| (revision(set), set.created()));
        for set in old.into_iter().take(surplus) {
            let status = set.status.clone().unwrap_or_default();
            let settled = set.meta().generation.unwrap_or(0) <= status.observed_generation.unwrap_or(0);
            if status.replicas == 0 && replicas(&set) == 0 && settled {
                self.actions.push(Action::Delete(Box::new(set)));
            }
        }
    }

    fn observed_status(&self) -> DeploymentStatus {
        self.conditions.observed(self.new.as_ref(), &self.old)
    }

    fn finish(mut self, rollout: bool) -> Plan {
        let mut status = self.observed_status();
        let again = if rollout { self.conditions.progress(&mut status, self.new.as_ref(), &self.old) } else { None };
        self.conditions.write(&mut status);
        if self.deployment.status.as_ref() != Some(&status) {
            self.actions.push(Action::UpdateStatus(status));
        }
        Plan { actions: self.actions, again }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
