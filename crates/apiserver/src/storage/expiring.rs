//! Answers that are believed for a while: a bounded map whose entries expire.
//! Used for verified tokens and for the answers of webhooks.
//! Never holds more than its limit, never returns what has expired.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::RwLock;

pub struct Expiring<K, V> {
    entries: RwLock<HashMap<K, (V, Duration)>>,
    limit: usize,
}

impl<K: Hash + Eq, V: Clone> Expiring<K, V> {
    pub fn new(limit: usize) -> Self {
        Self { entries: RwLock::default(), limit }
    }

    /// Those that have expired are counted as long as nothing takes their place.
    pub fn count(&self) -> usize {
        self.entries.read().len()
    }

    /// `now` is monotonic time.
    pub fn get(&self, key: &K, now: Duration) -> Option<V> {
        self.entries.read().get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    pub fn insert(&self, key: K, value: V, until: Duration, now: Duration) {
        let mut entries = self.entries.write();
        if entries.len() >= self.limit && !entries.contains_key(&key) {
            entries.retain(|_, (_, until)| *until > now);
            if entries.len() >= self.limit {
                // Nothing tells which will be asked for again; starting over costs each one a miss.
                entries.clear();
            }
        }
        entries.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_stay_few() {
        let cache = Expiring::new(2);
        let at = Duration::from_secs;
        cache.insert("a", 1, at(10), at(0));
        assert_eq!((cache.get(&"a", at(9)), cache.get(&"a", at(10))), (Some(1), None));
        cache.insert("b", 2, at(20), at(11));
        cache.insert("c", 3, at(20), at(11));
        assert_eq!(
            (cache.get(&"a", at(1)), cache.get(&"b", at(11)), cache.get(&"c", at(11))),
            (None, Some(2), Some(3))
        );
        cache.insert("d", 4, at(20), at(11));
        assert!(cache.entries.read().len() <= 2);
    }
}
