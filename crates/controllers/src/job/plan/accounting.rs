//! Who has ended, and how: each pod is counted once, by its uid or by its index.
//! A part of the job's plan, which goes on from these counts; `failures` tells an index's pods from each other.
//! Nothing is let go before the status that counts it is written.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{Planner, index_of, tracked};
use crate::{
    common::{
        meta::{Object, count},
        pods,
    },
    job::{
        failures::{self, Failures},
        indexes::Indexes,
        policy::{self, Ruling},
    },
};

impl Planner<'_> {
    /// Takes finished pods into account.
    pub(super) fn count(&mut self) {
        let tracked_uids: BTreeSet<&str> = self.input.pods.iter().filter(|p| tracked(p)).map(|p| p.uid()).collect();
        let settle = |set: &mut BTreeSet<String>| {
            let before = set.len();
            set.retain(|uid| tracked_uids.contains(uid.as_str()));
            (before - set.len()) as i32
        };
        let (succeeded, failed) = (settle(&mut self.uncounted.0), settle(&mut self.uncounted.1));
        self.status.succeeded = count((self.status.succeeded.unwrap_or(0) + succeeded) as usize);
        self.status.failed = count((self.status.failed.unwrap_or(0) + failed) as usize);
        let mut failed = Vec::new();
        for pod in self.input.pods.iter().filter(|p| tracked(p)) {
            if self.uncounted.1.contains(pod.uid()) || self.failed(pod) {
                failed.push(pod.clone());
            } else if pods::phase(pod) == "Succeeded" {
                self.count_success(pod);
                self.plan.release.push(pod.clone());
            }
        }
        if self.indexed {
            self.status.succeeded = count(self.completed.len());
        }
        self.note_ends(&failed);
        self.count_failures(failed);
    }

    /// Pods that nobody remembers are recalled from what is left of them; those that we deleted ourselves are not.
    fn note_ends(&mut self, failed: &[Arc<Pod>]) {
        let known = self.input.backoff.is_some();
        let ended = self.input.pods.iter().filter(|p| self.valid(p) && (tracked(p) || !known && !p.deleting()));
        let succeeded: Vec<&Pod> = ended.clone().filter(|p| pods::phase(p) == "Succeeded").map(|p| &**p).collect();
        let untracked = ended.filter(|p| !tracked(p) && pods::phase(p) == "Failed");
        let failed = failed.iter().filter(|p| self.valid(p)).chain(untracked).map(|p| &**p);
        let before = self.input.backoff.cloned().unwrap_or_default();
        self.plan.backoff = before.record(&succeeded, &failed.collect::<Vec<_>>());
    }

    fn count_success(&mut self, pod: &Pod) {
        if !self.indexed {
            self.uncounted.0.insert(pod.uid().to_string());
        } else if self.valid(pod) {
            self.completed.extend(index_of(pod));
        }
    }

    /// Whether the pod is one of this job's: not of an index that it no longer has.
    pub(super) fn valid(&self, pod: &Pod) -> bool {
        !self.indexed || index_of(pod).is_some_and(|index| index < self.spec.completions.unwrap_or(0))
    }

    fn count_failures(&mut self, failed: Vec<Arc<Pod>>) {
        for pod in &failed {
            self.judge(pod);
        }
        self.hold(&failed);
        for pod in failed {
            if self.held(&pod).is_none() {
                self.note_failure(&pod);
                self.plan.release.push(pod);
            }
        }
    }

    /// What the failure means to the pod's index and to the whole job.
    fn judge(&mut self, pod: &Pod) {
        if !self.valid(pod) {
            return;
        }
        let ruling = policy::ruling(self.input.job, pod);
        if let Ruling::FailJob(message) = &ruling {
            self.fail_job.get_or_insert(message.clone());
        }
        if let (Some(limit), Some(index)) = (self.spec.backoff_limit_per_index, index_of(pod)) {
            let over = ruling == Ruling::Count && Failures::before(pod).counted >= limit;
            if (over || ruling == Ruling::FailIndex) && !self.completed.contains(&index) {
                self.failed_indexes.insert(index);
            }
        }
    }

    /// The last failed pod of an index keeps its finalizer until its successor exists, which takes the count over:
    /// otherwise somebody who deletes pods would set it back.
    fn hold(&mut self, failed: &[Arc<Pod>]) {
        if self.spec.backoff_limit_per_index.is_none() {
            return;
        }
        let mut settled: Indexes = self.active().iter().filter_map(|p| index_of(p)).collect();
        settled.extend(self.completed.iter().chain(&self.failed_indexes));
        let waiting = failed.iter().filter(|p| self.valid(p)).filter_map(|p| Some((index_of(p)?, p)));
        self.held = failures::latest(waiting.filter(|(index, _)| !settled.contains(index)));
    }

    fn held(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        self.held.get(&index_of(pod)?).filter(|held| held.uid() == pod.uid())
    }

    pub(super) fn note_failure(&mut self, pod: &Pod) {
        if !self.valid(pod) || self.uncounted.1.contains(pod.uid()) {
            return;
        }
        self.plan.handled.extend(policy::matched_action(self.input.job, pod).map(str::to_string));
        if policy::ruling(self.input.job, pod) != Ruling::Ignore {
            self.uncounted.1.insert(pod.uid().to_string());
        }
    }

    pub(super) fn total_failed(&self) -> i32 {
        let held = self.held.values().filter(|p| !self.uncounted.1.contains(p.uid()));
        let held = held.filter(|p| policy::ruling(self.input.job, p) != Ruling::Ignore).count();
        self.status.failed.unwrap_or(0) + (self.uncounted.1.len() + held) as i32
    }

    pub(super) fn total_succeeded(&self) -> i32 {
        self.status.succeeded.unwrap_or(0) + if self.indexed { 0 } else { self.uncounted.0.len() as i32 }
    }
}
