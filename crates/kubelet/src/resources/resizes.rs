//! How far in-place resizes of a pod are: its conditions PodResizePending and PodResizeInProgress, and what Events say.
//! Kept by `pod_workers`, shown by `pod_status`.
//! Invariant: pure. One that is in progress keeps the generation it began with, whatever is asked for meanwhile (tidy:
//! `pure_files`).

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodCondition, ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde::Serialize;

use crate::pod::{
    pod_spec,
    pod_status::{condition, whole_seconds},
};

pub const PENDING: &str = "PodResizePending";
pub const IN_PROGRESS: &str = "PodResizeInProgress";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resize {
    /// Empty while nothing is in the way.
    pub reason: String,
    pub message: String,
    pub generation: Option<i64>,
    /// When any of this last changed.
    probed: Timestamp,
    /// When the reason last changed.
    since: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resizes {
    pending: Option<Resize>,
    in_progress: Option<Resize>,
}

impl Resizes {
    /// As an earlier kubelet told them.
    pub fn reported(pod: &Pod, now: Timestamp) -> Self {
        let read = |kind| {
            let found = condition(pod.status.as_ref()?, kind)?;
            let time = |time: &Option<Time>| time.as_ref().map_or(now, |time| time.0);
            Some(Resize {
                reason: found.reason.clone().unwrap_or_default(),
                message: found.message.clone().unwrap_or_default(),
                generation: found.observed_generation,
                probed: time(&found.last_probe_time),
                since: time(&found.last_transition_time),
            })
        };
        Self { pending: read(PENDING), in_progress: read(IN_PROGRESS) }
    }

    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Whether what is asked for waits for others to leave room.
    pub fn is_deferred(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.reason == "Deferred")
    }

    /// Nothing is asked for that was not granted.
    pub fn none_pending(&mut self) {
        self.pending = None;
    }

    /// What is asked for can't be granted. True when that is news.
    pub fn refuse(&mut self, reason: &str, message: String, generation: Option<i64>, now: Timestamp) -> bool {
        let known = self.pending.as_ref().map(|p| (p.reason.clone(), p.generation));
        self.pending = Some(changed(self.pending.take(), reason, message, generation, now));
        known != Some((reason.into(), generation))
    }

    /// What is asked for was granted; earlier trouble is over.
    pub fn begin(&mut self, generation: Option<i64>, now: Timestamp) {
        self.pending = None;
        self.in_progress = Some(changed(None, "", String::new(), generation, now));
    }

    /// What was granted is not in effect yet.
    pub fn go_on(&mut self, generation: Option<i64>, now: Timestamp) {
        self.in_progress.get_or_insert_with(|| changed(None, "", String::new(), generation, now));
    }

    /// What was granted could not be put into effect. Has the generation that it is about when that is news.
    pub fn fail(&mut self, message: String, generation: Option<i64>, now: Timestamp) -> Option<Option<i64>> {
        let before = self.in_progress.take();
        let generation = before.as_ref().map_or(generation, |before| before.generation);
        let after = changed(before.clone(), "Error", message, generation, now);
        self.in_progress = Some(after.clone());
        (before != Some(after)).then_some(generation)
    }

    /// Everything is in effect. Has the generation that it is about when it was not before.
    pub fn complete(&mut self) -> Option<Option<i64>> {
        self.in_progress.take().map(|done| done.generation)
    }

    pub fn conditions(&self) -> Vec<PodCondition> {
        let all = [(PENDING, &self.pending), (IN_PROGRESS, &self.in_progress)];
        let shown = |(kind, resize): (&str, &Option<Resize>)| {
            let resize = resize.as_ref()?;
            let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
            Some(PodCondition {
                type_: kind.into(),
                status: "True".into(),
                reason: text(&resize.reason),
                message: text(&resize.message),
                last_probe_time: Some(Time(whole_seconds(resize.probed))),
                last_transition_time: Some(Time(whole_seconds(resize.since))),
                observed_generation: resize.generation,
            })
        };
        all.into_iter().filter_map(shown).collect()
    }
}

fn changed(before: Option<Resize>, reason: &str, message: String, generation: Option<i64>, now: Timestamp) -> Resize {
    let same = before.as_ref().filter(|before| before.reason == reason);
    let since = same.map_or(now, |before| before.since);
    let unchanged = same.filter(|before| before.message == message && before.generation == generation);
    let probed = unchanged.map_or(now, |before| before.probed);
    Resize { reason: reason.into(), message, generation, probed, since }
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Named<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Named<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

/// The message of an Event: what the pod is to have, and what is in the way.
pub fn event_message(pod: &Pod, step: &str, generation: Option<i64>, error: &str) -> String {
    fn named(list: &[Container]) -> Vec<Named<'_>> {
        list.iter().map(|c| Named { name: &c.name, resources: c.resources.clone().unwrap_or_default() }).collect()
    }
    let summary = Summary {
        init_containers: named(pod_spec::init_containers(pod)),
        containers: named(pod_spec::containers(pod)),
        generation: generation.unwrap_or_default(),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(text) => format!("Pod resize {step}: {text}"),
        Err(_) => format!("Pod resize {step}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Type, reason, generation, last probe and last transition of each.
    fn shown(resizes: &Resizes) -> Vec<(String, String, i64, i64, i64)> {
        let time = |time: Option<Time>| time.unwrap().0.as_second();
        let all = resizes.conditions().into_iter().map(|c| {
            let (probed, since) = (time(c.last_probe_time), time(c.last_transition_time));
            (c.type_, c.reason.unwrap_or_default(), c.observed_generation.unwrap_or_default(), probed, since)
        });
        all.collect()
    }

    #[test]
    fn conditions_tell_of_both_the_one_that_waits_and_the_one_before() {
        let row = |kind: &str, reason: &str, generation, probed, since| {
            (kind.to_string(), reason.to_string(), generation, probed, since)
        };
        let mut resizes = Resizes::default();
        assert!(resizes.refuse("Deferred", "full".into(), Some(2), at(1)));
        assert!(!resizes.refuse("Deferred", "fuller".into(), Some(2), at(2)), "other numbers are no news");
        assert_eq!(shown(&resizes), [row(PENDING, "Deferred", 2, 2, 1)]);
        assert!(resizes.refuse("Deferred", "fuller".into(), Some(3), at(3)));
        resizes.begin(Some(3), at(4));
        assert_eq!(shown(&resizes), [row(IN_PROGRESS, "", 3, 4, 4)]);
        assert_eq!(resizes.conditions()[0].message, None);
        assert!(resizes.refuse("Infeasible", "far".into(), Some(4), at(5)));
        assert_eq!(resizes.fail("in use".into(), Some(4), at(6)), Some(Some(3)), "it began with 3");
        assert_eq!(resizes.fail("in use".into(), Some(4), at(7)), None);
        resizes.go_on(Some(4), at(8));
        assert_eq!(shown(&resizes), [row(PENDING, "Infeasible", 4, 5, 5), row(IN_PROGRESS, "Error", 3, 6, 6)]);
        let status = json!({"conditions": serde_json::to_value(resizes.conditions()).unwrap()});
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
        assert_eq!(Resizes::reported(&pod, at(9)), resizes);
        resizes.none_pending();
        assert_eq!(resizes.complete(), Some(Some(3)));
        assert_eq!(resizes.complete(), None);
        assert_eq!(shown(&resizes), []);
    }

    #[test]
    fn events_tell_what_the_pod_is_to_have() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}]}}))
        .unwrap();
        let all = r#""initContainers":[{"name":"s","resources":{}}],"containers":[{"name":"a","resources":{"limits":{"memory":"1Gi"},"requests":{"cpu":"1"}}}],"generation":2"#;
        assert_eq!(event_message(&pod, "started", Some(2), ""), format!("Pod resize started: {{{all}}}"));
        let refused = format!("Pod resize Deferred: {{{all},\"error\":\"full\"}}");
        assert_eq!(event_message(&pod, "Deferred", Some(2), "full"), refused);
    }
}
