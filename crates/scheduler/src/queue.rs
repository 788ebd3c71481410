//! Pods that wait: ready (active), too soon to try again (back-off), unschedulable until something helps, and gated.
//! Fed and drained by `scheduler`; plugins say which events help.
//! A pod is in exactly one part; time moves pods only when `next_deadline` has come.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use env::Backoff;
use k8s_openapi::api::core::v1::PodResourceClaimStatus;

use crate::{
    framework::{EventLabel, PluginSet, QueueSortKey, QueueSortPlugin, QueueingHint, Readiness},
    pod_info::PendingPod,
};

/// A pod that nothing has helped is tried again after this long anyway.
const UNSCHEDULABLE_TIMEOUT: Duration = Duration::from_secs(300);

const POD_ADDED: EventLabel = ("UnschedulablePod", "Add");
const ATTEMPT_FAILED: EventLabel = ("", "ScheduleAttemptFailure");
const BACKOFF_COMPLETE: EventLabel = ("", "BackoffComplete");
const BACKOFF_CUT_SHORT: EventLabel = ("", "PopFromBackoffQ");
const TIMEOUT: EventLabel = ("", "UnschedulableTimeout");
const ACTIVATED: EventLabel = ("", "ForceActivate");

/// A pod that waits or is being tried.
#[derive(Debug, Clone)]
pub struct QueuedPodInfo {
    pub info: Arc<PendingPod>,
    pub attempts: u32,
    /// When it was last put into the queue; earlier goes first among equals.
    since: Duration,
    /// When it could first be tried.
    pub first: Option<Duration>,
    /// The plugins that turned it down. Empty: any event may help.
    pub unschedulable_plugins: PluginSet,
    /// Stands for its class; events help all of a class or none. `None` for one of a kind.
    equivalence_class: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Active,
    /// Until the deadline. After an error (not a refusal) it may not be cut short.
    BackOff {
        until: Duration,
        error: bool,
    },
    Unschedulable,
    Gated,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Active => "active",
            Part::BackOff { .. } => "backoff",
            Part::Unschedulable | Part::Gated => "unschedulable",
        }
    }
}

struct Entry {
    pod: QueuedPodInfo,
    part: Part,
    sort_key: QueueSortKey,
    order: u64,
}

pub struct Queue {
    queue_sort: Arc<dyn QueueSortPlugin>,
    initial_backoff: Duration,
    max_backoff: Duration,
    entries: HashMap<String, Entry>,
    active: BTreeSet<(QueueSortKey, u64, String)>,
    backoff: BTreeSet<(Duration, u64, String)>,
    unschedulable: BTreeSet<(Duration, u64, String)>,
    /// The unschedulable ones again, those together that the same events help.
    alike: BTreeMap<Alike, BTreeSet<(u64, String)>>,
    next_order: u64,
    /// How many pods came into which part for which cause, since somebody last asked.
    incoming: BTreeMap<(&'static str, EventLabel), u64>,
    /// How many waiting pods each plugin turned down, by its row and the pods' scheduler.
    turned_down: BTreeMap<(usize, String), u64>,
    /// Those whose count somebody has not asked for yet.
    turned_down_changed: BTreeSet<(usize, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    Class(u64, PluginSet),
    Alone(String),
}

impl Alike {
    fn of(pod: &QueuedPodInfo) -> Self {
        match pod.equivalence_class {
            Some(class) => Self::Class(class, pod.unschedulable_plugins),
            None => Self::Alone(pod.info.key.clone()),
        }
    }
}

impl Queue {
    pub fn new(queue_sort: Arc<dyn QueueSortPlugin>, initial_backoff: Duration, max_backoff: Duration) -> Self {
        Self {
            queue_sort,
            initial_backoff,
            max_backoff,
            entries: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            alike: BTreeMap::new(),
            next_order: 0,
            incoming: BTreeMap::new(),
            turned_down: BTreeMap::new(),
            turned_down_changed: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many pods wait in each part.
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        let (active, backoff, unschedulable) = (self.active.len(), self.backoff.len(), self.unschedulable.len());
        let gated = self.entries.len() - active - backoff - unschedulable;
        [("active", active), ("backoff", backoff), ("unschedulable", unschedulable), ("gated", gated)]
    }

    /// How many pods came into which part for which cause, since this was last asked.
    pub fn take_incoming(&mut self) -> BTreeMap<(&'static str, EventLabel), u64> {
        std::mem::take(&mut self.incoming)
    }

    /// How many waiting pods each plugin turned down, of those whose count has changed since this was last asked.
    pub fn take_turned_down(&mut self) -> BTreeMap<(usize, String), u64> {
        let changed = std::mem::take(&mut self.turned_down_changed);
        changed.into_iter().map(|of| (of.clone(), self.turned_down.get(&of).copied().unwrap_or(0))).collect()
    }

    fn count_turned_down(&mut self, pod: &QueuedPodInfo, comes: bool) {
        for row in pod.unschedulable_plugins.rows() {
            let of = (row, pod.info.scheduler_name().to_string());
            let count = self.turned_down.entry(of.clone()).or_default();
            *count = if comes { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.turned_down.remove(&of);
            }
            self.turned_down_changed.insert(of);
        }
    }

    fn count(&mut self, part: Part, cause: EventLabel) {
        *self.incoming.entry((part.name(), cause)).or_default() += 1;
    }

    /// A pod that is new, or that has changed while it waits.
    pub fn add(&mut self, info: Arc<PendingPod>, readiness: Readiness, now: Duration) {
        let Some(entry) = self.take(&info.key) else {
            let (part, first) = match readiness {
                Readiness::Ready => (Part::Active, Some(now)),
                Readiness::WaitsForEvent(_) => (Part::Unschedulable, None),
                Readiness::Gated => (Part::Gated, None),
            };
            let unschedulable_plugins = readiness.waits_for();
            let pod =
                QueuedPodInfo { info, attempts: 0, since: now, first, unschedulable_plugins, equivalence_class: None };
            return self.arrive(pod, part, POD_ADDED);
        };
        let Entry { mut pod, part, .. } = entry;
        let other = differs(&pod.info, &info);
        let action = action(&pod.info, &info);
        pod.info = info;
        if other {
            pod.equivalence_class = None;
        }
        let next = match (readiness, part) {
            (Readiness::Gated, _) => Part::Gated,
            (Readiness::WaitsForEvent(_), _) => Part::Unschedulable,
            (_, Part::Gated) => Part::Active,
            (_, Part::Unschedulable) if other => self.after_backoff(&pod, now),
            (_, part) => part,
        };
        match next {
            Part::Active => drop(pod.first.get_or_insert(now)),
            Part::Unschedulable if readiness != Readiness::Ready => pod.unschedulable_plugins = readiness.waits_for(),
            _ => {}
        }
        if next == part {
            return self.put(pod, next);
        }
        self.arrive(pod, next, ("UnschedulablePod", action));
    }

    pub fn get(&self, key: &str) -> Option<Arc<PendingPod>> {
        self.entries.get(key).map(|entry| entry.pod.info.clone())
    }

    pub fn remove(&mut self, key: &str) -> Option<Arc<PendingPod>> {
        self.take(key).map(|entry| entry.pod.info)
    }

    /// The next pod to try. With nothing active, back-off that no error asked for is cut short.
    pub fn pop(&mut self) -> Option<QueuedPodInfo> {
        let key = match self.active.first() {
            Some((.., key)) => key.clone(),
            None => self.backoff.iter().map(|(.., key)| key).find(|key| self.is_refusal(key))?.clone(),
        };
        let Entry { mut pod, part, .. } = self.take(&key)?;
        if part != Part::Active {
            self.count(Part::Active, BACKOFF_CUT_SHORT);
        }
        pod.attempts += 1;
        Some(pod)
    }

    fn is_refusal(&self, key: &str) -> bool {
        matches!(self.entries.get(key).map(|e| e.part), Some(Part::BackOff { error: false, .. }))
    }

    /// No node would do: waits for an event that helps it or one of its class.
    pub fn add_unschedulable(
        &mut self,
        mut pod: QueuedPodInfo,
        unschedulable_plugins: PluginSet,
        class: Option<u64>,
        now: Duration,
    ) {
        pod.unschedulable_plugins = unschedulable_plugins;
        pod.equivalence_class = class;
        pod.since = now;
        self.arrive(pod, Part::Unschedulable, ATTEMPT_FAILED);
    }

    /// Something went wrong that time may mend.
    pub fn add_after_error(&mut self, mut pod: QueuedPodInfo, now: Duration) {
        pod.unschedulable_plugins = PluginSet::default();
        pod.since = now;
        let until = now + self.backoff_of(pod.attempts);
        self.arrive(pod, Part::BackOff { until, error: true }, ATTEMPT_FAILED);
    }

    /// Moves every unschedulable pod for which the hint is to queue it, in the order they came; asked once for those alike.
    pub fn move_for_event(&mut self, cause: EventLabel, now: Duration, hint: impl Fn(&QueuedPodInfo) -> QueueingHint) {
        let helped = |pods: &&BTreeSet<(u64, String)>| {
            let one = pods.first().and_then(|(_, key)| self.entries.get(key));
            one.is_some_and(|entry| hint(&entry.pod) == QueueingHint::Queue)
        };
        let mut keys: Vec<(u64, String)> = self.alike.values().filter(helped).flatten().cloned().collect();
        keys.sort();
        for (_, key) in keys {
            self.move_on(&key, cause, now);
        }
    }

    /// Moves one unschedulable pod, whatever its plugins say.
    pub fn activate(&mut self, key: &str, now: Duration) {
        self.move_on(key, ACTIVATED, now);
    }

    fn move_on(&mut self, key: &str, cause: EventLabel, now: Duration) {
        if self.entries.get(key).is_some_and(|e| e.part == Part::Unschedulable)
            && let Some(mut entry) = self.take(key)
        {
            entry.pod.first.get_or_insert(now);
            let part = self.after_backoff(&entry.pod, now);
            self.arrive(entry.pod, part, cause);
        }
    }

    pub fn has_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty()
    }

    /// Moves what time has freed.
    pub fn flush(&mut self, now: Duration) {
        while let Some((until, _, key)) = self.backoff.first()
            && *until <= now
        {
            let key = key.clone();
            if let Some(entry) = self.take(&key) {
                self.arrive(entry.pod, Part::Active, BACKOFF_COMPLETE);
            }
        }
        while let Some((since, _, key)) = self.unschedulable.first()
            && *since + UNSCHEDULABLE_TIMEOUT <= now
        {
            let key = key.clone();
            self.move_on(&key, TIMEOUT, now);
        }
    }

    /// When `flush` has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let backoff = self.backoff.first().map(|(until, ..)| *until);
        let flush = self.unschedulable.first().map(|(since, ..)| *since + UNSCHEDULABLE_TIMEOUT);
        backoff.into_iter().chain(flush).min()
    }

    fn backoff_of(&self, attempts: u32) -> Duration {
        Backoff::new(self.initial_backoff, self.max_backoff).delay_after(attempts.max(1))
    }

    fn after_backoff(&self, pod: &QueuedPodInfo, now: Duration) -> Part {
        if pod.attempts == 0 {
            return Part::Active;
        }
        let until = pod.since + self.backoff_of(pod.attempts);
        if until <= now { Part::Active } else { Part::BackOff { until, error: false } }
    }

    /// Puts a pod where it was not before.
    fn arrive(&mut self, pod: QueuedPodInfo, part: Part, cause: EventLabel) {
        self.count(part, cause);
        self.put(pod, part);
    }

    fn put(&mut self, pod: QueuedPodInfo, part: Part) {
        let order = self.next_order;
        self.next_order += 1;
        self.count_turned_down(&pod, true);
        let key = pod.info.key.clone();
        let sort_key = self.queue_sort.sort_key(&pod.info, pod.since);
        match part {
            Part::Active => self.active.insert((sort_key, order, key.clone())),
            Part::BackOff { until, .. } => self.backoff.insert((until, order, key.clone())),
            Part::Unschedulable => {
                self.alike.entry(Alike::of(&pod)).or_default().insert((order, key.clone()));
                self.unschedulable.insert((pod.since, order, key.clone()))
            }
            Part::Gated => true,
        };
        self.entries.insert(key, Entry { pod, part, sort_key, order });
    }

    fn take(&mut self, key: &str) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.count_turned_down(&entry.pod, false);
        let key = key.to_string();
        match entry.part {
            Part::Active => self.active.remove(&(entry.sort_key, entry.order, key)),
            Part::BackOff { until, .. } => self.backoff.remove(&(until, entry.order, key)),
            Part::Unschedulable => {
                let alike = Alike::of(&entry.pod);
                if let Some(pods) = self.alike.get_mut(&alike) {
                    pods.remove(&(entry.order, key.clone()));
                    if pods.is_empty() {
                        self.alike.remove(&alike);
                    }
                }
                self.unschedulable.remove(&(entry.pod.since, entry.order, key))
            }
            Part::Gated => true,
        };
        Some(entry)
    }
}

/// ResourceClaims that were made for the pod.
fn generated_claims(pod: &PendingPod) -> Option<&[PodResourceClaimStatus]> {
    pod.pod.status.as_ref()?.resource_claim_statuses.as_deref()
}

/// Whether a change to a waiting pod could change the verdict on it: its status can't, but for the claims made for it.
fn differs(old: &PendingPod, new: &PendingPod) -> bool {
    old.pod.spec != new.pod.spec
        || old.pod.metadata.labels != new.pod.metadata.labels
        || generated_claims(old) != generated_claims(new)
}

/// What happened to a waiting pod: the first of what is new, in the order in which upstream looks.
fn action(old: &PendingPod, new: &PendingPod) -> &'static str {
    let mut larger = new.requests.clone();
    larger.max(&old.requests);
    if old.pod.metadata.labels != new.pod.metadata.labels {
        "UpdatePodLabel"
    } else if larger != new.requests {
        "UpdatePodScaleDown"
    } else if !old.scheduling_gates().is_empty() && new.scheduling_gates().is_empty() {
        "UpdatePodSchedulingGatesEliminated"
    } else if old.spec().map(|spec| &spec.tolerations) != new.spec().map(|spec| &spec.tolerations) {
        "UpdatePodToleration"
    } else if generated_claims(old) != generated_claims(new) {
        "UpdatePodGeneratedResourceClaim"
    } else {
        "Update"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::{priority_sort::PrioritySort, testing::named_pod};

    const SECOND: Duration = Duration::from_secs(1);
    const NODE_ADDED: EventLabel = ("Node", "Add");

    fn queue() -> Queue {
        Queue::new(Arc::new(PrioritySort), SECOND, 10 * SECOND)
    }

    fn pod(name: &str, priority: i32) -> Arc<PendingPod> {
        Arc::new(named_pod("default", name, json!({}), json!({"priority": priority})))
    }

    fn popped(queue: &mut Queue) -> Option<String> {
        queue.pop().map(|pod| pod.info.name().to_string())
    }

    #[test]
    fn higher_priority_first_then_the_order_of_arrival() {
        let mut queue = queue();
        for (at, (name, priority)) in [("low", 1), ("first", 5), ("second", 5), ("high", 9)].into_iter().enumerate() {
            queue.add(pod(name, priority), Readiness::Ready, at as u32 * SECOND);
        }
        let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue)).collect();
        assert_eq!(order, ["high", "first", "second", "low"]);
    }

    #[test]
    fn gated_pods_wait_for_their_gates() {
        let mut queue = queue();
        queue.add(pod("p", 0), Readiness::Gated, Duration::ZERO);
        queue.flush(1000 * SECOND);
        assert_eq!(popped(&mut queue), None);
        queue.add(pod("p", 0), Readiness::Ready, SECOND);
        assert_eq!(popped(&mut queue).as_deref(), Some("p"));
    }

    #[test]
    fn plugins_that_turned_pods_down_are_counted_until_the_pods_are_tried() {
        let mut queue = queue();
        let mut plugins = PluginSet::default();
        plugins.insert(3);
        plugins.insert(5);
        let check = |queue: &mut Queue, expected: &[(usize, u64)]| {
            let found: Vec<_> = queue.take_turned_down().into_iter().map(|((row, _), count)| (row, count)).collect();
            assert_eq!(found, expected);
        };
        queue.add(pod("p", 0), Readiness::Ready, Duration::ZERO);
        queue.add(pod("q", 0), Readiness::Ready, Duration::ZERO);
        let (p, q) = (queue.pop().unwrap(), queue.pop().unwrap());
        check(&mut queue, &[]);
        queue.add_unschedulable(p, plugins, None, SECOND);
        queue.add_unschedulable(q, plugins, None, SECOND);
        check(&mut queue, &[(3, 2), (5, 2)]);
        queue.activate("default/p", SECOND);
        queue.pop().unwrap();
        check(&mut queue, &[(3, 1), (5, 1)]);
        queue.remove("default/q");
        check(&mut queue, &[(3, 0), (5, 0)]);
        check(&mut queue, &[]);
    }

    #[test]
    fn what_waits_for_an_event_is_not_tried_before() {
        let mut queue = queue();
        let mut plugins = PluginSet::default();
        plugins.insert(3);
        queue.add(pod("p", 0), Readiness::WaitsForEvent(plugins), Duration::ZERO);
        assert_eq!(popped(&mut queue), None);
        queue.move_for_event(NODE_ADDED, SECOND, |pod| QueueingHint::queue_if(pod.unschedulable_plugins.contains(3)));
        let tried = queue.pop().unwrap();
        assert_eq!((tried.attempts, tried.first), (1, Some(SECOND)));
        queue.add(pod("q", 0), Readiness::WaitsForEvent(plugins), SECOND);
        let mut claimed = (*pod("q", 0).pod).clone();
        let made = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "q-gpu"}]});
        claimed.status = serde_json::from_value(made).unwrap();
        queue.add(Arc::new(PendingPod::new(Arc::new(claimed))), Readiness::Ready, 2 * SECOND);
        assert_eq!(popped(&mut queue).as_deref(), Some("q"), "its claim was made");
    }

    #[test]
    fn only_events_that_help_wake_the_unschedulable() {
        let mut queue = queue();
        queue.add(pod("p", 0), Readiness::Ready, Duration::ZERO);
        let tried = queue.pop().unwrap();
        let mut fit = PluginSet::default();
        fit.insert(3);
        queue.add_unschedulable(tried, fit, None, Duration::ZERO);
        queue.move_for_event(NODE_ADDED, SECOND / 2, |pod| {
            QueueingHint::queue_if(pod.unschedulable_plugins.contains(4))
        });
        assert_eq!(popped(&mut queue), None);
        queue.move_for_event(NODE_ADDED, SECOND / 2, |pod| {
            QueueingHint::queue_if(pod.unschedulable_plugins.contains(3))
        });
        assert_eq!(popped(&mut queue).as_deref(), Some("p"), "an idle scheduler doesn't wait for the back-off");
    }

    #[test]
    fn those_alike_are_asked_for_once_and_woken_together() {
        let mut queue = queue();
        for (at, name) in ["a", "b", "c", "other"].into_iter().enumerate() {
            queue.add(pod(name, 0), Readiness::Ready, at as u32 * SECOND);
        }
        for class in [Some(1), Some(1), Some(1), None] {
            let tried = queue.pop().unwrap();
            queue.add_unschedulable(tried, PluginSet::default(), class, Duration::ZERO);
        }
        let asked = std::cell::Cell::new(0);
        queue.move_for_event(NODE_ADDED, 100 * SECOND, |pod| {
            asked.set(asked.get() + 1);
            QueueingHint::queue_if(pod.equivalence_class.is_some())
        });
        let woken: Vec<_> = std::iter::from_fn(|| popped(&mut queue)).collect();
        assert_eq!((asked.get(), woken), (2, vec!["a".to_string(), "b".into(), "c".into()]));
        assert!(queue.has_unschedulable());
        queue.remove("default/other");
        assert!(!queue.has_unschedulable() && queue.alike.is_empty());
    }

    #[test]
    fn errors_back_off_twice_as_long_each_time() {
        let mut queue = queue();
        queue.add(pod("p", 0), Readiness::Ready, Duration::ZERO);
        let mut now = Duration::ZERO;
        for wait in [1, 2, 4, 8, 10, 10] {
            let tried = queue.pop().unwrap();
            queue.add_after_error(tried, now);
            assert_eq!(popped(&mut queue), None, "errors are waited out");
            assert_eq!(queue.next_deadline(), Some(now + wait * SECOND));
            now += wait * SECOND;
            queue.flush(now);
        }
    }

    #[test]
    fn nothing_is_left_waiting_for_ever() {
        let mut queue = queue();
        queue.add(pod("p", 0), Readiness::Ready, Duration::ZERO);
        let tried = queue.pop().unwrap();
        queue.add_unschedulable(tried, PluginSet::default(), None, Duration::ZERO);
        assert_eq!(queue.next_deadline(), Some(UNSCHEDULABLE_TIMEOUT));
        queue.flush(UNSCHEDULABLE_TIMEOUT);
        assert_eq!(popped(&mut queue).as_deref(), Some("p"));
    }

    #[test]
    fn what_comes_into_each_part_is_counted_by_its_cause() {
        let mut queue = queue();
        let check = |queue: &mut Queue, expected: &[(&str, &str)]| {
            let incoming = queue.take_incoming();
            let found: Vec<_> =
                incoming.iter().map(|((part, (of, what)), count)| (*part, format!("{of}{what} {count}"))).collect();
            let expected: Vec<_> = expected.iter().map(|(part, cause)| (*part, format!("{cause} 1"))).collect();
            assert_eq!(found, expected);
        };
        let gated = |name: &str| named_pod("default", name, json!({}), json!({"schedulingGates": [{"name": "g"}]}));
        queue.add(Arc::new(gated("p")), Readiness::Gated, Duration::ZERO);
        check(&mut queue, &[("unschedulable", "UnschedulablePodAdd")]);
        queue.add(pod("p", 0), Readiness::Ready, 5 * SECOND);
        check(&mut queue, &[("active", "UnschedulablePodUpdatePodSchedulingGatesEliminated")]);
        queue.add(pod("p", 0), Readiness::Ready, 6 * SECOND);
        check(&mut queue, &[]);
        let tried = queue.pop().unwrap();
        assert_eq!(tried.first, Some(5 * SECOND), "it could not be tried before");
        queue.add_unschedulable(tried, PluginSet::default(), None, 6 * SECOND);
        check(&mut queue, &[("unschedulable", "ScheduleAttemptFailure")]);
        queue.move_for_event(NODE_ADDED, 6 * SECOND, |_| QueueingHint::Queue);
        check(&mut queue, &[("backoff", "NodeAdd")]);
        let tried = queue.pop().unwrap();
        check(&mut queue, &[("active", "PopFromBackoffQ")]);
        queue.add_after_error(tried, 6 * SECOND);
        check(&mut queue, &[("backoff", "ScheduleAttemptFailure")]);
        queue.flush(8 * SECOND);
        check(&mut queue, &[("active", "BackoffComplete")]);
        let tried = queue.pop().unwrap();
        queue.add_unschedulable(tried, PluginSet::default(), None, 8 * SECOND);
        queue.take_incoming();
        let mut labelled = (*pod("p", 0).pod).clone();
        labelled.metadata.labels = Some([("a".to_string(), "b".to_string())].into());
        queue.add(Arc::new(PendingPod::new(Arc::new(labelled))), Readiness::Ready, 100 * SECOND);
        check(&mut queue, &[("active", "UnschedulablePodUpdatePodLabel")]);
        let tried = queue.pop().unwrap();
        assert_eq!(tried.first, Some(5 * SECOND));
        queue.add_unschedulable(tried, PluginSet::default(), None, 100 * SECOND);
        queue.take_incoming();
        queue.flush(100 * SECOND + UNSCHEDULABLE_TIMEOUT);
        check(&mut queue, &[("active", "UnschedulableTimeout")]);
    }
}
