//! Pods in PreBind that wait for their claims to be bound, by pod and by claim.
//! Kept by `VolumeBinding`; nothing here is looked through pod by pod.
//! A pod is in both indexes or in none.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::pod_info::PodInfo;

struct Wait {
    id: u64,
    pod: Arc<PodInfo>,
    bound: oneshot::Sender<()>,
}

#[derive(Default)]
pub struct ClaimWaits {
    next_id: u64,
    pods: HashMap<String, Wait>,
    by_claim: HashMap<String, BTreeSet<String>>,
}

impl ClaimWaits {
    /// The receiver hears of it when `claim_changed` finds the pod's claims bound; it fails when the pod is removed.
    /// The number stands for this wait.
    pub fn add(&mut self, pod: Arc<PodInfo>) -> (u64, oneshot::Receiver<()>) {
        self.remove(&pod.key);
        for claim in &pod.claims {
            self.by_claim.entry(claim.clone()).or_default().insert(pod.key.clone());
        }
        let (bound, receiver) = oneshot::channel();
        self.next_id += 1;
        self.pods.insert(pod.key.clone(), Wait { id: self.next_id, pod, bound });
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

    /// Lets those go on that waited for this claim and have all of theirs.
    pub fn claim_changed(&mut self, claim: &str, all_bound: impl Fn(&PodInfo) -> bool) {
        let waiting: Vec<String> = self.by_claim.get(claim).into_iter().flatten().cloned().collect();
        for key in waiting {
            if self.pods.get(&key).is_some_and(|wait| all_bound(&wait.pod))
                && let Some(wait) = self.take(&key)
            {
                // Nobody listens when the binding cycle has ended meanwhile.
                wait.bound.send(()).ok();
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
        let mut waits = ClaimWaits::default();
        let (first, mut a) = waits.add(claiming("a", &["one", "two"]));
        let (_, mut b) = waits.add(claiming("b", &["two"]));
        waits.claim_changed("d/two", |pod| pod.name() == "b");
        assert!(b.try_recv().is_ok() && a.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        waits.claim_changed("d/other", |_| true);
        assert!(a.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        waits.remove("d/a");
        assert!(a.try_recv() == Err(oneshot::error::TryRecvError::Closed));
        let (second, _a) = waits.add(claiming("a", &["one"]));
        waits.end("d/a", first);
        assert_eq!(waits.pods.len(), 1);
        waits.end("d/a", second);
        assert!(waits.pods.is_empty() && waits.by_claim.is_empty());
    }
}
