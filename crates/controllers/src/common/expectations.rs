//! Writes of our own that the cache has not shown yet, so that nothing is created or deleted twice.
//! Filled by `pod_control` and `deployment` before a request, emptied by the watch; asked by controllers before they count.
//! An expectation that is never met is asked about after a while, and dropped after five minutes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::Change;
use env::Env;
use parking_lot::Mutex;

use super::meta::Object;

const EXPECTATIONS_TIMEOUT: Duration = Duration::from_secs(300);
/// A watch that had to start over may never show an object that came and went meanwhile: then the server is asked.
const ASK_SERVER_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Expectations {
    env: Env,
    owners: Arc<Mutex<HashMap<String, Pending>>>,
}

struct Pending {
    /// Keys of objects to appear: names are drawn before the request, so no watch event can overtake the note.
    created: HashSet<String>,
    /// Uids of objects to go, and their keys.
    deleted: HashMap<String, String>,
    since: Duration,
}

impl Expectations {
    pub fn new(env: Env) -> Self {
        Self { env, owners: Arc::default() }
    }

    pub fn expect_created(&self, owner: &str, key: &str) {
        self.note(owner, |pending| pending.created.insert(key.to_string()));
    }

    pub fn expect_deleted(&self, owner: &str, uid: &str, key: &str) {
        self.note(owner, |pending| pending.deleted.insert(uid.to_string(), key.to_string()).is_none());
    }

    fn note(&self, owner: &str, note: impl FnOnce(&mut Pending) -> bool) {
        let since = self.env.monotonic();
        let mut owners = self.owners.lock();
        let pending = owners.entry(owner.to_string()).or_insert_with(|| Pending {
            created: HashSet::new(),
            deleted: HashMap::new(),
            since,
        });
        pending.since = since;
        note(pending);
    }

    /// The object was seen, or the request to create it failed.
    pub fn created(&self, owner: &str, key: &str) {
        self.settle(owner, |pending| pending.created.remove(key));
    }

    /// The object is gone or going, or the request to delete it failed.
    pub fn deleted(&self, owner: &str, uid: &str) {
        self.settle(owner, |pending| pending.deleted.remove(uid).is_some());
    }

    fn settle(&self, owner: &str, settle: impl FnOnce(&mut Pending) -> bool) {
        let mut owners = self.owners.lock();
        let Some(pending) = owners.get_mut(owner) else { return };
        settle(pending);
        if pending.created.is_empty() && pending.deleted.is_empty() {
            owners.remove(owner);
        }
    }

    /// A dependent that the owner has, or had, was seen to change.
    pub fn changed<K: Object>(&self, owner: &str, change: &Change<K>) {
        self.created(owner, &change.key);
        if let Some(object) = change.new.as_ref().or(change.old.as_ref())
            && (change.new.is_none() || object.deleting())
        {
            self.deleted(owner, object.uid());
        }
    }

    /// `None` when everything has been seen; otherwise how long until we stop waiting for it.
    pub fn waiting(&self, owner: &str) -> Option<Duration> {
        let now = self.env.monotonic();
        let mut owners = self.owners.lock();
        let left = EXPECTATIONS_TIMEOUT.saturating_sub(now.saturating_sub(owners.get(owner)?.since));
        if left.is_zero() {
            owners.remove(owner);
            return None;
        }
        Some(left.min(ASK_SERVER_INTERVAL))
    }

    /// What should have been seen by now: keys of creations, uids and keys of deletions.
    pub fn overdue(&self, owner: &str) -> (Vec<String>, Vec<(String, String)>) {
        let now = self.env.monotonic();
        let owners = self.owners.lock();
        match owners.get(owner).filter(|pending| now.saturating_sub(pending.since) >= ASK_SERVER_INTERVAL) {
            Some(pending) => (pending.created.iter().cloned().collect(), pending.deleted.clone().into_iter().collect()),
            None => (Vec::new(), Vec::new()),
        }
    }

    pub fn forget(&self, owner: &str) {
        self.owners.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_until_seen_or_too_old() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let expectations = Expectations::new(env.clone());
        assert_eq!(expectations.waiting("a"), None);
        expectations.expect_created("a", "ns/one");
        expectations.expect_deleted("a", "uid", "ns/old");
        assert!(expectations.waiting("a").is_some());
        expectations.created("a", "ns/one");
        expectations.created("a", "ns/unknown");
        assert!(expectations.waiting("a").is_some());
        expectations.deleted("a", "uid");
        assert_eq!(expectations.waiting("a"), None);
        expectations.expect_created("a", "ns/two");
        assert!(expectations.overdue("a").0.is_empty());
        env.sleep(ASK_SERVER_INTERVAL).await;
        assert_eq!(expectations.overdue("a").0, ["ns/two"]);
        env.sleep(EXPECTATIONS_TIMEOUT).await;
        assert_eq!(expectations.waiting("a"), None);
    }
}
