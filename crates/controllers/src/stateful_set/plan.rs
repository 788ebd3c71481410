//! The core: which of a stateful set's pods to make, delete or wait for, and what the status says.
//! Called by the controller beside it with claimed pods and the two revisions in play.
//! With OrderedReady one pod changes at a time, upward when growing, downward when shrinking or updating.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::Pod,
};

use crate::common::{
    meta::{Object, count, scaled},
    pods,
    revisions::HASH_LABEL,
};

pub struct Input<'a> {
    pub set: &'a StatefulSet,
    pub pods: &'a [Arc<Pod>],
    /// Names of the ControllerRevisions.
    pub current: &'a str,
    pub update: &'a str,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Create {
        ordinal: i32,
        revision: String,
    },
    /// Claims that a waiting pod lacks: somebody deleted them, and without them it waits for ever.
    MakeClaims {
        ordinal: i32,
    },
    Delete {
        pod: Box<Pod>,
        reason: DeletionReason,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeletionReason {
    Scaled,
    Outdated,
    /// Made anew.
    Finished,
}

#[derive(Debug)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: StatefulSetStatus,
    pub again: Option<Duration>,
    /// Pods within the range that are missing or not available.
    pub unavailable: usize,
    /// How many of them an update may leave.
    pub max_unavailable: usize,
}

pub fn start(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.ordinals.as_ref()?.start).unwrap_or(0)
}

pub fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn min_ready(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
}

pub fn ordered(set: &StatefulSet) -> bool {
    set.spec.as_ref().and_then(|s| s.pod_management_policy.as_deref()) != Some("Parallel")
}

fn on_delete(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete")
}

fn partition(set: &StatefulSet) -> i32 {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    strategy.and_then(|s| s.rolling_update.as_ref()?.partition).unwrap_or(0)
}

/// How many pods an update may take away at once.
fn max_unavailable(set: &StatefulSet) -> Option<usize> {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    let most = strategy.and_then(|s| s.rolling_update.as_ref()?.max_unavailable.as_ref())?;
    scaled(most, replicas(set), false).map(|count| count.max(1) as usize)
}

/// The ordinal in a pod's name, if it is one of this set.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let digits = pod.name().strip_prefix(set.name())?.strip_prefix('-')?;
    digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
}

fn revision(pod: &Pod) -> &str {
    pod.label(HASH_LABEL).unwrap_or_default()
}

struct Planner<'a> {
    input: &'a Input<'a>,
    wanted: BTreeMap<i32, Option<&'a Arc<Pod>>>,
    /// Pods beyond the range, highest ordinal first.
    condemned: Vec<(i32, &'a Arc<Pod>)>,
    actions: Vec<Action>,
}

pub fn plan(input: &Input) -> Plan {
    let (first, count) = (start(input.set), replicas(input.set));
    let mut planner = Planner {
        input,
        wanted: (first..first + count).map(|ordinal| (ordinal, None)).collect(),
        condemned: Vec::new(),
        actions: Vec::new(),
    };
    for pod in input.pods {
        match ordinal(input.set, pod) {
            Some(ordinal) => match planner.wanted.get_mut(&ordinal) {
                Some(place) => *place = Some(pod),
                None => planner.condemned.push((ordinal, pod)),
            },
            None => continue,
        }
    }
    planner.condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
    let (status, again) = planner.status();
    let unavailable = planner.unavailable();
    let max_unavailable = max_unavailable(input.set).unwrap_or(1);
    if !input.set.deleting() && planner.fill() && planner.shrink() {
        planner.update();
    }
    Plan { actions: planner.actions, status, again, unavailable, max_unavailable }
}

impl Planner<'_> {
    fn available(&self, pod: &Pod) -> bool {
        pods::phase(pod) == "Running" && pods::available(pod, min_ready(self.input.set), self.input.now)
    }

    fn healthy(&self, pod: &Pod) -> bool {
        !pod.deleting() && self.available(pod)
    }

    fn unavailable(&self) -> usize {
        self.wanted.values().filter(|pod| !pod.is_some_and(|pod| self.healthy(pod))).count()
    }

    /// The revision for a new pod: below the partition the old one.
    fn revision_for(&self, ordinal: i32) -> String {
        let set = self.input.set;
        let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.clone()).unwrap_or_default();
        let kept = match (&strategy.rolling_update, &set.status) {
            _ if on_delete(set) => 0,
            (Some(_), _) => partition(set),
            (None, status) => status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0),
        };
        let old = ordinal < start(set) + kept;
        if old { self.input.current } else { self.input.update }.to_string()
    }

    /// Makes what is missing. `false` when an ordered set must wait before anything else happens.
    fn fill(&mut self) -> bool {
        let ordered = ordered(self.input.set);
        for (ordinal, pod) in self.wanted.clone() {
            let Some(pod) = pod else {
                let revision = self.revision_for(ordinal);
                self.actions.push(Action::Create { ordinal, revision });
                if ordered {
                    return false;
                }
                continue;
            };
            if pods::finished(pod) && !pod.deleting() {
                self.actions.push(Action::Delete { pod: Box::new((**pod).clone()), reason: DeletionReason::Finished });
                if ordered {
                    return false;
                }
                continue;
            }
            if pods::phase(pod) == "Pending" && !pod.deleting() {
                self.actions.push(Action::MakeClaims { ordinal });
            }
            if ordered && !self.healthy(pod) {
                return false;
            }
        }
        true
    }

    /// Takes condemned pods away. `false` when an ordered set must wait.
    fn shrink(&mut self) -> bool {
        let ordered = ordered(self.input.set);
        let all = self.wanted.values().flatten().copied().chain(self.condemned.iter().map(|(_, p)| *p));
        let first_unhealthy = all
            .filter(|pod| !self.healthy(pod))
            .min_by_key(|pod| ordinal(self.input.set, pod))
            .map(|pod| pod.uid().to_string());
        for (_, pod) in self.condemned.clone() {
            if pod.deleting() {
                if ordered {
                    return false;
                }
                continue;
            }
            // While another pod is unhealthy, availability is not reduced further.
            let others_unhealthy = first_unhealthy.as_deref().is_some_and(|uid| uid != pod.uid());
            if ordered && others_unhealthy && !self.healthy(pod) {
                return false;
            }
            self.actions.push(Action::Delete { pod: Box::new((**pod).clone()), reason: DeletionReason::Scaled });
            if ordered {
                return false;
            }
        }
        true
    }

    /// Replaces the highest outdated pod once all above it are well; or, where the set says how many may be missing at
    /// once, that many.
    fn update(&mut self) {
        let set = self.input.set;
        if on_delete(set) {
            return;
        }
        let lowest = start(set) + partition(set);
        if let Some(most) = max_unavailable(set) {
            let unavailable = self.unavailable();
            let outdated = self.wanted.range(lowest..).rev().filter_map(|(_, pod)| *pod);
            let outdated = outdated.filter(|pod| revision(pod) != self.input.update && !pod.deleting());
            let deletions = outdated
                .take(most.saturating_sub(unavailable))
                .map(|pod| Action::Delete { pod: Box::new((**pod).clone()), reason: DeletionReason::Outdated });
            return self.actions.extend(deletions);
        }
        for (ordinal, pod) in self.wanted.clone().into_iter().rev() {
            if ordinal < lowest {
                return;
            }
            let Some(pod) = pod else { return };
            if revision(pod) != self.input.update && !pod.deleting() {
                self.actions.push(Action::Delete { pod: Box::new((**pod).clone()), reason: DeletionReason::Outdated });
                return;
            }
            if !self.healthy(pod) {
                return;
            }
        }
    }

    fn status(&self) -> (StatefulSetStatus, Option<Duration>) {
        let input = self.input;
        let old = input.set.status.clone().unwrap_or_default();
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        let mut again: Option<Duration> = None;
        let all: Vec<&Arc<Pod>> =
            self.wanted.values().flatten().copied().chain(self.condemned.iter().map(|(_, p)| *p)).collect();
        for pod in &all {
            if pods::phase(pod) == "Running"
                && let Some(left) = pods::available_in(pod, min_ready(input.set), input.now)
            {
                ready += 1;
                if left.is_zero() {
                    available += 1;
                } else {
                    again = Some(again.map_or(left, |a| a.min(left)));
                }
            }
            if !pod.deleting() && !pods::finished(pod) {
                current += usize::from(revision(pod) == input.current);
                updated += usize::from(revision(pod) == input.update);
            }
        }
        let mut status = StatefulSetStatus {
            observed_generation: input.set.metadata.generation,
            replicas: all.len() as i32,
            ready_replicas: count(ready),
            available_replicas: Some(available),
            current_replicas: count(current),
            updated_replicas: count(updated),
            current_revision: Some(input.current.to_string()),
            update_revision: Some(input.update.to_string()),
            collision_count: Some(old.collision_count.unwrap_or(0)),
            conditions: old.conditions,
        };
        let complete = updated == all.len() && ready == all.len() && all.len() as i32 == replicas(input.set);
        if complete && !on_delete(input.set) && input.current != input.update {
            status.current_revision = status.update_revision.clone();
            status.current_replicas = status.updated_replicas;
        }
        (status, again)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(replicas: i32, change: serde_json::Value) -> StatefulSet {
        let mut set = json!({
            "metadata": { "name": "db", "namespace": "d", "uid": "db" },
            "spec": { "replicas": replicas, "selector": {}, "serviceName": "db", "template": {} },
        });
        for (key, value) in change.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        serde_json::from_value(set).unwrap()
    }

    /// `ordinal`, revision, and a letter: `r`eady, `u`nready, `p`ending, `t`erminating, `f`ailed.
    fn pod((ordinal, revision, state): &(i32, &str, char)) -> Arc<Pod> {
        let ready = matches!(state, 'r' | 't').then_some("2026-01-01T00:00:00Z");
        let mut pod = crate::common::pods::testing::pod(&format!("db-{ordinal}"), ready);
        pod.metadata.labels = Some([(HASH_LABEL.to_string(), revision.to_string())].into());
        match state {
            't' => pod.metadata.deletion_timestamp = Some(Timestamp::UNIX_EPOCH.into()),
            'f' => pod.status.as_mut().unwrap().phase = Some("Failed".into()),
            'p' => pod.status.as_mut().unwrap().phase = Some("Pending".into()),
            _ => {}
        }
        Arc::new(pod)
    }

    fn check(set: StatefulSet, pods: &[(i32, &str, char)], expected: &[&str]) {
        let pods: Vec<_> = pods.iter().map(pod).collect();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let plan = plan(&Input { set: &set, pods: &pods, current: "old", update: "new", now });
        let found: Vec<_> = plan
            .actions
            .iter()
            .map(|action| match action {
                Action::Create { ordinal, revision } => format!("+{ordinal}{revision}"),
                Action::MakeClaims { ordinal } => format!("claims of {ordinal}"),
                Action::Delete { pod, .. } => format!("-{}", ordinal(&set, pod).unwrap()),
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn growing_and_shrinking() {
        let plain = |n| set(n, json!({}));
        let parallel = |n| set(n, json!({ "podManagementPolicy": "Parallel" }));
        check(plain(3), &[], &["+0new"]);
        check(plain(3), &[(0, "new", 'u')], &[]);
        check(plain(3), &[(0, "new", 'p')], &["claims of 0"]);
        check(plain(3), &[(0, "new", 'r')], &["+1new"]);
        check(plain(3), &[(0, "new", 'r'), (1, "new", 'f')], &["-1"]);
        check(plain(3), &[(0, "new", 'r'), (1, "new", 't')], &[]);
        check(parallel(3), &[], &["+0new", "+1new", "+2new"]);
        check(parallel(3), &[(0, "new", 'p'), (2, "new", 'p')], &["claims of 0", "+1new", "claims of 2"]);
        check(plain(1), &[(0, "new", 'r'), (1, "new", 'r'), (2, "new", 'r')], &["-2"]);
        check(plain(1), &[(0, "new", 'r'), (1, "new", 'r'), (2, "new", 't')], &[]);
        check(parallel(1), &[(0, "new", 'r'), (1, "new", 'r'), (2, "new", 'r')], &["-2", "-1"]);
        check(set(2, json!({ "ordinals": { "start": 5 } })), &[(5, "new", 'r')], &["+6new"]);
        check(
            set(2, json!({ "ordinals": { "start": 1 } })),
            &[(0, "new", 'r'), (1, "new", 'r'), (2, "new", 'r')],
            &["-0"],
        );
    }

    #[test]
    fn updating() {
        let plain = || set(3, json!({}));
        let old = [(0, "old", 'r'), (1, "old", 'r'), (2, "old", 'r')];
        check(plain(), &old, &["-2"]);
        check(plain(), &[(0, "old", 'r'), (1, "old", 'r'), (2, "new", 'u')], &[]);
        check(plain(), &[(0, "old", 'r'), (1, "old", 'r'), (2, "new", 'r')], &["-1"]);
        check(set(3, json!({ "updateStrategy": { "type": "OnDelete" } })), &old, &[]);
        let partition = || set(3, json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } }));
        check(partition(), &old, &["-2"]);
        check(partition(), &[(0, "old", 'r'), (1, "old", 'r'), (2, "new", 'r')], &[]);
        check(partition(), &[(1, "old", 'r'), (2, "new", 'r')], &["+0old"]);
    }

    #[test]
    fn updating_several_at_once() {
        let rolling = |rolling: serde_json::Value| {
            set(5, json!({ "podManagementPolicy": "Parallel", "updateStrategy": { "rollingUpdate": rolling } }))
        };
        let old: Vec<_> = (0..5).map(|ordinal| (ordinal, "old", 'r')).collect();
        check(rolling(json!({ "maxUnavailable": 2 })), &old, &["-4", "-3"]);
        check(rolling(json!({ "maxUnavailable": "50%" })), &old, &["-4", "-3"]);
        check(rolling(json!({ "maxUnavailable": "1%" })), &old, &["-4"]);
        check(rolling(json!({ "maxUnavailable": 3, "partition": 4 })), &old, &["-4"]);
        let two = || rolling(json!({ "maxUnavailable": 2 }));
        let with = |state: char| {
            let mut pods = old.clone();
            pods[0].2 = state;
            pods
        };
        check(two(), &with('u'), &["-4"]);
        check(two(), &[&old[..3], &[(3, "new", 'u'), (4, "new", 'u')]].concat(), &[]);
        check(two(), &[&old[..3], &[(3, "new", 'r'), (4, "new", 'u')]].concat(), &["-2"]);
    }

    #[test]
    fn status_completes_the_update() {
        let pods: Vec<_> = [(0, "new", 'r'), (1, "new", 'r')].iter().map(pod).collect();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let set = set(2, json!({}));
        let status = plan(&Input { set: &set, pods: &pods, current: "old", update: "new", now }).status;
        assert_eq!(
            (status.ready_replicas, status.current_replicas, status.updated_replicas),
            (Some(2), Some(2), Some(2))
        );
        assert_eq!(status.current_revision.as_deref(), Some("new"));
    }
}
