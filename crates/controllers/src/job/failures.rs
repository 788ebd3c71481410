//! How often an index has failed: each of its pods remembers what came before it, and hands that on to its successor.
//! Used by the job core where every index has a limit of its own.
//! An ignored failure leaves the count that the limit is about alone.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{backoff::finished_at, policy::Ruling};
use crate::common::meta::Object;

pub const COUNTED: &str = "batch.kubernetes.io/job-index-failure-count";
pub const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Failures {
    pub counted: i32,
    pub ignored: i32,
}

impl Failures {
    /// Of the pods before this one.
    pub fn before(pod: &Pod) -> Self {
        let number = |name| pod.annotation(name).and_then(|text| text.parse().ok()).filter(|n| *n >= 0).unwrap_or(0);
        Self { counted: number(COUNTED), ignored: number(IGNORED) }
    }

    /// With this pod's own.
    pub fn with(pod: &Pod, ruling: &Ruling) -> Self {
        let before = Self::before(pod);
        match ruling {
            Ruling::Ignore => Self { ignored: before.ignored.saturating_add(1), ..before },
            _ => Self { counted: before.counted.saturating_add(1), ..before },
        }
    }

    pub fn all(self) -> i32 {
        self.counted.saturating_add(self.ignored)
    }
}

/// The latest of the failed pods of each index.
pub fn latest<'a>(failed: impl Iterator<Item = (i32, &'a Arc<Pod>)>) -> BTreeMap<i32, Arc<Pod>> {
    let mut latest: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
    for (index, pod) in failed {
        let known = latest.entry(index).or_insert_with(|| pod.clone());
        let order = |pod: &Pod| (Failures::before(pod).all(), finished_at(pod));
        if order(known) < order(pod) {
            *known = pod.clone();
        }
    }
    latest
}
