//! What every pod of the node was granted, and who gets what when several ask for more than there is.
//! Asked by `pod_workers`; `sync_loop` tells when something may have become free.
//! What a pod asks for beyond what it was granted is taken from no other pod; one decision at a time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use parking_lot::Mutex;

use crate::{
    pod::{
        admission,
        pod_manager::PodManager,
        pod_spec::{self, QosClass},
        pod_status,
        pod_wakes::PodWakes,
    },
    resources::{
        allocation::{self, Allocation},
        allocation_state::{self, KeptAllocation},
        resizes::PENDING,
    },
};

#[derive(Default)]
struct Entry {
    granted: Allocation,
    /// What was put into effect since it is kept, by container.
    in_effect: Allocation,
    /// It was granted something else than it asked for, once: a restart must not forget it.
    kept: bool,
    /// Why what it asks for now is not granted.
    waits: Option<(&'static str, String)>,
    /// It was granted something that its worker has not heard of; with why it was looked at.
    begun: Option<&'static str>,
    /// Why it is looked at next, unless that is because time has passed.
    trigger: Option<&'static str>,
}

/// Why resizes that wait are looked at, in the words of the metrics.
pub const POD_UPDATED: &str = "pod_updated";
pub const POD_RESIZED: &str = "pod_resized";
pub const PODS_REMOVED: &str = "pods_removed";
const PODS_ADDED: &str = "pods_added";
const PERIODIC: &str = "periodic_retry";

/// What became of the resources that a pod asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum ResizeVerdict {
    /// It has what it asks for.
    Unchanged,
    /// It was granted just now, when it was looked at because of this.
    Started(&'static str),
    /// "Deferred" until others leave room, or "Infeasible" here.
    Pending { reason: &'static str, message: String },
}

pub struct AllocationManager {
    pods: Arc<PodManager>,
    node: Arc<Mutex<Node>>,
    wakes: PodWakes,
    entries: Mutex<HashMap<String, Entry>>,
    /// UIDs of pods that were admitted, from the moment of that on: they are granted something only later.
    admitted: Mutex<HashSet<String>>,
    /// Where those are kept that a restart must not forget.
    file: Option<PathBuf>,
    /// Says why a pod, as it was granted and as it asks to be, can never be resized in place.
    refuse: Option<ResizeRule>,
}

type ResizeRule = Box<dyn Fn(&Pod, &Pod) -> Option<&'static str> + Send + Sync>;

impl AllocationManager {
    pub fn new(pods: Arc<PodManager>, node: Arc<Mutex<Node>>, wakes: PodWakes) -> Self {
        let (entries, admitted) = (Mutex::default(), Mutex::default());
        Self { pods, node, wakes, entries, admitted, file: None, refuse: None }
    }

    /// What else stands against a resize.
    pub fn with_rule(mut self, rule: impl Fn(&Pod, &Pod) -> Option<&'static str> + Send + Sync + 'static) -> Self {
        self.refuse = Some(Box::new(rule));
        self
    }

    /// Goes on from what is in the file, and keeps it there.
    pub fn kept_in(mut self, file: PathBuf) -> Self {
        let kept = allocation_state::load(&file).into_iter().map(|(uid, KeptAllocation { granted, in_effect })| {
            (uid, Entry { granted, in_effect, kept: true, trigger: Some(PODS_ADDED), ..Entry::default() })
        });
        self.entries = Mutex::new(kept.collect());
        self.file = Some(file);
        self
    }

    fn keep(&self, entries: &HashMap<String, Entry>) {
        let Some(file) = &self.file else { return };
        let kept = entries.iter().filter(|(_, entry)| entry.kept).map(|(uid, entry)| {
            (uid.clone(), KeptAllocation { granted: entry.granted.clone(), in_effect: entry.in_effect.clone() })
        });
        if let Err(error) = allocation_state::save(file, kept.collect()) {
            tracing::warn!(file = %file.display(), %error, "failed to keep what pods were granted");
        }
    }

    /// `first` has what was granted to a pod that is looked at for the first time.
    pub fn decide(&self, pod: &Arc<Pod>, first: impl FnOnce() -> Allocation) -> (Arc<Pod>, ResizeVerdict) {
        let uid = pod_spec::uid(pod);
        let mut entries = self.entries.lock();
        let new = || Entry { granted: first(), trigger: Some(PODS_ADDED), ..Entry::default() };
        let entry = entries.entry(uid.into()).or_insert_with(new);
        let asked = allocation::asked(pod);
        if !allocation::same(&entry.granted, &asked) {
            entry.waits.get_or_insert_default();
            if self.distribute(&mut entries, pod) {
                self.keep(&entries);
            }
        } else {
            (entry.granted, entry.waits) = (asked, None);
        }
        let Some(entry) = entries.get_mut(uid) else { return (pod.clone(), ResizeVerdict::Unchanged) };
        if let Some((reason, message)) = entry.waits.clone() {
            return (Arc::new(allocation::with(pod, &entry.granted)), ResizeVerdict::Pending { reason, message });
        }
        (pod.clone(), entry.begun.take().map_or(ResizeVerdict::Unchanged, ResizeVerdict::Started))
    }

    /// Goes through all that wait, the most urgent first. `pod` is the newest of the one that asks now. True when
    /// there is something new to keep.
    fn distribute(&self, entries: &mut HashMap<String, Entry>, pod: &Arc<Pod>) -> bool {
        let mut news = false;
        let own = pod_spec::uid(pod);
        let listed = self.pods.list().into_iter().map(|pod| (pod_spec::uid(&pod).to_string(), pod));
        let mut pods: BTreeMap<String, Arc<Pod>> = listed.collect();
        pods.insert(own.into(), pod.clone());
        let node = self.node.lock().clone();
        let waiting = pods.iter().filter_map(|(uid, pod)| {
            let entry = entries.get(uid).filter(|entry| entry.waits.is_some())?;
            let ends = pod.metadata.deletion_timestamp.is_some();
            (!ends).then(|| (resize_order(pod, &entry.granted), uid.clone()))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort();
        for (_, uid) in waiting {
            let pod = &pods[&uid];
            let others = pods.iter().filter(|(other, _)| **other != uid);
            let others: Vec<Arc<Pod>> = others.map(|(_, other)| taken(entries, other)).collect();
            let Some(entry) = entries.get_mut(&uid) else { continue };
            let asked = allocation::asked(pod);
            let before = entry.waits.take();
            let trigger = entry.trigger.take().unwrap_or(PERIODIC);
            if !allocation::same(&entry.granted, &asked) {
                let known = std::mem::replace(&mut entry.kept, true);
                let before = allocation::with(pod, &entry.granted);
                let never = self.refuse.as_ref().and_then(|refuse| refuse(&before, pod));
                let verdict = match never {
                    Some(message) => Err(("Infeasible", message.to_string())),
                    None => admission::admit_resize(pod, &others, &node),
                };
                match verdict {
                    Ok(()) => (entry.granted, entry.begun) = (asked, Some(trigger)),
                    Err(refusal) => entry.waits = Some(refusal),
                }
                news |= !known || entry.waits.is_none();
            }
            if uid != own && entry.waits != before {
                self.wakes.wake(&uid);
            }
        }
        news
    }

    /// Containers run with these resources now.
    pub fn put_into_effect<'a>(
        &self,
        uid: &str,
        containers: impl IntoIterator<Item = (&'a str, &'a ResourceRequirements)>,
    ) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid).filter(|entry| entry.kept) else { return };
        let mut news = false;
        for (name, resources) in containers {
            if entry.in_effect.get(name) != Some(resources) {
                entry.in_effect.insert(name.into(), resources.clone());
                news = true;
            }
        }
        if news {
            self.keep(&entries);
        }
    }

    /// What was put into effect, as far as it was kept.
    pub fn in_effect(&self, uid: &str) -> Allocation {
        self.entries.lock().get(uid).map(|entry| entry.in_effect.clone()).unwrap_or_default()
    }

    /// Something may have become free.
    pub fn retry(&self, trigger: &'static str) {
        let mut entries = self.entries.lock();
        for (uid, entry) in entries.iter_mut().filter(|(_, entry)| entry.waits.is_some()) {
            entry.trigger = Some(trigger);
            self.wakes.wake(uid);
        }
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        self.retain(|other| other != uid);
    }

    /// All others are gone.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.admitted.lock().retain(|uid| wanted(uid));
        let mut entries = self.entries.lock();
        let mut news = false;
        entries.retain(|uid, entry| {
            let stays = wanted(uid);
            news |= entry.kept && !stays;
            stays
        });
        if news {
            self.keep(&entries);
        }
    }

    /// The pod by what it was granted.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.entries.lock().get(pod_spec::uid(pod)) {
            Some(entry) if !allocation::same(&entry.granted, &allocation::asked(pod)) => {
                Arc::new(allocation::with(pod, &entry.granted))
            }
            _ => pod.clone(),
        }
    }

    /// Asks whether a pod finds room beside those that were admitted, and admits it in the same step if nothing is in
    /// the way: of two pods that come at once, one counts for the other.
    pub fn admit<T>(&self, uid: &str, obstacles: impl FnOnce(&dyn Fn(&str) -> bool) -> Vec<T>) -> Vec<T> {
        let mut admitted = self.admitted.lock();
        let found = obstacles(&|other| admitted.contains(other) || self.entries.lock().contains_key(other));
        if found.is_empty() {
            admitted.insert(uid.into());
        }
        found
    }

    /// The pod may not begin after all.
    pub fn withdraw(&self, uid: &str) {
        self.admitted.lock().remove(uid);
    }

    /// The pod by what it takes from others.
    pub fn taken(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        taken(&self.entries.lock(), pod)
    }
}

/// What it was granted, and as long as that is not in effect what it had before, if that was more.
fn taken(entries: &HashMap<String, Entry>, pod: &Arc<Pod>) -> Arc<Pod> {
    let known = entries.get(pod_spec::uid(pod)).map(|entry| &entry.granted);
    if allocation::takes_what_it_asks(pod, known) {
        return pod.clone();
    }
    let granted = known.cloned().unwrap_or_else(|| allocation::reported(pod));
    Arc::new(allocation::with(pod, &allocation::taken(&granted, &allocation::in_effect(pod))))
}

/// Orders those that wait: who asks for no more first, then by priority, by class, and by how long they have waited.
fn resize_order(pod: &Pod, granted: &Allocation) -> impl Ord + use<> {
    let (before, after) = (admission::requests(&allocation::with(pod, granted)), admission::requests(pod));
    let more = ["cpu", "memory"].into_iter().any(|name| after.get(name) > before.get(name));
    let since = pod.status.as_ref().and_then(|status| pod_status::condition(status, PENDING));
    let since = since.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
    let guaranteed = pod_spec::qos_class(pod) == QosClass::Guaranteed;
    (more, Reverse(pod_spec::spec(pod).priority.unwrap_or(0)), !guaranteed, since.is_none(), since)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::pod_wakes::Wake;

    #[test]
    fn of_two_pods_that_come_at_once_one_counts_for_the_other() {
        let manager = world().manager;
        let beside = |uid: &str, other: &str| {
            let obstacles = manager.admit(uid, |admitted| if admitted(other) { vec!["no room"] } else { vec![] });
            obstacles.is_empty()
        };
        assert!(beside("a", "b"));
        assert!(!beside("b", "a"), "nothing was granted to it yet");
        manager.withdraw("a");
        assert!(beside("b", "a"));
        manager.forget("b");
        assert!(beside("a", "b"));
    }

    struct World {
        manager: AllocationManager,
        wakes: PodWakes,
    }

    fn world() -> World {
        let node = json!({"status": {"allocatable": {"cpu": "10", "memory": "10Gi", "pods": "100"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        let wakes = PodWakes::default();
        World { manager: AllocationManager::new(Arc::default(), Arc::new(Mutex::new(node)), wakes.clone()), wakes }
    }

    fn pod(uid: &str, cpu: &str, changes: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"uid": uid}, "status": {}, "spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}});
        for (path, value) in changes.as_object().unwrap() {
            *pod.pointer_mut(&format!("/{}", path.replace('.', "/"))).unwrap() = value.clone();
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    impl World {
        /// The pod is changed, and its worker looks.
        fn set(&self, pod: &Arc<Pod>) -> ResizeVerdict {
            self.manager.pods.set(pod.clone());
            self.manager.decide(pod, || allocation::asked(pod)).1
        }

        fn cpu(&self, uid: &str) -> String {
            let pod = self.manager.pods.list().into_iter().find(|pod| pod_spec::uid(pod) == uid).unwrap();
            let granted = self.manager.granted(&pod);
            allocation::asked(&granted)["a"].requests.as_ref().unwrap()["cpu"].0.clone()
        }

        fn woken(&mut self) -> Vec<String> {
            let mut all = Vec::new();
            while let Some(Wake::Pod(uid)) = self.wakes.next().now_or_never() {
                all.push(uid);
            }
            all.sort();
            all
        }
    }

    fn waits(verdict: &ResizeVerdict) -> &'static str {
        match verdict {
            ResizeVerdict::Pending { reason, .. } => reason,
            _ => "",
        }
    }

    #[test]
    fn one_that_waits_takes_nothing_and_begins_once() {
        let mut world = world();
        assert_eq!(world.set(&pod("a", "4", json!({}))), ResizeVerdict::Unchanged);
        assert_eq!(world.set(&pod("b", "4", json!({}))), ResizeVerdict::Unchanged);
        let why = "Node didn't have enough capacity: cpu, requested: 11000, capacity: 10000".to_string();
        assert_eq!(
            world.set(&pod("a", "11", json!({}))),
            ResizeVerdict::Pending { reason: "Infeasible", message: why }
        );
        assert_eq!(world.set(&pod("b", "6", json!({}))), ResizeVerdict::Started(PODS_ADDED));
        assert_eq!(world.set(&pod("b", "6000m", json!({}))), ResizeVerdict::Unchanged);
        let why = "Node didn't have enough resource: cpu, requested: 5000, used: 6000, capacity: 10000".to_string();
        assert_eq!(world.set(&pod("a", "5", json!({}))), ResizeVerdict::Pending { reason: "Deferred", message: why });
        assert_eq!(world.cpu("a"), "4");
        // Given up.
        assert_eq!(world.set(&pod("a", "4", json!({}))), ResizeVerdict::Unchanged);
        assert_eq!(waits(&world.set(&pod("a", "5", json!({})))), "Deferred");
        world.woken();
        world.manager.pods.remove("b");
        world.manager.forget("b");
        world.manager.retry(PODS_REMOVED);
        assert_eq!(world.woken(), ["a"]);
        assert_eq!(world.set(&pod("a", "5", json!({}))), ResizeVerdict::Started(PODS_REMOVED));
    }

    #[test]
    fn room_that_becomes_free_goes_to_the_most_urgent() {
        let since =
            |time: &str| json!([{"type": PENDING, "status": "True", "reason": "Deferred", "lastTransitionTime": time}]);
        let (early, late) = (since("2026-01-01T00:00:00Z"), since("2026-01-02T00:00:00Z"));
        let check = |first: Value, second: Value| {
            let mut world = world();
            for uid in ["holder", "first", "second"] {
                world.set(&pod(uid, if uid == "holder" { "8" } else { "1" }, json!({})));
            }
            let asks = |uid: &str, changes: &Value| pod(uid, "6", changes.clone());
            assert_eq!(waits(&world.set(&asks("second", &second))), "Deferred");
            assert_eq!(waits(&world.set(&asks("first", &first))), "Deferred");
            world.woken();
            world.manager.pods.remove("holder");
            world.manager.forget("holder");
            assert_eq!(waits(&world.set(&asks("second", &second))), "Deferred", "{first} {second}");
            assert_eq!(world.woken(), ["first"]);
            assert_eq!(world.set(&asks("first", &first)), ResizeVerdict::Started(PERIODIC), "{first} {second}");
        };
        let with = |priority: i32, class: &str, conditions: &Value| {
            json!({"spec": {"priority": priority, "containers": [{"name": "a",
                "resources": {"requests": {"cpu": "6"}}}]}, "status": {"qosClass": class, "conditions": conditions}})
        };
        check(with(2, "Burstable", &late), with(1, "Guaranteed", &early));
        check(with(1, "Guaranteed", &late), with(1, "Burstable", &early));
        check(with(1, "Burstable", &early), with(1, "Burstable", &late));
        check(with(1, "Burstable", &early), with(1, "Burstable", &json!([])));
    }

    #[test]
    fn what_shrinks_is_free_when_it_has_shrunk() {
        let world = world();
        let shows = |cpu: &str| {
            json!({"status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": {"requests": {"cpu": cpu}}}]}})
        };
        world.set(&pod("large", "9", shows("9")));
        world.set(&pod("small", "1", json!({})));
        assert_eq!(waits(&world.set(&pod("small", "4", json!({})))), "Deferred");
        assert_eq!(world.set(&pod("large", "2", shows("9"))), ResizeVerdict::Started(PODS_ADDED));
        assert_eq!(waits(&world.set(&pod("small", "4", json!({})))), "Deferred");
        world.set(&pod("large", "2", shows("2")));
        world.manager.retry(POD_RESIZED);
        assert_eq!(world.set(&pod("small", "4", json!({}))), ResizeVerdict::Started(POD_RESIZED));
    }

    #[test]
    fn a_restart_forgets_nothing_of_those_that_were_resized() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("granted_resources");
        let start = || {
            let mut world = world();
            world.manager = world.manager.kept_in(file.clone());
            world
        };
        let first = start();
        for uid in ["plain", "grown", "greedy", "gone"] {
            first.set(&pod(uid, "1", json!({})));
        }
        first.manager.put_into_effect("plain", [("a", &ResourceRequirements::default())]);
        assert!(!file.exists(), "all have what they ask for");
        assert_eq!(first.set(&pod("grown", "2", json!({}))), ResizeVerdict::Started(PODS_ADDED));
        assert_eq!(waits(&first.set(&pod("grown", "99", json!({})))), "Infeasible");
        assert_eq!(waits(&first.set(&pod("greedy", "99", json!({})))), "Infeasible");
        assert_eq!(first.set(&pod("gone", "2", json!({}))), ResizeVerdict::Started(PODS_ADDED));
        first.manager.forget("gone");
        let shown = serde_json::from_value(json!({"requests": {"cpu": "2"}})).unwrap();
        first.manager.put_into_effect("grown", [("a", &shown)]);
        let second = start();
        for uid in ["grown", "greedy", "gone"] {
            second.manager.pods.set(pod(uid, "99", json!({})));
        }
        assert_eq!(["grown", "greedy", "gone"].map(|uid| second.cpu(uid)), ["2", "1", "99"]);
        assert_eq!(second.manager.in_effect("grown")["a"], shown);
        assert!(second.manager.in_effect("greedy").is_empty());
        assert_eq!(second.set(&pod("grown", "2", json!({}))), ResizeVerdict::Unchanged, "it began before");
        second.manager.retain(|uid| uid != "greedy");
        let third = start();
        third.manager.pods.set(pod("greedy", "99", json!({})));
        assert_eq!(third.cpu("greedy"), "99");
    }

    #[test]
    fn one_that_was_not_resized_is_counted_as_it_is() {
        let world = world();
        let shows = |cpu: &str| {
            json!({"status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let check = |pod: Arc<Pod>, same: bool| {
            assert_eq!(Arc::ptr_eq(&world.manager.taken(&pod), &pod), same, "{pod:?}");
        };
        check(pod("new", "500m", json!({})), true);
        check(pod("new", "500m", shows("500m")), true);
        check(pod("new", "500m", shows("1")), false);
        world.set(&pod("known", "500m", json!({})));
        check(pod("known", "500m", shows("500m")), true);
        check(pod("known", "0.5", shows("500m")), true);
        check(pod("known", "500m", shows("0.25")), true);
        check(pod("known", "500m", shows("2")), false);
        check(pod("known", "1", shows("500m")), false);
    }

    #[test]
    fn static_pods_keep_what_they_have() {
        let world = world();
        let source = json!({"metadata": {"uid": "s", "annotations": {"kubernetes.io/config.source": "file"}}});
        world.set(&pod("s", "1", source.clone()));
        let why = "In-place resize of static-pods is not supported".to_string();
        assert_eq!(world.set(&pod("s", "2", source)), ResizeVerdict::Pending { reason: "Infeasible", message: why });
    }
}
