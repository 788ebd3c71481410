//! The graph of owners and dependents, by uid, and what follows from it for one object.
//! Fed by watches of every resource; the controller beside it carries out.
//! Invariant: pure; an owner counts as absent only after it was seen to go or was asked for and not found (tidy:
//! `pure_files`).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use api::{Resource, object::OwnerReference};

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";
/// Uids of owners known to be gone that we remember; an older one is asked for again.
const ABSENT_OWNERS_MAX: usize = 1000;

/// One object, seen or only named by a dependent.
#[derive(Debug, Clone)]
pub struct Node {
    /// `None` while the object is known only by its uid in an owner reference.
    pub resource: Option<Arc<Resource>>,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub owners: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
    pub deleting: bool,
    pub resource_version: u64,
    dependents: BTreeSet<String>,
}

impl Node {
    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.finalizers.iter().any(|f| f == FOREGROUND)
    }

    fn orphans_dependents(&self) -> bool {
        self.deleting && self.finalizers.iter().any(|f| f == ORPHAN)
    }

    fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
    }
}

/// What to do about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Nothing,
    /// Ask the server whether this owner exists, as `dependent` names it.
    Verify {
        owner: OwnerReference,
        namespace: String,
    },
    /// Take the references to these owners away.
    DropOwners(Vec<String>),
    Delete {
        policy: &'static str,
        unblock: bool,
    },
    /// Take the reference to this object from its dependents, then its finalizer.
    Orphan(Vec<String>),
    RemoveFinalizer(&'static str),
    /// Look at these dependents; their owner waits for them.
    Wake(Vec<String>),
}

#[derive(Default)]
pub struct Graph {
    nodes: HashMap<String, Node>,
    absent: BTreeSet<String>,
    absent_order: VecDeque<String>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// Takes in a new version; returns the uids to look at.
    pub fn put(&mut self, resource: &Arc<Resource>, meta: &api::Meta) -> Vec<String> {
        let uid = meta.uid.clone();
        let old = self.nodes.get(&uid);
        let (known, old_owners) = match old.filter(|n| n.resource.is_some()) {
            Some(node) => (true, node.owners.clone()),
            None => (false, Vec::new()),
        };
        let deleting = meta.deletion_timestamp.is_some();
        if let Some(node) = self.nodes.get_mut(&uid)
            && known
            && node.owners == meta.owner_references
            && node.deleting == deleting
            && node.finalizers == meta.finalizers
        {
            node.resource_version = meta.resource_version;
            return Vec::new();
        }
        let dependents = self.nodes.get(&uid).map(|n| n.dependents.clone()).unwrap_or_default();
        self.nodes.insert(
            uid.clone(),
            Node {
                resource: Some(resource.clone()),
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone(),
                uid: uid.clone(),
                owners: meta.owner_references.clone(),
                finalizers: meta.finalizers.clone(),
                deleting,
                resource_version: meta.resource_version,
                dependents,
            },
        );
        let mut look = vec![uid.clone()];
        for owner in &old_owners {
            let still = meta.owner_references.iter().find(|o| o.uid == owner.uid);
            if still.is_none() {
                self.unlink(&owner.uid, &uid);
            }
            // An owner that waits may go on once this one no longer blocks it.
            if still != Some(owner) {
                look.push(owner.uid.clone());
            }
        }
        for owner in &meta.owner_references {
            self.link(owner, &uid);
        }
        look
    }

    fn link(&mut self, owner: &OwnerReference, dependent: &str) {
        let node = self.nodes.entry(owner.uid.clone()).or_insert_with(|| Node {
            resource: None,
            namespace: String::new(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            owners: Vec::new(),
            finalizers: Vec::new(),
            deleting: false,
            resource_version: 0,
            dependents: BTreeSet::new(),
        });
        node.dependents.insert(dependent.to_string());
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(node) = self.nodes.get_mut(owner) {
            node.dependents.remove(dependent);
            if node.resource.is_none() && node.dependents.is_empty() {
                self.nodes.remove(owner);
            }
        }
    }

    /// The object is gone; returns the uids to look at: its dependents, and owners that may have waited for it.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        self.note_absent(uid);
        let mut look: Vec<String> = node.dependents.iter().cloned().collect();
        for owner in &node.owners {
            self.unlink(&owner.uid, uid);
            look.push(owner.uid.clone());
        }
        // The dependents still name it: they keep a place to be found by.
        look
    }

    fn note_absent(&mut self, uid: &str) {
        if self.absent.insert(uid.to_string()) {
            self.absent_order.push_back(uid.to_string());
        }
        if self.absent_order.len() > ABSENT_OWNERS_MAX
            && let Some(oldest) = self.absent_order.pop_front()
        {
            self.absent.remove(&oldest);
        }
    }

    /// The server says that there is no such owner; returns its dependents.
    pub fn not_found(&mut self, uid: &str) -> Vec<String> {
        if self.nodes.get(uid).is_some_and(|n| n.resource.is_some()) {
            return Vec::new();
        }
        self.note_absent(uid);
        self.nodes.remove(uid).map(|n| n.dependents.into_iter().collect()).unwrap_or_default()
    }

    pub fn decide(&self, uid: &str) -> Verdict {
        let Some(node) = self.nodes.get(uid).filter(|n| n.resource.is_some()) else { return Verdict::Nothing };
        let dependents = || node.dependents.iter().filter_map(|d| self.nodes.get(d));
        if node.orphans_dependents() {
            return Verdict::Orphan(node.dependents.iter().cloned().collect());
        }
        if node.waits_for_dependents() {
            let blocking: Vec<&Node> = dependents().filter(|d| d.blocks(uid)).collect();
            if blocking.is_empty() {
                return Verdict::RemoveFinalizer(FOREGROUND);
            }
            return Verdict::Wake(blocking.iter().filter(|d| !d.deleting).map(|d| d.uid.clone()).collect());
        }
        if node.deleting || node.owners.is_empty() {
            return Verdict::Nothing;
        }
        self.judge_owners(node)
    }

    fn judge_owners(&self, node: &Node) -> Verdict {
        let (mut solid, mut waiting, mut dangling) = (0, Vec::new(), Vec::new());
        for owner in &node.owners {
            match self.nodes.get(&owner.uid).filter(|n| n.resource.is_some()) {
                // The same uid elsewhere is not the owner that is meant here.
                Some(found) if !found.namespace.is_empty() && found.namespace != node.namespace => {
                    if node.namespace.is_empty() {
                        solid += 1;
                    } else {
                        dangling.push(owner.uid.clone());
                    }
                }
                Some(found) if found.waits_for_dependents() => waiting.push(owner.uid.clone()),
                Some(_) => solid += 1,
                None if self.absent.contains(&owner.uid) => dangling.push(owner.uid.clone()),
                None => return Verdict::Verify { owner: owner.clone(), namespace: node.namespace.clone() },
            }
        }
        if solid > 0 {
            dangling.extend(waiting);
            return if dangling.is_empty() { Verdict::Nothing } else { Verdict::DropOwners(dangling) };
        }
        let dependents: Vec<&Node> = node.dependents.iter().filter_map(|d| self.nodes.get(d)).collect();
        if !waiting.is_empty() && !dependents.is_empty() {
            // Two that wait for each other would wait for ever: this one stops blocking.
            let unblock = dependents.iter().any(|d| d.waits_for_dependents());
            return Verdict::Delete { policy: "Foreground", unblock };
        }
        let has = |finalizer: &str| node.finalizers.iter().any(|f| f == finalizer);
        let policy = if has(ORPHAN) {
            "Orphan"
        } else if has(FOREGROUND) {
            "Foreground"
        } else {
            "Background"
        };
        Verdict::Delete { policy, unblock: false }
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
