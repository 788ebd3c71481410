//! The core: what a job's pods amount to, which to make and delete, and what the status says.
//! Called by the controller beside it; `accounting` counts, failures are judged by `policy`, indexes kept by `indexes`.
//! A finished pod is counted exactly once: its uid is written to the status before its finalizer goes.

mod accounting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::EventType;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};

use super::{
    backoff::{self, Backoff, finished_at},
    failures::Failures,
    indexes::{self, Indexes},
    policy,
};
use crate::common::{
    meta::{Object, count, time},
    pods,
};

pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const BURST_REPLICAS: usize = 500;

pub struct Input<'a> {
    pub job: &'a Job,
    pub pods: &'a [Arc<Pod>],
    /// Own writes are still on their way: count, but make and delete nothing.
    pub behind: bool,
    /// As the plan before left it; `None` when nobody remembers.
    pub backoff: Option<&'a Backoff>,
    pub now: Timestamp,
}

/// A pod to be made: its index where the job has them, and how often that index has failed.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPod {
    pub index: Option<i32>,
    pub failures: Failures,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub status: JobStatus,
    /// Whose finalizers go, after the status was written and before anything is deleted: a pod that is deleted with
    /// its finalizer counts as a failure.
    pub release: Vec<Arc<Pod>>,
    pub create: Vec<NewPod>,
    pub delete: Vec<Arc<Pod>>,
    pub events: Vec<(EventType, String, String)>,
    pub backoff: Backoff,
    pub again: Option<Duration>,
    /// The actions of the failure policy's rules that matched the failed pods which this status counts or passes over.
    pub handled: Vec<String>,
    /// Failed pods, counted or about to be.
    pub failed: i32,
}

pub fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

pub fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotation(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

pub fn tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|f| f == FINALIZER)
}

struct Planner<'a> {
    input: &'a Input<'a>,
    spec: JobSpec,
    status: JobStatus,
    indexed: bool,
    completed: Indexes,
    failed_indexes: Indexes,
    uncounted: (BTreeSet<String>, BTreeSet<String>),
    /// Failed pods that are not counted yet, by index.
    held: BTreeMap<i32, Arc<Pod>>,
    fail_job: Option<String>,
    plan: Plan,
}

pub fn plan(input: &Input) -> Plan {
    let spec = input.job.spec.clone().unwrap_or_default();
    let status = input.job.status.clone().unwrap_or_default();
    let limit = spec.completions.unwrap_or(0);
    let set = |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().collect::<BTreeSet<_>>();
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let planner = Planner {
        input,
        indexed: spec.completion_mode.as_deref() == Some("Indexed"),
        completed: indexes::parse(status.completed_indexes.as_deref().unwrap_or_default(), limit),
        failed_indexes: indexes::parse(status.failed_indexes.as_deref().unwrap_or_default(), limit),
        uncounted: (set(uncounted.succeeded), set(uncounted.failed)),
        held: BTreeMap::new(),
        fail_job: None,
        spec,
        status,
        plan: Plan::default(),
    };
    planner.run()
}

impl Planner<'_> {
    fn run(mut self) -> Plan {
        if finished(self.input.job).is_some() || self.input.job.deleting() {
            self.plan.release = self.input.pods.iter().filter(|p| tracked(p)).cloned().collect();
            self.plan.delete = if self.input.job.deleting() { Vec::new() } else { self.active() };
            self.plan.status = self.status;
            return self.plan;
        }
        self.start();
        self.count();
        let verdict = self.verdict();
        let suspended = self.spec.suspend == Some(true);
        match verdict {
            Some((kind, reason, message)) => self.finish(&kind, &reason, &message),
            None if suspended => {
                self.withdraw(self.active());
                self.set_condition("Suspended", "True", "JobSuspended", "Job suspended");
            }
            None => {
                self.resume();
                self.manage();
            }
        }
        self.write_counts();
        self.plan.failed = self.total_failed();
        self.plan.status = self.status;
        self.plan
    }

    fn start(&mut self) {
        if self.status.start_time.is_none() && self.spec.suspend != Some(true) {
            self.status.start_time = Some(time(self.input.now));
        }
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        self.input.pods.iter().filter(|p| pods::active(p)).cloned().collect()
    }

    /// Deletes pods that are of no more use. Nobody failed, so nothing is counted.
    fn withdraw(&mut self, pods: Vec<Arc<Pod>>) {
        if !self.input.behind {
            self.plan.release.extend(pods.iter().filter(|p| tracked(p)).cloned());
            self.plan.delete.extend(pods);
        }
    }

    fn terminating(&self) -> usize {
        self.input.pods.iter().filter(|p| p.deleting() && !pods::finished(p)).count()
    }

    fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some()
    }

    fn failed(&self, pod: &Pod) -> bool {
        match pods::phase(pod) {
            "Failed" => true,
            "Succeeded" => false,
            _ => pod.deleting() && !self.replaces_only_failed(),
        }
    }

    /// Whether the job has come to its end: the interim condition, its reason and its message.
    fn verdict(&mut self) -> Option<(String, String, String)> {
        let known = |kind: &str| {
            let conditions = self.status.conditions.as_ref()?;
            let condition = conditions.iter().find(|c| c.type_ == kind && c.status == "True")?;
            let text = |t: &Option<String>| t.clone().unwrap_or_default();
            Some((kind.to_string(), text(&condition.reason), text(&condition.message)))
        };
        if let Some(known) = known("FailureTarget").or_else(|| known("SuccessCriteriaMet")) {
            return Some(known);
        }
        let failure = |reason: &str, message: &str| Some(("FailureTarget".into(), reason.into(), message.into()));
        if let Some(message) = &self.fail_job {
            return failure("PodFailurePolicy", message);
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.total_failed() > limit || self.restarts_exceed(limit) {
            return failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let Some(left) = self.deadline() {
            if left.is_zero() {
                return failure("DeadlineExceeded", "Job was active longer than specified deadline");
            }
            self.look_again(left);
        }
        let completions = self.spec.completions.unwrap_or(0);
        if self.indexed {
            let failed = self.failed_indexes.len() as i32;
            if self.spec.max_failed_indexes.is_some_and(|max| failed > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return failure("MaxFailedIndexesExceeded", message);
            }
            if failed > 0 && failed + self.completed.len() as i32 >= completions {
                return failure("FailedIndexes", "Job has failed indexes");
            }
            if let Some(message) = policy::success(self.input.job, &self.completed, completions) {
                return Some(("SuccessCriteriaMet".into(), "SuccessPolicy".into(), message));
            }
        }
        let complete = match self.spec.completions {
            Some(completions) => self.total_succeeded() >= completions,
            None => self.total_succeeded() > 0 && self.active().is_empty() && !self.input.behind,
        };
        let message = "Reached expected number of succeeded pods";
        complete.then(|| ("SuccessCriteriaMet".into(), "CompletionsReached".into(), message.into()))
    }

    /// With restartPolicy OnFailure the containers' restarts count as failures.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let template = self.spec.template.spec.as_ref();
        if template.and_then(|s| s.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let statuses = self.input.pods.iter().filter(|p| matches!(pods::phase(p), "Running" | "Pending"));
        let statuses = statuses.filter_map(|p| p.status.as_ref());
        let restarts: i32 = statuses
            .flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses).flatten())
            .map(|c| c.restart_count)
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn deadline(&self) -> Option<Duration> {
        let seconds = self.spec.active_deadline_seconds.filter(|_| self.spec.suspend != Some(true))?;
        let at = pods::seconds_after(self.status.start_time.as_ref()?.0, seconds);
        Some(pods::until(self.input.now, at))
    }

    fn look_again(&mut self, after: Duration) {
        self.plan.again = Some(self.plan.again.map_or(after, |again| again.min(after)));
    }

    /// First the target, then, when nothing runs and everything is counted, the end.
    fn finish(&mut self, kind: &str, reason: &str, message: &str) {
        self.set_condition(kind, "True", reason, message);
        if self.input.behind {
            return;
        }
        let settled = self.active().is_empty()
            && self.terminating() == 0
            && !self.input.pods.iter().any(|p| tracked(p))
            && self.uncounted.0.is_empty()
            && self.uncounted.1.is_empty();
        if !settled {
            return self.end_pods(kind == "FailureTarget");
        }
        if kind == "FailureTarget" {
            self.set_condition("Failed", "True", reason, message);
            self.plan.events.push((EventType::Warning, reason.to_string(), message.to_string()));
        } else {
            self.set_condition("Complete", "True", reason, message);
            self.status.completion_time = Some(time(self.input.now));
            if self.spec.completions.is_some_and(|wanted| self.status.succeeded.unwrap_or(0) > wanted) {
                let message = "Too many succeeded pods running after completion count reached";
                self.plan.events.push((EventType::Warning, "TooManySucceededPods".into(), message.into()));
            }
            self.plan.events.push((EventType::Normal, "Completed".into(), "Job completed".into()));
        }
    }

    /// What has not ended when its job does: of a failed one it has failed too, of a complete one it counts as nothing.
    fn end_pods(&mut self, failed: bool) {
        let released: BTreeSet<String> = self.plan.release.iter().map(|p| p.uid().to_string()).collect();
        for pod in self.input.pods.iter().filter(|p| tracked(p) && !released.contains(p.uid())) {
            if failed || self.failed(pod) {
                self.note_failure(pod);
            }
            self.plan.release.push(pod.clone());
        }
        self.plan.delete = self.active();
    }

    fn resume(&mut self) {
        let suspended = self.status.conditions.iter().flatten().any(|c| c.type_ == "Suspended" && c.status == "True");
        if suspended {
            self.set_condition("Suspended", "False", "JobResumed", "Job resumed");
            self.status.start_time = Some(time(self.input.now));
        }
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let now = time(self.input.now);
        let conditions = self.status.conditions.get_or_insert_default();
        if conditions.iter().any(|c| c.type_ == kind && c.status == status) {
            return;
        }
        conditions.retain(|c| c.type_ != kind);
        conditions.push(JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(now.clone()),
            last_transition_time: Some(now),
        });
        if kind == "Suspended" {
            let word = if status == "True" { "Suspended" } else { "Resumed" };
            self.plan.events.push((EventType::Normal, word.into(), message.into()));
        }
    }

    /// Makes or deletes pods until as many run as should.
    fn manage(&mut self) {
        let mut active = self.active();
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0) as usize;
        let wanted = match self.spec.completions {
            None if self.total_succeeded() > 0 => active.len(),
            None => parallelism,
            Some(completions) => {
                let left = completions - self.total_succeeded() - self.failed_indexes.len() as i32;
                (left.max(0) as usize).min(parallelism)
            }
        };
        let finished = self.completed.union(&self.failed_indexes).copied().collect::<Indexes>();
        // The best first: of two with one index, and of too many, the others go.
        pods::sort_victims(&mut active, self.input.now, |_| 0);
        active.reverse();
        let mut surplus = Vec::new();
        if self.indexed {
            let mut seen = finished.clone();
            // A pod of a finished index has nothing left to do, and one beyond the last never had.
            let needed = |p: &Arc<Pod>| self.valid(p) && index_of(p).is_some_and(|index| seen.insert(index));
            (active, surplus) = active.into_iter().partition(needed);
        }
        surplus.extend(active.split_off(wanted.min(active.len())));
        // One thing at a time: what is missing is made when these are gone.
        if !surplus.is_empty() {
            surplus.truncate(BURST_REPLICAS);
            return self.withdraw(surplus);
        }
        let busy = active.len() + if self.replaces_only_failed() { self.terminating() } else { 0 };
        let missing = wanted.saturating_sub(busy).min(BURST_REPLICAS);
        if missing > 0 && !self.input.behind {
            self.create(missing, &active, finished);
        }
    }

    fn create(&mut self, missing: usize, active: &[Arc<Pod>], mut taken: Indexes) {
        if !self.indexed {
            match self.plan.backoff.left(self.input.now) {
                Some(left) => self.look_again(left),
                None => self.plan.create = vec![NewPod { index: None, failures: Failures::default() }; missing],
            }
            return;
        }
        taken.extend(active.iter().filter_map(|p| index_of(p)));
        if self.replaces_only_failed() {
            let going = self.input.pods.iter().filter(|p| p.deleting() && !pods::finished(p));
            taken.extend(going.filter_map(|p| index_of(p)));
        }
        let per_index = self.spec.backoff_limit_per_index.is_some();
        if let Some(left) = self.plan.backoff.left(self.input.now).filter(|_| !per_index) {
            return self.look_again(left);
        }
        for index in (0..self.spec.completions.unwrap_or(0)).filter(|i| !taken.contains(i)) {
            if self.plan.create.len() == missing {
                return;
            }
            let failures = match self.held.get(&index) {
                Some(last) => {
                    let failures = Failures::with(last, &policy::ruling(self.input.job, last));
                    let since = finished_at(last).unwrap_or(self.input.now);
                    if let Some(left) = backoff::wait(failures.all() as u32, since, self.input.now) {
                        self.look_again(left);
                        continue;
                    }
                    failures
                }
                None => Failures::default(),
            };
            self.plan.create.push(NewPod { index: Some(index), failures });
        }
    }

    fn write_counts(&mut self) {
        let (active, terminating) = (self.active(), self.terminating());
        self.status.active = count(active.len());
        self.status.ready = Some(active.iter().filter(|p| pods::ready(p)).count() as i32);
        self.status.terminating = Some(terminating as i32);
        let list = |set: &BTreeSet<String>| Some(set.iter().cloned().collect::<Vec<_>>()).filter(|l| !l.is_empty());
        self.status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { succeeded: list(&self.uncounted.0), failed: list(&self.uncounted.1) });
        if self.indexed {
            self.status.completed_indexes = Some(indexes::print(&self.completed)).filter(|t| !t.is_empty());
            if self.spec.backoff_limit_per_index.is_some() {
                self.status.failed_indexes = Some(indexes::print(&self.failed_indexes));
            }
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
