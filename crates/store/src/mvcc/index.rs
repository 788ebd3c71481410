//! Every key with its newest version and the older ones that history still needs.
//! Owned by `Core`, which decides what may be forgotten.
//! Invariant: holds no value bytes (type: values are behind `Value`); versions of a key are in revision order.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included},
    sync::Arc,
};

use crate::Revision;

/// `live` is `None` for a deletion.
#[derive(Clone)]
pub(crate) struct Version<V> {
    pub revision: Revision,
    pub live: Option<Live<V>>,
}

#[derive(Clone)]
pub(crate) struct Live<V> {
    pub created: Revision,
    /// Unix milliseconds; 0 is never.
    pub expires_ms: u64,
    pub value: V,
}

struct Entry<V> {
    newest: Version<V>,
    older: Vec<Version<V>>,
}

impl<V> Entry<V> {
    fn at(&self, revision: Revision) -> Option<&Version<V>> {
        if self.newest.revision <= revision {
            return Some(&self.newest);
        }
        self.older.iter().rev().find(|v| v.revision <= revision)
    }
}

pub(crate) struct Index<V> {
    keys: BTreeMap<Arc<str>, Entry<V>>,
    /// Versions that are the newest of their key and not a deletion.
    live: usize,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), live: 0 }
    }
}

/// One key found by a range.
pub(crate) struct RangeEntry<V> {
    pub key: Arc<str>,
    pub revision: Revision,
    pub live: Live<V>,
}

impl<V: Clone> Index<V> {
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn newest(&self, key: &str) -> Option<&Version<V>> {
        self.keys.get(key).map(|entry| &entry.newest)
    }

    /// The key as the index holds it, so that names are stored once.
    pub fn shared_key(&self, key: &str) -> Arc<str> {
        self.keys.get_key_value(key).map_or_else(|| key.into(), |(shared, _)| shared.clone())
    }

    /// The version written at exactly `revision`, and the one before it.
    pub fn version(&self, key: &str, revision: Revision) -> Option<(&Version<V>, Option<&Version<V>>)> {
        let entry = self.keys.get(key)?;
        if entry.newest.revision == revision {
            return Some((&entry.newest, entry.older.last()));
        }
        let at = entry.older.binary_search_by_key(&revision, |v| v.revision).ok()?;
        Some((&entry.older[at], at.checked_sub(1).map(|before| &entry.older[before])))
    }

    pub fn push(&mut self, key: Arc<str>, version: Version<V>) {
        self.live += usize::from(version.live.is_some());
        match self.keys.get_mut(&key) {
            Some(entry) => {
                self.live -= usize::from(entry.newest.live.is_some());
                entry.older.push(std::mem::replace(&mut entry.newest, version));
            }
            None => {
                self.keys.insert(key, Entry { newest: version, older: Vec::new() });
            }
        }
    }

    /// Puts `live` in place of the newest version's, keeping its revision; gives back the old value.
    pub fn replace_newest(&mut self, key: &str, live: Live<V>) -> Option<V> {
        let entry = self.keys.get_mut(key)?;
        let old = entry.newest.live.replace(live);
        self.live += usize::from(old.is_none());
        old.map(|live| live.value)
    }

    /// The version at `revision` became the oldest anyone can ask for: drops what came before it, and itself if it
    /// was a deletion. `released` sees every value that goes.
    pub fn forget(&mut self, key: &str, revision: Revision, released: impl Fn(&V)) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        let drop_itself = |v: &Version<V>| v.revision == revision && v.live.is_none();
        let gone = entry.older.iter().take_while(|v| v.revision < revision || drop_itself(v)).count();
        for version in entry.older.drain(..gone) {
            if let Some(live) = &version.live {
                released(&live.value);
            }
        }
        if entry.older.is_empty() {
            entry.older = Vec::new();
            if drop_itself(&entry.newest) {
                self.keys.remove(key);
            }
        }
    }

    /// The first `limit` keys (0: all) in `[start, end)` at `revision`, and how many follow them.
    pub fn range(&self, start: &str, end: &str, limit: usize, revision: Revision) -> (Vec<RangeEntry<V>>, u64) {
        let mut found = Vec::new();
        let mut remaining = 0;
        for (key, entry) in self.entries(start, end) {
            let Some(Version { revision, live: Some(live) }) = entry.at(revision) else { continue };
            if limit != 0 && found.len() >= limit {
                remaining += 1;
            } else {
                found.push(RangeEntry { key: key.clone(), revision: *revision, live: live.clone() });
            }
        }
        (found, remaining)
    }

    /// The first `limit` live keys from `start` on, and whether there may be more.
    pub fn first(&self, start: &str, limit: usize) -> (Vec<RangeEntry<V>>, bool) {
        let live =
            self.keys.range::<str, _>((Included(start), std::ops::Bound::Unbounded)).filter_map(|(key, entry)| {
                let Version { revision, live } = &entry.newest;
                Some(RangeEntry { key: key.clone(), revision: *revision, live: live.clone()? })
            });
        let found: Vec<_> = live.take(limit).collect();
        let more = found.len() == limit;
        (found, more)
    }

    pub fn count(&self, start: &str, end: &str) -> u64 {
        self.entries(start, end).filter(|(_, entry)| entry.newest.live.is_some()).count() as u64
    }

    fn entries<'a>(&'a self, start: &'a str, end: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Entry<V>)> {
        // BTreeMap panics on a range that ends before it starts; for us it is just empty.
        let end = end.max(start);
        self.keys.range::<str, _>((Included(start), Excluded(end))).take_while(move |_| start < end)
    }
}
