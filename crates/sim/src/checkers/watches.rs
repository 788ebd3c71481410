//! What one client may be told by lists and watches of one selection, given what was committed.
//! `clients::watch_client` shows it every answer; `commit_log` is what really happened.
//! Each change is told exactly once and in order; nothing at or before a bookmark's revision follows it; a list is the
//! state at its revision.

use std::{collections::BTreeMap, sync::Arc};

use api::{Object, WatchEvent, WatchKind};
use parking_lot::Mutex;
use store::Revision;

use super::{
    Violation,
    commit_log::{Commit, CommitLog, ObjectFacts},
};

/// What a client asks for. All parts must match.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub namespace: Option<String>,
    pub label: Option<(String, String)>,
    /// `metadata.name`, or a selectable field of pods.
    pub field: Option<(&'static str, String)>,
}

impl Selection {
    fn matches(&self, object: &ObjectFacts) -> bool {
        let has_label = |(name, value): &(String, String)| object.labels.get(name) == Some(value);
        let has_field = |(name, value): &(&'static str, String)| match *name {
            "metadata.name" => object.name == *value,
            name => object.fields.get(name) == Some(value),
        };
        self.namespace.as_ref().is_none_or(|namespace| object.namespace == *namespace)
            && self.label.as_ref().is_none_or(has_label)
            && self.field.as_ref().is_none_or(has_field)
    }

    /// What a watch of this selection tells of a commit.
    fn expected(&self, commit: &Commit) -> Option<WatchKind> {
        let selected = |object: &Option<Arc<ObjectFacts>>| object.as_ref().is_some_and(|object| self.matches(object));
        match (selected(&commit.old), selected(&commit.new)) {
            (false, true) => Some(WatchKind::Added),
            (true, true) => Some(WatchKind::Modified),
            (true, false) => Some(WatchKind::Deleted),
            (false, false) => None,
        }
    }
}

/// A client's place in the changes of its selection. A clone is a place to go back to.
#[derive(Clone)]
pub struct WatchView {
    log: Arc<Mutex<CommitLog>>,
    plural: String,
    selection: Selection,
    /// Of the next commit that was not told yet.
    place: usize,
    /// Everything up to here was told.
    pub revision: Revision,
}

impl WatchView {
    /// Begins with a list. `not_older_than` is what was committed before it was asked for, if the list must show that.
    pub fn list(
        log: &Arc<Mutex<CommitLog>>,
        plural: &str,
        selection: &Selection,
        objects: &[Arc<Object>],
        revision: Revision,
        not_older_than: Option<Revision>,
    ) -> Result<Self, Violation> {
        let mut commits = log.lock();
        let newest = commits.revision();
        let resource = commits.resource(plural);
        let fail = |text: String| Err(Violation(format!("list of {plural} {selection:?} at {revision}: {text}")));
        if revision > newest {
            return fail(format!("the store is only at {newest}"));
        }
        // Revisions of other resources don't matter: nobody could tell.
        if let Some(least) = not_older_than
            && resource.place_after(revision) < resource.place_after(least)
        {
            return fail(format!("changes until {least} had been committed before it was asked for"));
        }
        let mut expected = resource.state_at(revision);
        expected.retain(|_, object| selection.matches(object));
        let expected: BTreeMap<&str, (&str, Revision)> =
            expected.iter().map(|(key, object)| (key.as_str(), (object.uid.as_str(), object.revision))).collect();
        let keys: Vec<String> = objects.iter().map(|object| object.key()).collect();
        let found: BTreeMap<&str, (&str, Revision)> = keys
            .iter()
            .zip(objects)
            .map(|(key, object)| (key.as_str(), (object.meta.uid.as_str(), object.meta.resource_version)))
            .collect();
        if found != expected || found.len() != objects.len() {
            let wrong: Vec<_> = expected.iter().filter(|(key, object)| found.get(*key) != Some(object)).collect();
            let extra: Vec<_> = found.iter().filter(|(key, object)| expected.get(*key) != Some(object)).collect();
            return fail(format!("{wrong:?} were there, {extra:?} is shown"));
        }
        let place = resource.place_after(revision);
        let (plural, selection) = (plural.to_string(), selection.clone());
        drop(commits);
        Ok(Self { log: log.clone(), plural, selection, place, revision })
    }

    fn violation(&self, text: String) -> Violation {
        Violation(format!("watch of {} {:?} after {}: {text}", self.plural, self.selection, self.revision))
    }

    /// The first commit at or after `place` that the client has to be told of, and where the next one is.
    fn next_untold(&self) -> Option<(usize, WatchKind, Commit)> {
        let mut log = self.log.lock();
        let commits = &log.resource(&self.plural).commits;
        let untold = commits.iter().enumerate().skip(self.place);
        let mut untold = untold.filter_map(|(at, commit)| Some((at + 1, self.selection.expected(commit)?, commit)));
        untold.next().map(|(next, kind, commit)| (next, kind, commit.clone()))
    }

    /// What the client has yet to be told.
    pub fn untold(&self) -> Option<Violation> {
        let (_, kind, commit) = self.next_untold()?;
        Some(self.violation(format!("never told of {} {} at {}", kind.as_str(), commit.key, commit.revision)))
    }

    /// The next event of a watch that began at this place.
    pub fn see(&mut self, event: &WatchEvent) -> Result<(), Violation> {
        let meta = &event.object.meta;
        if event.kind == WatchKind::Bookmark {
            return self.see_bookmark(meta.resource_version);
        }
        let told = format!("{} {} at {}", event.kind.as_str(), meta.key(), meta.resource_version);
        if meta.resource_version <= self.revision {
            return Err(self.violation(format!("{told} was told already, or goes back behind a bookmark")));
        }
        let Some((next, kind, commit)) = self.next_untold() else {
            return Err(self.violation(format!("{told} never happened")));
        };
        let uid = commit.new.as_ref().or(commit.old.as_ref()).map_or("", |object| &object.uid);
        let expected = (kind, commit.key.as_str(), uid, commit.revision);
        if (event.kind, meta.key().as_str(), meta.uid.as_str(), meta.resource_version) != expected {
            let expected = format!("{} {} at {}", kind.as_str(), commit.key, commit.revision);
            return Err(self.violation(format!("{told} was told, {expected} comes next")));
        }
        (self.place, self.revision) = (next, commit.revision);
        Ok(())
    }

    fn see_bookmark(&mut self, revision: Revision) -> Result<(), Violation> {
        if revision < self.revision {
            return Err(self.violation(format!("a bookmark goes back to {revision}")));
        }
        let newest = self.log.lock().revision();
        if revision > newest {
            return Err(self.violation(format!("a bookmark at {revision}, the store is at {newest}")));
        }
        if let Some((_, kind, commit)) = self.next_untold().filter(|(_, _, commit)| commit.revision <= revision) {
            let lost = format!("{} {} at {}", kind.as_str(), commit.key, commit.revision);
            return Err(self.violation(format!("a bookmark at {revision} passes over {lost}")));
        }
        self.revision = revision;
        self.place = self.log.lock().resource(&self.plural).place_after(revision);
        Ok(())
    }
}
