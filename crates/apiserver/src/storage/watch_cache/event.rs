//! One object version and one change of it, as the cache, lists and watchers share them.
//! Made by `resource_cache`; kept by `event_ring`.
//! Nothing here changes once it is made; what is computed later is computed once.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use api::{Object, Resource};
use store::Revision;

/// What one change weighs in the ring besides the JSON of its objects: their parsed metadata and the entries.
const EVENT_OVERHEAD_BYTES: usize = 1024;

/// One object version, with what selectors ask of it computed at most once.
pub struct Entry {
    pub object: Arc<Object>,
    /// For the first resource that asked; another version of it may name other fields.
    fields: OnceLock<(Arc<Resource>, Vec<(String, String)>)>,
}

impl Entry {
    pub fn new(object: Object) -> Self {
        Self { object: Arc::new(object), fields: OnceLock::new() }
    }

    /// The selectable fields of the object as `resource` names them.
    pub fn fields(&self, resource: &Arc<Resource>) -> Cow<'_, [(String, String)]> {
        let compute = || resource.behavior.selectable_fields(&self.object.value());
        let (asked, known) = self.fields.get_or_init(|| (resource.clone(), compute()));
        if Arc::ptr_eq(asked, resource) { Cow::Borrowed(known) } else { Cow::Owned(compute()) }
    }
}

/// One change: `new` is absent after a deletion; `old` is absent after a creation. A deleted object appears in `old`
/// with the revision of its deletion.
pub struct CacheEvent {
    pub revision: Revision,
    /// Monotonic time at which the cache heard of it.
    pub(super) seen: Duration,
    pub new: Option<Arc<Entry>>,
    pub old: Option<Arc<Entry>>,
}

impl CacheEvent {
    /// Bytes that the ring keeps alive for it.
    pub(super) fn size_bytes(&self) -> usize {
        // What the ring keeps alive beyond the current objects: the version that was replaced; of a deletion also the
        // last version before it, which an earlier change in the ring made.
        let versions = if self.new.is_some() { 1 } else { 2 };
        self.old.as_ref().map_or(0, |e| e.object.json().len()) * versions + EVENT_OVERHEAD_BYTES
    }
}
