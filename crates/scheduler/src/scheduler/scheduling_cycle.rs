//! One pod's scheduling cycle: find a node, reserve, permit; or say why no node will do.
//! Part of `scheduler`; decides with `equivalence_class` and `cycle`; `binding_cycle` follows.
//! A pod that comes in leaves in flight, in the queue, or (terminating) not at all.

use std::sync::Arc;

use super::{Attempt, Scheduler, binding_cycle::InFlight};
use crate::{
    cycle::{self, Fit, Remedy},
    diagnosis::Diagnosis,
    equivalence_class::{Choice, class_hash},
    extender::Extenders,
    framework::{Candidate, Code, CycleState, PostFilterPlugin, PostFilterWork, Profile},
    pod_info::{PendingPod, PodInfo},
    queue::QueuedPodInfo,
    scheduler::binding_cycle::Outcome,
    scheduler_metrics::{
        ALGORITHM, BATCH_ATTEMPTS, NODE_HINT_SECONDS, PREEMPTION_TASK_SECONDS, PREEMPTION_TASKS, PREEMPTIONS,
        PointTimer, VICTIMS,
    },
};

impl Scheduler {
    pub(super) async fn schedule_one(&mut self, pod: QueuedPodInfo) {
        let Some(profile) = self.profiles.get(pod.info.scheduler_name()).cloned() else { return };
        if pod.info.is_terminating() {
            return;
        }
        let (env, metrics) = (self.handle.env.clone(), self.metrics.clone());
        let timer = PointTimer { metrics: &metrics, env: &env, profile: &profile.scheduler_name };
        if self.extenders.is_empty() {
            let choice = self.classes.choose(&self.cluster, &profile, &pod.info, &env);
            let is_known = !matches!(choice, Choice::Unknown);
            let took = env.monotonic().saturating_sub(self.began).as_secs_f64();
            metrics.observe(&NODE_HINT_SECONDS, &[if is_known { "hint" } else { "no_hint" }, timer.profile], took);
            let result = if is_known { "hint_used" } else { "no_hint" };
            metrics.count(&BATCH_ATTEMPTS, &[timer.profile, result]);
            match choice {
                Choice::Node(node) => return self.reserve_and_permit(&profile, pod, node),
                Choice::Refused(diagnosis, clear_nomination) => {
                    return self.park(&profile, pod, diagnosis, clear_nomination.then(String::new));
                }
                Choice::Unknown => {}
            }
        }
        self.cluster.cache.prepare_order();
        let feasible = match cycle::find_fit(&self.cluster, &profile, &pod.info, &mut self.start, &timer) {
            Fit::Feasible(feasible) => feasible,
            Fit::Unschedulable(diagnosis, remedy) => {
                let remedy = agreed(self.extenders.clone(), pod.info.clone(), remedy).await;
                return self.refuse(&profile, pod, *diagnosis, remedy);
            }
            Fit::Failed(error) => return self.fail(pod, &error),
        };
        if self.extenders.is_empty() {
            let node = cycle::best(&self.cluster, &profile, &pod.info, &feasible, &[], &timer);
            return self.reserve_and_permit(&profile, pod, node);
        }
        let mut diagnosis = Diagnosis::new(self.cluster.cache.len());
        match self.extenders.filter(&self.cluster, &pod.info, feasible, &mut diagnosis).await {
            Ok(feasible) if feasible.is_empty() => {
                let nothing = Remedy::Nothing { message: String::new(), clear_nomination: false, works: Vec::new() };
                self.refuse(&profile, pod, diagnosis, nothing);
            }
            Ok(feasible) => {
                let extra = self.extenders.scores(&self.cluster, &pod.info, &feasible).await;
                let node = cycle::best(&self.cluster, &profile, &pod.info, &feasible, &extra, &timer);
                self.reserve_and_permit(&profile, pod, node);
            }
            Err(error) => self.fail(pod, &error),
        }
    }

    /// Something went wrong; the pod is tried again after its back-off.
    fn fail(&mut self, pod: QueuedPodInfo, error: &str) {
        self.count_attempt("error", pod.info.scheduler_name(), self.began);
        self.handle.reports.failed(&pod.info, "SchedulerError", error, None);
        self.queue.add_after_error(pod, self.handle.env.monotonic());
    }

    /// Counts the pod on its node, then Reserve and Permit; unless somebody holds it back, its binding cycle begins.
    fn reserve_and_permit(&mut self, profile: &Profile, pod: QueuedPodInfo, node: Arc<str>) {
        let info = pod.info.clone();
        let (env, metrics) = (self.handle.env.clone(), self.metrics.clone());
        let timer = PointTimer { metrics: &metrics, env: &env, profile: &profile.scheduler_name };
        metrics.observe(&ALGORITHM, &[], env.monotonic().saturating_sub(self.began).as_secs_f64());
        let attempt = Attempt { number: pod.attempts, began: self.began, first: pod.first.unwrap_or(self.began) };
        self.cluster.cache.assume(info.info(), &node);
        self.cluster.cache.withdraw_nomination(&info.key);
        self.diagnoses.forget(&info.key);
        let mut state = CycleState::default();
        let reserve = || profile.run_reserve(&mut state, &mut self.cluster, &info, &node);
        let reserved = timer.run("Reserve", reserve, |reserved| match reserved {
            Ok(()) => "Success",
            Err((.., status)) => status.code.as_str(),
        });
        let waiting_pods = &self.handle.waiting_pods;
        let permitted = reserved.and_then(|()| {
            let permit = || profile.run_permit(waiting_pods, &self.cluster, &info, &node);
            timer.run("Permit", permit, |permitted| match permitted {
                Ok(waits) if waits.is_empty() => "Success",
                Ok(_) => "Wait",
                Err((.., status)) => status.code.as_str(),
            })
        });
        let has_work = profile.pre_bind.iter().any(|p| p.plugin.has_pre_bind_work(&state, &info, &node));
        let mut flight =
            InFlight { pod, attempt, node: node.clone(), state, nominated: false, held_since: env.monotonic() };
        let waits = match permitted {
            Ok(waits) => waits,
            Err(refusal) => {
                self.in_flight.insert(info.key.clone(), flight);
                return self.reject_in_flight(&info.key, refusal);
            }
        };
        if has_work || !waits.is_empty() {
            // It may take minutes: whoever adds or removes nodes is told which one is taken.
            flight.nominated = true;
            self.handle.reports.nominate(&info, &node);
        }
        self.in_flight.insert(info.key.clone(), flight);
        match waits.is_empty() {
            true => self.start_binding_cycle(&info.key),
            false => waiting_pods.add(&info.key, &waits, self.handle.env.monotonic()),
        }
    }

    /// No node will do: makes room if that helps, says why, and waits for something that does.
    fn refuse(&mut self, profile: &Profile, pod: QueuedPodInfo, mut diagnosis: Diagnosis, remedy: Remedy) {
        match remedy {
            Remedy::Nominate(plugin, candidate) => {
                let node = self.preempt(&*plugin, &pod, candidate);
                self.park(profile, pod, Arc::new(diagnosis), Some(node));
            }
            Remedy::Nothing { message, clear_nomination, works } => {
                works.into_iter().for_each(|work| self.carry_out(&pod, work));
                diagnosis.post_filter_message = message;
                if clear_nomination {
                    self.cluster.cache.clear_nomination(&pod.info);
                }
                let diagnosis = Arc::new(diagnosis);
                if self.extenders.is_empty() {
                    self.classes.refused(&self.cluster, profile, &pod.info, diagnosis.clone(), clear_nomination);
                }
                self.park(profile, pod, diagnosis, clear_nomination.then(String::new));
            }
        }
    }

    /// What may help the pod later, in a task of its own.
    fn carry_out(&self, pod: &QueuedPodInfo, work: PostFilterWork) {
        let (work, pod) = (work(&self.handle), pod.info.info());
        self.handle.env.spawn(async move {
            if let Err(error) = work.await {
                // The pod is tried again when something changes; then so is this.
                tracing::warn!(pod = pod.key, uid = pod.uid(), %error, "couldn't do what may help a pod");
            }
        });
    }

    /// Sends the victims away and holds their node for the pod; returns its name.
    fn preempt(&mut self, plugin: &dyn PostFilterPlugin, pod: &QueuedPodInfo, candidate: Candidate) -> String {
        let node = candidate.node.clone();
        self.metrics.count(&PREEMPTIONS, &[]);
        self.metrics.observe(&VICTIMS, &[], candidate.victims.len() as f64);
        // Those that were to have this room and matter less look for another.
        let below = |other: &&Arc<PodInfo>| other.priority < pod.info.priority;
        let lower: Vec<_> = self.cluster.cache.nominated_on(&node).iter().filter(below).cloned().collect();
        for other in lower {
            // What waits here may still say that it is nominated, for the server has not been told yet.
            match self.queue.get(&other.key) {
                Some(waiting) => self.cluster.cache.clear_nomination(&waiting),
                None => self.cluster.cache.withdraw_nomination(&other.key),
            }
            self.handle.reports.withdraw_nomination(&other);
            self.queue.activate(&other.key, self.handle.env.monotonic());
        }
        self.cluster.cache.nominate(pod.info.info(), &node);
        self.cluster.preempting.insert(pod.info.key.clone());
        let work = plugin.prepare_candidate(&self.handle, pod.info.clone(), candidate);
        let (outcomes, pod) = (self.outcomes.clone(), pod.info.info());
        let (env, metrics) = (self.handle.env.clone(), self.metrics.clone());
        self.handle.env.spawn(async move {
            let began = env.monotonic();
            let result = work.await;
            let labels = [if result.is_ok() { "success" } else { "error" }];
            metrics.count(&PREEMPTION_TASKS, &labels);
            metrics.observe(&PREEMPTION_TASK_SECONDS, &labels, env.monotonic().saturating_sub(began).as_secs_f64());
            // The scheduler has stopped when nobody listens; then there is nothing left to settle.
            outcomes.send(Outcome::Preempted { result, pod }).await.ok();
        });
        node.to_string()
    }

    /// The pod can't be scheduled. `nominated` of `Some("")` clears a nomination.
    pub(super) fn park(
        &mut self,
        profile: &Profile,
        pod: QueuedPodInfo,
        diagnosis: Arc<Diagnosis>,
        nominated: Option<String>,
    ) {
        self.count_attempt("unschedulable", pod.info.scheduler_name(), self.began);
        self.handle.reports.failed(&pod.info, "Unschedulable", &diagnosis.message(), nominated.as_deref());
        let unschedulable_plugins = diagnosis.unschedulable_plugins;
        self.diagnoses.keep(&pod.info.key, diagnosis);
        let class = class_hash(&self.cluster, profile, &pod.info);
        self.queue.add_unschedulable(pod, unschedulable_plugins, class, self.handle.env.monotonic());
    }

    /// A decided pod was turned down at Reserve or Permit: it is as unschedulable as if its node had refused it.
    pub(super) fn reject_in_flight(&mut self, key: &str, (row, plugin, status): crate::framework::Refusal) {
        if status.code == Code::Error {
            return self.give_up(key, &format!("running {plugin:?}: {}", status.message()));
        }
        let Some(flight) = self.take_back(key) else { return };
        let Some(profile) = self.profiles.get(flight.pod.info.scheduler_name()).cloned() else { return };
        let mut diagnosis = Diagnosis::new(1);
        diagnosis.reject_node(row, plugin, flight.node.clone(), status);
        self.began = flight.attempt.began;
        self.park(&profile, flight.pod, Arc::new(diagnosis), Some(String::new()));
    }
}

/// The remedy that extenders agree to, where they want to be asked about victims.
async fn agreed(extenders: Extenders, pod: Arc<PendingPod>, remedy: Remedy) -> Remedy {
    let Remedy::Nominate(plugin, mut best) = remedy else { return remedy };
    if !extenders.supports_preemption(&pod) {
        return Remedy::Nominate(plugin, best);
    }
    let others = std::mem::take(&mut best.alternatives);
    let candidates = std::iter::once(best).chain(others).collect();
    match extenders.preempt(&pod, candidates).await {
        Ok(agreed) => match agreed.into_iter().next() {
            Some(best) => Remedy::Nominate(plugin, best),
            None => {
                let message = "preemption: no extender agreed to a node".to_string();
                Remedy::Nothing { message, clear_nomination: true, works: Vec::new() }
            }
        },
        Err(error) => {
            let message = format!("preemption: {error}");
            Remedy::Nothing { message, clear_nomination: false, works: Vec::new() }
        }
    }
}
