//! A deployment's counters and conditions, with upstream's reasons and words.
//! Used by `plan`.
//! A condition's transition time moves only when its status does.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};

use super::sets::{self, available, max_unavailable, wanted};
use crate::common::{
    meta::{Object, count, time},
    pods::{after, until},
};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";

pub struct Conditions {
    deployment: Deployment,
    list: Vec<DeploymentCondition>,
    now: Timestamp,
}

impl Conditions {
    pub fn new(deployment: &Deployment, now: Timestamp) -> Self {
        let list = deployment.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        Self { deployment: deployment.clone(), list, now }
    }

    fn get(&self, kind: &str) -> Option<&DeploymentCondition> {
        self.list.iter().find(|c| c.type_ == kind)
    }

    /// Same status and reason: nothing changes, not even the times.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let old = self.get(kind);
        if old.is_some_and(|c| c.status == status && c.reason.as_deref() == Some(reason)) {
            return;
        }
        self.put(kind, status, reason, message);
    }

    fn put(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let kept = self.get(kind).filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
        self.list.retain(|c| c.type_ != kind);
        self.list.push(DeploymentCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_update_time: Some(time(self.now)),
            last_transition_time: Some(kept.unwrap_or_else(|| time(self.now))),
        });
    }

    fn deadline(&self) -> Option<Duration> {
        let seconds = self.deployment.spec.as_ref().and_then(|s| s.progress_deadline_seconds)?;
        Some(Duration::from_secs(seconds.max(0) as u64)).filter(|_| seconds != i32::MAX)
    }

    /// Tells pausing and resuming, so that the deadline does not run while paused.
    pub fn note_pause(&mut self) {
        if self.deadline().is_none() {
            return;
        }
        let reason = self.get(PROGRESSING).and_then(|c| c.reason.clone()).unwrap_or_default();
        let paused = self.deployment.spec.as_ref().and_then(|s| s.paused) == Some(true);
        match (paused, reason.as_str()) {
            (_, TIMED_OUT) | (true, "DeploymentPaused") => {}
            (true, _) => self.set(PROGRESSING, "Unknown", "DeploymentPaused", "Deployment is paused".into()),
            (false, "DeploymentPaused") => {
                self.set(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed".into());
            }
            _ => {}
        }
    }

    pub fn found(&mut self, set: &str) {
        if self.deadline().is_some() && self.get(PROGRESSING).is_none() {
            self.set(PROGRESSING, "True", "FoundNewReplicaSet", format!("Found new replica set \"{set}\""));
        }
    }

    pub fn created(&mut self, set: &str) {
        if self.deadline().is_some() {
            self.set(PROGRESSING, "True", "NewReplicaSetCreated", format!("Created new replica set \"{set}\""));
        }
    }

    pub fn failed_to_create(&mut self, message: String) {
        if self.deadline().is_some() {
            self.set(PROGRESSING, "False", "ReplicaSetCreateError", message);
        }
    }

    /// Counters from what the sets report.
    pub fn observed(&self, new: Option<&ReplicaSet>, old: &[ReplicaSet]) -> DeploymentStatus {
        let all = || old.iter().chain(new);
        let status = |set: &ReplicaSet| set.status.clone().unwrap_or_default();
        let total: i32 = all().map(|set| status(set).replicas).sum();
        let ready: i32 = all().map(|set| status(set).ready_replicas.unwrap_or(0)).sum();
        let available: i32 = all().map(available).sum();
        let count = |number: i32| count(number.max(0) as usize);
        DeploymentStatus {
            observed_generation: self.deployment.metadata.generation,
            replicas: count(total),
            updated_replicas: count(new.map_or(0, |set| status(set).replicas)),
            ready_replicas: count(ready),
            available_replicas: count(available),
            // Of those that are asked for, whether or not their pods exist already.
            unavailable_replicas: count(sets::total(all()) - available),
            collision_count: self.deployment.status.as_ref().and_then(|s| s.collision_count),
            terminating_replicas: all().map(|set| status(set).terminating_replicas).sum(),
            conditions: None,
        }
    }

    pub fn complete(&self, status: &DeploymentStatus) -> bool {
        let wanted = wanted(&self.deployment);
        let full = |number: Option<i32>| number.unwrap_or(0) == wanted;
        full(status.updated_replicas)
            && full(status.replicas)
            && full(status.available_replicas)
            && status.observed_generation >= self.deployment.metadata.generation
    }

    /// Judges the rollout; says when to look at the deadline again.
    pub fn progress(
        &mut self,
        status: &mut DeploymentStatus,
        new: Option<&ReplicaSet>,
        old: &[ReplicaSet],
    ) -> Option<Duration> {
        let Some(deadline) = self.deadline() else {
            self.list.retain(|c| c.type_ != PROGRESSING);
            self.replica_failure(new, old);
            return None;
        };
        let current = self.get(PROGRESSING).cloned();
        let reason = current.as_ref().and_then(|c| c.reason.as_deref()).unwrap_or_default();
        let settled = status.replicas == status.updated_replicas && reason == NEW_SET_AVAILABLE;
        let subject = match new {
            Some(set) => format!("ReplicaSet \"{}\"", set.name()),
            None => format!("Deployment \"{}\"", self.deployment.name()),
        };
        if !settled {
            if self.complete(status) {
                self.set(PROGRESSING, "True", NEW_SET_AVAILABLE, format!("{subject} has successfully progressed."));
            } else if self.moved(status) {
                // Every step restarts the deadline, so the update time moves even where nothing else does.
                self.put(PROGRESSING, "True", "ReplicaSetUpdated", format!("{subject} is progressing."));
            } else if self.timed_out(deadline) {
                self.set(PROGRESSING, "False", TIMED_OUT, format!("{subject} has timed out progressing."));
            }
        }
        self.replica_failure(new, old);
        self.next_check(deadline, status)
    }

    fn moved(&self, new: &DeploymentStatus) -> bool {
        let old = self.deployment.status.clone().unwrap_or_default();
        let number = |n: Option<i32>| n.unwrap_or(0);
        let left = |s: &DeploymentStatus| number(s.replicas) - number(s.updated_replicas);
        number(new.updated_replicas) > number(old.updated_replicas)
            || left(new) < left(&old)
            || number(new.ready_replicas) > number(old.ready_replicas)
            || number(new.available_replicas) > number(old.available_replicas)
    }

    fn timed_out(&self, deadline: Duration) -> bool {
        let Some(condition) = self.get(PROGRESSING) else { return false };
        match condition.reason.as_deref() {
            Some(NEW_SET_AVAILABLE) => false,
            Some(TIMED_OUT) => true,
            _ => condition.last_update_time.as_ref().is_some_and(|from| after(from.0, deadline) < self.now),
        }
    }

    fn next_check(&self, deadline: Duration, status: &DeploymentStatus) -> Option<Duration> {
        let condition = self.get(PROGRESSING)?;
        if self.complete(status) || condition.reason.as_deref() == Some(TIMED_OUT) {
            return None;
        }
        let at = after(condition.last_update_time.as_ref()?.0, deadline + Duration::from_secs(1));
        Some(until(self.now, at).max(Duration::from_secs(1)))
    }

    fn replica_failure(&mut self, new: Option<&ReplicaSet>, old: &[ReplicaSet]) {
        let failure = new.into_iter().chain(old).find_map(|set| {
            set.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == REPLICA_FAILURE).cloned()
        });
        match failure {
            Some(failure) => {
                let (reason, message) = (failure.reason.unwrap_or_default(), failure.message.unwrap_or_default());
                self.set(REPLICA_FAILURE, &failure.status, &reason, message);
            }
            None => self.list.retain(|c| c.type_ != REPLICA_FAILURE),
        }
    }

    /// Adds availability and puts the conditions into `status`.
    pub fn write(mut self, status: &mut DeploymentStatus) {
        let minimum = wanted(&self.deployment) - max_unavailable(&self.deployment);
        if status.available_replicas.unwrap_or(0) >= minimum {
            let message = "Deployment has minimum availability.".into();
            self.set(AVAILABLE, "True", "MinimumReplicasAvailable", message);
        } else {
            let message = "Deployment does not have minimum availability.".into();
            self.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message);
        }
        status.conditions = Some(self.list).filter(|list| !list.is_empty());
    }
}
