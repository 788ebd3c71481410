//! Pods of higher priority are tried first; among equals, those that have waited longest.
//! Orders the active part of `queue`.

use std::time::Duration;

use serde_json::Value;

use crate::{
    framework::{Plugin, QueueSortKey, QueueSortPlugin},
    pod_info::PendingPod,
};

pub struct PrioritySort;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(PrioritySort).queue_sort().build())
}

impl QueueSortPlugin for PrioritySort {
    fn sort_key(&self, pod: &PendingPod, since: Duration) -> QueueSortKey {
        (-i64::from(pod.priority), since)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::pod;

    #[test]
    fn priority_then_time() {
        let key = |priority: i32, seconds| {
            PrioritySort.sort_key(&pod(json!({"priority": priority})), Duration::from_secs(seconds))
        };
        let mut keys = [key(1, 1), key(i32::MIN, 0), key(9, 7), key(9, 3), key(i32::MAX, 9)];
        keys.sort();
        assert_eq!(keys, [key(i32::MAX, 9), key(9, 3), key(9, 7), key(1, 1), key(i32::MIN, 0)]);
    }
}
