//! Every change that the store committed, in order, with as much of each object as selectors ask for.
//! Filled from the store's own watch; `watches` and `leadership` compare what others did and saw with it.
//! Whoever asks sees everything committed until that moment, whichever tasks have run since.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apiserver::storage;
use futures::{FutureExt, StreamExt};
use serde_json::Value;
use store::{Change, Record, Revision, StoreError, WatchItem, WatchStream};

/// What selectors and checkers ask of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Selectable fields of pods, as `fieldSelector` names them.
    pub fields: BTreeMap<&'static str, String>,
    /// The holder of a Lease.
    pub holder: Option<String>,
    /// The revision this version was committed at.
    pub revision: Revision,
}

/// One change of one object: absent before its creation and after its deletion.
#[derive(Debug, Clone)]
pub struct Commit {
    pub revision: Revision,
    pub key: String,
    pub old: Option<Arc<ObjectFacts>>,
    pub new: Option<Arc<ObjectFacts>>,
}

/// The commits of one resource.
#[derive(Default)]
pub struct ResourceLog {
    /// What there was before the first commit.
    base: BTreeMap<String, Arc<ObjectFacts>>,
    pub commits: Vec<Commit>,
    current: BTreeMap<String, Arc<ObjectFacts>>,
}

pub struct CommitLog {
    changes: WatchStream,
    resources: HashMap<String, ResourceLog>,
    revision: Revision,
}

/// The plural name of the resource that `key` is of, and the rest of it.
pub fn split(key: &str) -> Option<(&str, &str)> {
    let prefix = storage::prefix_of_key(key)?;
    let (_, plural) = storage::group_resource(prefix);
    Some((plural, &key[prefix.len()..]))
}

impl ObjectFacts {
    fn read(value: &[u8], revision: Revision) -> Option<Self> {
        let object: Value = serde_json::from_slice(value).ok()?;
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let fields = match object["kind"].as_str() {
            Some("Pod") => [
                ("spec.nodeName", text(&object["spec"]["nodeName"])),
                ("status.phase", text(&object["status"]["phase"])),
            ]
            .into(),
            _ => BTreeMap::new(),
        };
        Some(Self {
            uid: text(&metadata["uid"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            labels: labels.map(|(name, value)| (name.clone(), text(value))).collect(),
            fields,
            holder: object["spec"]["holderIdentity"].as_str().map(str::to_string),
            revision,
        })
    }
}

impl ResourceLog {
    /// What there was at `revision`.
    pub fn state_at(&self, revision: Revision) -> BTreeMap<String, Arc<ObjectFacts>> {
        let mut state = self.base.clone();
        for commit in self.commits.iter().take_while(|commit| commit.revision <= revision) {
            match &commit.new {
                Some(new) => drop(state.insert(commit.key.clone(), new.clone())),
                None => drop(state.remove(&commit.key)),
            }
        }
        state
    }

    /// The place of the first commit after `revision`.
    pub fn place_after(&self, revision: Revision) -> usize {
        self.commits.partition_point(|commit| commit.revision <= revision)
    }
}

impl CommitLog {
    /// `changes` are those after `revision`; `records` what the store holds at it.
    pub fn new(records: &[Record], revision: Revision, changes: WatchStream) -> Self {
        let mut resources: HashMap<String, ResourceLog> = HashMap::new();
        for record in records {
            let facts = ObjectFacts::read(&record.value, record.mod_revision);
            if let (Some((plural, key)), Some(facts)) = (split(&record.key), facts) {
                let log = resources.entry(plural.to_string()).or_default();
                let facts = Arc::new(facts);
                log.base.insert(key.to_string(), facts.clone());
                log.current.insert(key.to_string(), facts);
            }
        }
        Self { changes, resources, revision }
    }

    /// Takes in what was committed since the last look. The store tells its watchers in the moment of the commit.
    fn catch_up(&mut self) {
        while let Some(Some(item)) = self.changes.next().now_or_never() {
            let events = match item {
                Ok(WatchItem::Events(events)) => events,
                Ok(WatchItem::Progress(_)) => continue,
                // Another store took the place of this one; what it committed until then is here.
                Err(StoreError::Unavailable(_)) => return,
                Err(error) => panic!("the log is not read often enough: {error}"),
            };
            for event in events {
                self.revision = self.revision.max(event.revision);
                let Some((plural, key)) = split(&event.key) else { continue };
                let new = match &event.change {
                    Change::Put { value, .. } => ObjectFacts::read(value, event.revision).map(Arc::new),
                    Change::Delete { .. } => None,
                };
                let log = self.resources.entry(plural.to_string()).or_default();
                let old = match &new {
                    Some(new) => log.current.insert(key.to_string(), new.clone()),
                    None => log.current.remove(key),
                };
                log.commits.push(Commit { revision: event.revision, key: key.to_string(), old, new });
            }
        }
    }

    /// The newest revision.
    pub fn revision(&mut self) -> Revision {
        self.catch_up();
        self.revision
    }

    pub fn resource(&mut self, plural: &str) -> &ResourceLog {
        self.catch_up();
        self.resources.entry(plural.to_string()).or_default()
    }

    pub fn current(&mut self, plural: &str, key: &str) -> Option<Arc<ObjectFacts>> {
        self.resource(plural).current.get(key).cloned()
    }
}
