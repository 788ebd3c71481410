//! Pods that are decided and wait for their claims to be bound: by deadline, and by claim.
//! Kept by `scheduler`; nothing here is looked through pod by pod.
//! Invariant: a pod is in both indexes or in none.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

struct Wait {
    until: Duration,
    claims: Vec<String>,
}

#[derive(Default)]
pub struct ClaimWaits {
    pods: HashMap<String, Wait>,
    deadlines: BTreeSet<(Duration, String)>,
    by_claim: HashMap<String, BTreeSet<String>>,
}

impl ClaimWaits {
    pub fn add(&mut self, pod: &str, claims: &[String], until: Duration) {
        self.remove(pod);
        for claim in claims {
            self.by_claim.entry(claim.clone()).or_default().insert(pod.to_string());
        }
        self.deadlines.insert((until, pod.to_string()));
        self.pods.insert(pod.to_string(), Wait { until, claims: claims.to_vec() });
    }

    /// Whether it waited.
    pub fn remove(&mut self, pod: &str) -> bool {
        let Some(wait) = self.pods.remove(pod) else { return false };
        self.deadlines.remove(&(wait.until, pod.to_string()));
        for claim in &wait.claims {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
        true
    }

    pub fn contains(&self, pod: &str) -> bool {
        self.pods.contains_key(pod)
    }

    /// The pods that wait for this claim.
    pub fn waiting_for(&self, claim: &str) -> Vec<String> {
        self.by_claim.get(claim).into_iter().flatten().cloned().collect()
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Those whose time is over.
    pub fn late(&self, now: Duration) -> Vec<String> {
        self.deadlines.iter().take_while(|(until, _)| *until <= now).map(|(_, pod)| pod.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_wait_for_claims_until_a_time() {
        let second = Duration::from_secs(1);
        let mut waits = ClaimWaits::default();
        waits.add("d/a", &["d/one".into(), "d/two".into()], 2 * second);
        waits.add("d/b", &["d/two".into()], second);
        assert_eq!(waits.waiting_for("d/two"), ["d/a", "d/b"]);
        assert_eq!((waits.next_deadline(), waits.late(second)), (Some(second), vec!["d/b".to_string()]));
        assert!(waits.remove("d/b") && !waits.remove("d/b"));
        assert_eq!((waits.waiting_for("d/two"), waits.late(second)), (vec!["d/a".to_string()], vec![]));
        assert!(waits.contains("d/a") && waits.remove("d/a"));
        assert_eq!((waits.next_deadline(), waits.by_claim.len()), (None, 0));
    }
}
