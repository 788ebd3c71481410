//! `watch`: the changes of a resource from a given moment on, seen through selectors.
//! Part of `registry`; reads positions of `watch_cache`.
//! Nothing lost, doubled or reordered; whoever falls too far behind is told so and ends.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use serde_json::json;

use api::{ApiError, Object, WatchEvent, WatchKind};
use store::Revision;

use super::{
    Registry, Selection,
    read::{Freshness, check_watch_options},
};
use crate::{
    discovery::served::Served,
    flow_control::OpenWatch,
    handlers::respond::{EventStream, Reply},
    metrics::{Labels, Open},
    request::call::Call,
    storage,
    storage::{
        cluster::Cluster,
        watch_cache::{CacheEvent, Entry, Subscription, too_old},
    },
};

const EVENT_BATCH_MAX: usize = 64;
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The last bookmark comes this long before the end, so that the client goes on from a fresh place.
const FINAL_BOOKMARK_LEAD: Duration = Duration::from_secs(2);

type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

struct Watcher {
    _open: Open,
    _counted: OpenWatch,
    cluster: Arc<Cluster>,
    served: Arc<Served>,
    selection: Selection,
    subscription: Subscription,
    initial: VecDeque<Arc<Entry>>,
    queue: VecDeque<Result<WatchEvent, ApiError>>,
    /// Changes up to here are known to the client.
    revision: Revision,
    bookmarks: bool,
    /// A bookmark owed at the end of the initial events.
    initial_end: Option<Revision>,
    next_bookmark: Duration,
    end: Duration,
    /// The one timer and when it fires; changes come far more often than it has to be set.
    timer: Option<(Duration, Timer)>,
    done: bool,
}

impl Registry {
    pub(super) async fn watch(&self, call: &Call, served: &Arc<Served>) -> Result<Reply, ApiError> {
        let mut selection = Selection::from_call(call, served)?;
        // A watch of one object by its path, which is all that was permitted.
        if !call.info.name.is_empty() {
            selection = selection.with_name(&call.info.name)?;
        }
        check_watch_options(call)?;
        let initial_events = call.query.optional_flag("sendInitialEvents");
        let freshness = Freshness::from_call(call)?;
        let cache = &self.cluster.cache;
        match freshness {
            Freshness::Newest => cache.wait_until_fresh().await?,
            Freshness::NotOlderThan(revision) if initial_events == Some(true) => cache.wait_for(revision).await?,
            _ => {}
        }
        let resource = cache.resource(&served.prefix);
        let applied = cache.revision();
        let from = match (&freshness, initial_events) {
            (Freshness::NotOlderThan(r) | Freshness::Exact(r), None | Some(false)) => Some(*r),
            (_, Some(false)) => Some(applied),
            _ => None,
        };
        let (initial, subscription, revision) = match from {
            None => {
                let (snapshot, subscription) =
                    resource.list_and_subscribe(&selection.prefix, applied, |e| selection.matches(served, e));
                (snapshot.entries.into(), subscription, snapshot.revision)
            }
            Some(revision) => match resource.subscribe(revision) {
                Ok(subscription) => (VecDeque::new(), subscription, revision),
                Err(oldest) => return Ok(Reply::Watch(served.clone(), failed(too_old(revision, oldest)))),
            },
        };
        let now = self.cluster.env.monotonic();
        let bookmarks = call.query.flag("allowWatchBookmarks");
        let watcher = Watcher {
            _counted: self.watches.open(&call.info),
            _open: self.metrics.requests.open(Labels::new(&call.info, &call.method, false, "")),
            cluster: self.cluster.clone(),
            served: served.clone(),
            selection,
            subscription,
            initial,
            queue: VecDeque::new(),
            revision,
            bookmarks,
            initial_end: (initial_events == Some(true) && bookmarks).then_some(revision),
            next_bookmark: now + BOOKMARK_INTERVAL,
            end: now + self.watch_duration(call)?,
            timer: None,
            done: false,
        };
        let events = stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Some((event, watcher))
        });
        Ok(Reply::Watch(served.clone(), events.boxed()))
    }

    fn watch_duration(&self, call: &Call) -> Result<Duration, ApiError> {
        Ok(match call.query.number("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds as u64),
            _ => self.config.limits.min_watch.mul_f64(1.0 + self.cluster.env.random_fraction()),
        })
    }
}

fn failed(error: ApiError) -> EventStream {
    stream::iter([Err(error)]).boxed()
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<WatchEvent, ApiError>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.done {
                return None;
            }
            if let Some(entry) = self.initial.pop_front() {
                self.push(WatchKind::Added, entry.object.clone()).await;
                continue;
            }
            if let Some(revision) = self.initial_end.take() {
                return Some(Ok(bookmark(&self.served, revision, true)));
            }
            // Read before the ring is: everything up to here will have been delivered.
            let applied = self.cluster.cache.revision();
            match self.subscription.ready(EVENT_BATCH_MAX) {
                Err(_) => {
                    self.done = true;
                    return Some(Err(too_old(self.revision, applied)));
                }
                Ok(events) if events.is_empty() => {
                    self.revision = self.revision.max(applied);
                    if let Some(event) = self.wait().await {
                        return Some(Ok(event));
                    }
                }
                Ok(events) => {
                    for event in events {
                        self.see(&event).await;
                    }
                }
            }
        }
    }

    /// Until something changes, a bookmark is due or time is up.
    async fn wait(&mut self) -> Option<WatchEvent> {
        let env = self.cluster.env.clone();
        let now = env.monotonic();
        if now >= self.end {
            self.done = true;
            return None;
        }
        let soon = self.end.saturating_sub(FINAL_BOOKMARK_LEAD).max(now);
        if self.bookmarks && now >= self.next_bookmark.min(soon) {
            // After the last one, only the end is left to wait for.
            self.next_bookmark = if now >= soon { self.end } else { now + BOOKMARK_INTERVAL };
            self.bookmarks = now < soon;
            return Some(bookmark(&self.served, self.revision, false));
        }
        let until = if self.bookmarks { self.next_bookmark.min(soon) } else { self.end };
        let set = self.timer.take().filter(|(at, _)| *at == until);
        let (_, timer) = self.timer.insert(set.unwrap_or_else(|| {
            let sleep = async move { env.sleep(until.saturating_sub(now)).await };
            (until, Box::pin(sleep) as Timer)
        }));
        tokio::select! {
            () = self.subscription.changed() => {}
            () = timer => self.timer = None,
        }
        None
    }

    async fn see(&mut self, event: &CacheEvent) {
        self.revision = self.revision.max(event.revision);
        if self.selection.is_late() {
            return self.see_views(event).await;
        }
        let sees = |entry: &Option<Arc<Entry>>| {
            let entry = entry.as_ref().filter(|e| self.selection.in_namespace(e));
            entry.filter(|e| self.selection.matches(&self.served, e)).cloned()
        };
        match (sees(&event.old), &event.new, sees(&event.new)) {
            (None, _, Some(new)) => self.push(WatchKind::Added, new.object.clone()).await,
            (Some(_), _, Some(new)) => self.push(WatchKind::Modified, new.object.clone()).await,
            (Some(old), None, None) => self.push(WatchKind::Deleted, old.object.clone()).await,
            (Some(old), Some(_), None) => {
                // It left the selection: shown as it was last seen, at the revision of its leaving.
                if let Ok(left) = storage::decode(&storage::without_revision(old.object.json()), event.revision) {
                    self.push(WatchKind::Deleted, Arc::new(left)).await;
                }
            }
            (None, _, None) => {}
        }
    }

    /// As `see`, where only the converted objects tell whether they are selected.
    async fn see_views(&mut self, event: &CacheEvent) {
        let (old, new) = (self.seen_view(&event.old).await, self.seen_view(&event.new).await);
        let shown = match (old, new) {
            (Ok(None), Ok(None)) => return,
            (Ok(None), Ok(Some(object))) => Ok(WatchEvent { kind: WatchKind::Added, object }),
            (Ok(Some(_)), Ok(Some(object))) => Ok(WatchEvent { kind: WatchKind::Modified, object }),
            (Ok(Some(object)), Ok(None)) => at_revision(&object, event.revision)
                .map(|object| WatchEvent { kind: WatchKind::Deleted, object: Arc::new(object) }),
            (Err(e), _) | (_, Err(e)) => Err(e),
        };
        self.queue.push_back(shown);
    }

    async fn seen_view(&self, entry: &Option<Arc<Entry>>) -> Result<Option<Arc<Object>>, ApiError> {
        let Some(entry) = entry.as_ref().filter(|e| self.selection.in_namespace(e)) else { return Ok(None) };
        let object = super::convert::view(&self.cluster, &self.served, &entry.object).await?;
        Ok(self.selection.matches_view(&self.served, &object).then_some(object))
    }

    async fn push(&mut self, kind: WatchKind, object: Arc<Object>) {
        let viewed = super::convert::view(&self.cluster, &self.served, &object).await;
        if viewed.as_ref().is_ok_and(|object| !self.selection.matches_view(&self.served, object)) {
            return;
        }
        self.queue.push_back(viewed.map(|object| WatchEvent { kind, object }));
    }
}

/// An object that left the selection is shown as it was last seen, at the revision of its leaving.
fn at_revision(object: &Object, revision: Revision) -> Result<Object, ApiError> {
    let mut value = object.value();
    value["metadata"]["resourceVersion"] = revision.to_string().into();
    Object::from_value(&value)
}

fn bookmark(served: &Served, revision: Revision, initial_end: bool) -> WatchEvent {
    let mut object = json!({
        "kind": served.kind, "apiVersion": served.api_version(),
        "metadata": { "resourceVersion": revision.to_string(), "creationTimestamp": null },
    });
    if initial_end {
        object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    let object = Object::from_value(&object).expect("a bookmark is a valid object");
    WatchEvent { kind: WatchKind::Bookmark, object: Arc::new(object) }
}
