//! What every store must do, as tests that any backend is run through: `contract::run_all!(name => async || fixture)`.
//! Run on memory, embedded and a real etcd in `tests/store`.
//! Invariant: knows nothing of a backend (type: a case sees only `dyn Store`).

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;

use crate::{
    Change, Compare, Event, Operation, Outcome, Range, Record, Revision, Store, StoreError, Transaction, WatchItem,
    WatchStream, prefix_end,
};

/// A store for one case, with what must live as long as it.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub keep: Box<dyn Any + Send>,
}

/// One `#[tokio::test]` per case, in a module called `$name`.
#[macro_export]
macro_rules! __run_store_contract {
    ($name:ident => $factory:expr) => {
        $crate::__run_store_contract!(@cases $name, $factory,
            changes_count_revisions, compare_and_set, transactions_are_all_or_nothing, conflicts_tell_the_current_state,
            one_key_changes_once_per_revision, ranges_have_limits, ranges_read_the_past, pages_are_consistent_during_writes,
            watch_replays_then_follows, watch_tells_every_change_of_a_transaction, watch_tells_progress, watch_from_the_future_waits, watch_loses_nothing,
            deletions_carry_the_previous_value, compaction_forgets_the_past, future_revisions_are_refused,
            keys_end_with_their_time, prefixes_hold_exactly_their_keys, odd_ranges_are_empty, large_values_come_back);
    };
    (@cases $name:ident, $factory:expr, $($case:ident),*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture: $crate::contract::Fixture = ($factory)().await;
                    $crate::contract::$case(fixture.store.clone()).await;
                    drop(fixture);
                }
            )*
        }
    };
}
pub use crate::__run_store_contract as run_all;

/// How long a case waits for something that must happen.
const EVENT_TIMEOUT: Duration = Duration::from_secs(120);

pub fn put(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds: None }
}

pub fn delete(key: &str) -> Operation {
    Operation::Delete { key: key.into() }
}

/// Writes without a condition; the revision.
pub async fn write(store: &dyn Store, operations: Vec<Operation>) -> Revision {
    match store.transact(Transaction { compare: vec![], operations }).await {
        Ok(Outcome::Done { revision, .. }) => revision,
        other => panic!("write failed: {other:?}"),
    }
}

pub async fn write_if(store: &dyn Store, compare: &[(&str, Revision)], operations: Vec<Operation>) -> Outcome {
    let compare = compare.iter().map(|(key, at)| Compare { key: (*key).into(), mod_revision: *at }).collect();
    store.transact(Transaction { compare, operations }).await.expect("a transaction")
}

/// A range over everything below `prefix`.
pub fn under(prefix: &str, limit: usize, revision: Option<Revision>) -> Range {
    Range { start: prefix.into(), end: prefix_end(prefix), limit, revision }
}

async fn listed(store: &dyn Store, prefix: &str, revision: Option<Revision>) -> Vec<(String, String)> {
    let result = store.range(under(prefix, 0, revision)).await.expect("a range");
    result.records.iter().map(|r| (r.key.clone(), text(&r.value))).collect()
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// The next events that came together, skipping progress.
pub async fn next_events(stream: &mut WatchStream) -> Vec<Event> {
    loop {
        match env::timeout(EVENT_TIMEOUT, stream.next()).await.expect("an event in time") {
            Some(Ok(WatchItem::Events(events))) => return events,
            Some(Ok(WatchItem::Progress(_))) => {}
            other => panic!("watch ended: {other:?}"),
        }
    }
}

/// The next `count` events.
async fn next_n_events(stream: &mut WatchStream, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        events.extend(next_events(stream).await);
    }
    assert_eq!(events.len(), count, "{events:?}");
    events
}

fn short(event: &Event) -> String {
    match &event.change {
        Change::Put { value, created } => {
            format!("{} {}={}", if *created { "created" } else { "put" }, event.key, text(value))
        }
        Change::Delete { previous } => {
            format!("deleted {} was {:?}", event.key, previous.as_ref().map(|value| text(value)))
        }
    }
}

pub async fn changes_count_revisions(store: Arc<dyn Store>) {
    let before = store.revision().await.expect("a revision");
    assert!(before >= 1, "revision 0 means something else to Kubernetes");
    let first = write(&*store, vec![put("/a/1", "x")]).await;
    assert_eq!(first, before + 1);
    let second = write(&*store, vec![put("/a/1", "y"), put("/a/2", "z")]).await;
    // Each of its keys may have a revision of its own.
    let changed = store.get("/a/1").await.expect("a get").expect("the key").mod_revision;
    assert_eq!(changed, before + 2);
    assert!((changed..=changed + 1).contains(&second), "{second} is reached by two changes from {changed} on");
    assert_eq!(store.get("/a/2").await.expect("a get").expect("the key").mod_revision, second);
    assert_eq!(write(&*store, vec![delete("/a/absent")]).await, second, "nothing changed, no revision");
    assert_eq!(write(&*store, vec![]).await, second);
    let record = store.get("/a/1").await.expect("a get").expect("the key");
    let want = Record { key: "/a/1".into(), value: "y".into(), create_revision: first, mod_revision: changed };
    assert_eq!(record, want);
    let third = write(&*store, vec![delete("/a/1")]).await;
    assert_eq!((third, store.get("/a/1").await.expect("a get")), (second + 1, None));
    let fourth = write(&*store, vec![put("/a/1", "again")]).await;
    assert_eq!(store.get("/a/1").await.expect("a get").expect("the key").create_revision, fourth);
    assert_eq!(store.revision().await.expect("a revision"), fourth);
    assert_eq!(store.count("/a/", &prefix_end("/a/")).await.expect("a count"), 2);
}

pub async fn compare_and_set(store: Arc<dyn Store>) {
    // Twenty writers add one, ten times each, to the same key.
    write(&*store, vec![put("/counter", "0")]).await;
    let add = |store: Arc<dyn Store>| async move {
        for _ in 0..10 {
            loop {
                let now = store.get("/counter").await.expect("a get").expect("the counter");
                let next = text(&now.value).parse::<u32>().expect("a number") + 1;
                let compare = [("/counter", now.mod_revision)];
                if let Outcome::Done { .. } =
                    write_if(&*store, &compare, vec![put("/counter", &next.to_string())]).await
                {
                    break;
                }
            }
        }
    };
    let writers: Vec<_> = (0..20).map(|_| env::spawn(add(store.clone()))).collect();
    for writer in writers {
        writer.await.expect("a writer");
    }
    assert_eq!(text(&store.get("/counter").await.expect("a get").expect("the counter").value), "200");
}

pub async fn transactions_are_all_or_nothing(store: Arc<dyn Store>) {
    let a = write(&*store, vec![put("/t/a", "1")]).await;
    let refused = write_if(&*store, &[("/t/a", a), ("/t/b", 99)], vec![put("/t/a", "2"), put("/t/c", "3")]).await;
    assert!(matches!(refused, Outcome::Conflict { .. }), "{refused:?}");
    assert_eq!(store.revision().await.expect("a revision"), a);
    assert_eq!(listed(&*store, "/t/", None).await, [("/t/a".into(), "1".into())]);
    let done =
        write_if(&*store, &[("/t/a", a), ("/t/b", 0)], vec![delete("/t/a"), put("/t/b", "2"), put("/t/c", "3")]).await;
    let Outcome::Done { first, revision } = done else { panic!("{done:?}") };
    assert_eq!((first, revision), (a + 1, store.revision().await.expect("a revision")));
    assert_eq!(listed(&*store, "/t/", None).await, [("/t/b".into(), "2".into()), ("/t/c".into(), "3".into())]);
}

pub async fn conflicts_tell_the_current_state(store: Arc<dyn Store>) {
    let created = write(&*store, vec![put("/c/a", "1")]).await;
    let changed = write(&*store, vec![put("/c/a", "2")]).await;
    let record = Record { key: "/c/a".into(), value: "2".into(), create_revision: created, mod_revision: changed };
    for compare in
        [&[("/c/none", 0), ("/c/a", 0)], &[("/c/none", 5), ("/c/a", changed)], &[("/c/none", 0), ("/c/a", created)]]
    {
        let outcome = write_if(&*store, compare, vec![put("/c/a", "lost")]).await;
        let want = Outcome::Conflict { current: vec![None, Some(record.clone())], revision: changed };
        assert_eq!(outcome, want, "{compare:?}");
    }
}

pub async fn one_key_changes_once_per_revision(store: Arc<dyn Store>) {
    let mut stream = store.watch("/o/", &prefix_end("/o/"), 0).await.expect("a watch");
    write(&*store, vec![put("/o/a", "1"), delete("/o/a"), put("/o/b", "1"), put("/o/a", "2")]).await;
    let told: Vec<_> = next_events(&mut stream).await.iter().map(short).collect();
    assert_eq!(told, ["created /o/b=1", "created /o/a=2"]);
}

pub async fn ranges_have_limits(store: Arc<dyn Store>) {
    for n in 0..7 {
        write(&*store, vec![put(&format!("/r/{n}"), &n.to_string())]).await;
    }
    write(&*store, vec![put("/s/other", "x"), delete("/r/3")]).await;
    let newest = store.revision().await.expect("a revision");
    for (limit, found, remaining) in [(0, 6, 0), (1, 1, 5), (5, 5, 1), (6, 6, 0), (100, 6, 0)] {
        let result = store.range(under("/r/", limit, None)).await.expect("a range");
        assert_eq!((result.records.len(), result.remaining, result.revision), (found, remaining, newest), "{limit}");
        assert!(result.records.is_sorted_by_key(|r| r.key.clone()));
    }
}

pub async fn ranges_read_the_past(store: Arc<dyn Store>) {
    let before = store.revision().await.expect("a revision");
    let first = write(&*store, vec![put("/p/a", "1"), put("/p/b", "1")]).await;
    let second = write(&*store, vec![put("/p/a", "2"), delete("/p/b"), put("/p/c", "2")]).await;
    let third = write(&*store, vec![delete("/p/a")]).await;
    let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
    for (revision, want) in [
        (before, vec![]),
        (first, vec![pair("/p/a", "1"), pair("/p/b", "1")]),
        (second, vec![pair("/p/a", "2"), pair("/p/c", "2")]),
        (third, vec![pair("/p/c", "2")]),
    ] {
        assert_eq!(listed(&*store, "/p/", Some(revision)).await, want, "at {revision}");
    }
    let page = store.range(under("/p/", 1, Some(first))).await.expect("a range");
    assert_eq!((page.remaining, page.revision, page.records[0].mod_revision), (1, first, before + 1));
}

pub async fn pages_are_consistent_during_writes(store: Arc<dyn Store>) {
    for n in 0..50 {
        write(&*store, vec![put(&format!("/g/{n:03}"), "old")]).await;
    }
    let mut seen = Vec::new();
    let mut page = store.range(under("/g/", 7, None)).await.expect("a range");
    let revision = page.revision;
    let mut round = 0;
    loop {
        seen.extend(page.records.iter().map(|r| (r.key.clone(), text(&r.value))));
        let Some(last) = page.records.last().filter(|_| page.remaining > 0) else { break };
        assert_eq!(page.remaining as usize, 50 - seen.len());
        let start = format!("{}\0", last.key);
        round += 1;
        write(
            &*store,
            vec![
                put(&format!("/g/{:03}", 50 - round), "new"),
                delete(&format!("/g/{:03}", 49 - 2 * round)),
                put(&format!("/g/9{round}"), "new"),
            ],
        )
        .await;
        let range = Range { start, end: prefix_end("/g/"), limit: 7, revision: Some(revision) };
        page = store.range(range).await.expect("the next page");
    }
    let want: Vec<_> = (0..50).map(|n| (format!("/g/{n:03}"), "old".to_string())).collect();
    assert_eq!(seen, want);
}

pub async fn watch_replays_then_follows(store: Arc<dyn Store>) {
    write(&*store, vec![put("/w/a", "0")]).await;
    let from = write(&*store, vec![put("/w/a", "1")]).await;
    write(&*store, vec![put("/x/outside", "1")]).await;
    write(&*store, vec![put("/w/b", "1"), delete("/w/a"), put("/x/outside", "2")]).await;
    let mut stream = store.watch("/w/", &prefix_end("/w/"), from).await.expect("a watch");
    let mut told = next_n_events(&mut stream, 3).await;
    write(&*store, vec![put("/w/a", "2")]).await;
    write(&*store, vec![put("/w", "just before"), put("/w0", "just after")]).await;
    write(&*store, vec![put("/w/a", "3")]).await;
    told.extend(next_n_events(&mut stream, 2).await);
    // Within one revision the order is the backend's.
    told[1..3].sort_by_key(|e| e.key != "/w/b");
    let shorts: Vec<_> = told.iter().map(short).collect();
    assert_eq!(
        shorts,
        ["put /w/a=1", "created /w/b=1", "deleted /w/a was Some(\"1\")", "created /w/a=2", "put /w/a=3"]
    );
    assert!(told.is_sorted_by_key(|e| e.revision));
    assert_eq!((told[0].revision, told[1].revision), (from, from + 2));
}

/// A watcher that begins, or goes on, at any of a transaction's revisions hears of every change from there on.
pub async fn watch_tells_every_change_of_a_transaction(store: Arc<dyn Store>) {
    let before = write(&*store, vec![put("/m/b", "0"), put("/m/d", "0")]).await;
    let watch = async |from| store.watch("/m/", &prefix_end("/m/"), from).await.expect("a watch");
    let mut live = watch(before + 1).await;
    let operations = vec![put("/m/a", "1"), delete("/m/b"), put("/outside", "1"), put("/m/c", "1"), put("/m/d", "1")];
    let done = write_if(&*store, &[], operations).await;
    let Outcome::Done { first, revision } = done else { panic!("{done:?}") };
    let all = next_n_events(&mut live, 4).await;
    assert_eq!((first, all[3].revision), (before + 1, revision));
    // Only where several processes write may changes share a revision.
    assert!(all.windows(2).all(|two| two[0].revision < two[1].revision || store.is_shared()), "{all:?}");
    for event in &all {
        let left: Vec<_> = all.iter().filter(|other| other.revision >= event.revision).cloned().collect();
        let mut resumed = watch(event.revision).await;
        assert_eq!(next_n_events(&mut resumed, left.len()).await, left, "from {}", event.revision);
        if let (false, Some(record)) = (event.key == "/m/b", store.get(&event.key).await.expect("a get")) {
            assert_eq!(record.mod_revision, event.revision, "{}", event.key);
        }
    }
    // Progress claims a revision only when all of its changes were told.
    let mut past = watch(before + 1).await;
    let mut told = Vec::new();
    while told.len() < all.len() {
        match env::timeout(EVENT_TIMEOUT, past.next()).await.expect("an event in time") {
            Some(Ok(WatchItem::Events(events))) => told.extend(events),
            Some(Ok(WatchItem::Progress(reached))) => assert!(reached < all[told.len()].revision, "{reached}"),
            other => panic!("watch ended: {other:?}"),
        }
    }
    assert_eq!(told, all);
}

pub async fn watch_tells_progress(store: Arc<dyn Store>) {
    let current = write(&*store, vec![put("/x/a", "1")]).await;
    let mut stream = store.watch("/w/", &prefix_end("/w/"), current + 1).await.expect("a watch");
    let first = env::timeout(EVENT_TIMEOUT, stream.next()).await.expect("progress in time");
    assert!(matches!(first, Some(Ok(WatchItem::Progress(revision))) if revision == current), "{first:?}");
}

pub async fn watch_from_the_future_waits(store: Arc<dyn Store>) {
    let current = write(&*store, vec![put("/w/a", "0")]).await;
    let mut stream = store.watch("/w/", &prefix_end("/w/"), current + 3).await.expect("a watch");
    for n in 1..=3 {
        write(&*store, vec![put("/w/a", &n.to_string())]).await;
    }
    assert_eq!(short(&next_events(&mut stream).await[0]), "put /w/a=3");
}

pub async fn watch_loses_nothing(store: Arc<dyn Store>) {
    const WRITERS: usize = 8;
    const WRITES: usize = 60;
    let from = store.revision().await.expect("a revision") + 1;
    let write_all = |store: Arc<dyn Store>, writer: usize| async move {
        for n in 0..WRITES {
            let key = format!("/n/{writer}/{}", n % 5);
            let operation = if n % 7 == 6 { delete(&key) } else { put(&key, &n.to_string()) };
            write(&*store, vec![operation, put(&format!("/outside/{writer}"), "x")]).await;
        }
    };
    let early = store.watch("/n/", &prefix_end("/n/"), from).await.expect("a watch");
    let writers: Vec<_> = (0..WRITERS).map(|w| env::spawn(write_all(store.clone(), w))).collect();
    env::sleep(Duration::from_millis(5)).await;
    let middle = store.watch("/n/", &prefix_end("/n/"), from).await.expect("a watch");
    for writer in writers {
        writer.await.expect("a writer");
    }
    let late = store.watch("/n/", &prefix_end("/n/"), from).await.expect("a watch");
    let end = write(&*store, vec![put("/n/end", "x")]).await;
    let mut logs = Vec::new();
    for mut stream in [early, middle, late] {
        let mut log = Vec::new();
        while log.last().is_none_or(|event: &Event| event.revision < end) {
            log.extend(next_events(&mut stream).await);
        }
        assert!(log.windows(2).all(|pair| pair[0].revision < pair[1].revision), "doubled or reordered");
        logs.push(log);
    }
    assert_eq!(logs[0], logs[1], "a watch that began between");
    assert_eq!(logs[0], logs[2], "a watch that began afterwards");
    let mut state = BTreeMap::new();
    for event in &logs[0] {
        match &event.change {
            Change::Put { value, .. } => state.insert(event.key.clone(), text(value)),
            Change::Delete { .. } => state.remove(&event.key),
        };
    }
    assert_eq!(state.into_iter().collect::<Vec<_>>(), listed(&*store, "/n/", None).await);
}

pub async fn deletions_carry_the_previous_value(store: Arc<dyn Store>) {
    let from = write(&*store, vec![put("/d/a", "first"), put("/d/b", "other")]).await + 1;
    let mut live = store.watch("/d/", &prefix_end("/d/"), from).await.expect("a watch");
    write(&*store, vec![put("/d/a", "second")]).await;
    write(&*store, vec![delete("/d/a")]).await;
    let mut past = store.watch("/d/", &prefix_end("/d/"), from).await.expect("a watch");
    for stream in [&mut live, &mut past] {
        assert_eq!(short(&next_events(stream).await[0]), "put /d/a=second");
        assert_eq!(short(&next_events(stream).await[0]), "deleted /d/a was Some(\"second\")");
    }
}

pub async fn compaction_forgets_the_past(store: Arc<dyn Store>) {
    let first = write(&*store, vec![put("/k/a", "1"), put("/k/b", "1")]).await;
    write(&*store, vec![delete("/k/b")]).await;
    let kept = write(&*store, vec![put("/k/a", "2")]).await;
    let last = write(&*store, vec![put("/k/a", "3")]).await;
    store.compact(kept).await.expect("a compaction");
    let refused = |error: StoreError, requested| {
        let fits = matches!(error, StoreError::Compacted { requested: r, oldest } if r == requested && oldest == kept);
        assert!(fits, "{error:?}");
    };
    refused(store.range(under("/k/", 0, Some(first))).await.expect_err("compacted"), first);
    refused(store.watch("/k/", &prefix_end("/k/"), first).await.err().expect("compacted"), first);
    refused(store.compact(first).await.expect_err("compacted"), first);
    store.compact(kept).await.expect("the same compaction again");
    assert_eq!(listed(&*store, "/k/", Some(kept)).await, [("/k/a".into(), "2".into())]);
    assert_eq!(listed(&*store, "/k/", None).await, [("/k/a".into(), "3".into())]);
    let mut stream = store.watch("/k/", &prefix_end("/k/"), kept).await.expect("a watch");
    assert_eq!(short(&next_events(&mut stream).await[0]), "put /k/a=2");
    assert_eq!(short(&next_events(&mut stream).await[0]), "put /k/a=3");
    store.compact(last).await.expect("a compaction to the newest");
    assert_eq!(listed(&*store, "/k/", Some(last)).await, [("/k/a".into(), "3".into())]);
}

pub async fn future_revisions_are_refused(store: Arc<dyn Store>) {
    let newest = write(&*store, vec![put("/f/a", "1")]).await;
    let requested = newest + 10;
    for error in [
        store.range(under("/f/", 0, Some(requested))).await.expect_err("a future range"),
        store.compact(requested).await.expect_err("a future compaction"),
    ] {
        let fits = matches!(error, StoreError::Future { requested: r, newest: n } if r == requested && n == newest);
        assert!(fits, "{error:?}");
    }
}

pub async fn keys_end_with_their_time(store: Arc<dyn Store>) {
    // A machine that stalls may let the time run out before it is looked at; then there is more of it.
    for seconds in [2, 10, 60] {
        if keys_end_after(&*store, seconds).await {
            return;
        }
    }
    panic!("two writes took longer than a minute");
}

/// False, and as if nothing had been written, when the time was over before all was said.
async fn keys_end_after(store: &dyn Store, seconds: u64) -> bool {
    let ending = |key: &str, ttl| Operation::Put { key: key.into(), value: "x".into(), ttl_seconds: Some(ttl) };
    let began = env::instant_now();
    let all = vec![ending("/e/short", seconds), ending("/e/long", 3600), ending("/e/kept", seconds)];
    let from = write(store, all).await + 1;
    let deadlines = store.deadlines("/e/", &prefix_end("/e/")).await.expect("deadlines");
    let kept = write(store, vec![put("/e/kept", "y")]).await;
    if began.elapsed() >= Duration::from_secs(seconds) {
        write(store, ["/e/short", "/e/long", "/e/kept"].map(delete).into()).await;
        return false;
    }
    assert_eq!(deadlines.len(), 3, "{deadlines:?}");
    assert_eq!(kept, from);
    let mut stream = store.watch("/e/", &prefix_end("/e/"), from).await.expect("a watch");
    assert_eq!(short(&next_events(&mut stream).await[0]), "put /e/kept=y");
    let ended = next_events(&mut stream).await;
    assert_eq!(ended.iter().map(short).collect::<Vec<_>>(), ["deleted /e/short was Some(\"x\")"]);
    assert!(ended[0].revision > kept, "an end is a revision of its own");
    env::sleep(Duration::from_millis(1500)).await;
    assert_eq!(listed(store, "/e/", None).await, [("/e/kept".into(), "y".into()), ("/e/long".into(), "x".into())]);
    true
}

pub async fn prefixes_hold_exactly_their_keys(store: Arc<dyn Store>) {
    let all = ["a", "a/", "a/b", "a/b/c", "a/\u{7f}", "a/é", "a/ê", "a/\u{10ffff}", "a0", "b", "\u{10fffe}z"];
    write(&*store, all.iter().map(|key| put(key, "x")).collect()).await;
    for prefix in ["a", "a/", "a/b", "a/\u{7f}", "a/é", "a/\u{10ffff}", "b", "\u{10fffe}", "none", ""] {
        let mut want: Vec<_> = all.iter().filter(|key| key.starts_with(prefix)).map(|key| key.to_string()).collect();
        want.sort();
        let got: Vec<_> = listed(&*store, prefix, None).await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(got, want, "prefix {prefix:?}");
        let count = store.count(prefix, &prefix_end(prefix)).await.expect("a count");
        assert_eq!(count as usize, want.len(), "prefix {prefix:?}");
    }
}

pub async fn odd_ranges_are_empty(store: Arc<dyn Store>) {
    write(&*store, vec![put("/b", "x")]).await;
    for (start, end) in [("/c", "/a"), ("/b", "/b"), ("/b\0", "/c")] {
        let range = Range { start: start.into(), end: end.into(), limit: 0, revision: None };
        let result = store.range(range).await.expect("a range");
        assert_eq!((result.records.len(), result.remaining), (0, 0), "{start}..{end}");
        assert_eq!(store.count(start, end).await.expect("a count"), 0, "{start}..{end}");
    }
    assert_eq!(store.get("").await.expect("a get"), None);
}

pub async fn large_values_come_back(store: Arc<dyn Store>) {
    for size in [0, 1, 100_000, 1_000_000] {
        let value: Bytes = (0..size).map(|n| (n % 251) as u8).collect();
        let key = format!("/l/{size}");
        write(&*store, vec![Operation::Put { key: key.clone(), value: value.clone(), ttl_seconds: None }]).await;
        assert_eq!(store.get(&key).await.expect("a get").expect("the key").value, value);
    }
    let value = Bytes::from(vec![0; 20 << 20]);
    let huge = Operation::Put { key: "/l/huge".into(), value, ttl_seconds: None };
    let refused = store.transact(Transaction { compare: vec![], operations: vec![huge] }).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    assert_eq!(store.count("/l/", &prefix_end("/l/")).await.expect("a count"), 4);
}
