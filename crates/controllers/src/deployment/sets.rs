//! Arithmetic over the replica sets of one deployment: old and new, sizes, shares, revisions.
//! Used by `plan` and `status`.
//! Invariant: pure; percentages of maxSurge round up, those of maxUnavailable down (tidy: `pure_files`).

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, ReplicaSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::common::meta::{self, Object, scaled};

pub const HASH_LABEL: &str = "pod-template-hash";
pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

pub fn spec(deployment: &Deployment) -> DeploymentSpec {
    deployment.spec.clone().unwrap_or_default()
}

pub fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

pub fn rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|s| s.strategy.as_ref());
    strategy.and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") != "Recreate"
}

/// `(maxSurge, maxUnavailable)` as numbers. Both zero would never move, so one pod may then be missing.
fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    let strategy = deployment.spec.as_ref().and_then(|s| s.strategy.as_ref()?.rolling_update.clone());
    let quarter = || IntOrString::String("25%".into());
    let (surge, unavailable) = strategy.map_or((None, None), |r| (r.max_surge, r.max_unavailable));
    let total = wanted(deployment);
    let surge = scaled(&surge.unwrap_or_else(quarter), total, true).unwrap_or(0);
    let unavailable = scaled(&unavailable.unwrap_or_else(quarter), total, false).unwrap_or(0);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

pub fn max_surge(deployment: &Deployment) -> i32 {
    if rolling(deployment) { fenceposts(deployment).0 } else { 0 }
}

pub fn max_unavailable(deployment: &Deployment) -> i32 {
    let total = wanted(deployment);
    if !rolling(deployment) || total == 0 { 0 } else { fenceposts(deployment).1.min(total) }
}

pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Of those that are to stay: a set that was just made smaller still reports the pods it is about to lose.
pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).min(replicas(set))
}

pub fn total<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i32 {
    sets.into_iter().map(replicas).sum()
}

pub fn revision(set: &ReplicaSet) -> i64 {
    set.annotation(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub fn number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    set.annotation(annotation)?.parse().ok()
}

/// Equal but for the label that names the template.
pub fn same_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let bare = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        if let Some(labels) = template.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
            labels.remove(HASH_LABEL);
        }
        let meta = template.metadata.get_or_insert_default();
        meta.creation_timestamp = None;
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
        meta.annotations = meta.annotations.take().filter(|annotations| !annotations.is_empty());
        template
    };
    let theirs = set.spec.as_ref().and_then(|s| s.template.as_ref());
    theirs.is_some_and(|theirs| bare(theirs) == bare(template))
}

pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    meta::safe_hash(&bytes, collisions)
}

/// Oldest first, by name where equally old.
pub fn by_age(sets: &mut [ReplicaSet]) {
    sets.sort_by(|a, b| (a.created(), a.name()).cmp(&(b.created(), b.name())));
}

/// Largest first; of equal ones the newer (when growing) or the older (when shrinking) comes first.
pub fn by_size(sets: &mut [&ReplicaSet], newer_first: bool) {
    sets.sort_by_key(|set| Reverse(replicas(set)));
    sets.sort_by(|a, b| {
        let age = (a.created(), a.name()).cmp(&(b.created(), b.name()));
        replicas(b).cmp(&replicas(a)).then(if newer_first { age.reverse() } else { age })
    });
}

/// The set of the present template (the oldest, should there be several) and all others, oldest first.
pub fn split(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> (Option<ReplicaSet>, Vec<ReplicaSet>) {
    let mut sets: Vec<ReplicaSet> = sets.iter().map(|set| (**set).clone()).collect();
    by_age(&mut sets);
    let template = deployment.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let new = sets.iter().position(|set| same_template(set, &template)).map(|at| sets.remove(at));
    (new, sets)
}

/// How large the new set may become now.
pub fn new_set_size(deployment: &Deployment, all: i32, new: i32) -> i32 {
    let wanted = wanted(deployment);
    if !rolling(deployment) {
        return wanted;
    }
    let limit = wanted + max_surge(deployment);
    if all >= limit { new } else { new + (limit - all).min(wanted - new) }
}

/// The share of `to_add` that falls to `set` when a deployment is scaled in the middle of a rollout.
pub fn proportion(set: &ReplicaSet, deployment: &Deployment, to_add: i32, added: i32) -> i32 {
    if replicas(set) == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let share = fraction(set, deployment);
    let allowed = to_add - added;
    if to_add > 0 { share.min(allowed) } else { share.max(allowed) }
}

fn fraction(set: &ReplicaSet, deployment: &Deployment) -> i32 {
    let size = replicas(set);
    if wanted(deployment) == 0 {
        return -size;
    }
    let limit = wanted(deployment) + max_surge(deployment);
    let observed = deployment.status.as_ref().and_then(|s| s.replicas).unwrap_or(0);
    let before = number(set, MAX_REPLICAS).filter(|n| *n != 0).unwrap_or(observed);
    if before == 0 {
        return 0;
    }
    (f64::from(size) * f64::from(limit) / f64::from(before)).round() as i32 - size
}

/// Writes the sizes that tell a later reconcile whether the deployment was scaled meanwhile.
pub fn set_size_annotations(set: &mut ReplicaSet, deployment: &Deployment) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED_REPLICAS.into(), wanted(deployment).to_string());
    annotations.insert(MAX_REPLICAS.into(), (wanted(deployment) + max_surge(deployment)).to_string());
}

/// The oldest revisions go when there are too many to remember.
fn longer_history(history: &str, revision: &str) -> String {
    const REVISION_HISTORY_CHARS_MAX: usize = 2000;
    let mut history = if history.is_empty() { revision.to_string() } else { format!("{history},{revision}") };
    while history.len() > REVISION_HISTORY_CHARS_MAX
        && let Some((_, newer)) = history.split_once(',')
    {
        history = newer.to_string();
    }
    history
}

/// Copies the deployment's annotations and moves the revision forward, keeping those that it had before.
pub fn set_annotations(set: &mut ReplicaSet, deployment: &Deployment, new_revision: i64, exists: bool) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let old_number: i64 = old.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0);
    if old_number < new_revision {
        annotations.insert(REVISION.into(), new_revision.to_string());
        if let Some(old) = old.filter(|_| exists && old_number > 0) {
            let history = annotations.entry(REVISION_HISTORY.into()).or_default();
            *history = longer_history(history, &old);
        }
    }
}
