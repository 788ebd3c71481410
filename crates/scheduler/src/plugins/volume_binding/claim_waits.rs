//! Pods in PreBind that wait for their claims to be bound, by pod and by claim.
//! Kept by `VolumeBinding`; nothing here is looked through pod by pod.
//! A pod is in both indexes or in none.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::pod_info::PodInfo;

/// How a wait ends.
#[derive(Debug, PartialEq)]
pub enum ClaimsOutcome {
    Bound,
    /// Whoever makes volumes can't make this claim's on the node.
    NodeGivenBack(String),
}

struct Wait {
    id: u64,
    pod: Arc<PodInfo>,
    /// Claims that were seen with the node.
    selected: HashSet<String>,
    bound: oneshot::Sender<ClaimsOutcome>,
}

#[derive(Default)]
pub struct ClaimWaits {
    next_id: u64,
    pods: HashMap<String, Wait>,
    by_claim: HashMap<String, BTreeSet<String>>,
}

impl ClaimWaits {
    /// The receiver hears of it when `claim_changed` finds the pod's claims bound, or one without its node again; it fails
    /// when the pod is removed. `selected` are those that have the node already. The number stands for this wait.
    pub fn add(&mut self, pod: Arc<PodInfo>, selected: HashSet<String>) -> (u64, oneshot::Receiver<ClaimsOutcome>) {
        self.remove(&pod.key);
        for claim in &pod.claims {
            self.by_claim.entry(claim.clone()).or_default().insert(pod.key.clone());
        }
        let (bound, receiver) = oneshot::channel();
        self.next_id += 1;
        self.pods.insert(pod.key.clone(), Wait { id: self.next_id, pod, selected, bound });
        (self.next_id, receiver)
    }

    /// Ends this wait, and not one that another pod of the name has begun since.
    pub fn end(&mut self, pod: &str, id: u64) {
        if self.pods.get(pod).is_some_and(|wait| wait.id == id) {
            self.remove(pod);
        }
    }

    pub fn remove(&mut self, pod: &str) {
        self.take(pod);
    }

    fn take(&mut self, pod: &str) -> Option<Wait> {
        let wait = self.pods.remove(pod)?;
        for claim in &wait.pod.claims {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
        Some(wait)
    }

    /// Lets those go on that waited for this claim and have all of theirs, and ends the wait of those whose node was
    /// taken from it: the request that named the node may still be on its way, so it must have been seen before.
    pub fn claim_changed(&mut self, claim: &str, has_node: bool, all_bound: impl Fn(&PodInfo) -> bool) {
        let waiting: Vec<String> = self.by_claim.get(claim).into_iter().flatten().cloned().collect();
        for key in waiting {
            let Some(wait) = self.pods.get_mut(&key) else { continue };
            let outcome = if all_bound(&wait.pod) {
                ClaimsOutcome::Bound
            } else if !has_node && wait.selected.contains(claim) {
                ClaimsOutcome::NodeGivenBack(claim.into())
            } else {
                if has_node {
                    wait.selected.insert(claim.into());
                }
                continue;
            };
            if let Some(wait) = self.take(&key) {
                // Nobody listens when the binding cycle has ended meanwhile.
                wait.bound.send(outcome).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::named_pod;

    fn claiming(name: &str, claims: &[&str]) -> Arc<PodInfo> {
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Vec<_> = claims.iter().map(volume).collect();
        named_pod("d", name, json!({}), json!({"volumes": volumes})).info()
    }

    #[test]
    fn pods_wait_for_all_of_their_claims() {
        let none = HashSet::new;
        let mut waits = ClaimWaits::default();
        let (first, mut a) = waits.add(claiming("a", &["one", "two"]), none());
        let (_, mut b) = waits.add(claiming("b", &["two"]), none());
        waits.claim_changed("d/two", true, |pod| pod.name() == "b");
        assert_eq!(b.try_recv(), Ok(ClaimsOutcome::Bound));
        assert_eq!(a.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        waits.claim_changed("d/other", true, |_| true);
        assert_eq!(a.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        waits.remove("d/a");
        assert_eq!(a.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (second, _a) = waits.add(claiming("a", &["one"]), none());
        waits.end("d/a", first);
        assert_eq!(waits.pods.len(), 1);
        waits.end("d/a", second);
        assert!(waits.pods.is_empty() && waits.by_claim.is_empty());
    }

    #[test]
    fn a_wait_ends_when_a_claim_loses_the_node_that_it_had() {
        let check = |had: bool, changes: &[bool], expected: bool| {
            let mut waits = ClaimWaits::default();
            let selected = if had { HashSet::from(["d/one".to_string()]) } else { HashSet::new() };
            let (_, mut wait) = waits.add(claiming("a", &["one"]), selected);
            for has_node in changes {
                waits.claim_changed("d/one", *has_node, |_| false);
            }
            let given_back = wait.try_recv() == Ok(ClaimsOutcome::NodeGivenBack("d/one".into()));
            assert_eq!(given_back, expected, "{had} {changes:?}");
        };
        check(false, &[false, false], false);
        check(false, &[true, false], true);
        check(true, &[false], true);
        check(true, &[true], false);
    }
}
