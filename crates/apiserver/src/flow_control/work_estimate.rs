//! How many seats a request takes: lists by the bytes they read, writes by the watches that they wake.
//! Asked by `flow_control` once a request's schema is known; `WatchTracker` counts watches by what they look at.
//! What is not known yet counts as one seat.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use api::Verb;

use super::fair_queue::Width;
use crate::{
    request::{call::Call, request_info::RequestInfo},
    storage::cluster::Cluster,
};

const BYTES_PER_SEAT: usize = 100_000;
const OBJECTS_PER_SEAT: usize = 100;
/// A list is written while it is made: this is what it holds at once.
const LIST_BYTES_MAX: usize = 1_000_000;
const LIST_SEATS_MAX: usize = 100;
const WRITE_SEATS_MAX: usize = 10;
const WATCHES_PER_SEAT: usize = 10;
/// What it takes to tell watches of one change, for each seat.
const EVENT_DURATION: Duration = Duration::from_millis(5);

/// What is looked at; an empty namespace or name is any.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Watched {
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

/// The watches that are open.
#[derive(Default)]
pub struct WatchTracker(Mutex<HashMap<Watched, usize>>);

/// One open watch; counted until it is dropped.
pub struct OpenWatch {
    tracker: Arc<WatchTracker>,
    watched: Watched,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut watches = self.tracker.0.lock();
        if let Some(count) = watches.get_mut(&self.watched) {
            *count -= 1;
            if *count == 0 {
                watches.remove(&self.watched);
            }
        }
    }
}

impl Watched {
    fn new(info: &RequestInfo, namespace: &str, name: &str) -> Self {
        let [group, resource] = [&info.group, &info.resource].map(String::clone);
        Self { group, resource, namespace: namespace.into(), name: name.into() }
    }
}

impl WatchTracker {
    pub fn open(self: &Arc<Self>, info: &RequestInfo) -> OpenWatch {
        let watched = Watched::new(info, &info.namespace, &info.name);
        *self.0.lock().entry(watched.clone()).or_default() += 1;
        OpenWatch { tracker: self.clone(), watched }
    }

    /// How many see what `info` changes.
    fn interested(&self, info: &RequestInfo) -> usize {
        let mut places = vec![("", "")];
        if !info.namespace.is_empty() {
            places.push((&info.namespace, ""));
        }
        if !info.name.is_empty() {
            places.push(("", &info.name));
            if !info.namespace.is_empty() {
                places.push((&info.namespace, &info.name));
            }
        }
        let watches = self.0.lock();
        let count = |(namespace, name)| watches.get(&Watched::new(info, namespace, name)).copied().unwrap_or(0);
        places.into_iter().map(count).sum()
    }
}

/// What seats are counted by.
pub struct Estimate<'a> {
    pub cluster: &'a Cluster,
    /// Whether lists weigh what they hold, not how many they are.
    pub lists_by_size: bool,
    /// What one request may take of its level.
    pub request_max: usize,
}

impl Estimate<'_> {
    /// What a request takes and, if it is a write, how many watches it wakes.
    pub fn of(&self, call: &Call, watches: &WatchTracker) -> (Width, Option<usize>) {
        let info = &call.info;
        let is_token = info.verb == Verb::Create && info.resource == "serviceaccounts" && info.subresource == "token";
        if info.is_resource && info.is_mutating() && info.verb != Verb::DeleteCollection && !is_token {
            let woken = watches.interested(info);
            return (write_width(woken, self.request_max), Some(woken));
        }
        let width = match info.verb {
            _ if !info.is_resource => Width::ONE,
            Verb::List | Verb::DeleteCollection => self.list(call),
            Verb::Watch => {
                let version = call.query.text("resourceVersion").unwrap_or_default();
                match call.query.flag("sendInitialEvents") || matches!(version, "" | "0") {
                    true => self.list(call),
                    false => Width::ONE,
                }
            }
            _ => Width::ONE,
        };
        (width, None)
    }

    fn list(&self, call: &Call) -> Width {
        let info = &call.info;
        let served = self.cluster.served.find(&info.group, &info.version, &info.resource);
        let Some(served) = served else { return Width::ONE };
        let (objects, bytes) = self.cluster.cache.resource(&served.prefix).size();
        let limit = call.query.number("limit").ok().flatten().and_then(|l| usize::try_from(l).ok()).unwrap_or(0);
        let is_single = !info.name.is_empty();
        let initial = match self.lists_by_size {
            true => list_seats(objects, bytes, limit, is_single, self.request_max),
            false => list_seats_by_count(objects, is_single, self.request_max),
        };
        Width { initial, ..Width::ONE }
    }
}

fn list_seats(objects: usize, bytes: usize, limit: usize, is_single: bool, request_max: usize) -> usize {
    let shown = match limit {
        _ if is_single => objects.min(1),
        0 => objects,
        limit => limit.min(objects),
    };
    let held = (bytes / objects.max(1)).saturating_mul(shown).min(LIST_BYTES_MAX);
    held.div_ceil(BYTES_PER_SEAT).clamp(1, request_max.clamp(1, LIST_SEATS_MAX))
}

/// All that is in the cache is looked at, however little of it is shown.
fn list_seats_by_count(objects: usize, is_single: bool, request_max: usize) -> usize {
    let looked_at = if is_single { 1 } else { objects };
    looked_at.div_ceil(OBJECTS_PER_SEAT).clamp(1, request_max.clamp(1, LIST_SEATS_MAX))
}

fn write_width(watches: usize, request_max: usize) -> Width {
    if watches < WATCHES_PER_SEAT {
        return Width::ONE;
    }
    let wanted = watches.div_ceil(WATCHES_PER_SEAT);
    let final_seats = wanted.min(request_max.clamp(1, WRITE_SEATS_MAX));
    // The same work with fewer seats takes longer.
    let additional = EVENT_DURATION.mul_f64(wanted as f64 / final_seats as f64);
    Width { initial: 1, final_seats, additional }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::query::Query;

    #[test]
    fn lists_weigh_what_they_read() {
        let check = |objects, bytes, limit, single, max, expected| {
            assert_eq!(list_seats(objects, bytes, limit, single, max), expected, "{objects} {bytes} {limit} {max}");
        };
        check(0, 0, 0, false, 50, 1);
        check(100, 50_000, 0, false, 50, 1);
        check(1000, 500_000, 0, false, 50, 5);
        check(1000, 500_000, 100, false, 50, 1);
        check(100_000, 500_000_000, 0, false, 50, 10);
        check(100_000, 500_000_000, 0, false, 3, 3);
        check(100_000, 500_000_000, 0, true, 50, 1);
        let counted = [(0, false), (100, false), (101, false), (100_000, false), (100_000, true)];
        assert_eq!(counted.map(|(objects, single)| list_seats_by_count(objects, single, 50)), [1, 1, 2, 50, 1]);
    }

    #[test]
    fn writes_weigh_what_they_wake() {
        let info = |path: &str| RequestInfo::parse(&http::Method::PUT, path, &Query::parse(""));
        let tracker = Arc::new(WatchTracker::default());
        let one = info("/api/v1/namespaces/a/pods/p");
        let open: Vec<_> = ["/api/v1/pods", "/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", "/api/v1/nodes"]
            .into_iter()
            .chain(["/api/v1/namespaces/a/pods/p", "/api/v1/namespaces/a/pods/q"])
            .map(|path| tracker.open(&info(path)))
            .collect();
        assert_eq!(tracker.interested(&one), 3);
        assert_eq!(tracker.interested(&info("/api/v1/namespaces/c/pods/p")), 1);
        drop(open);
        assert_eq!((tracker.interested(&one), tracker.0.lock().len()), (0, 0));
        assert_eq!(write_width(9, 10), Width::ONE);
        let expected = Width { initial: 1, final_seats: 3, additional: EVENT_DURATION };
        assert_eq!(write_width(25, 10), expected);
        let expected = Width { initial: 1, final_seats: 10, additional: 10 * EVENT_DURATION };
        assert_eq!(write_width(1000, 50), expected);
    }
}
