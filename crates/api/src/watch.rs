//! One step of a watch, as the API server sends it and clients receive it.
//! Made by `apiserver/watch_cache` and by `client` from the wire.
//! Objects are shared, never copied.

use std::sync::Arc;

use crate::Object;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    Added,
    Modified,
    Deleted,
    /// Carries only a resourceVersion: everything before it has been delivered.
    Bookmark,
}

impl WatchKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WatchKind::Added => "ADDED",
            WatchKind::Modified => "MODIFIED",
            WatchKind::Deleted => "DELETED",
            WatchKind::Bookmark => "BOOKMARK",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [WatchKind::Added, WatchKind::Modified, WatchKind::Deleted, WatchKind::Bookmark]
            .into_iter()
            .find(|k| k.as_str() == word)
    }
}

#[derive(Debug, Clone)]
pub struct WatchEvent {
    pub kind: WatchKind,
    pub object: Arc<Object>,
}
