//! What a subscriber of an informer has not read yet: a queue that stops growing when nobody reads it.
//! Filled by `informer`, one queue per subscriber; read by controllers, scheduler, kubelet, proxy and dns.
//! Invariant: never longer than `UNFOLDED_CHANGES_MAX` or four times the keys of cache and subscriber, whichever is more (test:
//! `changes_that_nobody_reads_become_one_per_key`).

use std::{collections::VecDeque, sync::Arc};

use ::api::Object;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// `old` of `None` is an addition, `new` of `None` a removal.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    pub key: String,
    pub old: Option<Arc<Object>>,
    pub new: Option<Arc<Object>>,
}

/// Up to here a subscriber gets every change; beyond, the changes of a key become one.
const UNFOLDED_CHANGES_MAX: usize = 8192;
/// A queue that was longer gives its memory back when it is empty.
const IDLE_CAPACITY_MAX: usize = 1024;

/// A queue's two ends.
pub fn change_queue() -> (ChangeSender, ObjectSubscription) {
    let queue = Arc::new(Queue { state: Mutex::new(State::default()), changed: Notify::new() });
    (ChangeSender(queue.clone()), ObjectSubscription(queue))
}

struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    changes: VecDeque<ObjectChange>,
    /// The length at which they are folded next: twice what was left the last time, so that folding stays cheap.
    fold_at: usize,
    closed: bool,
}

/// The informer's end.
pub struct ChangeSender(Arc<Queue>);

impl ChangeSender {
    /// False when nobody reads any more.
    pub fn send(&self, change: ObjectChange) -> bool {
        let mut state = self.0.state.lock();
        if state.closed {
            return false;
        }
        state.changes.push_back(change);
        if state.changes.len() > state.fold_at.max(UNFOLDED_CHANGES_MAX) {
            let folded = fold(std::mem::take(&mut state.changes));
            state.fold_at = folded.len() * 2;
            state.changes = folded;
        }
        drop(state);
        self.0.changed.notify_one();
        true
    }
}

impl Drop for ChangeSender {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_one();
    }
}

/// The changes of an informer's objects, whatever their kind.
pub struct ObjectSubscription(Arc<Queue>);

impl ObjectSubscription {
    /// `None` once the informer has stopped. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<ObjectChange> {
        // Whoever reads a long queue lets others have their turn.
        tokio::task::coop::consume_budget().await;
        loop {
            let changed = self.0.changed.notified();
            {
                let mut state = self.0.state.lock();
                if let Some(change) = state.pop() {
                    return Some(change);
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// A change that is already here, without waiting.
    pub fn try_next(&mut self) -> Option<ObjectChange> {
        self.0.state.lock().pop()
    }
}

impl Drop for ObjectSubscription {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        state.changes = VecDeque::new();
    }
}

impl State {
    fn pop(&mut self) -> Option<ObjectChange> {
        let change = self.changes.pop_front();
        if self.changes.is_empty() && self.changes.capacity() > IDLE_CAPACITY_MAX {
            (self.changes, self.fold_at) = (VecDeque::new(), 0);
        }
        change
    }
}

/// One change per key, from what the subscriber saw last to what is true now, in the order in which keys first changed.
/// Another object under the same name stays two changes: the old one went, a new one came.
fn fold(changes: VecDeque<ObjectChange>) -> VecDeque<ObjectChange> {
    let mut folded: IndexMap<String, (Option<Arc<Object>>, Option<Arc<Object>>)> = IndexMap::new();
    for ObjectChange { key, old, new } in changes {
        folded.entry(key).or_insert_with(|| (old, None)).1 = new;
    }
    let mut left = VecDeque::with_capacity(folded.len());
    for (key, (old, new)) in folded {
        match (old, new) {
            // Came and went unseen.
            (None, None) => {}
            (Some(old), Some(new)) if old.meta.uid != new.meta.uid => {
                left.push_back(ObjectChange { key: key.clone(), old: Some(old), new: None });
                left.push_back(ObjectChange { key, old: None, new: Some(new) });
            }
            (old, new) => left.push_back(ObjectChange { key, old, new }),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, uid: &str, version: usize) -> Arc<Object> {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": name, "namespace": "d", "uid": uid, "resourceVersion": version.to_string()}});
        Arc::new(Object::from_value(&value).unwrap())
    }

    fn change(key: &str, old: Option<&Arc<Object>>, new: Option<&Arc<Object>>) -> ObjectChange {
        ObjectChange { key: key.into(), old: old.cloned(), new: new.cloned() }
    }

    fn read(subscription: &mut ObjectSubscription) -> Vec<String> {
        let text =
            |o: Option<Arc<Object>>| o.map_or("-".into(), |o| format!("{}@{}", o.meta.uid, o.meta.resource_version));
        let changes = std::iter::from_fn(|| subscription.try_next());
        changes.map(|c| format!("{} {} {}", c.key, text(c.old), text(c.new))).collect()
    }

    #[test]
    fn a_reader_that_keeps_up_sees_every_change() {
        let (sender, mut subscription) = change_queue();
        let (a, b) = (object("a", "u", 1), object("a", "u", 2));
        for change in [change("a", None, Some(&a)), change("a", Some(&a), Some(&b)), change("a", Some(&b), None)] {
            assert!(sender.send(change));
        }
        assert_eq!(read(&mut subscription), ["a - u@1", "a u@1 u@2", "a u@2 -"]);
        drop(subscription);
        assert!(!sender.send(change("a", None, Some(&a))), "nobody reads any more");
    }

    #[test]
    fn changes_that_nobody_reads_become_one_per_key() {
        let (sender, mut subscription) = change_queue();
        let (known, other) = (object("known", "k", 0), object("other", "o", 0));
        let mut last = known.clone();
        for version in 1..=10 * UNFOLDED_CHANGES_MAX {
            let next = object("known", "k", version);
            sender.send(change("known", Some(&last), Some(&next)));
            let passing = object("passing", &version.to_string(), version);
            sender.send(change("passing", None, Some(&passing)));
            sender.send(change("passing", Some(&passing), None));
            last = next;
            assert!(subscription.0.state.lock().changes.len() <= UNFOLDED_CHANGES_MAX);
        }
        let again = object("other", "o2", 9);
        sender.send(change("other", Some(&other), None));
        sender.send(change("other", None, Some(&again)));
        {
            let mut state = subscription.0.state.lock();
            state.changes = fold(std::mem::take(&mut state.changes));
        }
        let newest = format!("known k@0 k@{}", 10 * UNFOLDED_CHANGES_MAX);
        assert_eq!(read(&mut subscription), [newest.as_str(), "other o@0 -", "other - o2@9"]);
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_and_told_of_the_end() {
        let (sender, mut subscription) = change_queue();
        let a = object("a", "u", 1);
        let reading = env::spawn(async move {
            let first = subscription.next().await.map(|change| change.key);
            (first, subscription.next().await.is_none())
        });
        tokio::task::yield_now().await;
        sender.send(change("a", None, Some(&a)));
        drop(sender);
        assert_eq!(reading.await.unwrap(), (Some("a".into()), true));
    }
}
