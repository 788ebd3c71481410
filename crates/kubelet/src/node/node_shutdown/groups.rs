//! In which order pods end when the machine shuts down, and how long each group of priorities has.
//! Part of `node_shutdown`.
//! Invariant: pure; every pod is in exactly one group (tidy: `pure_files`).

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use crate::pod::pod_spec;

const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// A row of `shutdownGracePeriodByPodPriority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityGracePeriod {
    pub priority: i32,
    pub grace_period_seconds: i64,
}

/// What a shutdown gives to pods, the least important first; nothing where it is not to be delayed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShutdownGracePeriods(Vec<PriorityGracePeriod>);

#[derive(Debug, PartialEq)]
pub struct ShutdownGroup {
    pub period: PriorityGracePeriod,
    pub pods: Vec<Arc<Pod>>,
}

impl ShutdownGracePeriods {
    pub fn by_priority(mut rows: Vec<PriorityGracePeriod>) -> Self {
        rows.sort_by_key(|row| row.priority);
        Self(rows)
    }

    /// Critical pods get the last part of the whole.
    pub fn of_whole(whole: Duration, critical: Duration) -> Self {
        if whole.is_zero() || critical > whole {
            return Self::default();
        }
        let row = |priority, period: Duration| PriorityGracePeriod {
            priority,
            grace_period_seconds: i64::try_from(period.as_secs()).unwrap_or(i64::MAX),
        };
        Self(vec![row(0, whole - critical), row(SYSTEM_CRITICAL_PRIORITY, critical)])
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn total(&self) -> Duration {
        let seconds = self.0.iter().map(|row| row.grace_period_seconds.max(0) as u64).fold(0, u64::saturating_add);
        Duration::from_secs(seconds)
    }

    /// A pod belongs to the highest row that its priority reaches, or to the lowest.
    pub fn groups(&self, pods: &[Arc<Pod>]) -> Vec<ShutdownGroup> {
        let mut groups: Vec<ShutdownGroup> =
            self.0.iter().map(|period| ShutdownGroup { period: *period, pods: vec![] }).collect();
        for pod in pods {
            let priority = pod_spec::spec(pod).priority.unwrap_or(0);
            let index = self.0.partition_point(|row| row.priority <= priority).saturating_sub(1);
            if let Some(group) = groups.get_mut(index) {
                group.pods.push(pod.clone());
            }
        }
        groups.retain(|group| !group.pods.is_empty());
        groups
    }
}

/// What a pod gets of its group's time: no more than it asks for.
pub fn grace_period_seconds(pod: &Pod, group: &PriorityGracePeriod) -> i64 {
    let own = pod_spec::spec(pod).termination_grace_period_seconds;
    own.map_or(group.grace_period_seconds, |own| own.min(group.grace_period_seconds)).max(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, priority: i32, grace: Option<i64>) -> Arc<Pod> {
        let spec = json!({"priority": priority, "terminationGracePeriodSeconds": grace, "containers": []});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
    }

    #[test]
    fn pods_end_with_their_priority() {
        let pods = [
            pod("negative", -5, None),
            pod("plain", 0, Some(3)),
            pod("high", 1000, Some(100)),
            pod("critical", SYSTEM_CRITICAL_PRIORITY + 1000, None),
        ];
        let check = |periods: ShutdownGracePeriods, expected: &[(&[&str], &[i64])]| {
            let found = periods.groups(&pods);
            let shown: Vec<(Vec<&str>, Vec<i64>)> = found
                .iter()
                .map(|group| {
                    let names = group.pods.iter().map(|pod| pod_spec::name(pod)).collect();
                    (names, group.pods.iter().map(|pod| grace_period_seconds(pod, &group.period)).collect())
                })
                .collect();
            let expected: Vec<_> = expected.iter().map(|(names, graces)| (names.to_vec(), graces.to_vec())).collect();
            assert_eq!(shown, expected);
        };
        let seconds = Duration::from_secs;
        check(
            ShutdownGracePeriods::of_whole(seconds(30), seconds(10)),
            &[(&["negative", "plain", "high"], &[20, 3, 20]), (&["critical"], &[10])],
        );
        let row = |priority, grace_period_seconds| PriorityGracePeriod { priority, grace_period_seconds };
        let rows = ShutdownGracePeriods::by_priority(vec![row(1000, 60), row(0, 5), row(500, 7)]);
        assert_eq!(rows.total(), seconds(72));
        check(rows, &[(&["negative", "plain"], &[5, 3]), (&["high", "critical"], &[60, 60])]);
        assert!(ShutdownGracePeriods::of_whole(Duration::ZERO, Duration::ZERO).is_empty());
    }
}
