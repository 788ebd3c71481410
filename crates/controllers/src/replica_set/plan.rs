//! The core: how many pods to make or which to take away, and what the status says.
//! Called by the controller beside it with claimed pods.
//! At most `BURST_REPLICAS` pods are made or deleted in one go.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::ApiError;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ReplicaSetCondition, ReplicaSetStatus},
    core::v1::Pod,
};

use crate::common::{
    meta::{Object, count, labels, time},
    pods,
};

const BURST_REPLICAS: usize = 500;

#[derive(Debug, Default)]
pub struct Plan {
    pub create: usize,
    pub delete: Vec<Arc<Pod>>,
    /// How old the ready pods that go are, in times of the youngest ready one's age.
    pub age_ratios: Vec<f64>,
}

pub struct Counts {
    pub wanted: i32,
    pub min_ready_seconds: i32,
    pub generation: i64,
    /// ReplicationControllers have no such counter.
    pub reports_terminating: bool,
    pub template_labels: BTreeMap<String, String>,
}

/// Active pods of a set and its siblings, by node.
pub type PodsPerNode = HashMap<String, usize>;

/// `crowding` is only asked for when some pods must be chosen to go.
pub fn plan(wanted: i32, pods: &[Arc<Pod>], crowding: impl FnOnce() -> PodsPerNode, now: Timestamp) -> Plan {
    let wanted = wanted.max(0) as usize;
    let mut active: Vec<_> = pods.iter().filter(|pod| pods::active(pod)).cloned().collect();
    if active.len() <= wanted {
        return Plan { create: (wanted - active.len()).min(BURST_REPLICAS), ..Plan::default() };
    }
    let surplus = active.len() - wanted;
    let mut age_ratios = Vec::new();
    if surplus < active.len() {
        let crowding = crowding();
        pods::sort_victims(&mut active, now, |pod| crowding.get(pods::node_name(pod)).copied().unwrap_or(0));
        age_ratios = ratios_of_ages(&active, surplus.min(BURST_REPLICAS), now);
    }
    active.truncate(surplus.min(BURST_REPLICAS));
    Plan { create: 0, delete: active, age_ratios }
}

/// Whole numbers, as upstream's.
fn ratios_of_ages(pods: &[Arc<Pod>], going: usize, now: Timestamp) -> Vec<f64> {
    let age_milli = |pod: &Arc<Pod>| Some(now.duration_since(pod.created()?).as_millis());
    let ready =
        |pods: &[Arc<Pod>]| pods.iter().filter(|pod| pods::ready(pod)).filter_map(age_milli).collect::<Vec<_>>();
    let Some(youngest) = ready(pods).into_iter().min().filter(|age| *age > 0) else { return Vec::new() };
    ready(&pods[..going]).into_iter().map(|age| (age / youngest) as f64).collect()
}

/// The new status where it differs, and when a ready pod will become available.
pub fn status(
    old: &ReplicaSetStatus,
    counts: &Counts,
    pods: &[Arc<Pod>],
    failure: Option<&ApiError>,
    now: Timestamp,
) -> (Option<ReplicaSetStatus>, Option<Duration>) {
    let active: Vec<_> = pods.iter().filter(|pod| pods::active(pod)).collect();
    let fully_labeled = active.iter().filter(|pod| {
        let have = labels(pod.meta());
        counts.template_labels.iter().all(|(key, value)| have.get(key) == Some(value))
    });
    let terminating = pods.iter().filter(|pod| pod.deleting() && !pods::finished(pod));
    let waits: Vec<_> =
        active.iter().filter_map(|pod| pods::available_in(pod, counts.min_ready_seconds, now)).collect();
    let again = waits.iter().filter(|wait| !wait.is_zero()).min().copied();
    let new = ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: count(fully_labeled.count()),
        ready_replicas: count(waits.len()),
        available_replicas: count(waits.iter().filter(|wait| wait.is_zero()).count()),
        terminating_replicas: counts.reports_terminating.then(|| terminating.count() as i32),
        observed_generation: Some(counts.generation.max(old.observed_generation.unwrap_or(0))),
        conditions: conditions(old, counts, active.len(), failure, now),
    };
    (Some(new).filter(|new| new != old), again)
}

fn conditions(
    old: &ReplicaSetStatus,
    counts: &Counts,
    active: usize,
    failure: Option<&ApiError>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let known = conditions.iter().any(|c| c.type_ == "ReplicaFailure");
    match failure {
        Some(error) if !known => conditions.push(ReplicaSetCondition {
            type_: "ReplicaFailure".into(),
            status: "True".into(),
            reason: Some(if (active as i32) < counts.wanted { "FailedCreate" } else { "FailedDelete" }.into()),
            message: Some(error.message.clone()),
            last_transition_time: Some(time(now)),
        }),
        None => conditions.retain(|c| c.type_ != "ReplicaFailure"),
        Some(_) => {}
    }
    Some(conditions).filter(|c| !c.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::pods::testing::pod;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn some_pods(count: usize) -> Vec<Arc<Pod>> {
        (0..count).map(|i| Arc::new(pod(&format!("p{i}"), Some("2026-01-01T00:00:00Z")))).collect()
    }

    #[test]
    fn counts() {
        let check = |wanted: i32, pods: Vec<Arc<Pod>>, create: usize, delete: usize| {
            let plan = plan(wanted, &pods, PodsPerNode::new, now());
            assert_eq!((plan.create, plan.delete.len()), (create, delete));
        };
        check(3, some_pods(0), 3, 0);
        check(3, some_pods(3), 0, 0);
        check(3, some_pods(5), 0, 2);
        check(0, some_pods(5), 0, 5);
        check(2000, some_pods(0), 500, 0);
        let mut failed = pod("failed", None);
        failed.status.as_mut().unwrap().phase = Some("Failed".into());
        check(1, vec![Arc::new(failed)], 1, 0);
    }

    #[test]
    fn ages_of_those_that_go() {
        let check = |ages_seconds: &[i64], going: usize, expected: &[f64]| {
            let made = |age: &i64| {
                let mut pod = pod(&age.to_string(), Some("2026-01-01T00:30:00Z"));
                pod.metadata.creation_timestamp = Some(time(now() - jiff::SignedDuration::from_secs(*age)));
                Arc::new(pod)
            };
            let pods: Vec<_> = ages_seconds.iter().map(made).collect();
            assert_eq!(ratios_of_ages(&pods, going, now()), expected);
        };
        check(&[40, 10], 1, &[4.0]);
        check(&[15, 10], 1, &[1.0]);
        check(&[10, 25], 2, &[1.0, 2.0]);
        check(&[0, 25], 1, &[]);
    }

    #[test]
    fn status_counts_and_failures() {
        let counts = Counts {
            wanted: 2,
            min_ready_seconds: 3605,
            generation: 4,
            reports_terminating: true,
            template_labels: BTreeMap::new(),
        };
        let pods = [some_pods(1), vec![Arc::new(pod("unready", None))]].concat();
        let error = ApiError::internal("quota");
        let (new, again) = status(&ReplicaSetStatus::default(), &counts, &pods, Some(&error), now());
        let new = new.unwrap();
        assert_eq!((new.replicas, new.ready_replicas, new.available_replicas), (2, Some(1), None));
        assert_eq!((new.observed_generation, again), (Some(4), Some(Duration::from_secs(5))));
        assert_eq!(new.conditions.as_ref().unwrap()[0].reason.as_deref(), Some("FailedDelete"));
        let (same, _) = status(&new, &counts, &pods, Some(&ApiError::internal("other")), now());
        assert_eq!(same, None, "one failure is reported once");
        let (healed, _) = status(&new, &counts, &pods, None, now());
        assert_eq!(healed.unwrap().conditions, None);
    }
}
