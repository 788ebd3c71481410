//! What stores do by themselves: forget history, give disk space back, expire keys, drop slow watchers; and backups.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use env::Env;
use futures::StreamExt;
use store::{
    EmbeddedStore, Limits, MemoryStore, Operation, Range, Store, StoreError, WatchItem, backup, check,
    contract::{delete, next_events, put, under, write},
    prefix_end, restore,
};

fn open(path: &Path, limits: Limits) -> EmbeddedStore {
    EmbeddedStore::open_with_limits(path, Env::real(), limits).expect("the store opens")
}

async fn contents(store: &dyn Store) -> BTreeMap<String, (Vec<u8>, u64, u64)> {
    let all = Range { start: String::new(), end: prefix_end(""), limit: 0, revision: None };
    let records = store.range(all).await.unwrap().records;
    records.into_iter().map(|r| (r.key, (r.value.to_vec(), r.create_revision, r.mod_revision))).collect()
}

#[tokio::test]
async fn disk_space_is_given_back_and_nothing_else_changes() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { segment_bytes: 32 << 10, history_revisions: 50, ..Limits::default() };
    let mut store = open(directory.path(), limits.clone());
    for n in 0..30 {
        write(&store, vec![put(&format!("/still/{n:02}"), &format!("{n}").repeat(100))]).await;
    }
    for n in 0..3000 {
        let key = format!("/hot/{}", n % 10);
        let operation = if n % 9 == 8 { delete(&key) } else { put(&key, &format!("{n} ").repeat(200)) };
        write(&store, vec![operation]).await;
        if n % 700 == 699 {
            let before = contents(&store).await;
            drop(store);
            store = open(directory.path(), limits.clone());
            assert_eq!(contents(&store).await, before, "opened again after {n}");
        }
    }
    let before = contents(&store).await;
    assert_eq!(before.len(), 30 + store.count("/hot/", "/hot0").await.unwrap() as usize);
    // Space is given back between writes; what they left no time for comes now.
    let end = env::instant_now() + Duration::from_secs(120);
    loop {
        let size = store.size_bytes().await.unwrap();
        if size < 400 << 10 {
            break;
        }
        let late = env::instant_now() >= end;
        assert!(!late, "{size} bytes for {} keys; about 3 MB were written", before.len());
        env::sleep(Duration::from_millis(20)).await;
    }
    let revision = store.revision().await.unwrap();
    drop(store);
    let report = check(directory.path()).unwrap();
    assert_eq!((report.revision, report.keys), (revision, before.len() as u64));
    assert_eq!(contents(&open(directory.path(), limits)).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_space_is_given_back_while_writers_never_rest() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { segment_bytes: 32 << 10, history_revisions: 50, ..Limits::default() };
    let store = Arc::new(open(directory.path(), limits));
    // So many at once that the queue is never empty, and so few keys that nearly nothing is needed for long.
    let writers = (0..64).map(|writer| {
        let store = store.clone();
        env::spawn(async move {
            let mut largest = 0;
            for n in 0..200 {
                write(&*store, vec![put(&format!("/hot/{writer}"), &format!("{n} ").repeat(200))]).await;
                largest = largest.max(store.size_bytes().await.unwrap());
            }
            largest
        })
    });
    let largest = futures::future::join_all(writers).await.into_iter().map(Result::unwrap).max().unwrap();
    assert!(largest < 4 << 20, "{largest} bytes for 64 keys of 800 bytes");
}

#[tokio::test]
async fn history_has_a_limit_and_survives_opening() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { history_revisions: 10, ..Limits::default() };
    let store = open(directory.path(), limits.clone());
    for n in 0..25 {
        write(&store, vec![put("/h/a", &n.to_string())]).await;
    }
    let newest = store.revision().await.unwrap();
    let check = async |store: &EmbeddedStore| {
        let old = store.range(under("/h/", 0, Some(newest - 11))).await;
        assert!(matches!(old, Err(StoreError::Compacted { .. })), "{old:?}");
        let kept = store.range(under("/h/", 0, Some(newest - 9))).await.unwrap();
        assert_eq!(&kept.records[0].value[..], b"15");
        let mut stream = store.watch("/h/", "/i", newest - 9).await.unwrap();
        for n in 0..10 {
            assert_eq!(next_events(&mut stream).await[0].revision, newest - 9 + n);
        }
    };
    check(&store).await;
    drop(store);
    check(&open(directory.path(), limits)).await;
}

#[tokio::test(start_paused = true)]
async fn old_history_is_forgotten_and_keys_expire_in_simulated_time() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let store = MemoryStore::new(env.clone());
    let first = write(&store, vec![put("/h/a", "1")]).await;
    env.sleep(Duration::from_secs(200)).await;
    write(&store, vec![put("/h/a", "2")]).await;
    env.sleep(Duration::from_secs(150)).await;
    let third = write(&store, vec![put("/h/a", "3")]).await;
    assert!(store.range(under("/h/", 0, Some(first))).await.is_ok(), "first is what was there 300 s ago");
    env.sleep(Duration::from_secs(160)).await;
    let old = store.range(under("/h/", 0, Some(first))).await;
    assert!(matches!(old, Err(StoreError::Compacted { .. })), "{old:?}");
    env.sleep(Duration::from_secs(400)).await;
    assert!(store.range(under("/h/", 0, Some(third))).await.is_ok(), "the newest can always be read");

    let ending = Operation::Put { key: "/h/b".into(), value: "x".into(), ttl_seconds: Some(3600) };
    write(&store, vec![ending]).await;
    env.sleep(Duration::from_secs(3599)).await;
    assert!(store.get("/h/b").await.unwrap().is_some());
    env.sleep(Duration::from_secs(2)).await;
    assert!(store.get("/h/b").await.unwrap().is_none());
}

#[tokio::test]
async fn time_to_live_survives_opening() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Limits::default());
    let ending = |key: &str, ttl| Operation::Put { key: key.into(), value: "x".into(), ttl_seconds: Some(ttl) };
    let from = write(&store, vec![ending("/e/soon", 1), ending("/e/late", 1000)]).await + 1;
    drop(store);
    let store = open(directory.path(), Limits::default());
    let mut stream = store.watch("/e/", "/f", from).await.unwrap();
    let events = next_events(&mut stream).await;
    assert_eq!((events.len(), events[0].key.as_str()), (1, "/e/soon"));
    drop(store);
    let store = open(directory.path(), Limits::default());
    assert_eq!(contents(&store).await.into_keys().collect::<Vec<_>>(), ["/e/late"]);
}

#[tokio::test]
async fn slow_watchers_are_ended_and_others_hear_of_progress() {
    let limits = Limits { watch_buffer_events: 10, ..Limits::default() };
    let store = MemoryStore::with_limits(Env::real(), limits);
    let mut slow = store.watch("/s/", "/t", 0).await.unwrap();
    let mut outside = store.watch("/other/", "/p", 0).await.unwrap();
    for n in 0..20 {
        write(&store, vec![put("/s/a", &n.to_string())]).await;
    }
    let mut seen = 0;
    let end = loop {
        match slow.next().await {
            Some(Ok(WatchItem::Events(events))) => seen += events.len(),
            Some(Ok(WatchItem::Progress(_))) => {}
            Some(Err(error)) => break error,
            None => panic!("ended without a reason"),
        }
    };
    assert!(matches!(&end, StoreError::Unavailable(reason) if reason == "watcher too slow"), "{end:?}");
    assert_eq!(seen, 10);
    assert!(slow.next().await.is_none());
    let newest = store.revision().await.unwrap();
    let mut reached = 0;
    while reached < newest {
        match env::timeout(Duration::from_secs(120), outside.next()).await.expect("progress in time") {
            Some(Ok(WatchItem::Progress(revision))) => reached = revision,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_backup_restores_the_same_objects_at_a_revision_never_reached() {
    let source = MemoryStore::new(Env::real());
    for n in 0..1200 {
        write(&source, vec![put(&format!("/b/{n:04}"), &n.to_string())]).await;
    }
    write(&source, vec![put("/b/0007", "changed"), delete("/b/0008")]).await;
    let ending = Operation::Put { key: "/b/event".into(), value: "x".into(), ttl_seconds: Some(1000) };
    write(&source, vec![ending]).await;
    let mut bytes = Vec::new();
    let made = backup(&source, &mut bytes).await.unwrap();
    assert_eq!((made.keys, made.revision), (1200, source.revision().await.unwrap()));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("restored");
    assert_eq!(restore(&path, &mut &bytes[..], 0).unwrap(), made);
    check(&path).unwrap();
    let restored = open(&path, Limits::default());
    assert_eq!(contents(&restored).await, contents(&source).await);
    let raised = made.revision + 1_000_000_000;
    assert_eq!(restored.revision().await.unwrap(), raised);
    assert_eq!(restored.deadlines("", "0").await.unwrap(), source.deadlines("", "0").await.unwrap());
    // Whoever watched the old store has to start again, also from what that wrote after the backup.
    for old in [5, made.revision, made.revision + 1, made.revision + 100_000] {
        assert!(matches!(restored.watch("/b/", "/c", old).await.err(), Some(StoreError::Compacted { .. })), "{old}");
    }
    assert!(restored.watch("/b/", "/c", raised + 1).await.is_ok());
    assert_eq!(write(&restored, vec![put("/b/new", "x")]).await, raised + 1);

    // The same backup once more, a second later: no revision that the first restore may have given out.
    let second = directory.path().join("second");
    let later_ms = (raised + 1) / 1000 + 1000;
    restore(&second, &mut &bytes[..], later_ms).unwrap();
    let restored = open(&second, Limits::default());
    assert_eq!(restored.revision().await.unwrap(), later_ms * 1000);
    assert!(matches!(restored.watch("/b/", "/c", raised + 1).await.err(), Some(StoreError::Compacted { .. })));

    let again = restore(&path, &mut &bytes[..], 0).expect_err("not empty").to_string();
    assert!(again.contains("not empty"), "{again}");
    for damage in [3, 20, 5000, bytes.len() - 3] {
        let mut damaged = bytes.clone();
        damaged[damage] ^= 1;
        let path = directory.path().join(format!("damaged-{damage}"));
        assert!(matches!(restore(&path, &mut &damaged[..], 0), Err(StoreError::Corrupted(_))), "byte {damage}");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "nothing is left");
    }
    let cut = &bytes[..bytes.len() - 100];
    assert!(restore(directory.path().join("cut"), &mut &cut[..], 0).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path(), Limits::default()));
    let env = Env::real();
    let write_some = |store: Arc<EmbeddedStore>, writer: usize| async move {
        for n in 0..100 {
            write(&*store, vec![put(&format!("/m/{writer}/{n}"), &"x".repeat(1000))]).await;
        }
    };
    // What a write costs that shares its sync with nobody, on this disk at this time.
    let lone = async || {
        let began = env.monotonic();
        for n in 0..20 {
            write(&*store, vec![put(&format!("/lone/{n}"), &"x".repeat(1000))]).await;
        }
        (env.monotonic() - began) / 20
    };
    let before = lone().await;
    let began = env.monotonic();
    let writers: Vec<_> = (0..64).map(|w| env::spawn(write_some(store.clone(), w))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let took = env.monotonic() - began;
    println!("6400 durable writes of 1 KB by 64 writers in {took:?}: {:.0}/s", 6400.0 / took.as_secs_f64());
    assert_eq!(store.count("/m/", "/n").await.unwrap(), 6400);
    let alone = before.max(lone().await);
    let shared = took < Duration::from_secs(30) || took < alone * 6400 / 4;
    assert!(shared, "{took:?}, and {alone:?} for one alone: writes do not share syncs");
}

/// Does nothing unless it is the child: memory is measured in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_holds_many_keys() {
    let Ok(directory) = std::env::var("MINKE_STORE_MANY_KEYS") else { return };
    let env = Env::real();
    let began = env.monotonic();
    let store = open(Path::new(&directory), Limits::default());
    let opened = env.monotonic() - began;
    for n in store.count("", &prefix_end("")).await.unwrap()..100_000 {
        if n % 100 == 0 {
            let key = |n: u64| format!("/registry/configmaps/some-namespace/configuration-{n:06}");
            write(&store, (n..n + 100).map(|n| put(&key(n), &"x".repeat(1000))).collect()).await;
        }
    }
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    println!("opened in {} ms, resident {} KiB", opened.as_millis(), pages * 4);
    assert!(pages * 4 < 50 << 10, "{} KiB resident for 100000 keys", pages * 4);
}

#[test]
fn a_hundred_thousand_keys_are_cheap() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "upkeep::child_holds_many_keys", "--nocapture"])
            .env("MINKE_STORE_MANY_KEYS", directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        println!("{}", said.lines().find(|line| line.contains("resident")).unwrap_or_default());
    }
}
