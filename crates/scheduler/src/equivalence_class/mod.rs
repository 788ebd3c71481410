//! Pods of one template share their filtering and scoring: what is known of every node for a class of pods is kept,
//! and only nodes that have changed since are looked at again.
//! Asked by `scheduler` before `cycle`; `signature` says who belongs together, `node_groups` keeps the nodes in groups.
//! A class gives every node the verdict and the score that `cycle` would give it, looking at all nodes (`tests.rs`
//! compares both).

mod node_groups;
mod node_plugins;
mod signature;
#[cfg(test)]
mod tests;
mod topology_counts;
mod topology_rules;

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use env::Env;

use node_groups::EquivalenceClass;
#[cfg(test)]
pub use signature::{PARTS, sign_except};
pub use signature::{PodSignature, sign};
pub use topology_rules::{DomainCount, DomainRules, GroupView, Outdated, Scope, distinct};

use crate::{cluster::Cluster, diagnosis::Diagnosis, framework::Profile, pod_info::PendingPod};

/// Classes kept; the one not used for longest goes first.
const CLASSES_MAX: usize = 32;
/// Signatures of pods seen once, kept to notice the second of a kind; beyond this all are forgotten.
const SEEN_SIGNATURES_MAX: usize = 256;

/// What a class says about a pod.
pub enum Choice {
    Node(Arc<str>),
    /// No node will do, and nothing has changed since another of the class was told so: why, and whether a nomination
    /// is to be taken back.
    Refused(Arc<Diagnosis>, bool),
    /// Nothing is known; look at the nodes one by one.
    Unknown,
}

/// Holds while the cluster stays as it was.
struct Refusal {
    version: u64,
    diagnosis: Arc<Diagnosis>,
    clear_nomination: bool,
}

struct Entry {
    class: EquivalenceClass,
    refusal: Option<Refusal>,
    used: u64,
}

#[derive(Default)]
pub struct EquivalenceClasses {
    entries: HashMap<Vec<u8>, Entry>,
    seen: HashSet<Vec<u8>>,
    turn: u64,
}

impl EquivalenceClasses {
    /// The best node for the pod, unless it is the first of its class or one of a kind.
    pub fn choose(&mut self, cluster: &Cluster, profile: &Profile, pod: &Arc<PendingPod>, env: &Env) -> Choice {
        let Some(key) = shared_signature(cluster, profile, pod) else { return Choice::Unknown };
        self.turn += 1;
        if !self.entries.contains_key(&key) {
            if !self.seen.remove(&key) {
                self.notice(key);
                return Choice::Unknown;
            }
            let Some(class) = EquivalenceClass::new(cluster, profile, pod.clone()) else { return Choice::Unknown };
            self.make_room();
            self.entries.insert(key.clone(), Entry { class, refusal: None, used: 0 });
        }
        let Some(entry) = self.entries.get_mut(&key) else { return Choice::Unknown };
        entry.used = self.turn;
        match &entry.refusal {
            Some(refusal) if refusal.version == cluster.version() => {
                return Choice::Refused(refusal.diagnosis.clone(), refusal.clear_nomination);
            }
            _ => entry.refusal = None,
        }
        match entry.class.best(cluster, profile, env) {
            Ok(Some(at)) => Choice::Node(cluster.cache.nodes()[at as usize].name.clone()),
            Ok(None) => Choice::Unknown,
            Err(Outdated) => {
                // It no longer fits the cluster; the next of its kind begins it anew.
                self.entries.remove(&key);
                self.notice(key);
                Choice::Unknown
            }
        }
    }

    /// Remembers that nothing will do for pods like this one as long as the cluster stays as it is.
    pub fn refused(
        &mut self,
        cluster: &Cluster,
        profile: &Profile,
        pod: &PendingPod,
        diagnosis: Arc<Diagnosis>,
        clear_nomination: bool,
    ) {
        let entry = shared_signature(cluster, profile, pod).and_then(|key| self.entries.get_mut(&key));
        if let Some(entry) = entry {
            entry.refusal = Some(Refusal { version: cluster.version(), diagnosis, clear_nomination });
        }
    }

    fn notice(&mut self, key: Vec<u8>) {
        if self.seen.len() >= SEEN_SIGNATURES_MAX {
            self.seen.clear();
        }
        self.seen.insert(key);
    }

    fn make_room(&mut self) {
        if self.entries.len() >= CLASSES_MAX
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(key, _)| key.clone())
        {
            self.entries.remove(&oldest);
        }
    }
}

/// What the pod shares with others of its class, if it has one.
fn shared_signature(cluster: &Cluster, profile: &Profile, pod: &PendingPod) -> Option<Vec<u8>> {
    if is_alone(cluster, pod) { None } else { sign(cluster, profile, pod) }
}

/// Whether the pod has a place held for it, or those of others count for it.
pub fn is_alone(cluster: &Cluster, pod: &PendingPod) -> bool {
    pod.nominated_node_name().is_some() || cluster.cache.any_nominated_from(pod.priority)
}

/// A number that stands for the pod's class.
pub fn class_hash(cluster: &Cluster, profile: &Profile, pod: &PendingPod) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    shared_signature(cluster, profile, pod)?.hash(&mut hasher);
    Some(hasher.finish())
}
