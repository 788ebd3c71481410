//! Pods of one template share their filtering and scoring: what is known of every node for a class of pods is kept,
//! and only nodes that have changed since are looked at again.
//! Asked by `scheduler` before `cycle`; `key` says who belongs together, `table` keeps the nodes in groups.
//! Invariant: a class gives every node the verdict and the score that `cycle` would give it, looking at all nodes.

mod key;
mod local;
mod rules;
mod table;
#[cfg(test)]
mod tests;
mod topology;

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use env::Env;

pub use rules::{Domains, Outdated, Scope, Tally, View, distinct};
use table::Class;

use crate::{cluster::Cluster, diagnosis::Diagnosis, framework::Profile, pod_info::WaitingPod};

/// Classes kept; the one not used for longest goes first.
const MAX_CLASSES: usize = 32;
/// Keys of pods seen once, kept to notice the second of a kind; beyond this all are forgotten.
const MAX_SEEN: usize = 256;

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
    withdraw: bool,
}

struct Entry {
    class: Class,
    refusal: Option<Refusal>,
    used: u64,
}

#[derive(Default)]
pub struct Classes {
    entries: HashMap<String, Entry>,
    seen: HashSet<String>,
    turn: u64,
}

impl Classes {
    /// The best node for the pod, unless it is the first of its class or one of a kind.
    pub fn choose(&mut self, cluster: &Cluster, profile: &Profile, pod: &Arc<WaitingPod>, env: &Env) -> Choice {
        let Some(key) = shared_key(cluster, pod) else { return Choice::Unknown };
        self.turn += 1;
        if !self.entries.contains_key(&key) {
            if !self.seen.remove(&key) {
                self.notice(key);
                return Choice::Unknown;
            }
            let Some(class) = Class::new(cluster, profile, pod.clone()) else { return Choice::Unknown };
            self.make_room();
            self.entries.insert(key.clone(), Entry { class, refusal: None, used: 0 });
        }
        let Some(entry) = self.entries.get_mut(&key) else { return Choice::Unknown };
        entry.used = self.turn;
        match &entry.refusal {
            Some(refusal) if refusal.version == cluster.version() => {
                return Choice::Refused(refusal.diagnosis.clone(), refusal.withdraw);
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
    pub fn refused(&mut self, cluster: &Cluster, pod: &WaitingPod, diagnosis: Arc<Diagnosis>, withdraw: bool) {
        let entry = shared_key(cluster, pod).and_then(|key| self.entries.get_mut(&key));
        if let Some(entry) = entry {
            entry.refusal = Some(Refusal { version: cluster.version(), diagnosis, withdraw });
        }
    }

    fn notice(&mut self, key: String) {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(key);
    }

    fn make_room(&mut self) {
        if self.entries.len() >= MAX_CLASSES
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(key, _)| key.clone())
        {
            self.entries.remove(&oldest);
        }
    }
}

/// The pod's class. Pods with claims or a place held for them, and those for whom others' held places count, have none.
fn shared_key(cluster: &Cluster, pod: &WaitingPod) -> Option<String> {
    let alone = !pod.claims.is_empty()
        || pod.error.is_some()
        || pod.nominated_node_name().is_some()
        || cluster.cache.any_nominated_from(pod.priority);
    if alone { None } else { key::of(cluster, pod) }
}

/// A number that stands for the pod's class.
pub fn of(cluster: &Cluster, pod: &WaitingPod) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    shared_key(cluster, pod)?.hash(&mut hasher);
    Some(hasher.finish())
}
